"""Whisper repositories in Transformers.js' layout pick the native package's ids; what is missing in one is named."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capstan
from capstan import ConfigError, ModelFileError, OptionError, UnsupportedModelError, genai
from capstan.sound.sound_processor import HeardSound, SoundProcessor
from tests.sounds import glide
from tests.unit.test_hearing import EXPECTED, FALLING, RISING, finished, generator, inputs

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER, HUB, LLAMA = FIXTURES / "speech/nano-whisper", FIXTURES / "speech/nano-whisper-hub", FIXTURES / "nano-llama"
PREPROCESSOR = "preprocessor_config.json"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HUB, tmp_path / "hub"))


def changed(hub: Path, name: str, **fields: Any) -> Path:
    file = hub / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return hub


def picked(model: genai.Model, *sounds: bytes, beams: int = 1) -> list[list[int]]:
    """The ids for the native package's features of sounds, which hear silence before a sound."""
    made = generator(genai, model, len(sounds), num_beams=beams)
    made.set_inputs(inputs(genai, genai.Model(str(FOLDER)), *sounds))
    return finished(made, len(sounds))


def test_ids_of_searches_and_batches_are_the_native_packages() -> None:
    model = genai.Model(str(HUB))
    assert model.type == "whisper"
    assert picked(model, FALLING) == [EXPECTED["greedy"]["falling"]]
    assert picked(model, RISING, beams=3) == [EXPECTED["beams"]["rising"]]
    assert picked(model, RISING, FALLING, beams=2) == EXPECTED["beams of a batch"]


def test_an_older_export_picks_the_same_ids(hub: Path) -> None:
    shutil.copy(hub / "others/older.onnx", hub / "onnx/decoder_model_merged.onnx")
    model = genai.Model(str(hub))
    assert picked(model, RISING) == [EXPECTED["greedy"]["rising"]]
    assert picked(model, FALLING, beams=3) == [EXPECTED["beams"]["falling"]]


def test_a_transcriber_knows_what_the_builders_knows() -> None:
    hub, folder = (capstan.Transcriber(capstan.Model(str(place))) for place in (HUB, FOLDER))
    assert hub.transcribe(RISING, language="de", timestamps=True).segments
    assert hub.languages == folder.languages


FEATURES = json.loads((HUB / "features.json").read_text())


@pytest.mark.parametrize("name", ["short", "long"])
def test_features_of_an_extractor_are_those_of_transformers_to_the_ends_of_a_sound(name: str) -> None:
    about, expected = SoundProcessor.of_config((HUB / PREPROCESSOR).read_bytes(), PREPROCESSOR), FEATURES[name]
    sound = HeardSound(about, np.array(glide(expected["seconds"]), np.float32))
    first = max(sound.frames - about.frames, 0)
    windows = {0: sound.window(0), first: sound.window(first)}
    for place, column in expected["columns"].items():
        start = 0 if int(place) < about.frames else first
        np.testing.assert_allclose(windows[start][:, int(place) - start], column, atol=1e-4, err_msg=place)


def test_each_graph_is_of_the_first_dtype_that_suits_the_device(hub: Path) -> None:
    shutil.copy(hub / "others/q4.onnx", hub / "onnx/decoder_model_merged_q4.onnx")
    config = capstan.Model(str(hub)).config
    assert (config.decoder.filename, config.encoder and config.encoder.filename) == (
        "onnx/decoder_model_merged_q4.onnx",
        "onnx/encoder_model.onnx",
    )
    with pytest.raises(
        ModelFileError, match=r"encoder_model_q4\.onnx does not exist; .* the dtypes of encoder_model are fp32"
    ):
        capstan.Model(str(hub), dtype="q4")
    with pytest.raises(OptionError, match="dtype is 'q5'; it must be one of fp32, fp16, q4"):
        capstan.Model(str(hub), dtype="q5")


@pytest.mark.parametrize("name", ["encoder_model", "decoder_model_merged"])
def test_half_of_the_pair_is_not_enough(name: str, hub: Path) -> None:
    (hub / f"onnx/{name}.onnx").unlink()
    with pytest.raises(ModelFileError, match=rf"{name}\.onnx and its other dtypes do not exist; .* two graphs"):
        capstan.Model(str(hub))


@pytest.mark.parametrize(
    ("name", "fields", "kind", "message"),
    [
        ("config.json", {"decoder_layers": 3}, UnsupportedModelError, "has no input past_key_values.2.decoder.key"),
        ("config.json", {"d_model": 33}, ConfigError, r"decoder_attention_heads: .* a divisor of d_model \(33\)"),
        ("config.json", {"num_mel_bins": 0}, ConfigError, "num_mel_bins: expected a positive integer"),
        ("preprocessor_config.json", {"feature_extractor_type": "X"}, UnsupportedModelError, "'X' of 16000 samples"),
        ("preprocessor_config.json", {"hop_length": "a"}, ConfigError, "hop_length is 'a'; expected a whole number"),
    ],
)
def test_wrong_fields_are_named(name: str, fields: dict[str, Any], kind: type, message: str, hub: Path) -> None:
    with pytest.raises(kind, match=message):
        capstan.Transcriber(capstan.Model(str(changed(hub, name, **fields))))


def test_the_other_kind_of_model_is_refused_before_its_graphs_are_read(hub: Path, tmp_path: Path) -> None:
    shutil.rmtree(hub / "onnx")
    text = tmp_path / "text"
    text.mkdir()
    (text / "config.json").write_text(json.dumps({"model_type": "llama"}))
    shutil.copy(HUB / "tokenizer.json", text)
    for place, hears, message in (
        (hub, False, "is a model of type 'whisper', which turns speech into text; load it by Capstan.loadTranscriber"),
        (FOLDER, False, "is a model of type 'whisper', which turns speech into text"),
        (text, True, "is a model of type 'llama', which takes only text and hears nothing"),
        (LLAMA, True, "is a model of type 'llama', which takes only text and hears nothing"),
        (tmp_path / "a.gguf", True, "is a GGUF file, which takes only text and hears nothing"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            asyncio.run(capstan.Model.load(str(place), hears=hears))


def test_other_models_of_speech_are_refused_by_name_before_their_graphs_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "speech_to_text", "is_encoder_decoder": True}))
    shutil.copy(HUB / "tokenizer.json", tmp_path)
    message = "the model, of type speech_to_text, has an encoder; Capstan runs .* Whisper and Moonshine"
    for hears in (True, None):
        with pytest.raises(UnsupportedModelError, match=message):
            asyncio.run(capstan.Model.load(str(tmp_path), hears=hears))


def test_a_plan_counts_both_graphs() -> None:
    fit = asyncio.run(capstan.plan(str(HUB), max_length=64))
    both = sum((HUB / f"onnx/{name}.onnx").stat().st_size for name in ("encoder_model", "decoder_model_merged"))
    assert fit
    assert 0.75 * both < fit.requirements.weights.bytes < both
