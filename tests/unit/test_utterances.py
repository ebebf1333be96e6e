"""Utterances are cut where Silero's own Python cuts them, as the sound comes."""

from __future__ import annotations

import random
import sys
import zipfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from buildtools.carried_wheels import DETECTOR
from capstan.speech.utterances import PAUSE, RATE, SHORTEST, WINDOW, Utterances

Oracle = Callable[..., list[dict[str, int]]]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    """`get_speech_timestamps_from_probs` of the pinned package, whose module names torch and does not need it here."""
    with zipfile.ZipFile(DETECTOR.path()) as wheel:
        source = wheel.read("silero_vad/utils_vad.py")
    names: dict[str, Any] = {"__name__": "utils_vad"}
    with mock.patch.dict(sys.modules, torch=mock.MagicMock()):
        exec(compile(source, "utils_vad.py", "exec"), names)
    found: Oracle = names["get_speech_timestamps_from_probs"]
    return found


def cuts(cutter: Utterances, probabilities: list[float], length: int) -> list[dict[str, int]]:
    """All utterances. Each sample of one is still needed before it comes, and what was open becomes one."""
    found, opened = [], set()
    for place, probability in enumerate(probabilities):
        needed = cutter.needed
        new = list(cutter.push(probability))
        assert all(needed <= each.start < each.end <= (place + 1) * WINDOW for each in new)
        found += new
        if (place + 1) * WINDOW <= length:
            opened.add(cutter.open)
    found += cutter.end(length)
    assert opened - {None} <= {each.start for each in found}
    return [vars(each) for each in found]


def noisy(random_: random.Random, count: int) -> list[float]:
    """Probabilities that stay near 0 or 1 for a while."""
    found: list[float] = []
    while len(found) < count:
        level, spread = random_.choice((0.02, 0.4, 0.5, 0.98)), random_.choice((0.02, 0.2))
        for _ in range(random_.choice((1, 2, 4, 10, 40, 200))):
            found.append(min(1.0, max(0.0, random_.gauss(level, spread))))
    return found[:count]


def test_cuts_are_those_of_the_package(oracle: Oracle) -> None:
    random_ = random.Random(7)
    several = longest_reached = 0
    for _ in range(600):
        probabilities = noisy(random_, random_.randrange(1, 900))
        silence, padding = random_.choice(((100, 30), (500, 200), (300, 150), (64, 30), (1000, 30)))
        seconds = random_.choice((1.0, 3.0, 10.0, 30.0))
        threshold = random_.choice((0.5, 0.35, 0.8, 0.1))
        length = len(probabilities) * WINDOW - random_.randrange(WINDOW)
        expected = oracle(
            probabilities,
            threshold=threshold,
            max_speech_duration_s=seconds,
            min_silence_duration_ms=silence,
            speech_pad_ms=padding,
            audio_length_samples=length,
        )
        cutter = Utterances(threshold, silence * RATE // 1000, padding * RATE // 1000, round(seconds * RATE))
        assert cuts(cutter, probabilities, length) == expected, (silence, padding, seconds, threshold)
        several += len(expected) > 3
        longest_reached += any(each["end"] - each["start"] > 0.8 * seconds * RATE for each in expected)
    assert several > 100
    assert longest_reached > 50


def test_an_utterance_comes_with_the_window_that_ends_its_silence() -> None:
    cutter = Utterances(0.5, RATE // 2, RATE // 5, 30 * RATE)
    speech, silence = 20, -(-RATE // 2 // WINDOW)
    came = [list(cutter.push(0.9 if place < speech else 0.1)) for place in range(speech + silence + 5)]
    assert [place for place, each in enumerate(came) if each] == [speech + silence]
    [found] = came[speech + silence]
    assert (found.start, found.end) == (0, speech * WINDOW + RATE // 5)


def test_what_is_open_is_never_taken_for_noise() -> None:
    cutter = Utterances(0.5, RATE // 2, 0, 30 * RATE)
    short = SHORTEST // WINDOW
    for _ in range(short):
        assert list(cutter.push(0.9)) == []
        assert cutter.open is None
    for _ in range(40):
        assert list(cutter.push(0.1)) == []
        assert cutter.open is None
    assert PAUSE < RATE // 2
