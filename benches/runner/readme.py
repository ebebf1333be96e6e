"""The speed tables of README.md, in brief, and of docs/speed.md, made from the newest committed results, between two
markers of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .text import WAYS, adapter_name, shown, versions

__all__ = ["BEGIN", "END", "brief_table", "newest_results", "with_table"]

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
RESULTS = "*-speed*.json"
"""Results of this name, date first, are the ones that the tables are made from: all of the newest date."""
CONTENDERS = (
    ("transformers_js", "Transformers.js"),
    ("wllama", "wllama"),
    ("eager", "eager loop"),
    ("capstan_ort", "ORT's capture"),
    ("tape", "**Capstan**"),
)
OPTIONAL = ("wllama",)
"""Contenders that have a column only where one of the models was measured with them."""


def newest_results(folder: Path) -> list[Path]:
    """The results files that the tables are made from, those with the shortest name first."""
    found = sorted(folder.glob(RESULTS), key=lambda path: (len(path.name), path.name))
    newest = max((path.name[:10] for path in found), default="")
    return [path for path in found if path.name.startswith(newest)]


def with_table(document: str, results: Mapping[str, Path], *, brief: bool = False) -> str:
    """The document with the tables of these results, by the path shown, between its markers; ValueError without them.
    In brief it is one table, with a row for each model."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN} or {END}")
    reports = {shown_as: json.loads(path.read_text()) for shown_as, path in results.items()}
    # Files with a real model come first.
    order = sorted(reports, key=lambda shown_as: not reports[shown_as].get("float32"))
    if brief:
        tables = brief_table([reports[shown_as] for shown_as in order])
    else:
        tables = speed_tables({shown_as: reports[shown_as] for shown_as in order})
    return f"{before}{begin}\n\n{tables}\n\n{end}{after}"


def brief_table(reports: Sequence[dict[str, Any]]) -> str:
    """Markdown: conditions, and for each model, real ones first, greedy tokens a second and the time to the first token
    of a 512-token prompt; a cell that was not measured is a dash."""
    conditions = dict.fromkeys(condition(report) for report in reports)
    differing = [found for found in dict.fromkeys(agreement(report) for report in reports) if found != "all"]
    rows = []
    for report in reports:
        real = report.get("float32", {})
        for model in sorted(report["summary"], key=lambda name: name not in real):
            found = report["summary"][model]
            decode = [pace(at(found, "decode", key, "median")) for key in ("transformers_js", "capstan_ort", "tape")]
            firsts = [
                shown(at(found, "lengths", key, "512", "first_token_ms", "median"), 1)
                for key in ("transformers_js", "tape")
            ]
            times = gain(found, "decode greedy: Transformers.js / Capstan")
            rests = [shown(at(found, "rest", row, "tokens_per_s"), 0) for row in ("after a rest", "right after it")]
            named = f"{model}, real weights" if model in real else model
            rows.append((named, *decode, times, *firsts, *rests))
    engines = ("Transformers.js", "ORT's capture", "**Capstan**", "times")
    names = (*engines, "first token, ms: Transformers.js", "**Capstan**", "an answer after a rest", "in use")
    told = f"{'; '.join(conditions)}. Medians; equal greedy ids: {'; '.join(differing) or 'all'}."
    return f"{told}\n\n{grid('Tokens a second', names, rows)}"


def pace(milliseconds: float | None) -> str:
    """Tokens a second, of milliseconds a token."""
    return shown(milliseconds and 1000 / milliseconds, 0)


def condition(report: dict[str, Any]) -> str:
    """When and on what was measured."""
    return f"{report['date'][:10]}, {adapter_name(report)}, {report['browser'].split(' built')[0]}"


def speed_tables(reports: Mapping[str, dict[str, Any]]) -> str:
    """Markdown: conditions, decode, first tokens, page load, agreement with float32, with a row for each model, real
    ones first; a cell that was not measured is a dash."""
    places = {f"{condition(report)}, {versions(report)}": None for report in reports.values()}
    differing = [found for found in dict.fromkeys(map(agreement, reports.values())) if found != "all"]
    files = ", ".join(f"[{Path(path).stem}]({path})" for path in reports)
    parts = [f"{'; '.join(places)}. Equal greedy ids: {'; '.join(differing) or 'all'}. Results: {files}."]
    summaries: list[tuple[str, dict[str, Any]]] = []
    for report in reports.values():
        real = report.get("float32", {})
        summaries += sorted(report["summary"].items(), key=lambda item: item[0] not in real)
    measured = {key for _, found in summaries for part in ("decode", "start", "lengths") for key in found.get(part, ())}
    contenders = [(key, title) for key, title in CONTENDERS if key not in OPTIONAL or key in measured]
    decode = [
        (
            model,
            *(shown(at(found, "decode", key, "median"), 2) for key, _ in contenders),
            gain(found, "decode greedy: Transformers.js / Capstan"),
            shown(at(found, "decode", "transformers_js_sampled", "median"), 2),
            shown(at(found, "decode", "tape_sampled", "median"), 2),
        )
        for model, found in summaries
    ]
    titles = (*(title for _, title in contenders), "times", "sampled: Transformers.js", "**Capstan**")
    parts.append(grid("Milliseconds a token, greedy, medians", titles, decode))
    first_keys = [key for key, _ in contenders if key != "capstan_ort"]
    firsts = [
        (
            f"{model}, {length}",
            *(shown(at(found, "lengths", key, length, "first_token_ms", "median"), 1) for key in first_keys),
            gain(found, f"first token, {length}-token prompt: Transformers.js / Capstan"),
        )
        for model, found in summaries
        for length in ("512", "4000")
        if at(found, "lengths", "tape", length, "first_token_ms", "median") is not None
    ]
    if firsts:
        names = (*(dict(contenders)[key] for key in first_keys), "times")
        parts.append(grid("Milliseconds to the first token, by the prompt's tokens", names, firsts))
    pages = [("capstan" if key == "tape" else key, title) for key, title in contenders]
    pages = [(key, title) for key, title in pages if key in ("transformers_js", "wllama", "capstan")]
    starts = [
        (
            model,
            *(shown(at(found, "start", key, "first_token_ms", "median"), 0) for key, _ in pages),
            gain(found, "page load to first token, warm: Transformers.js / Capstan"),
        )
        for model, found in summaries
        if "start" in found
    ]
    if starts:
        title = "Milliseconds from page load to the first token, caches warm"
        parts.append(grid(title, (*(title for _, title in pages), "times"), starts))
        first = [
            (model, *(shown(at(found, "start", key, "first_token_ms", "cold"), 0) for key, _ in pages))
            for model, found in summaries
            if "start" in found
        ]
        parts.append(grid("The same in a first visit, measured once", [title for _, title in pages], first))
    parts += rest_grids(summaries)
    parts += [uses_grid(model, found["uses"]) for model, found in summaries if "uses" in found]
    with_rows = [(model, found["rows"]) for model, found in summaries if "rows" in found]
    if with_rows:
        cells = [
            (model, *(f"{shown(row['step_ms'], 2)} ({shown(row['times'], 1)})" for row in found.values()))
            for model, found in with_rows
        ]
        parts.append(grid("Milliseconds a step (tokens/s, times one row's)", list(with_rows[0][1]), cells))
    parts += [agreement_grid(model, found["agreement"]) for model, found in summaries if "agreement" in found]
    return "\n\n".join(parts)


def rest_grids(summaries: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Answers after a rest and right after another one; nothing if none were measured."""
    measured = [(model, row, answer) for model, found in summaries for row, answer in found.get("rest", {}).items()]
    if not measured:
        return []
    rows = [
        (
            f"{model}, {row}",
            shown(answer["first_token_ms"], 1),
            *(shown(value, 2) for value in answer["ms_per_token"].values()),
            shown(answer["tokens_per_s"], 0),
        )
        for model, row, answer in measured
    ]
    parts = [f"tokens {part}, ms a token" for part in measured[0][2]["ms_per_token"]]
    title = "An answer of 100 tokens, after ten seconds of rest and in use"
    return [grid(title, ("first token, ms", *parts, "tokens/s"), rows)]


def uses_grid(model: str, visits: dict[str, Any]) -> str:
    """Milliseconds to the first token of each feature's uses."""
    names = [f"{visit}: {which}" for visit in visits for which in ("first use", "second", "later")]
    features = next(iter(visits.values()))
    rows = [
        (feature, *(shown(value, 0) for found in visits.values() for value in found[feature]["first_ms"]))
        for feature in features
    ]
    return grid(f"{model}, ms to the first token", names, rows)


def agreement(report: dict[str, Any]) -> str:
    """The result of the ids' comparison."""
    found = report["disagreements"]
    if not found:
        return "all"
    return "; ".join(
        f"{entry['model']}, prompt of {entry['length']}: {entry['row']} differs from {entry['against']} at token "
        f"{entry['at']}"
        for entry in found
    )


def agreement_grid(model: str, ways: dict[str, Any]) -> str:
    """How near each way of computing a step is to float32."""
    rows = [
        (WAYS[way], f"{100 * row['top1']:.1f} %", f"{row['mean_divergence']:.2e}", f"{row['largest_divergence']:.2e}")
        for way, row in ways.items()
    ]
    tokens = next(iter(ways.values()))["tokens"]
    title = f"{model}, {tokens} forced tokens against float32"
    return grid(title, ("same top token", "mean KL divergence", "largest"), rows)


def gain(found: dict[str, Any], name: str) -> str:
    return shown(found["ratios"].get(name), 1)


def at(value: Any, *path: str) -> float | None:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def grid(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [[title, *names], ["---"] * (1 + len(names)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
