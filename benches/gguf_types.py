"""Runs every family and tensor type of GGUF files in a page, and writes the table of docs/models.md.

usage: .venv/bin/python benches/gguf_types.py [FAMILY ...]

`python3 build.py test` must have set up this checkout before. FAMILY is a name of `general.architecture`, default all;
the columns of the others stay as they were measured before (results/gguf.json). Models are small, with random weights
(tests/gguf_models.py); all their matrices are of one type. COUNT greedy ids after each prompt are held to the model's
definition in float32, over weights as the package gguf reads them: each pick is to be the largest logit there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from benches.families import FUSED, pages, with_table  # noqa: E402  # on the path just above
from benches.runner.readme import grid  # noqa: E402
from capstan.model_files.gguf.header import GgmlType  # noqa: E402
from tests.browser.page_scripts import PageScripts  # noqa: E402
from tests.gguf_models import FURTHER, Made, make, write  # noqa: E402

PAGE = ROOT / "docs/models.md"
RESULTS = ROOT / "benches/results/gguf.json"
MARKERS = ("<!-- gguf -->", "<!-- /gguf -->")
VOCABULARY = 512
COUNT = 48
PROMPTS = ([5, 6, 7, 8, 9], [(31 * i + 7) % VOCABULARY for i in range(70)])
CONTEXT = 128
NAME = "model"


def measured(made: Made, run: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """`equal` of the picks are the definition's; the others' `margin` is the largest difference of its logits, as a
    share of the largest one; GPU operations of a step `recorded` and `played`, and those played `as recorded`."""
    equal, margin = 0, 0.0
    found: dict[str, Any] = {}
    for prompt in PROMPTS:
        found = run(prompt=prompt)
        wanted = made.defined([*prompt, *found["ids"]])[len(prompt) - 1 : -1]
        behind = wanted.max(-1) - wanted[np.arange(COUNT), found["ids"]]
        equal += int(np.sum(behind == 0))
        margin = max(margin, float(behind.max() / np.abs(wanted).max()))
    steps = FUSED.fullmatch(found["passes"].get("fused", ""))
    operations = [int(number) for number in steps.groups()] if steps else None
    return {"equal": equal, "margin": margin, "capture": found["capture"], "operations": operations}


def cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if "error" in found:
        return str(found["error"])
    total = COUNT * len(PROMPTS)
    ids = "equal" if found["equal"] == total else f"{found['equal']} of {total}, {100 * found['margin']:.1g} %"
    return ids if found["operations"] else f"{ids}; {' '.join(map(str, found['capture']))}"


def table(results: dict[str, dict[str, Any]]) -> str:
    """The families' cells, with types of equal cells in one row."""
    families = [family for family in FURTHER if family in results]
    types: dict[tuple[str, ...], list[str]] = {}
    for kind in GgmlType:
        cells = tuple(cell(results[family].get(kind.name)) for family in families)
        types.setdefault(cells, []).append(kind.name)
    return grid("type", families, [(", ".join(names), *cells) for cells, names in types.items()])


def keep(family: str, kind: GgmlType, found: dict[str, Any]) -> None:
    """Keep what was measured, and write the table again."""
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[family] = results.get(family, {}) | {kind.name: found}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), table(results), MARKERS))


def column(family: str, scripts: PageScripts, folder: Path) -> None:
    """Measure a family with each type, and keep what comes out; `folder` is served as the model NAME."""
    for kind in GgmlType:
        made = make(family, {"": kind}, {**FURTHER[family], "context_length": CONTEXT}, vocabulary=VOCABULARY)
        file = write(made, folder / f"{family}-{kind.name}.gguf").name
        try:
            found = measured(made, partial(scripts.run, "gguf", "picked", NAME, model=NAME, file=file, count=COUNT))
        except AssertionError as error:
            found = {"error": str(error).strip().splitlines()[-1]}
        print(family, kind.name, cell(found), flush=True)
        keep(family, kind, found)


def run(families: list[str]) -> None:
    """Measure these families, each in a page of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        for family, scripts in zip(families, pages({NAME: Path(scratch)}, len(families)), strict=True):
            column(family, scripts, Path(scratch))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", metavar="FAMILY", nargs="*", help="a name of general.architecture; default: all")
    args = parser.parse_args()
    unknown = [name for name in args.families if name not in FURTHER]
    if unknown:
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(FURTHER)}")
    run(args.families or list(FURTHER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
