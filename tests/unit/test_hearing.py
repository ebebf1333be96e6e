"""Whisper folders pick the native package's ids, the encoder runs once a sound, and what cannot be heard is refused."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_genai as native
import pytest

import capstan
from capstan import (
    BindingError,
    ConfigError,
    ModelFileError,
    OptionError,
    PromptError,
    SoundError,
    UnsupportedModelError,
    genai,
)
from capstan.device.speech_encoder import Features, SpeechEncoder
from capstan.fallback import FallbackWarning, fallbacks
from tests.sounds import glide, wave_file
from tests.unit.media_models import copied, greedy, refused, text_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER = FIXTURES / "speech/nano-whisper"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
PROMPT, LENGTH = EXPECTED["prompt"], EXPECTED["max_length"]
SOUNDS = {"rising": wave_file(glide(2.0)), "falling": wave_file(glide(3.5, 2500.0, 150.0))}
RISING, FALLING = SOUNDS.values()


@pytest.fixture(scope="module")
def model() -> genai.Model:
    return genai.Model(str(FOLDER))


def inputs(og: Any, model: Any, *sounds: bytes, prompt: str = PROMPT) -> Any:
    return model.create_multimodal_processor()([prompt] * len(sounds), audios=og.Audios.open_bytes(*sounds))


def generator(og: Any, model: Any, rows: int = 1, **options: Any) -> Any:
    return greedy(og, model, **{"max_length": LENGTH, "batch_size": rows, **options})


def hearing(og: Any, model: Any, *sounds: bytes, **options: Any) -> Any:
    made = generator(og, model, len(sounds), **options)
    made.set_inputs(inputs(og, model, *sounds))
    return made


def finished(made: Any, rows: int = 1) -> list[list[int]]:
    while not made.is_done():
        made.generate_next_token()
    return [[int(token) for token in made.get_sequence(row)] for row in range(rows)]


@pytest.mark.parametrize("name", SOUNDS)
def test_ids_are_the_native_packages(name: str, model: genai.Model) -> None:
    assert finished(hearing(genai, model, SOUNDS[name])) == [EXPECTED["greedy"][name]]
    assert finished(hearing(genai, model, SOUNDS[name], num_beams=3)) == [EXPECTED["beams"][name]]


def test_ids_of_batches_are_the_native_packages(model: genai.Model) -> None:
    assert finished(hearing(genai, model, RISING, FALLING), 2) == [*EXPECTED["greedy"].values()]
    assert finished(hearing(genai, model, RISING, FALLING, num_beams=2), 2) == EXPECTED["beams of a batch"]


def test_the_fixture_is_what_the_native_package_picks() -> None:
    assert finished(hearing(native, native.Model(str(FOLDER)), FALLING)) == [EXPECTED["greedy"]["falling"]]


def test_texts_and_tensors_are_the_native_packages(model: genai.Model, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(RISING)
    found = []
    for og, loaded in ((native, native.Model(str(FOLDER))), (genai, model)):
        processor = loaded.create_multimodal_processor()
        made = processor(PROMPT, audios=og.Audios.open(str(tmp_path / "sound.wav")))
        stream = processor.create_stream()
        texts = [processor.decode([40, 41, 42]), "".join(map(stream.decode, [50, 51, 52]))]
        tensors = {name: (made[name].shape(), str(made[name].as_numpy().dtype)) for name in sorted(made.keys())}
        run = generator(og, loaded)
        run.set_inputs(made)
        logits = [run.get_logits(), run.get_output("logits")]
        ids = run.get_input("input_ids")
        cache = run.get_output("present_key_self_1")
        found.append((loaded.type, texts, tensors, [*ids.shape, str(ids.dtype)], run.token_count(), logits, cache))
    (*there, logits, cache), (*here, own_logits, own_cache) = found
    assert here == there
    for one, other in zip([*logits, cache], [*own_logits, own_cache], strict=True):
        assert np.allclose(one, other, atol=2e-4)


def test_tokens_may_follow_the_sound_by_themselves_and_another_sound_after_a_rewind(model: genai.Model) -> None:
    made = generator(genai, model)
    whole = inputs(genai, model, FALLING)
    ids = whole["input_ids"]
    del whole["input_ids"]
    made.set_inputs(whole)
    made.append_tokens(ids)
    assert finished(made) == [EXPECTED["greedy"]["falling"]]
    made.rewind_to(0)
    made.set_inputs(inputs(genai, model, RISING))
    assert finished(made) == [EXPECTED["greedy"]["rising"]]
    made.rewind_to(12)
    assert finished(made) == [EXPECTED["greedy"]["rising"]]


def test_the_encoder_runs_once_for_each_sound(model: genai.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = SpeechEncoder.heard

    def counted(self: SpeechEncoder, features: Features) -> Any:
        ran.append(features.digest)
        return run(self, features)

    monkeypatch.setattr(SpeechEncoder, "heard", counted)
    finished(hearing(genai, model, RISING, FALLING, num_beams=3), 2)
    assert len(ran) == len(set(ran)) == 2


def test_an_encoder_that_cannot_be_recorded_runs_eagerly() -> None:
    model, before = capstan.Model(str(FOLDER)), fallbacks()
    encoder = model.speech_encoder
    assert isinstance(encoder, SpeechEncoder)
    with pytest.warns(FallbackWarning, match="no GPU commands to record"):
        asyncio.run(encoder.record())
    assert fallbacks() != before
    assert encoder.dtype == "float32"
    data = bytes(4 * math.prod(encoder.dims))

    async def heard() -> list[str]:
        async with encoder.heard(Features(encoder.dtype, encoder.dims, data, "")) as found:
            return sorted(found)

    assert asyncio.run(heard()) == sorted(each.name for each in encoder._targets.values())


def test_rows_are_shared_by_the_sound_and_not_by_ids_alone() -> None:
    shared = capstan.Model(str(FOLDER), prefix_cache=1 << 24)
    source = genai.Model(str(FOLDER))
    long = PROMPT + "A text of some letters, which are tokens."

    def run(sound: bytes) -> tuple[list[int], int]:
        made = inputs(genai, source, sound, prompt=long)
        params = capstan.GeneratorParams(shared)
        params.set_search_options(max_length=60)
        with capstan.Generator(shared, params) as one:
            data = bytes(made["audio_features"].data())
            one.hear([Features("float32", (1, 80, 3000), data, str(hash(data)))])
            one.append_tokens(made["input_ids"].as_numpy()[0])
            while not one.is_done():
                one.generate_next_token()
            return one.get_sequence(), one.reused_tokens

    first, other = run(RISING), run(FALLING)
    assert first[1] == other[1] == 0
    assert first[0] != other[0]
    again = run(RISING)
    assert again[0] == first[0]
    assert again[1] > 16


def test_the_encoder_counts_beside_the_decoder_before_it_is_loaded(model: genai.Model) -> None:
    fit = asyncio.run(capstan.plan(str(FOLDER), device="reference", max_length=LENGTH))
    graph = onnx.load(str(FOLDER / "encoder.onnx"), load_external_data=False).graph
    size = sum(4 * math.prod(tensor.dims) for tensor in graph.initializer)
    counted = [item for item in fit.requirements.pool("weights") if item.name.startswith("encoder ")]
    assert 0 <= sum(item.bytes for item in counted) - size < 16 * len(counted)
    assert fit.requirements.weights == model.capstan.query_memory_requirements(1, LENGTH).weights
    enough = fit.requirements.total.bytes
    for budget, right in ((enough, True), (enough - 1, False)):
        again = asyncio.run(capstan.plan(str(FOLDER), device="reference", max_length=LENGTH, budget=budget))
        assert bool(again) is right


def test_bad_input_is_refused_by_name(model: genai.Model, tmp_path: Path) -> None:
    processor = model.create_multimodal_processor()
    audios = genai.Audios.open_bytes(RISING)
    refused(SoundError, "cannot be read", lambda: genai.Audios.open(str(tmp_path / "none.wav")))
    refused(SoundError, "is a folder", lambda: genai.Audios.open(str(tmp_path)))
    refused(SoundError, "no files of sound", lambda: genai.Audios.open())
    refused(SoundError, "sound 1 has no bytes", lambda: genai.Audios.open_bytes(RISING, b""))
    refused(SoundError, "sound 0 has 4 bytes", lambda: processor("a", audios=genai.Audios.open_bytes(b"junk")))
    refused(OptionError, "audios is None", lambda: processor("a"))
    refused(OptionError, "no prompt", lambda: processor([], audios=audios))
    images = genai.Images.open_bytes(b"any")
    refused(UnsupportedModelError, "takes sounds: leave them out", lambda: processor("a", images=images, audios=audios))
    refused(UnsupportedModelError, "takes no stream", model.create_streaming_processor)
    refused(UnsupportedModelError, "streaming models are not supported", lambda: genai.StreamingProcessor(model))
    refused(PromptError, "needs a sound", lambda: finished(appended(generator(genai, model), [298])))
    two = inputs(genai, model, RISING, FALLING)
    refused(OptionError, "2 sounds were given; batch_size is 1", lambda: generator(genai, model).set_inputs(two))
    one = inputs(genai, model, RISING)
    refused(OptionError, "the sequence has 1 tokens", lambda: appended(generator(genai, model), [298]).set_inputs(one))
    one["pixels"] = np.zeros(3, np.float32)
    refused(BindingError, "the inputs are audio_features, input_ids, pixels", lambda: hear(model, one))
    refused(BindingError, "the inputs are nothing", lambda: hear(model, genai.NamedTensors()))
    short = genai.NamedTensors()
    short["audio_features"] = np.zeros((1, 80, 2000), np.float32)
    short["input_ids"] = np.array([[298]], np.int32)
    refused(SoundError, "[1, 80, 2000]; the encoder takes float32 [1, 80, 3000]", lambda: finished(hear(model, short)))


def appended(made: Any, ids: list[int]) -> Any:
    made.append_tokens(ids)
    return made


def hear(model: genai.Model, given: Any) -> Any:
    made = generator(genai, model)
    made.set_inputs(given)
    return made


def test_a_model_of_text_hears_nothing() -> None:
    text = text_model(FIXTURES / "nano-llama")
    refused(UnsupportedModelError, "takes only text", text.create_multimodal_processor)
    made = genai.NamedTensors()
    made["audio_features"] = np.zeros((1, 80, 3000), np.float32)
    refused(UnsupportedModelError, "use append_tokens", lambda: generator(genai, text, max_length=20).set_inputs(made))
    one = capstan.Generator(text.capstan)
    refused(UnsupportedModelError, "no sounds", lambda: one.hear([]))


def test_an_engine_of_text_says_that_a_sound_is_needed(model: genai.Model) -> None:
    engine = genai.Engine(model)
    request = engine.create_request()
    request.begin_turn([298, 299])
    events = engine.create_event_buffer(4)
    refused(PromptError, "needs a sound", lambda: engine.run(events))


def test_a_folder_whose_parts_do_not_fit_is_refused_by_path(tmp_path: Path) -> None:
    for change, kind, message in (
        ({"encoder": None}, ConfigError, "model.encoder: missing, expected an object"),
        ({"encoder__filename": "../encoder.onnx"}, ConfigError, "model.encoder.filename: expected a file below"),
        ({"encoder__filename": "none.onnx"}, ModelFileError, "none.onnx"),
        ({"encoder__inputs": {"audio_features": "mel"}}, UnsupportedModelError, "it needs exactly one, mel"),
        ({"encoder__outputs__cross_present_key_names": "k"}, ConfigError, 'a name with one "%d"'),
        ({"encoder__outputs__cross_present_key_names": "k%d"}, UnsupportedModelError, "the output k0 is not there"),
        ({"decoder__inputs__cross_past_key_names": "k%d"}, UnsupportedModelError, "has no input k0"),
        ({"speech": {"config_filename": "none.json"}}, ModelFileError, "none.json"),
        ({"vision": {"filename": "a"}}, UnsupportedModelError, "model.vision"),
        ({"type": "parakeet_tdt"}, UnsupportedModelError, "an encoder"),
    ):
        folder = copied(FOLDER, tmp_path / "whisper", **change)
        refused(kind, message, partial(genai.Model, folder))


def test_an_encoder_of_another_size_is_refused(tmp_path: Path) -> None:
    target = Path(copied(FOLDER, tmp_path / "whisper"))
    graph = onnx.load(str(target / "decoder.onnx"), load_external_data=False)
    for value in graph.graph.input:
        if "cross" in value.name:
            value.type.tensor_type.shape.dim[2].dim_value = 1200
    onnx.save(graph, str(target / "decoder.onnx"))
    refused(UnsupportedModelError, "[1, 2, 1200, 16]: export both again", lambda: genai.Model(str(target)))
    for value in graph.graph.input:
        if "cross" in value.name:
            value.type.tensor_type.shape.dim[2].dim_param = "frames"
    onnx.save(graph, str(target / "decoder.onnx"))
    refused(UnsupportedModelError, "expected floats of fixed sizes", lambda: genai.Model(str(target)))
