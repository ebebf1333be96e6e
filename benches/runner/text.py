"""A report as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .frames import CACHES_HEAD, FRAMES_HEAD, SPEED_HEAD, cache_cells, frame_cells, speed_cells
from .plan import COUNTED_ROWS, DECODE_ROWS
from .results import differing

__all__ = [
    "AGREEMENT_HEAD",
    "BANDWIDTH_HEAD",
    "FLOAT32_HEAD",
    "NAMES",
    "TITLES",
    "WAYS",
    "adapter_name",
    "agreement_cells",
    "bandwidth_cells",
    "float32_cells",
    "shown",
    "table",
    "versions",
]

TITLES = {row.key: row.title for row in (*DECODE_ROWS, *COUNTED_ROWS)}
NAMES = {
    "transformers_js": "Transformers.js",
    "wllama": "wllama",
    "eager": "onnxruntime-web, eager",
    "capstan": "Capstan",
}

WAYS = {
    "fused": "Capstan's kernels",
    "replayed": "onnxruntime-web's kernels, replayed by Capstan",
    "eager": "onnxruntime-web's kernels, eager",
}
AGREEMENT_HEAD = ("tokens", "same top token", "mean KL divergence", "largest", "")
FLOAT32_HEAD = ("chats", "tokens", "as float32", "where they part (float32's margin)")
USES_HEAD = ("1st", "2nd", "later", "1st", "2nd", "later", "recorded in the first two")
BANDWIDTH_HEAD = ("dispatches", "µs in all", "bytes of one", "GB/s", "of copies")


def agreement_cells(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each way of computing a step."""
    return [
        (
            WAYS[way],
            str(row["tokens"]),
            f"{100 * row['top1']:.1f} %",
            f"{row['mean_divergence']:.2e}",
            f"{row['largest_divergence']:.2e}",
            row.get("tape_passes", {}).get("fused", "") or (row.get("capture_note") or ""),
        )
        for way, row in found.items()
    ]


def float32_cells(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each contender: greedy tokens as float32 picks them, and where each chat parts from it."""
    rows: list[tuple[str, ...]] = []
    for key, row in found["rows"].items():
        where = ", ".join(f"chat {p['chat']} at {p['at']} ({p['margin']:.2g})" for p in row["partings"]) or "nowhere"
        name = TITLES.get(key) or NAMES.get(key, key)
        rows.append((name, str(row["chats"]), str(row["tokens"]), str(row["agree"]), where))
    return rows


def bandwidth_cells(found: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each kind of operation that moves bytes."""
    return [
        (
            (row["label"] or "(no label)")[:60],
            str(row["dispatches"]),
            f"{row['microseconds']:.1f}",
            f"{row['bytes']}",
            shown(None if row["bytes_per_s"] is None else row["bytes_per_s"] / 1e9, 0),
            "-" if row["share_of_copy"] is None else f"{100 * row['share_of_copy']:.0f} %",
        )
        for row in found
    ]


def table(report: dict[str, Any]) -> str:
    """Everything that matters, in aligned columns."""
    adapter = report["adapter"]
    lines = [f"{report['date']}  {adapter_name(report)}  {report['browser']}", versions(report), report["command"]]
    if adapter["software"]:
        lines.append("A software adapter: wall times are noise here; counters and host times mean something.")
    for model, summary in report["summary"].items():
        lines += ["", f"== {model} ==", *model_lines(summary, report, model)]
    for title in ("disagreements", "failures", "over budget", "requests to other hosts"):
        if report[title]:
            lines += ["", f"{title.upper()}:", *(f"  {entry}" for entry in report[title])]
    return "\n".join(lines)


def adapter_name(report: dict[str, Any]) -> str:
    """The GPU's name by its driver, else by the browser."""
    adapter = report["adapter"]
    told = adapter["description"] or " ".join([adapter["vendor"], adapter["architecture"]])
    return told if adapter["software"] else str(report["gpu"] or told)


def versions(report: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in report.get("versions", {}).items())


def model_lines(summary: dict[str, Any], report: dict[str, Any], model: str) -> list[str]:
    lines: list[str] = []
    rows: list[tuple[str, ...]]
    if "rest" in summary:
        parts = next(iter(summary["rest"].values()))["ms_per_token"]
        rows = [
            (
                row,
                f"{found['first_token_ms']:.1f}",
                *(f"{value:.3f}" for value in found["ms_per_token"].values()),
                f"{found['tokens_per_s']:.0f}",
            )
            for row, found in summary["rest"].items()
        ]
        heads = ("first token, ms", *(f"{part}, ms/token" for part in parts), "tokens/s")
        lines += columns("an answer of 100 tokens", heads, rows)
    for visit, found in summary.get("uses", {}).items():
        rows = [
            (
                feature,
                *(f"{value:.1f}" for what in ("first_ms", "whole_ms") for value in row[what]),
                ", ".join(f"{name}: {ms:.0f} ms" for made in row["made_ms"] for name, ms in made.items()),
            )
            for feature, row in found.items()
        ]
        lines += columns(f"uses, {visit}: ms to the first token, ms in all", USES_HEAD, rows)
    if "rows" in summary:
        rows = [
            (name, f"{row['step_ms']:.3f}", f"{row['tokens_per_s']:.0f}", f"{row['times']:.2f}")
            for name, row in summary["rows"].items()
        ]
        lines += columns("several sequences", ("ms/step", "tokens/s", "times one"), rows)
    if "decode" in summary:
        said = differing(report, model, "decode")
        rows = [
            (TITLES[key], f"{row['median']:.3f}", f"{row['p95']:.3f}", said.get(key, ""))
            for key, row in summary["decode"].items()
        ]
        lines += columns("decode", ("ms/token, median", "p95", ""), rows)
    if "runs" in summary:
        lengths = sorted({int(n) for row in summary["runs"].values() for n in row})
        rows = [
            (TITLES[key], *(shown(row.get(str(n), {}).get("median"), 3) for n in lengths))
            for key, row in summary["runs"].items()
        ]
        lines += columns("ms/token by tokens of a run", map(str, lengths), rows)
    if "agreement" in summary:
        lines += columns("float32, forced tokens", AGREEMENT_HEAD, agreement_cells(summary["agreement"]))
    if model in report.get("float32", {}):
        lines += columns("float32, greedy tokens", FLOAT32_HEAD, float32_cells(report["float32"][model]))
    if "counters" in summary:
        names = ("submits", "readbacks", "bytes_down", "bytes_up", "create_buffer", "create_bind_group", "write_buffer")
        hosts = ("host_python_ms", "host_javascript_ms")
        rows = [
            (TITLES[key], *(f"{row[name]:.4g}" for name in names), *(shown(row.get(name), 4) for name in hosts))
            for key, row in summary["counters"].items()
        ]
        lines += columns("a token", (*names, *hosts), rows)
    for title, path in (("first token, ms", "first_token_ms"), ("after it, ms/token", "ms_per_token")):
        if "lengths" in summary:
            lengths = sorted({int(n) for row in summary["lengths"].values() for n in row})
            said = differing(report, model, "lengths")
            rows = [
                (
                    TITLES[key],
                    *(shown(row.get(str(n), {}).get(path, {}).get("median"), 2) for n in lengths),
                    said.get(key, ""),
                )
                for key, row in summary["lengths"].items()
            ]
            lines += columns(f"{title}, by prompt length", map(str, lengths), rows)
    if "lengths" in summary:
        rows = [
            (TITLES[key], *(shown(row.get(str(n), {}).get("prefill_tokens_per_s"), 0) for n in lengths))
            for key, row in summary["lengths"].items()
        ]
        lines += columns("prefill tokens/s", map(str, lengths), rows)
    if "start" in summary:
        phases = ("pyodide_ms", "ready_ms", "loaded_ms", "first_token_ms")
        rows = [
            (NAMES[key], *(shown(row.get(name, {}).get("median"), 0) for name in phases), shown(cold(row), 0))
            for key, row in summary["start"].items()
        ]
        lines += columns("page load, warm, ms", (*phases, "first_token, cold"), rows)
        for row in summary["start"].values():
            if "phases" in row:
                spans = [f"{start:.0f}-{end:.0f}" for start, end in row["phases"].values()]
                lines += columns("of which loading, ms from its begin", row["phases"], [("from-to", *spans)])
    if "load" in summary:
        lines += columns("load, runtimes started", ("ms",), [(k, f"{v:.0f}") for k, v in summary["load"].items()])
    if "memory" in summary:
        rows = [
            (NAMES[key], *(f"{row[name] / 1e6:.1f}" for name in ("live_bytes", "peak_bytes")), ledger(row))
            for key, row in summary["memory"].items()
        ]
        lines += columns("GPU buffers, MB", ("live", "peak", "ledger"), rows)
    if "gpu" in summary:
        for key, row in summary["gpu"].get("step_ms", {}).items():
            lines += columns(f"GPU time of a step, {TITLES[key]}", row, [("ms", *(f"{v:.4f}" for v in row.values()))])
        if "limits" in summary["gpu"]:
            most = summary["gpu"]["limits"]
            empty = shown(most["empty_us"], 1)
            lines += ["", f"Copies move {most['copy_bytes_per_s'] / 1e9:.0f} GB/s; an empty dispatch takes {empty} µs."]
        for length, found in summary["gpu"].get("bandwidth", {}).items():
            lines += columns(f"memory traffic, length {length}", BANDWIDTH_HEAD, bandwidth_cells(found))
    if "ablation" in summary:
        rows = [
            (key, f"{row['ms_per_token']['median']:.3f}", shown(row.get("gpu_ms"), 4))
            for key, row in summary["ablation"].items()
        ]
        lines += columns("passes", ("ms/token", "GPU ms"), rows)
    for draws, found in summary.get("frames", {}).items():
        lines += columns(f"frames, {draws}, ms between them", FRAMES_HEAD, frame_cells(found))
        lines += columns("beside them", SPEED_HEAD, speed_cells(found))
    for length, found in summary.get("caches", {}).items():
        lines += columns(f"KV caches, after {length} tokens", CACHES_HEAD, cache_cells(found))
    ratios = [(name, f"{value:.2f}") for name, value in summary["ratios"].items()]
    return lines + (columns("ratios", ("times",), ratios) if ratios else [])


def cold(row: dict[str, Any]) -> float | None:
    value: float | None = row.get("first_token_ms", {}).get("cold")
    return value


def ledger(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {size / 1e6:.1f}" for name, size in row.get("ledger", {}).items() if size)


def shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def columns(title: str, names: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table under a heading; the first column to the left, the others to the right."""
    lines = [[title, *names], *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines)))]
    found = [""]
    for line in lines:
        cells = [cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(line)]
        found.append("  ".join(cells).rstrip())
    return found
