"""A SmolVLM in Transformers.js' layout: prompts, ids, pixel values and picks are those of transformers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import capstan
from capstan import ConfigError, FallbackWarning, ModelFileError, PictureError, Tokenizer, UnsupportedModelError, genai
from capstan.generation.chat_prompt import ChatPrompts
from capstan.generation.conversation import Conversation
from capstan.picture.picture_file import Rgba
from capstan.picture.tiled_processor import TiledProcessor
from tests.pictures import SEEN, png_file
from tests.unit.media_models import refused

FOLDER = Path(__file__).parents[1] / "fixtures/vision/nano-idefics3"
CASES = json.loads((FOLDER / "expected.json").read_text())


@pytest.fixture(scope="module")
def model() -> capstan.Model:
    return capstan.Model(str(FOLDER), device="cpu")


def with_pictures(case: dict[str, Any]) -> list[dict[str, Any]]:
    given = (png_file(SEEN[name]) for name in case["pictures"])
    return [
        {
            **message,
            "content": [
                {"type": "image", "image": next(given)} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        for message in case["messages"]
    ]


def prompts_of(model: capstan.Model) -> ChatPrompts:
    return ChatPrompts(Tokenizer(model), model)


@pytest.mark.parametrize("name", CASES)
def test_all_is_as_transformers_has_it(name: str, model: capstan.Model) -> None:
    case = CASES[name]
    prompts, messages = prompts_of(model), with_pictures(case)
    asked = prompts.of(messages)
    assert (asked.text, asked.ids) == (case["text"], case["input_ids"])
    if asked.pictures:
        values = np.concatenate([np.frombuffer(each.data, np.float32) for each in asked.pictures])
        assert sum(each.dims[1] for each in asked.pictures) == case["shape"][1]
        assert np.abs(values[::211] - np.array(case["pixels"], np.float32)).max() < 1e-5
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=256)
    talk, picked = Conversation(prompts, capstan.Generator(model, params)), list[int]()
    talk.ask(messages)
    asyncio.run(talk.answer(len(case["ids"]), lambda token, _: picked.append(token)))
    assert [token for token in picked if token >= 0] == case["ids"]


def test_a_content_that_is_a_text_is_as_one_of_parts(model: capstan.Model) -> None:
    # transformers' template writes nothing of it.
    case = CASES["text"]
    assert prompts_of(model).of([{"role": "user", "content": "What?"}]).text == case["text"]


def test_a_picture_that_is_not_cut_is_one_tile(model: capstan.Model) -> None:
    config = json.loads((FOLDER / "preprocessor_config.json").read_text())
    whole = TiledProcessor.of_config(json.dumps({**config, "do_image_splitting": False}), "p.json")
    values, rows, columns = whole.tiles(png_file(SEEN["gradient"]), "picture 0")
    assert (values.shape, rows, columns) == ((1, 3, 32, 32), 0, 0)
    narrow = TiledProcessor.of_config(json.dumps(config), "p.json").tiles(Rgba(4000, 1, bytes(16_000)), "picture 0")
    assert (narrow[0].shape, *narrow[1:]) == ((4, 3, 32, 32), 1, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {}}, "p.json: size.longest_edge: missing"),
        ({"max_image_size": {"longest_edge": 0}}, "p.json: max_image_size.longest_edge: expected a number of pixels"),
        ({"resample": 9}, "p.json: resample: expected one of Pillow's numbers"),
        ({"rescale_factor": "a"}, "p.json: rescale_factor: expected a number"),
        ({"image_std": [1, 0, 1]}, "p.json: image_std: expected numbers other than 0"),
    ],
)
def test_fields_of_a_wrong_type_are_refused(changes: dict[str, Any], message: str) -> None:
    config = json.loads((FOLDER / "preprocessor_config.json").read_text())
    refused(ConfigError, message, lambda: TiledProcessor.of_config(json.dumps({**config, **changes}), "p.json"))


def test_a_step_that_is_not_computed_is_refused() -> None:
    data = (FOLDER / "preprocessor_config.json").read_text()
    changed = json.dumps({**json.loads(data), "do_normalize": False})
    refused(UnsupportedModelError, "do_normalize is False", lambda: TiledProcessor.of_config(changed, "p.json"))


def copied(tmp_path: Path, **changes: Any) -> Path:
    target = tmp_path / "sees"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(FOLDER, target)
    config = json.loads((target / "config.json").read_text())
    config |= changes
    (target / "config.json").write_text(json.dumps({key: each for key, each in config.items() if each is not None}))
    return target


def test_a_repository_whose_parts_do_not_fit_is_refused_by_name(tmp_path: Path, model: capstan.Model) -> None:
    for changes, kind, message in (
        ({"text_config": None}, ConfigError, "config.json: text_config: missing"),
        ({"scale_factor": None}, ConfigError, "config.json: scale_factor: missing"),
        ({"image_token_id": None}, ConfigError, "config.json: image_token_id: missing"),
        (
            {"model_type": "llava"},
            UnsupportedModelError,
            "vision_config: the model, of type llava, has a vision model",
        ),
    ):
        refused(kind, message, lambda changes=changes: capstan.Model(str(copied(tmp_path, **changes))))  # type: ignore[misc]
    target = copied(tmp_path)
    (target / "onnx/vision_encoder.onnx").unlink()
    refused(ModelFileError, "lacks a graph of its model", lambda: capstan.Model(str(target)))
    refused(UnsupportedModelError, "there is no multimodal processor for a repository", genai_processor)
    cut = {"role": "user", "content": [{"type": "image", "image": b"junk"}]}
    refused(PictureError, "picture 0 has 4 bytes that are not a picture", lambda: prompts_of(model).of([cut]))


def test_a_search_that_capstan_lacks_is_told(tmp_path: Path) -> None:
    target = copied(tmp_path)
    stated = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps({**stated, "num_beams": 4}))
    with pytest.warns(FallbackWarning, match=r"generation_config\.json says: num_beams=4 is not implemented"):
        capstan.Model(str(target), device="cpu").close()


def test_the_chat_template_of_a_processor_is_read(tmp_path: Path) -> None:
    target, case = copied(tmp_path), CASES["gradient"]
    about = json.loads((target / "tokenizer_config.json").read_text())
    template = about.pop("chat_template")
    (target / "tokenizer_config.json").write_text(json.dumps(about))
    (target / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert prompts_of(capstan.Model(str(target), device="cpu")).of(with_pictures(case)).ids == case["input_ids"]


def genai_processor() -> Any:
    return genai.Model(str(FOLDER)).create_multimodal_processor()


def test_the_weights_of_all_graphs_are_planned(tmp_path: Path) -> None:
    before = asyncio.run(capstan.plan(str(FOLDER), device="cpu", max_length=64)).requirements.weights.bytes
    target = copied(tmp_path)
    graph = onnx.load(str(target / "onnx/vision_encoder.onnx"))
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1 << 20, np.float32), "more"))
    onnx.save(graph, str(target / "onnx/vision_encoder.onnx"))
    after = asyncio.run(capstan.plan(str(target), device="cpu", max_length=64)).requirements.weights.bytes
    assert after == before + (4 << 20)
