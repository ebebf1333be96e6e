"""Plots as inline SVG that follow the page's colours: horizontal bars, and lines over prompt lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Bar", "bars", "lines"]

WIDTH = 420
"""The text size of every plot, in its own units: 12 is still readable on a phone."""
LINE = 16
BAR = 12


@dataclass(frozen=True)
class Bar:
    """One bar: its parts from left to right, each (colour class, value, label)."""

    title: str
    parts: Sequence[tuple[str, float, str]]
    label: str
    """Written behind the bar."""
    mark: float | None = None
    """A tick on the bar, as a 95th percentile."""


def bars(rows: Sequence[Bar]) -> str:
    """Bars from 0, each under its title."""
    most = max([sum(value for _, value, _ in row.parts) for row in rows] + [row.mark or 0 for row in rows]) or 1.0
    room = WIDTH - 160
    height = len(rows) * (LINE + BAR + 10)
    found = [opening(height)]
    for place, row in enumerate(rows):
        top = place * (LINE + BAR + 10)
        found.append(text(0, top + 12, row.title))
        left = 0.0
        for colour, value, what in row.parts:
            width = max(1.0, room * value / most)
            tip = f"<title>{escape(what)}: {value:.4g}</title>"
            found.append(
                f'<rect class="{colour}" x="{left:.1f}" y="{top + LINE}" width="{width:.1f}" height="{BAR}" rx="2">'
                f"{tip}</rect>"
            )
            left += width
        if row.mark is not None:
            at = room * row.mark / most
            found.append(f'<path class="mark" d="M{at:.1f} {top + LINE - 2}v{BAR + 4}"/>')
            left = max(left, at)
        found.append(text(left + 5, top + LINE + 10, row.label, "value"))
    return "".join([*found, "</svg>"])


def lines(series: Mapping[str, tuple[str, Mapping[int, float]]], unit: str, logarithmic: bool = False) -> str:
    """A line for each title: (colour class, value by length). Lengths are spread by their logarithm."""
    left, right, top, bottom = 40, 10, 26, 222
    lengths = sorted({length for _, values in series.values() for length in values})
    found = [opening(bottom + 24 + LINE * len(series))]
    values = [value for _, line in series.values() for value in line.values()]
    ticks = log_ticks(values) if logarithmic else linear_ticks(max(values))
    low, high = (log10(ticks[0]), log10(ticks[-1])) if logarithmic else (0.0, ticks[-1])

    def x(length: int) -> float:
        first, last = log10(lengths[0]), log10(lengths[-1])
        share = (log10(length) - first) / (last - first) if last > first else 0.5
        return left + share * (WIDTH - left - right)

    def y(value: float) -> float:
        scaled = log10(value) if logarithmic else value
        return bottom - (scaled - low) / (high - low) * (bottom - top)

    for tick in ticks:
        found.append(f'<path class="grid" d="M{left} {y(tick):.1f}H{WIDTH - right}"/>')
        found.append(text(left - 4, y(tick) + 4, f"{tick:g}", "value end"))
    found.append(text(0, 9, unit, "value"))
    free = -100.0
    for length in lengths:
        if x(length) - free >= 34:
            free = x(length)
            found.append(text(min(free, WIDTH - 14), bottom + 15, f"{length}", "value middle"))
    for place, (title, (colour, line)) in enumerate(series.items()):
        points = " ".join(f"{x(length):.1f},{y(value):.1f}" for length, value in sorted(line.items()))
        found.append(f'<polyline class="{colour} line" points="{points}"/>')
        for length, value in line.items():
            tip = f"<title>{escape(title)}, {length} tokens: {value:.4g}</title>"
            found.append(f'<circle class="{colour}" cx="{x(length):.1f}" cy="{y(value):.1f}" r="4">{tip}</circle>')
        under = bottom + 32 + LINE * place
        found.append(f'<rect class="{colour}" x="{left}" y="{under - 9}" width="10" height="10" rx="2"/>')
        found.append(text(left + 16, under, title))
    return "".join([*found, "</svg>"])


def opening(height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">'


def text(x: float, y: float, content: str, classes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}">{escape(content)}</text>'


def linear_ticks(most: float) -> list[float]:
    """Four or five round steps from 0 to at least `most`."""
    raw = most / 4 or 1.0
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return [step * place for place in range(ceil(most / step - 1e-9) + 1)]


def log_ticks(values: Sequence[float]) -> list[float]:
    """Powers of ten, and halves of decades where there are few, around the values."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
