"""Moonshine repositories in Transformers.js' layout pick the ids of transformers' `generate`; long sounds are cut where
they are quietest, and what the model lacks is refused by name."""

from __future__ import annotations

import asyncio
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import capstan
from capstan import ConfigError, OptionError, SoundError, UnsupportedModelError
from capstan.device.speech_encoder import Features
from capstan.graph import parse, serialize
from capstan.graph.graph_passes import Made, rewritten
from capstan.graph.moonshine_decoder import moonshine_graphs
from capstan.graph.rewriting import Rewriting
from capstan.graph.wiring import value_info
from capstan.loading.speech_repository import SPEECH_FILES, sizes_of
from capstan.model_files.config_section import Section
from capstan.sound.sound_processor import RATE
from capstan.sound.waveform import Waveforms
from capstan.speech import transcription_run
from tests.looped import looped
from tests.sounds import glide, quiet

HUB = Path(__file__).parents[1] / "fixtures/speech/nano-moonshine-hub"
EXPECTED = json.loads((HUB / "expected.json").read_text())
SOUNDS = {name: np.array(glide(*about), np.float32) for name, about in EXPECTED["sounds"].items()}
FRAMES = 1248
"""Rows that the encoder makes of 30 seconds."""


@pytest.fixture(scope="module")
def model() -> capstan.Model:
    return capstan.Model(str(HUB))


@pytest.fixture(scope="module")
def transcriber(model: capstan.Model) -> capstan.Transcriber:
    return capstan.Transcriber(model)


def picked(model: capstan.Model, samples: Any, **options: Any) -> list[int]:
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=EXPECTED["length"], **options)
    data = samples.tobytes()
    with capstan.Generator(model, params) as generator:
        generator.hear([Features("float32", (1, len(samples)), data, sha256(data).hexdigest())])
        generator.append_tokens([1])
        while not generator.is_done():
            generator.generate_next_token()
        return [int(each) for each in generator.get_sequence(0)]


def test_ids_of_sounds_of_any_length_are_those_of_transformers(model: capstan.Model) -> None:
    for name, samples in SOUNDS.items():
        assert picked(model, samples) == EXPECTED["ids"][name], name
    assert model.type == "moonshine"


def test_features_of_another_rank_are_refused(model: capstan.Model) -> None:
    with pytest.raises(SoundError, match=r"features are float16 \[1, 5\]; the encoder takes float32"):
        asyncio.run(heard(model, Features("float16", (1, 5), b"", "")))
    with pytest.raises(SoundError, match="features are"):
        asyncio.run(heard(model, Features("float32", (1, 5, 5), b"", "")))


async def heard(model: capstan.Model, features: Features) -> None:
    assert model.speech_encoder is not None
    async with model.speech_encoder.heard(features):
        pass


@pytest.mark.parametrize("made", ["wasm", "webgpu"])
def test_the_graphs_of_devices_compute_what_the_repository_says(made: Made, model: capstan.Model) -> None:
    """The logits of a first token, and keys that attention does not see after the sound."""
    assert model.config.encoder is not None
    files = [f"onnx/{name}.onnx" for name in SPEECH_FILES]
    first, second = (parse((HUB / file).read_bytes(), file) for file in files)
    root = Section("config.json", "", json.loads((HUB / "config.json").read_text()))
    encoder, decoder = moonshine_graphs(first, second, sizes_of(root, *files))
    decoder = rewritten(decoder, made, Rewriting(model.config))
    outputs = ran(serialize(encoder), input_values=SOUNDS["rising"][None])
    keys = outputs["present.0.encoder.key"]
    assert keys.shape == (1, 2, FRAMES, 32)
    rows = int((keys[0, 0, :, 24] == 0).sum())
    assert not keys[:, :, rows:, :24].any()
    assert keys[:, :, :rows, :24].all()
    feeds = {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
    empty = np.zeros((1, 2, 0, 24), np.float32)
    feeds |= {f"past_key_values.{layer}.decoder.{part}": empty for layer in (0, 1) for part in ("key", "value")}
    feeds |= {"input_ids": np.array([[1]]), "attention_mask": np.ones((1, 1), np.int64)}
    logits = ran(serialize(decoder), **feeds)["logits"]
    assert int(logits[0, -1].argmax()) == EXPECTED["ids"]["rising"][1]


def ran(data: bytes, **feeds: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


def test_texts_are_those_of_the_ids(transcriber: capstan.Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription_run, "MOST_TOKENS", 100)
    found = transcriber.transcribe(SOUNDS["short"])
    ids = EXPECTED["ids"]["short"]
    tokenizer = transcriber._speech.tokenizer
    assert found.text.startswith(tokenizer.decode(ids).strip()[:20])
    assert (found.segments, found.language, transcriber.languages) == ((), "en", [])


def test_a_text_has_as_many_tokens_as_are_spoken(transcriber: capstan.Transcriber) -> None:
    async def count(samples: Any) -> int:
        return len([each async for each in transcriber.run(samples)])

    # A part of the text may have several tokens.
    assert asyncio.run(count(SOUNDS["rising"])) <= 2 * 6.5 + 1


def test_a_long_sound_is_cut_where_it_is_quietest(transcriber: capstan.Transcriber) -> None:
    long = np.concatenate([glide(24.0), quiet(0.5), glide(9.0)]).astype(np.float32)
    [(first, middle), (other, last)] = Waveforms().heard(long).parts()
    assert (first, last, middle) == (0, len(long), other)
    assert 24.0 <= middle / RATE <= 24.5
    texts = [transcriber.transcribe(part).text for part in (long[:middle], long[middle:])]
    assert transcriber.transcribe(long).text == " ".join(texts)


@looped("seconds", [30.0, 30.1, 65.0])
def test_no_part_is_longer_than_the_model_hears(seconds: float) -> None:
    parts = [*Waveforms().heard(np.ones(round(seconds * RATE), np.float32)).parts()]
    assert len(parts) == (1 if seconds == 30.0 else 2 if seconds < 50 else 3)
    assert [start for start, _ in parts[1:]] == [stop for _, stop in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, round(seconds * RATE))
    assert all(0 < stop - start <= 30 * RATE for start, stop in parts)


def test_a_sound_too_short_for_a_row_is_followed_by_silence(transcriber: capstan.Transcriber) -> None:
    sound = SOUNDS["rising"][1000:1100]
    assert transcriber.transcribe(sound).text == transcriber.transcribe(np.pad(sound, (0, 924))[:200]).text


def test_what_the_model_lacks_is_refused(transcriber: capstan.Transcriber) -> None:
    with pytest.raises(OptionError, match="timestamps were requested, but the model has none"):
        transcriber.transcribe(SOUNDS["short"], timestamps=True)
    with pytest.raises(OptionError, match="language is 'de', but the model knows only English"):
        transcriber.transcribe(SOUNDS["short"], language="de")


@pytest.mark.parametrize(
    ("name", "fields", "kind", "message"),
    [
        ("config.json", {"decoder_num_hidden_layers": 3}, UnsupportedModelError, "has no input past_key_values.2"),
        ("config.json", {"hidden_size": 49}, ConfigError, r"decoder_num_attention_heads: .* a divisor of hidden_size"),
        (
            "preprocessor_config.json",
            {"do_normalize": True},
            UnsupportedModelError,
            "do_normalize is True; Capstan supports only False",
        ),
        (
            "preprocessor_config.json",
            {"sampling_rate": 8000},
            UnsupportedModelError,
            "sampling_rate is 8000; Capstan supports only 16000",
        ),
    ],
)
def test_wrong_fields_are_named(name: str, fields: dict[str, Any], kind: type, message: str, tmp_path: Path) -> None:
    hub = Path(shutil.copytree(HUB, tmp_path / "hub"))
    (hub / name).write_text(json.dumps({**json.loads((hub / name).read_text()), **fields}))
    with pytest.raises(kind, match=message):
        capstan.Transcriber(capstan.Model(str(hub)))


def test_an_encoder_that_takes_a_mask_is_refused(tmp_path: Path) -> None:
    hub = Path(shutil.copytree(HUB, tmp_path / "hub"))
    made = parse((hub / "onnx/encoder_model.onnx").read_bytes(), "encoder")
    made.graph.input.append(value_info("attention_mask", 7, ["batch_size", "num_samples"]))
    (hub / "onnx/encoder_model.onnx").write_bytes(serialize(made))
    with pytest.raises(UnsupportedModelError, match="has an input attention_mask besides the samples"):
        capstan.Model(str(hub))
