"""Qwen2.5-VL folders pick the ids of the native package, with beams those of transformers; pictures of any size have
positions on three axes, and what does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_genai as native
import pytest

import capstan
from capstan import BindingError, ConfigError, PictureError, UnsupportedModelError, genai
from capstan.device import host_sampled
from capstan.device.cache_rows import PictureSpan
from capstan.device.rope_tables import RopeTables, turned
from capstan.genai.multimodal_processor import pictures_of
from capstan.generation.chat_prompt import ChatPrompts
from capstan.generation.conversation import Conversation
from capstan.graph import LongRope, RopeTable, TableRows
from capstan.host import current_host
from capstan.tokenizer import Tokenizer
from tests.pictures import checks, gradient, png_file

FOLDER = Path(__file__).parents[1] / "fixtures/vision/nano-qwen2_5_vl"
CASES = json.loads((FOLDER / "expected.json").read_text())["cases"]
PICTURES = {"gradient": png_file(gradient(140, 90)), "checks": png_file(checks(64, 128, 6))}
GRADIENT, CHECKS = PICTURES.values()
OTHER = png_file(checks(140, 90, 9))
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
PROMPT = f"{SEEN}Describe this."
NEW = 24


@pytest.fixture(scope="module")
def model() -> genai.Model:
    return genai.Model(str(FOLDER))


@pytest.fixture(scope="module")
def there() -> Any:
    return native.Model(str(FOLDER))


def inputs(og: Any, model: Any, *pictures: bytes, prompt: str = PROMPT) -> Any:
    processor = model.create_multimodal_processor()
    return processor(prompt, images=og.Images.open_bytes(*pictures)) if pictures else processor(prompt)


def generator(og: Any, model: Any, given: Any, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, "max_length": 256, **options})
    made = og.Generator(model, params)
    made.set_inputs(given)
    return made


def next_ids(made: Any, count: int = NEW) -> list[int]:
    start = made.token_count()
    while made.token_count() < start + count:
        made.generate_next_token()
    return [int(token) for token in made.get_sequence(0)][start:]


@pytest.mark.parametrize("name", CASES)
def test_ids_are_the_native_packages(name: str, model: genai.Model) -> None:
    case = CASES[name]
    given = inputs(genai, model, *(PICTURES[each] for each in case["pictures"]), prompt=case["prompt"])
    assert next_ids(generator(genai, model, given)) == case["ids"]
    assert next_ids(generator(genai, model, given, num_beams=3)) == case["beams"]


def test_the_fixture_is_what_the_native_package_picks(there: Any) -> None:
    assert next_ids(generator(native, there, inputs(native, there, GRADIENT))) == CASES["gradient"]["ids"]


SIZES = (
    (140, 90),
    (64, 128),
    (9, 7),
    (300, 40),
    (29, 29),
    (42, 70),
    (14, 14),
    (70, 98),
    (400, 300),
    (56, 56),
    (60, 400),
)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_patches_and_ids_are_the_native_processors(width: int, height: int, model: genai.Model, there: Any) -> None:
    picture = png_file(checks(width, height, 4))
    found = [inputs(og, each, picture) for og, each in ((native, there), (genai, model))]
    assert set(found[0].keys()) == set(found[1].keys())
    for name in found[0].keys():  # noqa: SIM118
        one, other = (each[name].as_numpy() for each in found)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other), name


def test_several_pictures_and_prompts_without_a_text_are_the_native_processors(model: genai.Model, there: Any) -> None:
    for prompt, pictures in (
        (f"q{SEEN} and {SEEN}", (GRADIENT, CHECKS)),
        ("", (GRADIENT, CHECKS)),
        ("no picture", ()),
        ("a <|vision_start|> left out <|vision_end|> b", (GRADIENT,)),
        ("a <|vision_start|> kept", (CHECKS,)),
    ):
        one, other = (inputs(og, each, *pictures, prompt=prompt) for og, each in ((native, there), (genai, model)))
        assert set(one.keys()) == set(other.keys())
        for name in {*one.keys()} - {"pixel_values"}:
            assert one[name].as_numpy().tolist() == other[name].as_numpy().tolist()
        if pictures:
            # The native processor puts zeros after a smaller picture.
            rows = other["pixel_values"].as_numpy()
            assert np.array_equal(one["pixel_values"].as_numpy()[: len(rows)], rows)


def test_text_after_an_answer_goes_on_from_its_positions(model: genai.Model, there: Any) -> None:
    made = generator(genai, model, inputs(genai, model, GRADIENT))
    next_ids(made, 4)
    made.append_tokens([40, 41, 42])
    # The native package gives appended tokens other positions than the same tokens in a prompt.
    given = inputs(native, there, GRADIENT)
    given["input_ids"] = made.get_sequence(0)[np.newaxis].astype(np.int32)
    assert next_ids(made, 12) == next_ids(generator(native, there, given), 12)


def test_a_prompt_may_be_run_in_parts_and_again(model: genai.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parts of 8 tokens begin within the picture.
    monkeypatch.setattr(host_sampled, "PREFILL_CHUNK", 8)
    params = capstan.GeneratorParams(model.capstan)
    params.set_search_options(max_length=200)
    given = inputs(genai, model, GRADIENT)
    ids = given["input_ids"].as_numpy()[0].tolist()
    with capstan.Generator(model.capstan, params) as one:
        one.see(pictures_of(given))
        one.append_tokens(ids)
        found = picks(one)
        assert found == CASES["gradient"]["ids"]
        one.rewind_to(len(ids) + 9)
        assert picks(one, 9) == found[9:18]
        one.rewind_to(0)
        one.see([])
        one.append_tokens(inputs(genai, model, prompt="Describe this.")["input_ids"].as_numpy()[0])
        assert picks(one) == CASES["no picture"]["ids"]


def picks(one: capstan.Generator, count: int = NEW) -> list[int]:
    start = one.token_count()
    for _ in range(count):
        one.generate_next_token()
    return one.get_sequence()[start:]


def test_rows_are_shared_by_the_picture_and_its_grid_and_not_by_ids_alone(model: genai.Model) -> None:
    shared = capstan.Model(str(FOLDER), prefix_cache=1 << 24)

    def run(*pictures: bytes, prompt: str = PROMPT) -> tuple[list[int], int]:
        given = inputs(genai, model, *pictures, prompt=prompt)
        params = capstan.GeneratorParams(shared)
        params.set_search_options(max_length=200)
        with capstan.Generator(shared, params) as one:
            one.see(pictures_of(given))
            one.append_tokens(given["input_ids"].as_numpy()[0])
            return picks(one), one.reused_tokens

    first, other = run(GRADIENT), run(OTHER)
    assert first == (CASES["gradient"]["ids"], 0)
    assert other[1] == 0
    assert other[0] != first[0]
    again = run(GRADIENT)
    assert again[0] == first[0]
    assert again[1] > 15
    # Black pictures have equal patches, and as many, whatever their grid.
    wide, tall = (png_file([bytes(3 * width)] * height) for width, height in ((112, 84), (168, 56)))
    apart = run(wide), run(tall)
    assert apart[1][1] == 0
    assert apart[0][0] != apart[1][0]
    assert run(wide)[1] > 12
    both = f"{SEEN} and {SEEN} here"
    assert run(GRADIENT, CHECKS, prompt=both)[1] > 15
    assert 15 < run(GRADIENT, OTHER, prompt=both)[1] < 25


def test_rows_of_the_tables_are_those_of_the_axes() -> None:
    table = np.arange(12 * 8, dtype=np.float32).reshape(12, 8)
    found = np.frombuffer(turned(table.tobytes(), 32, (2, 3, 3), [PictureSpan(2, 2, 3)]), np.float32).reshape(12, 8)
    axes = [(0, 0, 0), (1, 1, 1), *((2, 2 + row, 2 + column) for row in range(2) for column in range(3))]
    axes += [(place, place, place) for place in range(5, 9)]
    expected = [[*table[time][:2], *table[row][2:5], *table[column][5:]] for time, row, column in axes]
    assert np.array_equal(found, np.array(expected))
    assert len(turned(table.tobytes(), 32, (2, 3, 3), [PictureSpan(2, 20, 3)])) == len(table.tobytes())


def test_rows_of_tables_in_float16_are_rounded_from_the_stored_ones() -> None:
    table = np.random.default_rng(3).normal(size=(12, 8)).astype(np.float32)
    rows = TableRows("", 0, table.nbytes, 12)
    rope = LongRope(0, (RopeTable("cos", "float16", 8, replace(rows, length=0, rows=0), rows, "float32"),), (2, 3, 3))
    tables = RopeTables.of(rope, [b"", table.tobytes()])
    spans = [PictureSpan(1, 2, 2)]
    [plain], [mixed] = tables.rows(False, 10), tables.rows(False, 10, spans)
    assert plain == table[:10].astype(np.float16).tobytes()
    assert mixed == turned(plain, 16, (2, 3, 3), spans)


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
)


def test_a_chat_has_the_ids_of_the_processor(model: genai.Model) -> None:
    prompts = ChatPrompts(Tokenizer(model.capstan), model.capstan)
    parts = [{"type": "image", "image": GRADIENT}, {"type": "text", "text": "and"}, {"type": "image", "image": CHECKS}]
    made = prompts.of([{"role": "user", "content": parts}], template_str=TEMPLATE)
    text = f"<|im_start|>user: {SEEN}and{SEEN}<|im_end|>"
    given = inputs(genai, model, GRADIENT, CHECKS, prompt=text)
    assert made.ids == given["input_ids"].as_numpy()[0].tolist()
    assert list(made.pictures) == pictures_of(given)
    starts = [place for place, token in enumerate(made.ids) if token == made.ids[made.contents[0].start - 1]]
    assert [(each.start, each.end - each.start) for each in made.contents] == [(starts[0] + 1, 15), (starts[1] + 1, 10)]


def test_later_turns_keep_a_picture_and_count_on_after_a_further_one(model: genai.Model, there: Any) -> None:
    params = capstan.GeneratorParams(model.capstan)
    params.set_search_options(do_sample=False, max_length=256)
    prompts = ChatPrompts(Tokenizer(model.capstan), model.capstan)
    talk = Conversation(prompts, capstan.Generator(model.capstan, params))
    turns: list[tuple[str, list[Any]]] = [("user", [GRADIENT, "Look"]), ("assistant", ["x"])]
    turns += [("user", ["Describe"]), ("assistant", ["y"]), ("user", [CHECKS, "this"])]
    text, messages, seen = "", list[Any](), list[bytes]()
    for role, parts in turns:
        shown = [{"type": "image", "image": each} if isinstance(each, bytes) else text_part(each) for each in parts]
        messages.append({"role": role, "content": shown})
        seen += [each for each in parts if isinstance(each, bytes)]
        text += f"<|im_start|>{role}: {''.join(SEEN if isinstance(each, bytes) else each for each in parts)}<|im_end|>"
        if role == "assistant":
            continue
        kept = talk.ask(messages, template_str=TEMPLATE)
        picked: list[int] = []
        current_host().wait(talk.answer(8, lambda token, _: picked.append(token)))  # noqa: B023
        given = inputs(native, there, *seen, prompt=text)
        assert [token for token in picked if token >= 0] == next_ids(generator(native, there, given), 8)
        assert (kept > 15) == (len(messages) > 1)


def text_part(text: str) -> Any:
    return {"type": "text", "text": text}


def refused(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)


def test_bad_input_is_refused_by_name(model: genai.Model) -> None:
    refused(
        PictureError,
        "<|vision_start|> 1 times, but 2 pictures were given",
        lambda: inputs(genai, model, GRADIENT, CHECKS),
    )
    refused(PictureError, "<|vision_start|> 1 times, but 0 pictures were given", lambda: inputs(genai, model))
    for width, height in ((1000, 4), (1000, 6), (3, 700)):
        narrow = png_file(gradient(width, height))
        refused(PictureError, f"picture 0 has {width} x {height} pixels, which", lambda: inputs(genai, model, narrow))  # noqa: B023
    huge = png_file(gradient(2, 2))[:16] + (20000).to_bytes(4, "big") * 2 + png_file(gradient(2, 2))[24:]
    refused(PictureError, "picture 0", lambda: inputs(genai, model, huge))


def changed(model: genai.Model, **values: Any) -> Any:
    given = inputs(genai, model, GRADIENT)
    for name, value in values.items():
        given[name] = value
    return next_ids(generator(genai, model, given))


def test_what_does_not_fit_the_patches_is_refused(model: genai.Model) -> None:
    def grid(*sizes: int) -> Any:
        return np.array([sizes], np.int64)

    whole = inputs(genai, model, GRADIENT)
    ids, patches = whole["input_ids"].as_numpy(), whole["pixel_values"].as_numpy()
    for message, values in (
        ("whose product is its number of patches", {"image_grid_thw": grid(1, 6, 8)}),
        ("whose product is its number of patches", {"image_grid_thw": grid(60, 1)}),
        ("its grid is [1, 5, 12]", {"image_grid_thw": grid(1, 5, 12)}),
        ("its grid is [-1, -6, 10]", {"image_grid_thw": grid(-1, -6, 10)}),
        ("float32 [1000]; vision.onnx takes float32 [1176]", {"pixel_values": patches[:, :1000]}),
        ("are float16 [1176]", {"pixel_values": patches.astype(np.float16)}),
        ("has 14 placeholders of pictures, and its picture takes 15", {"input_ids": np.delete(ids, 2, 1)}),
        ("other tokens are between those of one picture", {"input_ids": np.insert(ids, 4, 40, 1)}),
    ):
        refused(PictureError, message, lambda: changed(model, **values))  # noqa: B023
    mel = {"mel": np.zeros(3, np.float32)}
    refused(
        BindingError, "optionally pixel_values and image_grid_thw and num_image_tokens", lambda: changed(model, **mel)
    )
    alone = generator(genai, model, inputs(genai, model, prompt="x"))
    alone.append_tokens(ids)
    refused(PictureError, "15 placeholders of pictures, and no picture was given", lambda: next_ids(alone))


def edited(tmp_path: Path, file: str, change: Callable[[Any], Any]) -> genai.Model:
    for each in FOLDER.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    config = json.loads((tmp_path / file).read_text())
    change(config)
    (tmp_path / file).write_text(json.dumps(config))
    return genai.Model(str(tmp_path))


def test_a_folder_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    def steps(change: Callable[[Any], Any]) -> Any:
        made = edited(tmp_path, "processor_config.json", lambda config: change(config["processor"]["transforms"]))
        return inputs(genai, made, GRADIENT)

    def resize(key: str, value: Any) -> Any:
        return lambda: steps(lambda transforms: transforms[2]["operation"]["attrs"].update({key: value}))

    def vision(key: str, value: Any) -> Any:
        return edited(tmp_path, "genai_config.json", lambda config: config["model"]["vision"].update({key: value}))

    refused(ConfigError, "min_pixels", resize("min_pixels", "many"))
    refused(PictureError, "which must be multiples of 28", resize("merge_size", 3))
    refused(UnsupportedModelError, "its steps make no patches; add PatchImage", lambda: steps(lambda each: each.pop()))
    refused(
        UnsupportedModelError, "it needs pixel_values and grid", lambda: vision("inputs", {"image_grid_thw": "grid"})
    )
    made = vision("spatial_merge_size", 1)
    given = inputs(genai, genai.Model(str(FOLDER)), GRADIENT)
    message = "vision.onnx makes 15 rows of features from a grid of [1, 6, 10] patches"
    refused(UnsupportedModelError, message, lambda: next_ids(generator(genai, made, given)))


def test_the_placeholder_is_that_of_the_configuration_or_else_the_one_of_the_embedding_graph(tmp_path: Path) -> None:
    def without(config: Any) -> None:
        del config["model"]["image_token_id"]

    alone = edited(tmp_path, "genai_config.json", without)
    assert next_ids(generator(genai, alone, inputs(genai, alone, GRADIENT))) == CASES["gradient"]["ids"]
    edited(tmp_path, "genai_config.json", lambda config: None)
    embedding = onnx.load(str(tmp_path / "embedding.onnx"))
    embedding.graph.initializer.append(onnx.numpy_helper.from_array(np.array(288), "video"))
    embedding.graph.node.insert(0, onnx.helper.make_node("Equal", ["input_ids", "video"], ["unused"]))
    onnx.save(embedding, str(tmp_path / "embedding.onnx"))
    two = genai.Model(str(tmp_path))
    assert next_ids(generator(genai, two, inputs(genai, two, GRADIENT))) == CASES["gradient"]["ids"]
    config = json.loads((tmp_path / "genai_config.json").read_text())
    without(config)
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    refused(UnsupportedModelError, "input_ids is compared with 287, 288", lambda: genai.Model(str(tmp_path)))


def test_fara_is_such_a_model(tmp_path: Path) -> None:
    made = edited(tmp_path, "genai_config.json", lambda config: config["model"].update(type="fara"))
    assert (
        next_ids(generator(genai, made, inputs(genai, made, CHECKS, prompt=CASES["checks"]["prompt"])))
        == (CASES["checks"]["ids"])
    )


def test_a_model_whose_deeper_layers_take_features_is_refused_by_name(tmp_path: Path) -> None:
    def qwen3(config: Any) -> None:
        config["model"]["type"] = "qwen3_vl"

    refused(UnsupportedModelError, "deepstack", lambda: edited(tmp_path, "genai_config.json", qwen3))
