"""A report as one HTML page that needs nothing else: tables, plots, conditions; light and dark, also on a phone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .frames import CACHES_HEAD, FRAMES_HEAD, SPEED_HEAD, cache_cells, frame_cells, speed_cells
from .plots import Bar, bars, lines
from .results import differing
from .text import (
    AGREEMENT_HEAD,
    BANDWIDTH_HEAD,
    FLOAT32_HEAD,
    NAMES,
    TITLES,
    adapter_name,
    agreement_cells,
    bandwidth_cells,
    float32_cells,
    shown,
    versions,
)

__all__ = ["page"]

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1d2129; --soft: #5b6472; --rule: #d9dde3;
  --other: #c2571a; --eager: #8a8f98; --ours: #1667c0; --second: #7aaee6; --third: #b9d3ee; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --ink: #e6e9ee; --soft: #9aa4b2; --rule: #333a44;
  --other: #f0904f; --eager: #8d95a1; --ours: #5aa5f2; --second: #2f6fb0; --third: #23507d; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
h3 { margin: 2rem 0 0.5rem; font-size: 1.05rem; }
p, li { max-width: 44rem; } .soft { color: var(--soft); font-size: 0.9rem; } .bad { color: var(--bad); }
code { font-size: 0.85rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; min-width: 8rem; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
svg { display: block; width: 100%; max-width: 40rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .value { fill: var(--soft); } .end { text-anchor: end; }
.middle { text-anchor: middle; } .grid { stroke: var(--rule); } .mark { stroke: var(--ink); stroke-width: 1.5; }
.line { fill: none; stroke-width: 2; }
.other { fill: var(--other); stroke: var(--other); } .eager { fill: var(--eager); stroke: var(--eager); }
.ours { fill: var(--ours); stroke: var(--ours); } .second { fill: var(--second); stroke: var(--second); }
.third { fill: var(--third); stroke: var(--third); }
rect { stroke: none !important; } polyline { fill: none !important; }
"""
NOTES = (
    "Every contender has a worker of its own in one page, is loaded once, and plays in each round; the order rotates. "
    "A time is milliseconds from the first token to the last, over the tokens after the first, median over the rounds.",
    "Transformers.js has an onnxruntime-web of its own inside (see the versions). All load the same ONNX files.",
    "“Sampled” is temperature 0.8, top-k 40, top-p 0.95. Transformers.js 4.3.1 takes top_p and does nothing with it.",
    "Ids are compared before a time is believed: greedy ones of all contenders, sampled ones of Capstan's modes.",
)


def page(report: dict[str, Any]) -> str:
    """The whole page."""
    title = f"Capstan: the bench, {report['date'][:10]}, {adapter_name(report)}"
    parts = [f"<h1>{escape(title)}</h1>", conditions(report), faults(report)]
    for model, summary in report["summary"].items():
        parts += [f"<h2>{escape(model)}</h2>", *model_parts(summary, report, model)]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
    )
    return head + "\n".join(parts) + "</body></html>\n"


def conditions(report: dict[str, Any]) -> str:
    about = [
        ("Date", report["date"]),
        ("Adapter", f"{adapter_name(report)} ({report['adapter']['vendor']} {report['adapter']['architecture']})"),
        ("Browser", report["browser"]),
        ("Versions", versions(report)),
        ("Measured", ", ".join(f"{name} {value}" for name, value in report["measured"].items())),
    ]
    rows = "".join(f"<li>{name}: {escape(str(value))}</li>" for name, value in about)
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in NOTES)
    if report["adapter"]["software"]:
        notes = (
            '<p class="bad">A software adapter: wall times are noise here; counters and host times mean something.</p>'
            + notes
        )
    return f"<ul>{rows}<li>Command: <code>{escape(report['command'])}</code></li></ul>{notes}"


def faults(report: dict[str, Any]) -> str:
    """All failures, which come before any number."""
    found = []
    for name in ("disagreements", "failures", "over budget", "requests to other hosts"):
        entries = "".join(f"<li>{escape(said(entry))}</li>" for entry in report[name])
        if entries:
            found.append(f'<h3 class="bad">{name.capitalize()}</h3><ul class="bad">{entries}</ul>')
    return "".join(found) or "<p>Every step ran, all ids agree, nothing was asked of another host.</p>"


def said(entry: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in entry.items()) if isinstance(entry, dict) else str(entry)


def colour(row: str) -> str:
    if row.startswith(("transformers_js", "wllama")):
        return "other"
    if row.startswith("eager"):
        return "eager"
    return "ours" if row in ("tape", "tape_sampled", "capstan") else "second"


def model_parts(summary: dict[str, Any], report: dict[str, Any], model: str) -> list[str]:
    makers = {
        "decode": decode,
        "runs": runs,
        "agreement": agreement,
        "lengths": lengths,
        "start": starts,
        "gpu": gpu,
        "ablation": ablation,
        "frames": drawn,
        "caches": kept,
        "counters": counters,
        "memory": memory,
        "load": load,
    }
    found = []
    if summary["ratios"]:
        rows = [(name, f"{value:.2f}") for name, value in summary["ratios"].items()]
        found.append(section("Ratios", table(("", "times"), rows)))
    for name in makers:
        for row, said_of_it in differing(report, model, name).items():
            found.append(f'<p class="bad">{escape(TITLES.get(row, row))}, {name}: {escape(said_of_it)}</p>')
    found += [make(summary[name]) for name, make in makers.items() if name in summary]
    if model in report.get("float32", {}):
        found.append(float32(report["float32"][model]))
    if model in report.get("transcripts", {}):
        found.append(transcripts(report["transcripts"][model]))
    return found


def drawn(found: dict[str, Any]) -> str:
    parts = []
    for draws, rows in found.items():
        parts += [table((f"ms between frames, {draws}", *FRAMES_HEAD), frame_cells(rows))]
        parts += [table(("beside them", *SPEED_HEAD), speed_cells(rows))]
    return section("Frames of a page that draws", "".join(parts))


def kept(found: dict[str, Any]) -> str:
    parts = [table((f"after {length} tokens", *CACHES_HEAD), cache_cells(rows)) for length, rows in found.items()]
    return section("KV caches in place and apart", "".join(parts))


def decode(rows: dict[str, Any]) -> str:
    plot = bars(
        [
            Bar(
                TITLES[key],
                [(colour(key), row["median"], "median, ms a token")],
                f"{row['median']:.3f}  p95 {row['p95']:.3f}",
                row["p95"],
            )
            for key, row in rows.items()
        ]
    )
    return section("Decode: milliseconds a token, median and 95th percentile over the rounds", plot)


def runs(rows: dict[str, Any]) -> str:
    names = sorted({int(n) for row in rows.values() for n in row})
    cells = [(TITLES[k], *(shown(row.get(str(n), {}).get("median"), 3) for n in names)) for k, row in rows.items()]
    return section("Milliseconds a token by the tokens of a run", table(("", *map(str, names)), cells))


def agreement(ways: dict[str, Any]) -> str:
    note = (
        "Decode steps over given replies. Float32 is onnxruntime's CPU provider over the same weights. KL divergence: "
        "of float32's distribution from the engine's, in nats, mean over the tokens."
    )
    return section(
        "How near the probabilities are to float32's", table(("", *AGREEMENT_HEAD), agreement_cells(ways)), note
    )


def float32(found: dict[str, Any]) -> str:
    note = (
        "Greedy tokens after each chat's prompt, compared up to the first other one. The margin is how far float32's "
        "first choice is above its second one there, in logits: where it is small, rounding decides."
    )
    return section("Greedy tokens as float32 picks them", table(("", *FLOAT32_HEAD), float32_cells(found)), note)


def transcripts(chats: Sequence[dict[str, Any]]) -> str:
    told = "".join(
        f"<p><code>{escape(chat['prompt'].strip())}</code></p><p>{escape(chat['text'])}</p>"
        f'<p class="soft">{chat["tokens"]} tokens, capture {chat["capture"]}, finished by {chat["finish_reason"]}</p>'
        for chat in chats
    )
    return section("What the model answers, greedily", told)


def lengths(rows: dict[str, Any]) -> str:
    found = []
    for title, unit, logarithmic, name in (
        ("Time to first token", "ms", True, "first_token_ms"),
        ("Prefill", "tokens/s", True, "prefill_tokens_per_s"),
        ("Milliseconds a token after a prompt of so many tokens", "ms", False, "ms_per_token"),
    ):
        by_row = {key: {int(n): middle(cell[name]) for n, cell in row.items()} for key, row in rows.items()}
        series = {TITLES[key]: (colour(key), line) for key, line in by_row.items()}
        names = sorted({n for line in by_row.values() for n in line})
        cells = [(TITLES[key], *(shown(line.get(n), 2) for n in names)) for key, line in by_row.items()]
        found.append(section(title, lines(series, unit, logarithmic) + table(("", *map(str, names)), cells)))
    return "".join(found)


def middle(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)


def starts(rows: dict[str, Any]) -> str:
    drawn = []
    for key, row in rows.items():
        if "ready_ms" not in row:
            continue  # It never started.
        ready, loaded, first = (row[name]["median"] for name in ("ready_ms", "loaded_ms", "first_token_ms"))
        parts = [
            ("ours" if key == "capstan" else "other", ready, "the worker is ready, ms"),
            ("second", loaded - ready, "the model is loaded, ms"),
            ("third", first - loaded, "the first token, ms"),
        ]
        cold = shown(row["first_token_ms"]["cold"], 0)
        drawn.append(Bar(f"{NAMES[key]} (cold {cold} ms)", parts, f"{first:.0f} ms"))
    note = "From navigation; left to right: the worker ready, the model loaded, the first token. Caches are warm."
    names = ("pyodide_ms", "ready_ms", "loaded_ms", "first_token_ms")
    cells = [(NAMES[key], *(shown(row.get(n, {}).get("median"), 0) for n in names)) for key, row in rows.items()]
    return section("Page load to first token", bars(drawn) + table(("", *names), cells), note)


def gpu(found: dict[str, Any]) -> str:
    names = sorted({int(n) for row in found.get("step_ms", {}).values() for n in row})
    cells = [(TITLES[k], *(shown(row.get(str(n)), 4) for n in names)) for k, row in found.get("step_ms", {}).items()]
    parts = [section("GPU milliseconds of a step, by length", table(("", *map(str, names)), cells))]
    for length, operations in found.get("operations", {}).items():
        by_label: dict[str, list[float]] = defaultdict(list)
        for operation in operations:
            by_label[operation["label"]].append(operation["microseconds"])
        rows = sorted(by_label.items(), key=lambda item: -sum(item[1]))
        drawn = [
            Bar(
                label or "(no label)",
                [("ours", sum(times), "µs a token")],
                f"{sum(times):.0f} µs, {len(times)} dispatches",
            )
            for label, times in rows[:16]
        ]
        note = "Each dispatch in a pass of its own, which adds some microseconds to it."
        parts.append(section(f"Where a step's time goes, length {length}", bars(drawn), note))
    return "".join(parts) + bandwidths(found)


def bandwidths(found: dict[str, Any]) -> str:
    """How far each kind of operation is from what the adapter's memory allows."""
    parts = []
    for length, rows in found.get("bandwidth", {}).items():
        limits = found["limits"]
        copies = f"{limits['copy_bytes_per_s'] / 1e9:.0f} GB/s"
        note = (
            f"Copies between buffers of {limits['bytes'] / 1e6:.0f} MB move {copies} in "
            f"the same run, read and written; what an empty dispatch takes ({shown(limits['empty_us'], 1)} µs) is "
            "taken off each operation. Small ones stay in caches, and may be faster than copies."
        )
        drawn = [
            Bar(
                f"{row['label'] or '(no label)'}, {row['bytes'] / 1e6:.3g} MB",
                [("ours", row["bytes_per_s"] / 1e9, "GB/s")],
                f"{row['bytes_per_s'] / 1e9:.0f} GB/s, {100 * row['share_of_copy']:.0f} % of copies, "
                f"{row['microseconds']:.0f} µs",
            )
            for row in rows
            if row["bytes_per_s"] is not None
        ]
        content = (bars(drawn) if drawn else "") + table(("", *BANDWIDTH_HEAD), bandwidth_cells(rows))
        parts.append(section(f"Bytes a second of each operation, length {length}", content, note))
    return "".join(parts)


def ablation(rows: dict[str, Any]) -> str:
    drawn = [
        Bar(
            f"passes: {key}",
            [("ours" if key == "all" else "second", row["ms_per_token"]["median"], "ms a token")],
            f"{row['ms_per_token']['median']:.3f}  GPU {shown(row.get('gpu_ms'), 3)}",
            row.get("gpu_ms"),
        )
        for key, row in rows.items()
    ]
    note = "Milliseconds a token with adaptive K; the tick is the GPU time of a step."
    return section("What each pass gives", bars(drawn), note)


def counters(rows: dict[str, Any]) -> str:
    names = ("submits", "readbacks", "bytes_down", "bytes_up", "create_buffer", "create_bind_group", "write_buffer")
    hosts = ("host_python_ms", "host_javascript_ms")
    cells = [
        (TITLES[key], *(f"{row[name]:.4g}" for name in names), *(shown(row.get(name), 4) for name in hosts))
        for key, row in rows.items()
    ]
    titles = [name.replace("_", " ") for name in (*names, *hosts)]
    note = (
        "Counted at WebGPU's prototypes, in workers of their own: JavaScript's contenders from the first token to the "
        "last, over the tokens after the first; Capstan from the prefill's end, over all of them. Host time is what "
        "the Python loop that takes the tokens does between its waits: JavaScript's share is encoding and submitting, "
        "Python's the rest of it."
    )
    return section("A decoded token", table(("", *titles), cells), note)


def memory(rows: dict[str, Any]) -> str:
    cells = [
        (NAMES[key], *(f"{row[name] / 1e6:.1f}" for name in ("live_bytes", "peak_bytes"))) for key, row in rows.items()
    ]
    parts = table(("MB", "live", "peak"), cells)
    ledger = rows.get("capstan", {}).get("ledger", {})
    if ledger:
        parts += table(("Capstan's ledger", "MB"), [(name, f"{size / 1e6:.2f}") for name, size in ledger.items()])
    return section("GPU buffers after a load and some tokens", parts)


def load(rows: dict[str, float]) -> str:
    note = "Capstan's captures after the first one find its weights on the GPU: models of a page share them."
    cells = [(key, f"{value:.0f}") for key, value in rows.items()]
    return section("Load, runtimes started", table(("", "ms"), cells), note)


def section(title: str, content: str, note: str = "") -> str:
    return f"<h3>{escape(title)}</h3>" + (f'<p class="soft">{escape(note)}</p>' if note else "") + content


def table(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
