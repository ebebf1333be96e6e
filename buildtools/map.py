"""Draws the map of the code: the rooms of the three packages and their imports, as a picture for docs/design.md.

A room is a folder of a package, or a module at its root; imports for type checkers count. Each room stands above all
rooms that it imports. No line is drawn for an import that a path through other rooms implies. `python3 -m
buildtools.map` writes the picture, and so does `build.py docs --pages`; `build.py check` refuses one of other code.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from html import escape
from typing import NamedTuple

from . import ROOT
from .imports import imports, sources, typescript_imports

__all__ = ["PICTURE", "drawn"]

PICTURE = ROOT / "docs/pictures/map.svg"
PYTHON = {
    "capstan_host": "drives pages from CPython",
    "capstan": "runs in the page, and on CPython with the reference device",
}
TYPESCRIPT = "web/src"
FOLDERS = {
    "agent": "A model with tools: in code, of MCP servers, of the page.",
    "chat": "The element <capstan-chat>.",
    "page": "The page's half: Capstan, runs, sessions, completions, stored models.",
    "prompt_api": "The Prompt API: LanguageModel over Capstan.",
    "wire": "What page and worker share: messages, requests, errors, where files are.",
    "worker": "The worker's half: Python, onnxruntime-web, the engine that Python drives.",
    "worker/gpu": "The watched device, recorder, player, kernels, sampler, ring.",
    "worker/cpu": "A program on the CPU: its memory, weights, threads.",
    "worker/shaders": "WGSL: products, attention, sampler, truth, memory.",
    "worker/storage": "Stores and sources of weights, and the loop that loads them.",
    "worker/tokenizer_parts": "A table of each part of a tokenizer.json.",
}
"""The folders of web/src, which have no docstring; others are drawn without a line."""

Graph = dict[str, set[str]]
WIDTH, HEIGHT, GAP, DROP, EDGE, SIZE = 206, 56, 14, 30, 16, 11
COLUMNS = 6
STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1c2733}.room{fill:#fff;stroke:#7b8794}"
    ".room-name{font-weight:600;font-size:13px}.about{font-size:10px;fill:#4a5663}"
    ".title{font-size:16px;font-weight:600}.line{fill:none;stroke:#2f6fb0;stroke-opacity:.45;stroke-width:1.2}"
    ".panel{fill:#eef2f6}"
)


class Room(NamedTuple):
    """A box: its name, the first line of its docstring, its place."""

    name: str
    about: str
    x: float
    y: float


def python_rooms(package: str) -> tuple[Graph, dict[str, str], set[str]]:
    """The imports between a Python package's rooms, the first line of each one's docstring, other packages' rooms."""
    modules = sources(ROOT / "py_src" / package)
    del modules[package]
    graph: Graph = {}
    about: dict[str, str] = {}
    beyond: set[str] = set()
    for name, text in modules.items():
        room = name.split(".")[0]
        found = graph.setdefault(room, set())
        if name == room:
            about[room] = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        for item in imports(name, text, modules, package):
            parts = item.target.split(".")
            if item.ours:
                found.add(parts[0])
            elif parts[0] in PYTHON:
                beyond.add(".".join(parts[:2]))
    return between(graph), about, beyond


def typescript_rooms() -> tuple[Graph, dict[str, str]]:
    """The imports between the folders of web/src, those inside a folder too."""

    def room_of(path: str) -> str:
        return "/".join(path.split("/")[:-1][:2])

    graph: Graph = {}
    for path, targets in typescript_imports(ROOT / TYPESCRIPT).items():
        if room := room_of(path):
            graph.setdefault(room, set()).update(map(room_of, targets))
    return between(graph), FOLDERS


def between(graph: Graph) -> Graph:
    """A graph's imports without those from elsewhere or from the same room, in the order of the names."""
    return {room: {name for name in graph[room] if name in graph} - {room} for room in sorted(graph)}


def reachable(graph: Graph) -> Graph:
    """All rooms that each room imports, through others too."""
    found = {room: set(names) for room, names in graph.items()}
    while any(more - found[room] for room in found for more in [set().union(*(found[name] for name in found[room]))]):
        for room in found:
            found[room] |= set().union(*(found[name] for name in found[room]))
    return found


def levels(graph: Graph) -> dict[str, int]:
    """How high each room stands, from 0; rooms that import one another stand side by side."""
    below = reachable(graph)
    above = {room: {name for name in below[room] if room not in below[name]} for room in graph}
    found: dict[str, int] = {}
    for room in TopologicalSorter(above).static_order():
        found[room] = 1 + max((found[name] for name in above[room]), default=-1)
    for room in graph:
        found[room] = max([found[room], *(found[name] for name in below[room] if room in below[name])])
    return found


def direct(graph: Graph) -> list[tuple[str, str]]:
    """The imports that no path through other rooms implies."""
    below = reachable(graph)
    return [
        (room, name)
        for room in sorted(graph)
        for name in sorted(graph[room])
        if not any(
            name in below[other] and room not in below[other] and other not in below[name]
            for other in graph[room] - {name}
        )
    ]


def rows(graph: Graph) -> list[list[str]]:
    """The rooms from the highest level down, COLUMNS in a row at most, each below the rooms that import it."""
    level = levels(graph)
    found: list[list[str]] = []
    place: dict[str, float] = {}
    for height in range(max(level.values()), -1, -1):
        importers = {
            room: [place[other] for other in place if room in graph[other]] for room in graph if level[room] == height
        }
        ordered = sorted(importers, key=lambda room: (sum(importers[room]) / max(len(importers[room]), 1), room))
        for start in range(0, len(ordered), COLUMNS):
            row = ordered[start : start + COLUMNS]
            place |= {room: i - len(row) / 2 for i, room in enumerate(row)}
            found.append(row)
    return found


def panel(
    title: str, graph: Graph, about: Mapping[str, str], beyond: Sequence[str], top: float
) -> tuple[list[str], float]:
    """The picture of one package from a height on, and where it ends."""
    whole = COLUMNS * (WIDTH + GAP) - GAP
    lines = [f'<text class="title" x="{EDGE}" y="{top + 22}">{escape(title)}</text>']
    boxes: dict[str, Room] = {}
    y = top + 36
    for row in rows(graph):
        x = EDGE + (whole - len(row) * (WIDTH + GAP) + GAP) / 2
        for room in row:
            boxes[room] = Room(room, " ".join(about.get(room, "").split()), x, y)
            x += WIDTH + GAP
        y += HEIGHT + DROP
    for upper, lower in direct(graph):
        a, b = boxes[upper], boxes[lower]
        ax, bx, ay, by = a.x + WIDTH / 2, b.x + WIDTH / 2, a.y + HEIGHT, b.y
        if by < ay:
            ay, by = a.y + HEIGHT / 2, b.y + HEIGHT / 2
        bend = (by - ay) / 2
        lines.append(f'<path class="line" d="M{ax:g} {ay:g}C{ax:g} {ay + bend:g} {bx:g} {by - bend:g} {bx:g} {by:g}"/>')
    for box in boxes.values():
        lines.append(
            f'<rect class="room" x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<text class="room-name" x="{box.x + 8:g}" y="{box.y + 17:g}">{escape(box.name)}</text>'
        )
        for i, part in enumerate(textwrap.wrap(box.about.replace("`", ""), 37, max_lines=3, placeholder=" ...")):
            lines.append(f'<text class="about" x="{box.x + 8:g}" y="{box.y + 29 + i * SIZE:g}">{escape(part)}</text>')
    if beyond:
        words = textwrap.wrap(f"imports {', '.join(beyond)}", 200)
        lines += [
            f'<text class="about" x="{EDGE}" y="{y + i * 14:g}">{escape(word)}</text>' for i, word in enumerate(words)
        ]
        y += 14 * len(words)
    height = y - top - 4
    back = f'<rect class="panel" x="4" y="{top:g}" width="{whole + 2 * EDGE - 8}" height="{height:g}" rx="8"/>'
    return [back, *lines], top + height + 10


def drawn() -> str:
    """The picture of this code."""
    parts: list[str] = []
    top = 4.0
    for package, does in PYTHON.items():
        graph, about, beyond = python_rooms(package)
        more, top = panel(f"py_src/{package}: {does}", graph, about, sorted(beyond), top)
        parts += more
    graph, about = typescript_rooms()
    more, top = panel(
        f"{TYPESCRIPT}: the page, its worker and the GPU; Python drives it by a table of calls", graph, about, [], top
    )
    parts += more
    whole = COLUMNS * (WIDTH + GAP) - GAP + 2 * EDGE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {top:g}" width="{whole}" height="{top:g}">'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", back, *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
