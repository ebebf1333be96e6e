"""Transcriptions are transformers': prompts, rules for timestamps and windows of long sounds; bad input is refused."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capstan
from capstan import OptionError, SoundError, UnsupportedModelError
from capstan.sound import sound_processor
from capstan.sound.sound_processor import HeardSound, SoundProcessor
from capstan.sound.spectrum import log_mel
from capstan.speech import transcription_run
from capstan.speech.segments import Cut, cuts
from capstan.stages.sampling import finite_logits
from capstan.stages.search import SearchOptions
from tests.looped import looped
from tests.sounds import FLOATS, glide, wave_file
from tests.unit.media_models import refused

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER = FIXTURES / "speech/nano-whisper"
EXPECTED = json.loads((FOLDER / "transcribed.json").read_text())
CASES = EXPECTED["cases"]
CONFIG = (FOLDER / "audio_processor_config.json").read_text()


def loaded(tmp_path: Path, config: dict[str, Any] | None = None) -> capstan.Model:
    target = tmp_path / "whisper"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(FOLDER, target)
    if config is not None:
        (target / "generation_config.json").write_text(json.dumps(config))
    return capstan.Model(str(target))


@pytest.fixture(scope="module")
def transcriber() -> capstan.Transcriber:
    return capstan.Transcriber(capstan.Model(str(FOLDER)))


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids of each window, as they are picked."""
    picked: list[list[int]] = []

    def noted(tokens: Sequence[int], *given: int) -> tuple[list[Cut], int]:
        picked.append(list(tokens))
        return cuts(tokens, *given)

    monkeypatch.setattr(transcription_run, "cuts", noted)
    return picked


async def first(run: capstan.TranscriptionRun, count: int) -> list[capstan.Segment]:
    found: list[capstan.Segment] = []
    async for segment in run:
        found.append(segment)
        if len(found) == count:
            break
    return found


@looped("name", [name for name, case in CASES.items() if case["windows"]])
def test_segments_are_those_of_transformers(name: str, tmp_path: Path, ids: list[list[int]]) -> None:
    ids.clear()
    case = CASES[name]
    made = capstan.Transcriber(loaded(tmp_path, case["config"]))
    options = {key: value for key, value in case["options"].items() if key != "return_timestamps"}
    run = made.run(array("f", glide(case["seconds"])), timestamps=True, **options)
    found = asyncio.run(first(run, len(case["heard"])))
    assert [[each.start, each.end] for each in found] == [each[1:3] for each in case["heard"]]
    for number, picked in enumerate(ids):
        expected = [token for window, _, _, tokens in case["heard"] if window == number for token in tokens]
        assert picked[: len(expected)] == expected


@looped("name", [name for name, case in CASES.items() if not case["windows"]])
def test_texts_are_those_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, sequences = CASES[name], []
    step = capstan.Generator.generate_next_token_async

    async def noted(self: capstan.Generator) -> int:
        token = await step(self)
        sequences.append(self.get_sequence())
        return token

    monkeypatch.setattr(capstan.Generator, "generate_next_token_async", noted)
    made = capstan.Transcriber(loaded(tmp_path, case["config"]))
    made.transcribe(wave_file(glide(case["seconds"]), bits=32, coding=FLOATS), **case["options"])
    assert sequences[-1][-len(case["heard"]) :] == case["heard"]
    assert len(sequences) == len(case["heard"])


def test_picked_tokens_are_those_of_the_definition(transcriber: capstan.Transcriber) -> None:
    known = replace(
        transcriber._speech.tokens, suppressed=(7, 124, 318), suppressed_first=(234, 297), initial_timestamp=10
    )
    options = SearchOptions(timestamps=known.rules)
    for number, case in enumerate(EXPECTED["rules"]):
        random = np.random.RandomState(number)
        logits = 4 * random.standard_normal(352).astype(np.float32)
        logits[307:] += random.choice([-6, -3, 0])
        sequence = [298, 299, 302, *case["picked"]]
        found = finite_logits(logits.data, options, sequence, 3)
        allowed = sum(1 << token for token in range(352) if found[token] > -3.4e38)
        assert f"{allowed:x}" == case["allowed"], number


def test_tokens_that_no_speech_has_are_openais(transcriber: capstan.Transcriber) -> None:
    tokens = transcriber._speech.tokens
    special = [298, 301, 302, 303, 304, 305]
    assert list(tokens.suppressed) == sorted([*EXPECTED["unspoken"], *special])
    assert (tokens.end, tokens.timestamps, tokens.initial_timestamp) == (297, 307, 50)
    assert transcriber.languages == ["en", "de"]


@looped(
    "picked",
    {
        "no timestamp": ([5, 6], [Cut(10.0, 25.0, (5, 6))], 1500),
        "a start alone": ([100, 5], [Cut(10.0, 25.0, (100, 5))], 1500),
        "an end": ([100, 5, 150], [Cut(10.0, 11.0, (100, 5, 150))], 1500),
        "a pair": ([100, 5, 150, 150], [Cut(10.0, 11.0, (100, 5, 150))], 100),
        "text after a pair": ([110, 5, 150, 160, 6], [Cut(10.2, 11.0, (110, 5, 150))], 100),
        "an end after a pair": (
            [100, 5, 150, 160, 6, 200],
            [Cut(10.0, 11.0, (100, 5, 150)), Cut(11.2, 12.0, (160, 6, 200))],
            1500,
        ),
        "two pairs": (
            [100, 5, 150, 160, 6, 200, 200],
            [Cut(10.0, 11.0, (100, 5, 150)), Cut(11.2, 12.0, (160, 6, 200))],
            200,
        ),
    }.values(),
)
def test_windows_are_cut_where_timestamps_come_in_pairs(picked: tuple[list[int], list[Cut], int]) -> None:
    ids, segments, step = picked
    assert cuts(ids, 100, 1000, 1500) == (segments, step)


def test_a_window_of_a_long_sound_has_the_spectrum_of_the_whole() -> None:
    processor = SoundProcessor.of_config(CONFIG, "a")
    quiet = [*glide(31.0), *(0.001 * each for each in glide(9.5))]
    whole = HeardSound(processor, np.array(quiet, np.float32))
    assert whole.frames == 4050
    both = np.concatenate([whole.window(0), whole.window(3000)[:, :1050]], axis=1)
    assert np.array_equal(whole.window(1000), both[:, 1000:4000])
    assert not whole.window(3000)[:, 1050:].any()
    assert both.max() - both.min() == np.float32(2.0)


def test_each_frame_of_a_sound_is_transformed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*given: Any) -> Any:
        found = log_mel(*given)
        made.append(found.shape[1])
        return found

    monkeypatch.setattr(sound_processor, "log_mel", counted)
    for seconds in (2.0, 40.0):
        made.clear()
        sound = HeardSound(SoundProcessor.of_config(CONFIG, "a"), np.array(glide(seconds), np.float32))
        for first in range(0, sound.frames, 1000):
            sound.window(first)
        assert sum(made) == 100 * seconds


def test_a_long_file_is_resampled_in_parts_as_one() -> None:
    rate = 22050
    samples = glide(31.3, rate=rate)
    processor = SoundProcessor.of_config(CONFIG, "a")
    found = processor.samples(wave_file(samples, rate=rate, bits=32, coding=FLOATS), "a", 100)
    assert len(found) == math.ceil(31.3 * 16000)
    # At the end of a part the native package's times are known to an eighth of a sample only.
    for start in (29, 30):
        part = samples[start * rate : (start + 1) * rate]
        alone = processor.samples(wave_file(part, rate=rate, bits=32, coding=FLOATS), "a", 100)
        assert np.abs(found[start * 16000 + 500 : start * 16000 + 15500] - alone[500:15500]).max() < 0.1
    first = wave_file(samples[: 30 * rate], rate=rate, bits=32, coding=FLOATS)
    assert np.allclose(found[:479_000], processor.samples(first, "a", 100)[:479_000], atol=1e-5)


async def test_all_forms_of_a_sound_give_the_same_text(transcriber: capstan.Transcriber, tmp_path: Path) -> None:
    samples = [round(32767 * each) / 32768 for each in glide(2.0)]
    data = wave_file(glide(2.0))
    (tmp_path / "a.wav").write_bytes(data)
    forms = [data, str(tmp_path / "a.wav"), array("f", samples), np.array(samples)]
    found = [transcriber.transcribe(each, language="de") for each in forms]
    assert found == [found[0]] * 4
    assert found[0].language == "de"
    assert found[0].duration == 2.0
    assert found[0].segments == ()

    streamed = [each async for each in transcriber.run(data, language="de")]
    assert len(streamed) > 5
    assert "".join(each.text for each in streamed).strip() == found[0].text
    assert {(each.start, each.end) for each in streamed} == {(None, None)}


def test_captions_are_web_vtt() -> None:
    segments = (capstan.Segment(" a < b & c", 0.0, 1.5), capstan.Segment(" so", 3599.99, 3725.0))
    made = capstan.Transcription("a", segments, "en", 4000.0)
    assert made.vtt() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\na &lt; b &amp; c\n\n00:59:59.990 --> 01:02:05.000\nso\n"
    )
    with pytest.raises(OptionError, match="timestamps=True"):
        capstan.Transcription("a", (), "en", 4000.0).vtt()
    assert capstan.Transcription("", (), "en", 1.0).vtt() == "WEBVTT\n"


def test_bad_input_is_refused_by_name(transcriber: capstan.Transcriber, tmp_path: Path) -> None:
    tone = glide(0.5)
    whole = wave_file(tone)
    hear = transcriber.transcribe
    refused(SoundError, "cannot be read", lambda: hear(str(tmp_path / "none.wav")))
    refused(SoundError, "4 bytes and is not a WAV file", lambda: hear(b"junk"))
    refused(SoundError, "has no samples", lambda: hear(wave_file([])))
    refused(SoundError, "has no samples", lambda: hear(array("f")))
    refused(SoundError, "is truncated", lambda: hear(whole[:-100]))
    refused(SoundError, "sample 7 is NaN", lambda: hear(array("f", [*tone[:7], math.nan])))
    nan = wave_file([*tone, math.nan], bits=32, coding=FLOATS)
    refused(SoundError, "sample 8000 is NaN", lambda: hear(nan))
    head = wave_file([0.0])[:-2]
    hours = head[:40] + (36_000 * 32_000).to_bytes(4, "little")
    refused(SoundError, "36000.0 seconds long; the model hears at most 14400", lambda: hear(hours))
    refused(SoundError, "has 159 samples", lambda: hear(array("f", tone[:159])))
    refused(SoundError, "2 dimensions", lambda: hear(np.zeros((2, 16000), np.float32)))
    refused(SoundError, "expected a sound file or samples", lambda: hear(object()))
    refused(OptionError, "language is 'xx'; it must be one of en, de", lambda: hear(whole, language="xx"))
    refused(OptionError, "task is 'sing'; it must be one of transcribe, translate", lambda: hear(whole, task="sing"))


def test_eight_channels_at_192_khz_are_heard(transcriber: capstan.Transcriber) -> None:
    tone = glide(0.5, rate=192_000)
    eight = wave_file([each for sample in tone for each in [sample] * 8], rate=192_000, channels=8)
    assert transcriber.transcribe(eight, language="en").duration == 0.5


def test_a_model_of_text_or_of_english_says_so(tmp_path: Path) -> None:
    text = capstan.Model(str(FIXTURES / "nano-llama"))
    refused(UnsupportedModelError, "takes only text and hears nothing", lambda: capstan.Transcriber(text))
    english = capstan.Transcriber(loaded(tmp_path, {"is_multilingual": False}))
    sound = wave_file(glide(0.5))
    assert english.languages == []
    assert english.transcribe(sound, language="en").language == "en"
    refused(
        OptionError, "language is 'de', but the model knows only English", lambda: english.run(sound, language="de")
    )
    refused(OptionError, "task is 'translate', but the model", lambda: english.run(sound, task="translate"))
    refused(capstan.ConfigError, "suppress_tokens is 'all'", lambda: loaded_transcriber(tmp_path, "all"))


def loaded_transcriber(tmp_path: Path, suppressed: Any) -> capstan.Transcriber:
    return capstan.Transcriber(loaded(tmp_path, {"suppress_tokens": suppressed}))
