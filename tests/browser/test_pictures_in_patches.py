"""A Qwen2.5-VL model in the page picks the ids of the native package, and with beams those of transformers."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_scripts import PageScripts
from tests.pictures import checks, gradient, png_file

NAME = "nano-qwen2_5_vl"
CASES = json.loads((Path(__file__).parents[1] / f"fixtures/vision/{NAME}/expected.json").read_text())["cases"]
PICTURES = {"gradient": png_file(gradient(140, 90)), "checks": png_file(checks(64, 128, 6))}


def seen(scripts: PageScripts, *cases: tuple[str, int], **how: Any) -> list[dict[str, Any]]:
    """Runs each case with so many beams, and compares its ids."""
    given = [{**CASES[name], "picks": 24, "search": {"num_beams": beams}} for name, beams in cases]
    pictures = {name: b64encode(data).decode() for name, data in PICTURES.items()}
    found: list[dict[str, Any]] = scripts.run("seeing", "seen", NAME, pictures=pictures, cases=given, **how)
    expected = [CASES[name]["ids" if beams == 1 else "beams"] for name, beams in cases]
    assert [each["ids"] for each in found] == expected
    return found


def test_ids_on_the_cpu_are_the_native_packages(scripts: PageScripts) -> None:
    cases = [(name, 1) for name in (*CASES, "gradient")]
    found = seen(scripts, *cases, ("checks", 3), device="wasm")
    assert found[len(CASES)]["reused"] > 15


def test_steps_from_a_tape_go_on_from_the_positions_of_a_picture(scripts: PageScripts) -> None:
    cases = [(name, 1) for name in (*CASES, "gradient")]
    found = seen(scripts, *cases, ("both", 3), ("no picture", 3), device="webgpu")
    assert [(each["capture"], each["note"]) for each in found] == [("tape", None)] * len(found)
    assert found[len(CASES)]["reused"] > 15


@pytest.mark.extended
def test_steps_without_a_tape_are_the_same(scripts: PageScripts) -> None:
    seen(scripts, ("smaller first", 1), ("gradient", 3), device="webgpu", capture="off")
