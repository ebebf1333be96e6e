"""Real models: what engines picked against what float32 picks, judged by how sure float32 is; and what was answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .plan import OWN_WEIGHTS
from .subjects import Subject

__all__ = ["NEAR_TIE", "against_float32", "transcripts"]

NEAR_TIE = 2.0
"""How far apart float32's two best logits may be where an engine in float16 picks another token. Logits of float16
engines were seen 1.3 from float32's on a real model, and two logits err apart. A larger margin makes it wrong."""
SECTIONS = ("decode", "runs", "start", "counters")
"""Those that play the chats' prompts."""


def against_float32(outcomes: Iterable[dict[str, Any]], subjects: Mapping[str, Subject]) -> dict[str, Any]:
    """By model with chats: for each row how many greedy tokens were compared and how many agree with float32's up to
    the first that does not, over the chats; where each chat parts, and float32's margin there; and what is `wrong`,
    entries as `disagreements` has them.

    After the first other token nothing is compared: the text is another one then.
    """
    rows: dict[str, dict[str, dict[int, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for outcome in outcomes:
        subject = subjects.get(outcome["model"])
        if not subject or not subject.chats or not outcome["ok"] or outcome["section"] not in SECTIONS:
            continue
        ids = outcome["data"].get("ids")
        if "chat" not in outcome or not ids or outcome["row"].endswith("_sampled"):
            continue
        if outcome["contender"] in OWN_WEIGHTS:
            continue
        seen = rows[subject.name][outcome["row"]]
        if len(ids) > len(seen.get(outcome["chat"], [])):
            seen[outcome["chat"]] = ids
    return {name: judged(subjects[name], found) for name, found in rows.items()}


def judged(subject: Subject, rows: Mapping[str, Mapping[int, list[int]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": {}, "wrong": []}
    for row, by_chat in rows.items():
        compared = agree = 0
        partings = []
        for place, ids in sorted(by_chat.items()):
            chat = subject.chats[place]
            pairs = list(zip(ids, chat.greedy, strict=False))
            at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
            compared += len(pairs)
            agree += len(pairs) if at is None else at
            if at is None:
                continue
            margin = chat.margins[at]
            partings.append({"chat": place, "at": at, "margin": margin})
            if margin > NEAR_TIE:
                where = {"model": subject.name, "section": "decode", "length": len(chat.prompt), "row": row}
                found["wrong"].append({**where, "against": "float32", "at": at, "strict": True, "margin": margin})
        chats = {"chats": len(by_chat), "tokens": compared, "agree": agree}
        found["rows"][row] = {**chats, "partings": partings}
    return found


def transcripts(outcomes: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By model, each chat's prompt and what was answered."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome["ok"] and outcome["section"] == "transcript":
            data = outcome["data"]
            kept = {name: data[name] for name in ("prompt", "text", "capture", "finish_reason")}
            found[outcome["model"]].append({**kept, "tokens": len(data["reply"])})
    return dict(found)
