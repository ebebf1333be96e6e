"""Measures every family of decoders on webgpu and wasm against onnxruntime-genai; writes the tables of docs/models.md.

usage: .venv/bin/python benches/families.py [NAME ...]

`python3 build.py test` must have set up this checkout before. NAME is a fixture's, default all; the rows of the others
stay as they were measured before (results/families.json). Ids are greedy, of nano models with random weights
(tests/families.py); the steps of a family are counted as its tape has them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from benches.runner.readme import grid  # noqa: E402  # on the path just above
from buildtools.browser import find_browser  # noqa: E402
from buildtools.site import assemble  # noqa: E402
from capstan.model_files.model_types import REFUSED_TYPES  # noqa: E402
from capstan_host.headless.chromium import flags  # noqa: E402
from capstan_host.site_server import serving  # noqa: E402
from capstan_host.testing.harness import Harness  # noqa: E402
from tests.browser.page_scripts import PageScripts  # noqa: E402
from tests.families import COUNT, DEVICES, FAMILIES, PROMPTS, Family, Found, measured  # noqa: E402

PAGE = ROOT / "docs/models.md"
RESULTS = ROOT / "benches/results/families.json"
MARKERS = ("<!-- families -->", "<!-- /families -->")
FUSED = re.compile(r"(\d+) operations became (\d+), (\d+) of them as recorded")
TIMEOUT_MS = 600_000


def cells(family: Family, found: dict[str, Found]) -> tuple[str, ...]:
    """The family's row."""
    total = COUNT * len(PROMPTS)
    on_gpu = found["webgpu"]
    steps = FUSED.fullmatch(on_gpu.passes.get("fused", ""))
    shown = [f"{steps[1]} to {steps[2]}", steps[3]] if steps else ["-", "-"]
    ids = ["equal" if each.equal == total else each.error or f"{each.equal} of {total}" for each in found.values()]
    capture = on_gpu.capture if on_gpu.note is None else f"{on_gpu.capture}: {on_gpu.note}"
    return family.types, family.apart or "-", *ids, capture, *shown


def table(rows: list[tuple[str, ...]]) -> str:
    shown = []
    for types, apart, on_gpu, on_cpu, capture, *_ in rows:
        ids = on_gpu if on_gpu == on_cpu else f"{on_gpu} on {DEVICES[0]}, {on_cpu} on {DEVICES[1]}"
        shown.append((types, apart, ids if capture == "tape" else f"{ids}; steps are eager"))
    return grid("`model.type`", ("beside Llama's", "ids"), shown)


def refusals() -> str:
    """The refused names, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in REFUSED_TYPES.items():
        by_reason.setdefault(reason, []).append(name)
    return grid("refused", ("for",), [(", ".join(sorted(names)), reason) for reason, names in by_reason.items()])


def with_table(page: str, text: str, markers: tuple[str, str] = MARKERS) -> str:
    """The page with other tables between its markers; ValueError without them."""
    before, begin, rest = page.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks {markers[0]} or {markers[1]}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def kept() -> dict[str, list[str]]:
    """The rows that were measured, by the fixture's name."""
    found: dict[str, list[str]] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return found


def keep(name: str, row: tuple[str, ...]) -> None:
    """Keep a row, and write the tables again."""
    rows = kept() | {name: list(row)}
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    shown = [tuple(rows[family.name]) for family in FAMILIES if family.name in rows]
    PAGE.write_text(with_table(PAGE.read_text(), f"{table(shown)}\n\n{refusals()}"))


def pages(folders: dict[str, Path], count: int) -> Iterator[PageScripts]:
    """So many pages of one browser, one after another, on a site that serves these models."""
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    with sync_playwright() as playwright, serving(assemble(), folders) as site:
        arguments = ["--headless=new", *flags(adapter)]
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=arguments)
        for _ in range(count):
            page = browser.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            yield PageScripts.install(Harness(page, site.url))
            page.close()
        browser.close()


def run(families: list[Family]) -> None:
    """Measure these families, each on every device in one page, and keep their rows."""
    folders = {family.name: family.folder for family in families}
    for family, scripts in zip(families, pages(folders, len(families)), strict=True):
        found = {}
        for device in DEVICES:
            try:
                found[device] = measured(family, device, partial(scripts.run, "sequences", "drive", family.name))
            except AssertionError as error:
                found[device] = Found(0, "-", None, {}, str(error).strip().splitlines()[-1])
        row = cells(family, found)
        print(" | ".join(row), flush=True)
        keep(family.name, row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="a fixture's name; default: all")
    args = parser.parse_args()
    known = {family.name: family for family in FAMILIES}
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(known)}")
    run([known[name] for name in args.names or known])
    return 0


if __name__ == "__main__":
    sys.exit(main())
