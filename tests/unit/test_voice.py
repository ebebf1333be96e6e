"""capstan.Voice on CPython: samples are those of the native onnxruntime for the same phonemes."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import struct
import wave
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import CapstanError, ConfigError, DeviceError, ModelFileError, OptionError, UnsupportedModelError, Voice
from capstan.speech.phonemes import MOST, language_of, pieces, sentences
from tests.voices import VOICES, make_voice, native_samples

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voice(tmp_path_factory.mktemp("kokoro"))


def spoken(folder: Path, text: Any, phonemize: Any = None, **options: Any) -> list[np.ndarray[Any, Any]]:
    async def run() -> list[np.ndarray[Any, Any]]:
        async with await Voice.load(str(folder), phonemize=phonemize) as voice:
            return [np.array(part) async for part in voice.speak(text, **options)]

    return asyncio.run(run())


@pytest.mark.parametrize(("voice", "speed"), [(None, 1.0), ("bf_emma", 0.5), ("ff_siwis", 2.0)])
def test_samples_are_those_of_the_native_onnxruntime(folder: Path, voice: str | None, speed: float) -> None:
    first, second = "həlˈO wˈɜɹld!", "hˌW ɑɹ ju?"
    parts = spoken(folder, f"{first} {second}", voice=voice, speed=speed, phonemes=True)
    assert len(parts) == 2
    for part, phonemes in zip(parts, (first, second), strict=True):
        assert part == pytest.approx(native_samples(folder, phonemes, voice or "af_heart", speed), abs=1e-6)
        assert np.ptp(part) > 0.1


def test_a_function_of_the_caller_makes_the_phonemes(folder: Path) -> None:
    asked = []

    async def phonemize(text: str, voice: str) -> str:
        asked.append((text, voice))
        return "sˈ∅ɪ\n" if text == "Oui." else "nˈo."

    oui, non = spoken(folder, "Oui. Non.", phonemize, voice="ff_siwis")
    assert asked == [("Oui.", "ff_siwis"), ("Non.", "ff_siwis")]
    # Symbols that the model does not know are left out, as its tokenizer does it.
    assert oui == pytest.approx(native_samples(folder, "sˈɪ", "ff_siwis"), abs=1e-6)
    assert non == pytest.approx(native_samples(folder, "nˈo.", "ff_siwis"), abs=1e-6)


def test_a_text_that_is_still_written_is_spoken_by_sentences(folder: Path) -> None:
    told: list[str] = []

    async def parts() -> AsyncIterator[str]:
        for part in ("Mr. A", " goes. B", "ut he", " sa", "ys: 3.5! An", "d"):
            told.append(part)
            yield part

    async def run() -> list[tuple[str, int]]:
        return [(sentence, len(told)) async for sentence in sentences(parts())]

    assert asyncio.run(run()) == [("Mr. A goes.", 2), ("But he says: 3.5!", 5), ("And", 6)]
    assert len(spoken(folder, parts(), lambda text, _: "ə" * len(text))) == 3

    async def nothing() -> AsyncIterator[str]:
        yield " \n"

    assert spoken(folder, nothing(), phonemes=True) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            'Dr. Who. "Fine." e.g. this… No?\n1. One\n2. Two',
            ["Dr. Who.", '"Fine."', "e.g. this…", "No?", "1. One", "2. Two"],
        ),
        ("あ。い！う", ["あ。", "い！", "う"]),
        ("\n\n ", []),
    ],
)
def test_sentences(text: str, found: list[str]) -> None:
    async def run() -> list[str]:
        return [sentence.strip() async for sentence in sentences(text)]

    assert asyncio.run(run()) == found


def test_long_sentences_are_cut_at_commas_then_at_words() -> None:
    clause = "ə" * 200 + ","
    assert pieces(" ".join([clause] * 5)) == [f"{clause} {clause}", f"{clause} {clause}", clause]
    word = "ə" * 100
    assert pieces(" ".join([word] * 12)) == [" ".join([word] * 5), " ".join([word] * 5), " ".join([word] * 2)]
    assert [len(piece) for piece in pieces("ə" * 1200)] == [MOST, MOST, 180]
    assert pieces("ə" * MOST) == ["ə" * MOST]
    assert pieces("") == []


def test_a_piece_of_the_most_phonemes_takes_the_last_style(folder: Path) -> None:
    [part, rest] = spoken(folder, "ə" * (MOST + 1), phonemes=True)
    assert part == pytest.approx(native_samples(folder, "ə" * MOST, "af_heart"), abs=1e-6)
    assert rest == pytest.approx(native_samples(folder, "ə", "af_heart"), abs=1e-6)


def test_a_wave_file_has_all_sentences(folder: Path) -> None:
    async def run() -> tuple[bytes, list[str], str]:
        async with await Voice.load(str(folder)) as voice:
            return await voice.wave("ə. ɪ.", phonemes=True), voice.voices, voice.device

    data, voices, device = asyncio.run(run())
    assert (voices, device) == (sorted(VOICES), "wasm")
    with wave.open(BytesIO(data)) as file:
        assert file.getparams()[:3] == (1, 2, 24_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32767
    whole = np.concatenate([native_samples(folder, each, "af_heart") for each in ("ə.", "ɪ.")])
    assert samples == pytest.approx(whole, abs=1 / 32767)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {"phonemes": True}, "the text is '', which has nothing to speak"),
        ("∅ \n", {"phonemes": True}, "which has nothing to speak"),
        ("ə", {"phonemes": True, "voice": "af_none"}, "voice is 'af_none'; the voices are af_heart, bf_emma, ff_siwis"),
        ("ə", {"phonemes": True, "voice": "../voices/af_heart"}, "voice is '../voices/af_heart'; the voices"),
        ("ə", {"phonemes": True, "speed": 0.49}, "speed is 0.49; it must be from 0.5 to 2"),
        ("ə", {"phonemes": True, "speed": math.nan}, "speed is nan; it must be"),
        ("hello", {}, "phonemes are made only in a page: give a function `phonemize`"),
        ("bonjour", {"voice": "ff_siwis"}, "voice 'ff_siwis' speaks fr-FR; phonemes are made only for English"),
        (5, {}, "Voice.speak: text is 5"),
    ],
)
def test_what_cannot_be_spoken_is_refused(folder: Path, text: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        spoken(folder, text, **options)


def test_phonemize_must_give_a_text(folder: Path) -> None:
    with pytest.raises(OptionError, match="phonemize gave None; it must give a text"):
        spoken(folder, "hello", lambda *_: None)


def test_a_damaged_voice_is_told(folder: Path, tmp_path: Path) -> None:
    made = shutil.copytree(folder, tmp_path / "kokoro")
    whole = (made / "voices/af_heart.bin").read_bytes()
    (made / "voices/af_heart.bin").write_bytes(whole[:-1024])
    with pytest.raises(ModelFileError, match="af_heart.bin has 521216 bytes, but a voice has 522240"):
        spoken(made, "ə", phonemes=True)
    (made / "voices/af_heart.bin").write_bytes(struct.pack("<f", math.nan) + whole[4:])
    with pytest.raises(ModelFileError, match="af_heart.bin has numbers that are not finite"):
        spoken(made, "ə", phonemes=True)
    (made / "voices/af_heart.bin").write_bytes(struct.pack("<f", 3e38) * (len(whole) // 4))
    with pytest.raises((DeviceError, ModelFileError)):
        spoken(made, "ə", phonemes=True)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"config.json": None}, ModelFileError, "config.json is missing"),
        (
            {"config.json": {"model_type": "llama"}},
            UnsupportedModelError,
            "a model of type 'llama', which does not speak",
        ),
        ({"tokenizer.json": {"model": {}}}, ConfigError, "has no ids of phonemes"),
        ({"tokenizer.json": {"model": {"vocab": {"a": "b"}}}}, ConfigError, "has no ids of phonemes"),
    ],
)
def test_a_folder_of_another_kind_is_told_before_weights_are_read(
    folder: Path, files: dict[str, Any], error: type[CapstanError], message: str, tmp_path: Path
) -> None:
    made = shutil.copytree(folder, tmp_path / "kokoro")
    (made / "onnx/model.onnx").write_bytes(b"never read")
    for name, content in files.items():
        (made / name).unlink()
        if content is not None:
            (made / name).write_text(json.dumps(content))
    with pytest.raises(error, match=message):
        spoken(made, "ə", phonemes=True)


def test_a_graph_of_another_kind_is_told(folder: Path, tmp_path: Path) -> None:
    made = shutil.copytree(folder, tmp_path / "kokoro")
    shutil.copyfile(FIXTURES / "nano-llama/model.onnx", made / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match="a Kokoro model has input_ids, style and speed"):
        spoken(made, "ə", phonemes=True)


def test_the_quantized_graph_is_taken_where_it_is_there(folder: Path, tmp_path: Path) -> None:
    made = shutil.copytree(folder, tmp_path / "kokoro")
    (made / "onnx/model.onnx").rename(made / "onnx/model_quantized.onnx")
    assert len(spoken(made, "ə", phonemes=True)) == 1
    (made / "onnx/model.onnx").write_bytes(b"never read")
    assert len(spoken(made, "ə", phonemes=True)) == 1


@pytest.mark.parametrize(
    ("voice", "language"),
    [("af_heart", "en-US"), ("bm_george", "en-GB"), ("zf_xiaobei", "zh"), ("af", None), ("", None)],
)
def test_languages_are_told_by_names(voice: str, language: str | None) -> None:
    assert language_of(voice) == language
