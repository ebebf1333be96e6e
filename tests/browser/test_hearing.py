"""A Whisper model in the page picks the native package's ids, its encoder and decoder on the GPU."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import capstan
from capstan import genai
from tests.browser.page_scripts import PageScripts
from tests.sounds import glide, wave_file

FOLDER = Path(__file__).parents[1] / "fixtures/speech/nano-whisper"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
HUB = Path(__file__).parents[1] / "fixtures/speech/nano-whisper-hub"
SOUNDS = {"rising": wave_file(glide(2.0)), "falling": wave_file(glide(3.5, 2500.0, 150.0))}
GREEDY, BEAMS = EXPECTED["greedy"], EXPECTED["beams"]


def heard(
    scripts: PageScripts, *cases: tuple[list[int], int], folder: str = "nano-whisper", **how: Any
) -> list[dict[str, Any]]:
    """Runs each case, which has the numbers of its sounds and its beams."""
    given = [{"sounds": sounds, "num_beams": beams, "max_length": EXPECTED["max_length"]} for sounds, beams in cases]
    sounds = [b64encode(each).decode() for each in SOUNDS.values()]
    found: list[dict[str, Any]] = scripts.run(
        "hearing", "heard", folder, folder=folder, sounds=sounds, prompt=EXPECTED["prompt"], cases=given, **how
    )
    assert [each["stepped down"] for each in found] == [[]] * len(cases)
    return found


@pytest.mark.extended
def test_eager_steps_pick_the_ids_of_the_native_package(scripts: PageScripts) -> None:
    [rising] = heard(scripts, ([0], 1), capture="off")
    assert (rising["ids"], rising["capture"]) == ([GREEDY["rising"]], "off")


def test_steps_from_a_tape_pick_the_ids_of_the_native_package(scripts: PageScripts) -> None:
    found = heard(scripts, ([0], 1), ([1], 1))
    assert [each["ids"] for each in found] == [[ids] for ids in GREEDY.values()]
    assert [(each["capture"], each["note"]) for each in found] == [("tape", None)] * 2
    assert found[0]["passes"]["fused"] == "51 operations became 19, 1 of them as recorded"
    picks = EXPECTED["max_length"] - len(GREEDY["rising"][:4])
    assert found[1]["counters"]["readback_bytes"] == 4 * picks
    assert found[1]["counters"]["create_buffer"] == 0


@pytest.mark.extended
def test_rows_and_beams_in_one_step_pick_the_ids_of_the_native_package(scripts: PageScripts) -> None:
    found = heard(scripts, ([0, 1], 1), ([0, 1], 2), joint=True)
    assert [each["ids"] for each in found] == [[*GREEDY.values()], EXPECTED["beams of a batch"]]
    steps = EXPECTED["max_length"] - len(GREEDY["rising"][:4]) - 1
    assert [each["counters"]["steps"] for each in found] == [steps] * 2
    assert "beams" in found[1]["passes"]


@pytest.mark.extended
def test_rows_one_after_another_pick_them_too(scripts: PageScripts) -> None:
    found = heard(scripts, ([0], 3), ([0, 1], 1), ([0, 1], 2))
    assert [each["ids"] for each in found] == [[BEAMS["rising"]], [*GREEDY.values()], EXPECTED["beams of a batch"]]


def on_the_cpu(beams: int, *sounds: bytes) -> list[list[int]]:
    """The ids of the repository on CPython, whose graphs test_speech_repository.py holds to the native package."""
    model = genai.Model(str(HUB))
    params = genai.GeneratorParams(model)
    params.set_search_options(
        do_sample=False, num_beams=beams, max_length=EXPECTED["max_length"], batch_size=len(sounds)
    )
    generator = genai.Generator(model, params)
    processor = model.create_multimodal_processor()
    generator.set_inputs(processor([EXPECTED["prompt"]] * len(sounds), audios=genai.Audios.open_bytes(*sounds)))
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)] for row in range(len(sounds))]


def test_a_repository_in_transformers_js_layout_runs_the_same_step(scripts: PageScripts) -> None:
    [rising] = heard(scripts, ([0], 1), folder="nano-whisper-hub")
    assert rising["ids"] == on_the_cpu(1, SOUNDS["rising"])
    assert (rising["capture"], rising["note"]) == ("tape", None)
    assert rising["passes"]["fused"] == "57 operations became 19, 1 of them as recorded"


@pytest.mark.extended
def test_rows_and_beams_of_a_repository_in_one_step_pick_the_native_ids(scripts: PageScripts) -> None:
    found = heard(scripts, ([0, 1], 1), ([0, 1], 2), folder="nano-whisper-hub", joint=True)
    assert [each["ids"] for each in found] == [on_the_cpu(beams, *SOUNDS.values()) for beams in (1, 2)]


@pytest.mark.extended
def test_a_recorded_encoder_gives_the_same(scripts: PageScripts) -> None:
    found = heard(scripts, ([0], 1), ([1], 1), ([0, 1], 1), recorded=True, capture="off")
    assert [each["ids"] for each in found] == [*([ids] for ids in GREEDY.values()), [*GREEDY.values()]]


@pytest.mark.extended
def test_timestamps_are_picked_on_the_gpu_by_the_rules_of_cpython(scripts: PageScripts) -> None:
    sound = SOUNDS["rising"]
    found = scripts.run(
        "hearing", "transcribed", "nano-whisper", sound=b64encode(sound).decode(), options={"language": "de"}
    )
    expected = capstan.Transcriber(capstan.Model(str(FOLDER))).transcribe(sound, language="de", timestamps=True)
    assert found["segments"] == [[each.text, each.start, each.end] for each in expected.segments]
    assert (found["capture"], found["stepped down"]) == ("tape", [])
    # Ids alone come back.
    assert found["counters"]["readback_bytes"] < 8 * found["counters"]["steps"]
