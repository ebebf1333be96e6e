"""Attacks on the page's tokenizer, in Node: files of random parts, with values of wrong types and sizes in some.

A file is refused, or gives the ids and texts of Rust's tokenizers.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from capstan.local.rust_tokenizer import LocalBackend
from capstan.tokenizer import Tokenizer
from tests.page_tokenizer import Make, page_tokenizers
from tests.tokenizer_parts import ADDED, DECODERS, MODELS, NORMALIZERS, POST, PRE_TOKENIZERS, TEXTS, content, with_added

from .deadline import deadline
from .mutations import mutated_json
from .report import Outcome, attack
from .share import Share

__all__ = ["attack_tokenizers"]

MUTATED = 0.4
"""The share of files of which a part is mutated."""
PLACE = "the place of a part"


def attack_tokenizers(share: Share, known: Sequence[bytes]) -> Outcome:
    """So many files; `known` are cases that once failed."""
    outcome = Outcome("tokenizer parts")
    left = deque([*known, *share.cases(outcome.kind, random_file)])

    async def attack_all(folder: Path) -> None:
        while left:
            with page_tokenizers(folder) as make:
                failed = len(outcome.failures)
                # A call that does not end keeps Node: another one goes on.
                while left and len(outcome.failures) == failed:
                    case = left.popleft()
                    with deadline(outcome, case):
                        await attack(outcome, case, partial(compare, make))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(attack_all(Path(folder)))
    return outcome


async def compare(make: Make, case: bytes) -> None:
    """AssertionError if the page's tokenizer of a file differs from Rust's."""
    page = Tokenizer.from_files(make, case)
    try:
        judge = Tokenizer.from_files(LocalBackend, case)
    except Exception:
        return  # There is no right answer.
    if shares_an_id(json.loads(case)["model"]["vocab"]):
        return  # Rust's takes any of the tokens, another one each time.
    for special in (False, True):
        for each in (page, judge):
            each.update_options(add_special_tokens=special, skip_special_tokens=special)
        for text in [*Random(case).sample(TEXTS, 12), "".join(TEXTS[:40])]:
            require_equal(text, page, judge)


def require_equal(text: str, page: Tokenizer, judge: Tokenizer) -> None:
    """AssertionError if the page encodes or decodes otherwise; its refusal if the judge does not refuse, too."""
    try:
        wanted = judge.encode(text)
    except Exception:
        wanted = None
    found = page.encode(text) if wanted is not None else None
    assert found == wanted, f"the ids of {ascii(text)[:80]} are {found}, and Rust's {wanted}"
    if wanted is None:
        return
    try:
        back = judge.decode(wanted)
    except Exception:
        return
    assert page.decode(wanted) == back, (
        f"the text of {wanted[:20]} is {page.decode(wanted)!r:.80}, and Rust's {back!r:.80}"
    )


def shares_an_id(vocabulary: Any) -> bool:
    """Whether two tokens of a vocabulary have one id."""
    return isinstance(vocabulary, dict) and len(set(vocabulary.values())) < len(vocabulary)


def random_file(random: Random) -> bytes:
    """A tokenizer.json of random parts."""
    parts: dict[str, Any] = {"model": random.choice([*MODELS.values()])} if random.random() < 0.5 else {}
    tables: dict[str, tuple[Mapping[str, Any], str]] = {
        "normalizer": (NORMALIZERS, "normalizers"),
        "pre_tokenizer": (PRE_TOKENIZERS, "pretokenizers"),
        "decoder": (DECODERS, "decoders"),
        "post_processor": (POST, "processors"),
    }
    for name, (table, inner) in tables.items():
        taken = [random.choice([*filter(None, table.values())]) for _ in range(random.randrange(4))]
        parts[name] = {"type": "Sequence", inner: taken} if len(taken) != 1 else taken[0]
        if not taken and random.random() < 0.8:
            parts[name] = None
    added = random.choice([*ADDED.values()]) if random.random() < 0.5 else []
    made = with_added(added, **parts) if isinstance(content(**parts)["model"]["vocab"], dict) else content(**parts)
    if random.random() >= MUTATED:
        return json.dumps(made).encode()
    name = random.choice([*tables, "added_tokens", "model"])
    mutated = mutated_json(random, json.dumps(made[name]).encode())
    return json.dumps({**made, name: PLACE}).encode().replace(json.dumps(PLACE).encode(), mutated)
