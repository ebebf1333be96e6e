"""Draws docs/pictures/tape.svg, and counts for docs/tape.md, from a decode step that onnxruntime-web records now.

usage: .venv/bin/python docs/pictures/tape.py [--model FOLDER]

`python3 build.py test` must have set up this checkout before. The model, tests/fixtures/nano-llama unless a folder is
given, is loaded in headless Chromium; tape_in_page.py looks at its step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/tape.md"
NANO = ROOT / "tests/fixtures/nano-llama"
MARKERS = re.compile(r"(?<=<!-- tape -->\n).*?(?=<!-- /tape -->)", re.DOTALL)


class Kind(NamedTuple):
    """A kind of dispatch: its name and the colour of its group."""

    name: str
    colour: str


PRODUCT, ATTENTION, SMALL, OTHER = "#0f766e", "#b45309", "#4f46e5", "#6b7280"
RECORDED = {
    "data input_indices output uniforms": Kind("embedding lookup", OTHER),
    "norm": Kind("norm", SMALL),
    "skip_norm": Kind("sum and norm", SMALL),
    "matmul_nbits": Kind("int4 product", PRODUCT),
    "gated_mlp": Kind("sum, norm, gate and up products", PRODUCT),
    "rotary": Kind("rotary embedding, cache write", ATTENTION),
    "attention_split": Kind("attention over a part of the cache", ATTENTION),
    "attention_join": Kind("parts of attention joined", ATTENTION),
}
SIZES = re.compile(r" \d+ to \d+$| of \d+ heads$|^as recorded: ")
GROUPS = {"products": PRODUCT, "attention": ATTENTION, "norms": SMALL, "others": OTHER}
ROW, BOX, TOP, LEFT, RIGHT, WIDTH = 26, 20, 64, 16, 472, 800


def step_of(model: Path) -> dict[str, Any]:
    """The recorded commands and the played operations of the model's decode step."""
    command = [sys.executable, str(ROOT / "build.py"), "exec", str(HERE / "tape_in_page.py"), "--model", str(model)]
    # Fusions depend on the adapter; the software adapter is on every machine.
    env = {**os.environ, "CAPSTAN_ADAPTER": "software"}
    printed = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    step: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return step


def recorded_kind(kind: str) -> Kind:
    return RECORDED.get(kind, Kind(f"other: {kind.replace(' uniforms', '').replace(' ', ', ')}", OTHER))


def played_kind(kind: str | None, recorded: Kind) -> Kind:
    """A played operation; None stands for one that stays as recorded."""
    if kind is None:
        return Kind(f"as recorded: {recorded.name.removeprefix('other: ')}", OTHER)
    name = kind.removeprefix("the ").replace("->", "to")
    return Kind(name, ATTENTION if kind.startswith("attention") else PRODUCT)


def kinds_of(step: dict[str, Any]) -> tuple[list[Kind], list[Kind]]:
    before = [recorded_kind(each["kind"]) for each in step["recorded"]]
    return before, [played_kind(each["kind"], before[each["of"][0]]) for each in step["played"]]


def picture(step: dict[str, Any]) -> str:
    """Both columns; a line goes from each recorded command to the operation that computes it."""
    before, after = kinds_of(step)
    height = TOP + ROW * len(before) + 44
    gap = ROW * len(before) / len(after)
    left = [TOP + ROW * place for place in range(len(before))]
    right = [TOP + gap * place + (gap - BOX) / 2 for place in range(len(after))]
    style = "font-family: system-ui, sans-serif; font-size: 13px"
    title = f"A decode step: {len(before)} dispatches as recorded, {len(after)} operations as played"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" style="{style}">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        heading(LEFT, f"onnxruntime-web records {len(before)}"),
        heading(RIGHT, f"the tape plays {len(after)}"),
    ]
    taken = {origin for each in step["played"] for origin in each["of"]}
    for place, each in enumerate(step["played"]):
        for origin in each["of"]:
            x, y = LEFT + 280, left[origin] + BOX / 2
            end = right[place] + BOX / 2
            middle = (x + RIGHT) / 2
            curve = f"M{x},{y:.1f} C{middle},{y:.1f} {middle},{end:.1f} {RIGHT},{end:.1f}"
            parts.append(f'<path d="{curve}" fill="none" stroke="{after[place].colour}" stroke-opacity="0.6"/>')
    parts += [box(LEFT, 280, y, kind, place in taken) for place, (y, kind) in enumerate(zip(left, before, strict=True))]
    parts += [box(RIGHT, 312, y, kind, True) for y, kind in zip(right, after, strict=True)]
    for place, (name, colour) in enumerate(GROUPS.items()):
        x = LEFT + 110 * place
        parts.append(f'<rect x="{x}" y="{height - 28}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{height - 17}" fill="#111827">{name}</text>')
    dropped = f'<text x="{RIGHT}" y="{height - 17}" fill="#6b7280">dashed: nothing reads its result, dropped</text>'
    return "\n".join([*parts, dropped, "</svg>", ""])


def heading(x: int, text: str) -> str:
    return f'<text x="{x}" y="40" font-size="16" font-weight="600" fill="#111827">{text}</text>'


def box(x: int, width: int, y: float, kind: Kind, used: bool) -> str:
    fill = f'fill="{kind.colour}"' if used else f'fill="none" stroke="{kind.colour}" stroke-dasharray="4 3"'
    words = f'<text x="{x + 8}" y="{y + 14.5:.1f}" fill="{"#ffffff" if used else "#4b5563"}">{escape(kind.name)}</text>'
    return f'<rect x="{x}" y="{y:.1f}" width="{width}" height="{BOX}" rx="4" {fill}/>{words}'


def table(step: dict[str, Any]) -> str:
    """Counts by kind, before and after; products of all sizes are one kind."""
    before, after = (Counter(SIZES.sub("", kind.name) for kind in kinds) for kinds in kinds_of(step))
    rows = [f"| {name} | {before[name] or ''} | {after[name] or ''} |" for name in {**before, **after}]
    total = f"| **in all** | **{before.total()}** | **{after.total()}** |"
    return "\n".join(["", "| dispatch | recorded | played |", "| --- | --- | --- |", *rows, total, "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=NANO, metavar="FOLDER")
    step = step_of(parser.parse_args().model)
    (HERE / "tape.svg").write_text(picture(step), encoding="utf-8")
    PAGE.write_text(MARKERS.sub(lambda _: table(step), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    prettier = ROOT / "node_modules/prettier/bin/prettier.cjs"
    subprocess.run(["node", str(prettier), "--log-level=warn", "--write", str(PAGE)], check=True)
    print(step["passes"], step["adapter"])


if __name__ == "__main__":
    main()
