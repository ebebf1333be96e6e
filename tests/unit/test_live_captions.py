"""`Transcriber.listen`: the cuts are those of the package silero-vad, partial texts come before each final one."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import math
import sys
import zipfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import capstan
from buildtools.carried_wheels import DETECTOR
from capstan import Caption, OptionError, SoundError, UnsupportedModelError
from capstan.speech import listener, speech_detector
from capstan.speech.utterances import RATE, WINDOW
from tests.sounds import quiet, voice

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The pinned package silero-vad, installed."""
    folder = tmp_path_factory.mktemp("silero")
    with zipfile.ZipFile(DETECTOR.path()) as wheel:
        wheel.extractall(folder)
    with mock.patch.object(sys, "path", [*sys.path, str(folder)]):
        yield folder
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def transcriber() -> capstan.Transcriber:
    return capstan.Transcriber(capstan.Model(str(FIXTURES / "speech/nano-whisper")))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have texts be the lengths of sounds, at once."""

    async def transcribe_async(_: Any, samples: Any, **options: Any) -> capstan.Transcription:
        return capstan.Transcription(str(len(samples)), (), "en", 0.0)

    monkeypatch.setattr(capstan.Transcriber, "transcribe_async", transcribe_async)
    monkeypatch.setattr(listener, "monotonic", lambda: 0.0)


def said() -> Any:
    """Two utterances, with silence around them."""
    return np.concatenate([quiet(0.4), voice(1.6), quiet(1.0), voice(0.9), quiet(0.8)])


def blocks(samples: Any, size: int = RATE // 10) -> list[Any]:
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def heard(transcriber: capstan.Transcriber, given: Any, **options: Any) -> list[Caption]:
    async def collect() -> list[Caption]:
        return [each async for each in transcriber.listen(given, **options)]

    return asyncio.run(collect())


def finals(captions: Iterable[Caption]) -> list[tuple[float, float]]:
    return [(each.start, each.end) for each in captions if each.final]


@pytest.fixture(scope="module")
def silero(package: Path) -> Any:
    """The package's own code, which needs no torch for this form of its model."""
    with mock.patch.dict(sys.modules, torch=mock.MagicMock()):
        return importlib.import_module("silero_vad.sequence_vad")


@pytest.fixture(scope="module")
def model(silero: Any, package: Path) -> Any:
    return silero.SileroVADSequence(package / "silero_vad" / speech_detector.FILE)


def test_probabilities_are_those_of_the_package_in_blocks_of_any_size(model: Any) -> None:
    async def found(size: int) -> list[float]:
        detector = await speech_detector.SpeechDetector.load(None)
        parts = [await detector.probabilities(block) for block in blocks(said()[:51200], size * WINDOW)]
        await detector.aclose()
        return [each for part in parts for each in part]

    expected = model.audio_forward(said()[:51200])
    for size in (1, 3, 100):
        assert np.allclose(asyncio.run(found(size)), expected, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("size", [RATE // 10, 100, 7 * RATE])
def test_cuts_are_those_of_the_package(transcriber: capstan.Transcriber, silero: Any, model: Any, size: int) -> None:
    for silence, padding in ((0.5, 0.2), (0.2, 0.1)):
        found = finals(heard(transcriber, blocks(said(), size), silence=silence, interval=0))
        wanted = silero.get_speech_timestamps_sequence(
            said(),
            model,
            min_silence_duration_ms=round(1000 * silence),
            speech_pad_ms=round(1000 * padding),
            max_speech_duration_s=30,
        )
        assert found == [(each["start"] / RATE, each["end"] / RATE) for each in wanted]
        assert len(found) == 2


@pytest.mark.usefixtures("quick")
def test_partial_texts_come_before_each_final_one(transcriber: capstan.Transcriber, package: Path) -> None:
    captions = heard(transcriber, blocks(said()), interval=0.3)
    first = [each for each in captions if each.start == captions[0].start]
    assert [each.final for each in first] == [*[False] * (len(first) - 1), True]
    assert len(first) > 3
    ends = [each.end for each in first[:-1]]
    assert all(after - before > 0.29 for before, after in itertools.pairwise(ends))
    assert ends[-1] < first[-1].end, "no text is made of the silence that ends an utterance"
    assert [each.text for each in captions] == [str(round((each.end - each.start) * RATE)) for each in captions]
    assert [each for each in captions if each.final] == heard(transcriber, [said()], interval=0)


def test_texts_are_those_of_the_samples(transcriber: capstan.Transcriber, package: Path) -> None:
    for each in heard(transcriber, blocks(said()), interval=0, language="de", task="translate"):
        sound = said()[round(each.start * RATE) : round(each.end * RATE)]
        assert each.text == transcriber.transcribe(sound, language="de", task="translate").text


@pytest.mark.usefixtures("quick")
def test_a_slow_machine_makes_fewer_partial_texts(
    transcriber: capstan.Transcriber, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(listener, "monotonic", lambda: 0.4 * next(times))
    captions = heard(transcriber, blocks(said()), interval=0.2)
    ends = [each.end for each in captions if not each.final and each.start == captions[0].start]
    # Each text takes 0.4 seconds, which is to be half of the time.
    assert len(ends) == 2
    assert all(0.79 < after - before < 0.91 for before, after in itertools.pairwise(ends))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("took", "early"), [(0.0, True), (0.6, False)])
def test_a_final_text_is_made_while_its_silence_is_awaited(
    transcriber: capstan.Transcriber, package: Path, monkeypatch: pytest.MonkeyPatch, took: float, early: bool
) -> None:
    """Not on a machine whose texts take longer than the silence."""
    given, made = 0, {}

    async def transcribe_async(_: Any, samples: Any, **options: Any) -> capstan.Transcription:
        assert str(len(samples)) not in made
        made[str(len(samples))] = given
        return capstan.Transcription(str(len(samples)), (), "en", 0.0)

    async def collect() -> list[int]:
        nonlocal given
        waits = []
        live = await transcriber.listener(capstan.speech.caption.LiveOptions(interval=0))
        for given, block in enumerate(blocks(said())):
            waits += [given - made[each.text] async for each in live.hear(block) if each.final]
        await live.aclose()
        return waits

    times = iter(range(1000))
    monkeypatch.setattr(listener, "monotonic", lambda: took * next(times))
    monkeypatch.setattr(capstan.Transcriber, "transcribe_async", transcribe_async)
    found = asyncio.run(collect())
    # The first text shows how long one takes.
    assert len(found) == 2
    assert (found[1] >= 2) if early else (found[1] == 0)


@pytest.mark.usefixtures("quick")
def test_what_is_being_said_at_the_end_is_final(transcriber: capstan.Transcriber, package: Path) -> None:
    cut = said()[: -round(0.9 * RATE)]
    *_, last = heard(transcriber, blocks(cut))
    assert last.final
    assert last.end == len(cut) / RATE


def test_silence_and_noise_give_nothing(transcriber: capstan.Transcriber, package: Path) -> None:
    noise = np.random.default_rng(2).normal(0, 0.1, 2 * RATE)
    assert heard(transcriber, [quiet(1.0), *blocks(noise), [], np.zeros(3 * RATE)]) == []
    assert heard(transcriber, []) == []


@pytest.mark.usefixtures("quick")
def test_blocks_may_be_asynchronous_and_samples_are_dropped(transcriber: capstan.Transcriber, package: Path) -> None:
    async def microphone() -> AsyncIterator[Any]:
        for block in blocks(said()):
            yield block

    assert heard(transcriber, microphone(), interval=0) == heard(transcriber, [said()], interval=0)

    async def kept() -> list[int]:
        live = await transcriber.listener(capstan.speech.caption.LiveOptions(interval=0))
        found = []
        for block in blocks(quiet(8.0), RATE):
            assert [each async for each in live.hear(block)] == []
            found.append(len(live._kept))
        await live.aclose()
        return found

    assert max(asyncio.run(kept())) < RATE


def test_bad_input_is_refused(transcriber: capstan.Transcriber, package: Path, tmp_path: Path) -> None:
    for given, message in (
        ([[0.0, math.nan]], "a block has samples that are NaN or infinite"),
        ([np.zeros((2, 100))], "a block is an array of 2 dimensions"),
        (["speech.wav"], "a block is 'speech.wav'; expected samples"),
    ):
        with pytest.raises(SoundError, match=message):
            heard(transcriber, given)
    for options, message in (
        ({"silence": 0.0}, "silence is 0.0; it must be from 0.1 to 10 seconds"),
        ({"threshold": 1.0}, "threshold is 1.0; it must be between 0 and 1"),
        ({"interval": math.inf}, "interval is inf; it must be a number of seconds"),
        ({"language": "xx"}, "it must be one of en, de"),
        ({"task": "sing"}, "task is 'sing'"),
    ):
        with pytest.raises(OptionError, match=message):
            heard(transcriber, [], **options)
    whole = package / "silero_vad/data/silero_vad.onnx"
    with pytest.raises(UnsupportedModelError, match="silero_vad.onnx takes input, state, sr; expected input, h and c"):
        heard(transcriber, [], vad=str(whole))


@pytest.mark.usefixtures("quick")
def test_a_missing_detector_is_named(transcriber: capstan.Transcriber, package: Path) -> None:
    sequence = package / "silero_vad" / speech_detector.FILE
    with mock.patch.object(sys, "path", [each for each in sys.path if each != str(package)]):
        with pytest.raises(SoundError, match="`pip install --no-deps silero-vad`, or give vad=PATH"):
            heard(transcriber, [said()])
        assert len(finals(heard(transcriber, [said()], interval=0, vad=str(sequence)))) == 2
