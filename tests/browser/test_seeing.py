"""A Gemma 3 model with vision in the page picks the native package's ids, and shares rows by the picture."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from capstan.tape import PASSES
from tests.browser.page_scripts import PageScripts
from tests.pictures import checks, gradient, png_file

CASES = json.loads((Path(__file__).parents[1] / "fixtures/vision/nano-gemma3-vl/expected.json").read_text())["cases"]
PICTURES = {"gradient": png_file(gradient()), "checks": png_file(checks())}


def seen(scripts: PageScripts, *cases: tuple[str, dict[str, Any]], picks: int = 24, **how: Any) -> list[dict[str, Any]]:
    """Runs each case with its search options."""
    given = [
        {"prompt": CASES[name]["prompt"], "pictures": CASES[name]["pictures"], "picks": picks, "search": search}
        for name, search in cases
    ]
    pictures = {name: b64encode(data).decode() for name, data in PICTURES.items()}
    found: list[dict[str, Any]] = scripts.run("seeing", "seen", "nano-gemma3-vl", pictures=pictures, cases=given, **how)
    return found


def test_ids_on_the_cpu_are_the_native_packages_and_rows_are_shared_by_the_picture(scripts: PageScripts) -> None:
    names = ["gradient", "checks", "no picture", "gradient", "both"]
    found = seen(scripts, *((name, {}) for name in names), device="wasm")
    assert [each["ids"] for each in found] == [CASES[name]["ids"] for name in names]
    reused = [each["reused"] for each in found]
    assert reused[:3] == [0, 0, 0]
    assert reused[3] > 256


def test_steps_from_a_tape_pick_the_ids_of_the_native_package(scripts: PageScripts) -> None:
    names = ["gradient", "checks", "no picture", "gradient"]
    found = seen(scripts, *((name, {}) for name in names), device="webgpu")
    # The vision graph's export looks positions up by constants: onnxruntime keeps the result for each session.
    downs = [down for each in found for down in each["stepped down"] if "Gather has only constant inputs" not in down]
    assert downs == []
    assert [each["ids"] for each in found] == [CASES[name]["ids"] for name in names]
    assert [(each["capture"], each["note"]) for each in found] == [("tape", None)] * len(names)
    assert found[3]["reused"] > 256


def test_beams_about_a_picture_advance_in_one_step(scripts: PageScripts) -> None:
    found = seen(scripts, ("gradient", {"num_beams": 3}), ("no picture", {"num_beams": 3}), device="webgpu")
    assert [each["ids"] for each in found] == [CASES["gradient"]["beams"], CASES["no picture"]["beams"]]
    assert [(each["capture"], each["note"]) for each in found] == [("tape", None)] * 2
    assert not [down for each in found for down in each["stepped down"] if "one after another" in str(down)]


@pytest.mark.extended
def test_prompts_from_tapes_pick_the_ids_of_the_native_package(scripts: PageScripts) -> None:
    # The passes that software adapters leave out by default.
    names = ["no picture", "gradient", "no picture", "checks", "both"]
    found = seen(scripts, *((name, {}) for name in names), device="webgpu", passes=list(PASSES))
    assert [each["ids"] for each in found] == [CASES[name]["ids"] for name in names]


@pytest.mark.extended
def test_several_pictures_and_beams_on_the_gpu_are_the_native_packages(scripts: PageScripts) -> None:
    found = seen(scripts, ("both", {}), ("gradient", {"num_beams": 3}), device="webgpu", capture="off")
    assert [each["ids"] for each in found] == [CASES["both"]["ids"], CASES["gradient"]["beams"]]


@pytest.mark.extended
def test_beams_on_the_cpu_are_the_native_packages(scripts: PageScripts) -> None:
    [found] = seen(scripts, ("checks", {"num_beams": 3}), device="wasm")
    assert found["ids"] == CASES["checks"]["beams"]
