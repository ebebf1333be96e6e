"""Gemma 3 folders with vision pick the native package's ids, a picture is encoded once, and what does not fit is
refused."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_genai as native
import pytest

import capstan
from capstan import (
    ArgumentTypeError,
    BindingError,
    ConfigError,
    ModelFileError,
    OptionError,
    PictureError,
    UnsupportedModelError,
    genai,
)
from capstan.device import host_sampled
from capstan.genai.multimodal_processor import items_of
from capstan.model_files.genai_config import PLACES
from tests.pictures import checks, gradient, png_file
from tests.unit.media_models import copied, greedy, refused, text_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER = FIXTURES / "vision/nano-gemma3-vl"
CASES = json.loads((FOLDER / "expected.json").read_text())["cases"]
PICTURES = {"gradient": png_file(gradient()), "checks": png_file(checks())}
GRADIENT, CHECKS = PICTURES.values()
PROMPT = "<bos><start_of_image>Describe this."
NEW = 24


@pytest.fixture(scope="module")
def model() -> genai.Model:
    return genai.Model(str(FOLDER))


def inputs(og: Any, model: Any, *pictures: bytes, prompt: str = PROMPT) -> Any:
    processor = model.create_multimodal_processor()
    return processor(prompt, images=og.Images.open_bytes(*pictures)) if pictures else processor(prompt)


def generator(og: Any, model: Any, **options: Any) -> Any:
    return greedy(og, model, **{"max_length": 600, **options})


def seeing(og: Any, model: Any, *pictures: bytes, prompt: str = PROMPT, **options: Any) -> Any:
    made = generator(og, model, **options)
    made.set_inputs(inputs(og, model, *pictures, prompt=prompt))
    return made


def next_ids(made: Any, count: int = NEW) -> list[int]:
    start = made.token_count()
    while not made.is_done() and made.token_count() < start + count:
        made.generate_next_token()
    return [int(token) for token in made.get_sequence(0)][start:]


def of_case(og: Any, model: Any, name: str, **options: Any) -> list[int]:
    case = CASES[name]
    pictures = [PICTURES[each] for each in case["pictures"]]
    made = seeing(og, model, *pictures, prompt=case["prompt"], max_length=640, **options)
    assert made.token_count() == case["prompt_tokens"]
    return next_ids(made)


@pytest.mark.parametrize("name", CASES)
def test_ids_are_the_native_packages(name: str, model: genai.Model) -> None:
    assert of_case(genai, model, name) == CASES[name]["ids"]
    if "beams" in CASES[name]:
        assert of_case(genai, model, name, num_beams=3) == CASES[name]["beams"]


def test_the_fixture_is_what_the_native_package_picks() -> None:
    assert of_case(native, native.Model(str(FOLDER)), "checks") == CASES["checks"]["ids"]


def test_texts_and_tensors_are_the_native_packages(model: genai.Model, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(GRADIENT)
    found = []
    for og, loaded in ((native, native.Model(str(FOLDER))), (genai, model)):
        processor = loaded.create_multimodal_processor()
        made = processor(PROMPT, images=og.Images.open(str(tmp_path / "picture.png")))
        stream = processor.create_stream()
        texts = [processor.decode([40, 41, 42]), "".join(map(stream.decode, [50, 51, 52]))]
        tensors = {
            name: (str(made[name].as_numpy().dtype), made[name].as_numpy().tolist()) for name in sorted(made.keys())
        }
        plain = processor("no picture")
        bare = processor("", images=og.Images.open_bytes(CHECKS))["input_ids"].as_numpy().tolist()
        run = seeing(og, loaded, GRADIENT)
        found.append(
            (loaded.type, texts, tensors, sorted(plain.keys()), bare, run.get_logits(), run.get_output("logits"))
        )
    (*there, logits, output), (*here, own_logits, own_output) = found
    assert here == there
    assert np.allclose(logits, own_logits, atol=1e-4)
    assert np.allclose(output, own_output, atol=1e-4)


def test_a_prompt_may_be_run_in_parts_and_again(model: genai.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parts of 64 tokens begin within the picture.
    monkeypatch.setattr(host_sampled, "PREFILL_CHUNK", 64)
    params = capstan.GeneratorParams(model.capstan)
    params.set_search_options(max_length=320)
    made = inputs(genai, model, CHECKS)
    ids = made["input_ids"].as_numpy()[0].tolist()
    with capstan.Generator(model.capstan, params) as one:
        one.see(items_of(made["pixel_values"]))
        one.append_tokens(ids)
        found = picks(one, NEW)
        assert found == CASES["checks"]["ids"]
        one.rewind_to(len(ids) + 4)
        assert picks(one, 4) == found[4:8]
        one.rewind_to(len(ids))
        one.see(items_of(inputs(genai, model, GRADIENT)["pixel_values"]))
        assert picks(one, 4) == CASES["gradient"]["ids"][:4]
        one.rewind_to(0)
        one.see([])
        one.append_tokens(inputs(genai, model, prompt=CASES["no picture"]["prompt"])["input_ids"].as_numpy()[0])
        assert picks(one, 4) == CASES["no picture"]["ids"][:4]


def picks(one: capstan.Generator, count: int) -> list[int]:
    start = one.token_count()
    for _ in range(count):
        one.generate_next_token()
    return one.get_sequence()[start:]


def test_text_may_follow_an_answer(model: genai.Model) -> None:
    made = seeing(genai, model, GRADIENT)
    first = next_ids(made, 4)
    made.append_tokens([40, 41, 42])
    whole = seeing(genai, model, GRADIENT)
    ids = inputs(genai, model, GRADIENT)["input_ids"].as_numpy()[0].tolist()
    other = generator(genai, model)
    given = inputs(genai, model, GRADIENT)
    given["input_ids"] = np.array([[*ids, *first, 40, 41, 42]], np.int32)
    other.set_inputs(given)
    assert next_ids(made, 8) == next_ids(other, 8)
    assert next_ids(whole, 4) == first


def test_the_vision_graph_runs_once_for_each_picture_that_differs(model: genai.Model, ran: list[str]) -> None:
    prompt, third = "<bos><start_of_image> <start_of_image>.", png_file(gradient(9, 9))
    next_ids(seeing(genai, model, third, third, prompt=prompt, num_beams=3), 3)
    assert len(ran) == 1
    # Those that were seen last are known.
    for pictures, runs in (((CHECKS, third), 2), ((third, CHECKS), 2), ((CHECKS, GRADIENT), 3), ((third, CHECKS), 4)):
        next_ids(seeing(genai, model, *pictures, prompt=prompt), 3)
        assert len(ran) == runs


def test_rows_are_shared_by_the_picture_and_not_by_ids_alone(model: genai.Model) -> None:
    shared = capstan.Model(str(FOLDER), prefix_cache=1 << 24)
    both = "<bos><start_of_image> and <start_of_image> here"

    def run(*pictures: bytes, prompt: str = PROMPT) -> tuple[list[int], int]:
        made = inputs(genai, model, *pictures, prompt=prompt)
        params = capstan.GeneratorParams(shared)
        params.set_search_options(max_length=600)
        with capstan.Generator(shared, params) as one:
            one.see(items_of(made["pixel_values"]))
            one.append_tokens(made["input_ids"].as_numpy()[0])
            return picks(one, NEW), one.reused_tokens

    first, other = run(GRADIENT), run(CHECKS)
    assert first == (CASES["gradient"]["ids"], 0)
    assert other == (CASES["checks"]["ids"], 0)
    again = run(GRADIENT)
    assert again[0] == first[0]
    assert again[1] > 256
    two, apart = run(GRADIENT, CHECKS, prompt=both), run(GRADIENT, GRADIENT, prompt=both)
    # The prompt's start with its first picture is shared, the second picture only with the same one.
    assert 256 < two[1] < 300
    assert 256 < apart[1] < 300
    assert two[0] != apart[0]
    assert run(GRADIENT, CHECKS, prompt=both)[1] > 512


def test_bad_input_is_refused_by_name(model: genai.Model, tmp_path: Path) -> None:
    processor = model.create_multimodal_processor()
    images = genai.Images.open_bytes(GRADIENT)
    refused(PictureError, "cannot be read", lambda: genai.Images.open(str(tmp_path / "none.png")))
    refused(PictureError, "no files of picture", lambda: genai.Images.open())
    refused(PictureError, "picture 1 has no bytes", lambda: genai.Images.open_bytes(GRADIENT, b""))
    refused(PictureError, "picture 0 has 4 bytes", lambda: processor(PROMPT, images=genai.Images.open_bytes(b"junk")))
    refused(PictureError, "<start_of_image> 0 times, but 1 pictures were", lambda: processor("<bos>", images=images))
    refused(PictureError, "<start_of_image> 1 times, but 0 pictures were", lambda: processor(PROMPT))
    refused(ArgumentTypeError, "takes one prompt", lambda: processor([PROMPT, PROMPT], images=images))
    audios = genai.Audios.open_bytes(b"any")
    refused(UnsupportedModelError, "takes pictures: leave them out", lambda: processor(PROMPT, audios=audios))
    one = inputs(genai, model, GRADIENT)
    refused(OptionError, "batch_size is 2; pictures", lambda: generator(genai, model, batch_size=2).set_inputs(one))
    begun = generator(genai, model)
    begun.append_tokens([40])
    refused(OptionError, "the sequence has 1 tokens; pictures come before", lambda: begun.set_inputs(one))
    alone = generator(genai, model)
    alone.append_tokens(one["input_ids"])
    refused(PictureError, "256 placeholders of pictures, and no picture was given", lambda: next_ids(alone))
    refused(BindingError, "the inputs are nothing; give input_ids", lambda: see(model, genai.NamedTensors()))
    one["mel"] = np.zeros(3, np.float32)
    refused(BindingError, "give input_ids, and optionally pixel_values and token_type_ids", lambda: see(model, one))


def test_pictures_that_do_not_fit_the_placeholders_are_refused(model: genai.Model) -> None:
    one, two = inputs(genai, model, GRADIENT), inputs(genai, model, GRADIENT, CHECKS, prompt=2 * "<start_of_image>")
    more, fewer = inputs(genai, model, GRADIENT), inputs(genai, model, GRADIENT)
    more["pixel_values"] = two["pixel_values"]
    refused(
        PictureError,
        "has 256 placeholders of pictures, and its 2 pictures take 512",
        lambda: next_ids(see(model, more)),
    )
    fewer["input_ids"] = two["input_ids"]
    refused(
        PictureError, "has 512 placeholders of pictures, and its picture takes 256", lambda: next_ids(see(model, fewer))
    )
    one["pixel_values"] = np.zeros((1, 3, 32, 64), np.float32)
    refused(PictureError, "[3, 32, 64]; vision.onnx takes float32 [3, 64, 64]", lambda: next_ids(see(model, one)))
    one["pixel_values"] = np.zeros((1, 3, 64, 64), np.float16)
    refused(PictureError, "are float16 [3, 64, 64]", lambda: next_ids(see(model, one)))


def see(model: genai.Model, given: Any) -> Any:
    made = generator(genai, model)
    made.set_inputs(given)
    return made


def test_a_cut_picture_is_refused_until_all_is_given_again(model: genai.Model) -> None:
    params = capstan.GeneratorParams(model.capstan)
    params.set_search_options(max_length=400)
    given = inputs(genai, model, GRADIENT)
    with capstan.Generator(model.capstan, params) as one:
        one.see(items_of(given["pixel_values"]))
        one.append_tokens(given["input_ids"].as_numpy()[0])
        one.generate_next_token()
        one.rewind_to(100)
        one.append_tokens([40, 41])
        refused(PictureError, "placeholders of pictures, and its picture takes 256", one.generate_next_token)


def test_a_model_of_text_sees_nothing() -> None:
    text = text_model(FIXTURES / "nano-llama")
    refused(UnsupportedModelError, "takes only text", text.create_multimodal_processor)
    made = genai.NamedTensors()
    made["pixel_values"] = np.zeros((1, 3, 64, 64), np.float32)
    refused(UnsupportedModelError, "use append_tokens", lambda: generator(genai, text, max_length=20).set_inputs(made))
    one = capstan.Generator(text.capstan)
    refused(UnsupportedModelError, "takes no pictures; give it only text", lambda: one.see([]))


def test_the_engine_answers_prompts_of_text(model: genai.Model) -> None:
    engine = genai.Engine(model)
    request = engine.create_request()
    request.begin_turn(inputs(genai, model, prompt=CASES["no picture"]["prompt"])["input_ids"].as_numpy()[0].tolist())
    events = engine.create_event_buffer(4)
    found: list[int] = []
    while len(found) < 4:
        engine.run(events)
        tokens = (events[place].token for place in range(len(events)))
        found += [token for token in tokens if token is not None]
    assert found[:4] == CASES["no picture"]["ids"][:4]


def test_a_folder_whose_parts_do_not_fit_is_refused_by_path(tmp_path: Path) -> None:
    for change, kind, message in (
        ({"vision": None}, ConfigError, "model.vision: missing, expected an object"),
        ({"embedding": None}, ConfigError, "model.embedding: missing, expected an object"),
        ({"vision__filename": "../vision.onnx"}, ConfigError, "model.vision.filename: expected a file below"),
        ({"vision__filename": "none.onnx"}, ModelFileError, "none.onnx"),
        ({"embedding__filename": "none.onnx"}, ModelFileError, "none.onnx"),
        ({"vision__inputs": {"pixel_values": "p"}}, UnsupportedModelError, "it needs exactly one, p"),
        ({"vision__outputs": {"image_features": "f"}}, UnsupportedModelError, "the output f is not there"),
        ({"embedding__inputs__input_ids": "i"}, UnsupportedModelError, "embedding.onnx has no input i"),
        ({"embedding__inputs__image_features": "f"}, UnsupportedModelError, "embedding.onnx has no input f"),
        ({"embedding__outputs__inputs_embeds": "e"}, UnsupportedModelError, "the output e is missing"),
        ({"decoder__inputs__inputs_embeds": "e"}, UnsupportedModelError, "the decoder has no input e"),
        ({"vision__config_filename": "none.json"}, ModelFileError, "none.json"),
        ({"speech": {"filename": "a"}}, UnsupportedModelError, "model.speech"),
    ):
        folder = copied(FOLDER, tmp_path / "vision", **change)
        refused(kind, message, partial(genai.Model, folder))


def test_features_of_another_width_are_refused(tmp_path: Path) -> None:
    target = Path(copied(FOLDER, tmp_path / "vision"))
    graph = onnx.load(str(target / "embedding.onnx"))
    graph.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 48
    onnx.save(graph, str(target / "embedding.onnx"))
    refused(UnsupportedModelError, "their last sizes must be equal", lambda: genai.Model(str(target)))


def test_the_memory_of_a_model_that_sees_is_planned() -> None:
    fit = asyncio.run(capstan.plan(str(FOLDER), device="cpu", max_length=320))
    assert fit
    model = capstan.Model(str(FOLDER), device="cpu")
    assert [info.name for info in model._open().memory.description.others][-1] == PLACES
