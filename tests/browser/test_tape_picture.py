"""The picture of a tape in the documentation is what onnxruntime-web records and Capstan plays now."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location

import pytest

from buildtools import ROOT


@pytest.mark.extended
def test_the_drawn_tape_is_the_one_that_is_recorded() -> None:
    spec = spec_from_file_location("tape_picture", ROOT / "docs/pictures/tape.py")
    assert spec is not None
    assert spec.loader is not None
    drawn = module_from_spec(spec)
    spec.loader.exec_module(drawn)
    step = drawn.step_of(drawn.NANO)
    assert (ROOT / "docs/pictures/tape.svg").read_text(encoding="utf-8") == drawn.picture(step), "run that file"
    page = (ROOT / "docs/tape.md").read_text(encoding="utf-8")
    assert f"{len(step['recorded'])} become {len(step['played'])}" in page
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    counted = [[cell.strip() for cell in line.split("|")] for line in drawn.table(step).splitlines()[3:] if line]
    assert [row for row in counted if row not in rows] == []
