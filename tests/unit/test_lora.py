"""LoRA adapters on the reference device: ids are onnxruntime-genai's, misfits are refused, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai as og
import pytest

from capstan import Adapters, Generator, GeneratorParams, Model, graph
from capstan.errors import BindingError, ModelFileError, OptionError, UnsupportedModelError
from capstan.model_files.genai_config_file import parse_genai_config
from tests import oracle
from tests.lora_models import DEFAULTS, LORA, Defaults, Shapes, add_inputs, write_adapter
from tests.lora_runs import PROMPT, PROMPTS, RUNS, expected

FIXTURES = LORA.parent
QUERIES = "model.layers.0.attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(LORA))


@pytest.fixture
def adapters(model: Model) -> Adapters:
    found = Adapters(model)
    for name in ("first", "second", "queries"):
        found.load(f"{name}.onnx_adapter", name)
    return found


def driven(model: Model, adapters: Adapters, actions: list[tuple[str, Any]]) -> list[int]:
    with Generator(model) as generator:
        for verb, argument in actions:
            if verb == "adapter":
                generator.set_active_adapter(adapters, argument)
            elif verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                generator.rewind_to(argument)
            else:
                for _ in range(argument):
                    generator.generate_next_token()
        return generator.get_sequence()


@pytest.mark.parametrize("name", RUNS)
def test_ids_are_the_oracles(name: str, model: Model, adapters: Adapters) -> None:
    assert driven(model, adapters, RUNS[name]) == expected(name)


def test_without_an_adapter_it_is_the_model_that_was_exported() -> None:
    plain = oracle.greedy(FIXTURES / "nano-apart", PROMPT, 16)
    assert expected("none") == [*PROMPT, *plain]
    assert len({tuple(expected(name)) for name in RUNS}) == len(RUNS)


def test_rows_of_a_batch_have_the_adapter(model: Model, adapters: Adapters) -> None:
    params = GeneratorParams(model)
    params.set_search_options(batch_size=2, max_length=16)
    with Generator(model, params) as generator:
        generator.set_active_adapter(adapters, "second")
        generator.append_tokens(PROMPTS)
        while not generator.is_done():
            generator.generate_next_token()
        found = [generator.get_sequence(row) for row in (0, 1)]
    assert found == oracle.rows(LORA, PROMPTS, adapter="second", max_length=16).sequences


@pytest.mark.parametrize("source", ["nano-float", "nano-apart"])
@pytest.mark.parametrize("optional", [True, False], ids=["default", "required"])
def test_products_in_float32_and_inputs_without_a_default(source: str, optional: bool, tmp_path: Path) -> None:
    shapes = add_inputs(FIXTURES / source, tmp_path, optional=optional, scaled=False)
    write_adapter(tmp_path / "one.onnx_adapter", shapes, 3, 7)
    model = Model(str(tmp_path))
    adapters = Adapters(model)
    adapters.load(tmp_path / "one.onnx_adapter", "one")
    actions: list[tuple[str, Any]] = [("append", PROMPT), ("generate", 12)]
    assert driven(model, adapters, actions)[len(PROMPT) :] == oracle.greedy(FIXTURES / source, PROMPT, 12)
    actions = [("adapter", "one"), *actions]
    assert driven(model, adapters, actions) == oracle.drive(tmp_path, actions).sequence


@pytest.mark.parametrize("what", DEFAULTS)
def test_defaults_with_elements_count_where_no_adapter_fills_them(what: str, tmp_path: Path) -> None:
    DEFAULTS[what].make(tmp_path)
    model = Model(str(tmp_path))
    adapters = Adapters(model)
    plain: list[tuple[str, Any]] = [("append", PROMPT), ("generate", 12)]
    found = {driven(model, adapters, plain) == oracle.drive(tmp_path, plain).sequence}
    for name in ("all", "queries"):
        adapters.load(f"{name}.onnx_adapter", name)
        actions = [("adapter", name), *plain]
        found.add(driven(model, adapters, actions) == oracle.drive(tmp_path, actions).sequence)
    assert found == {True}


def test_defaults_of_another_rank_than_the_adapters_are_those_of_one_rank(tmp_path: Path) -> None:
    """The native package takes equal ranks only: it is given the same adapter, filled up with zeros to the rank of the
    defaults, and the other way round."""
    given = {"low": 4, "high": 12}
    shapes = Defaults(8).make(tmp_path)
    queries = {name: shape for name, shape in shapes.items() if ".q_proj." in name}
    model = Model(str(tmp_path))
    adapters = Adapters(model)
    plain: list[tuple[str, Any]] = [("append", PROMPT), ("generate", 12)]
    for name, rank in given.items():
        write_adapter(tmp_path / f"{name}.onnx_adapter", queries, rank, 5)
        adapters.load(f"{name}.onnx_adapter", name)
        exported = graph.parse((tmp_path / "model.onnx").read_bytes())
        arrays = {
            tensor.name: np.frombuffer(tensor.raw_data, np.float32).reshape(tensor.dims)
            for tensor in exported.graph.initializer
            if tensor.name in shapes
        }
        tensors = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / f"{name}.onnx_adapter")).get_parameters()
        arrays |= {each: value.numpy() for each, value in tensors.items()}
        write_arrays(tmp_path / f"{name}-filled.onnx_adapter", filled_up(arrays, max(8, rank)))
        wanted = oracle.drive(tmp_path, [("adapter", f"{name}-filled"), *plain]).sequence
        assert driven(model, adapters, [("adapter", name), *plain]) == wanted


def test_adapters_of_one_generator_are_laid_over_one_another(model: Model, adapters: Adapters) -> None:
    """A later one counts where both have a tensor, whatever their ranks; the native package takes equal ranks only."""
    both = [("adapter", "second"), ("adapter", "queries"), ("append", PROMPT), ("generate", 12)]
    joined = Adapters(model)
    joined.load(merged(LORA / "second.onnx_adapter", LORA / "queries.onnx_adapter"), "both")
    alone = [("adapter", "both"), *both[2:]]
    assert driven(model, adapters, both) == driven(model, joined, alone)
    under = [("adapter", "queries"), ("adapter", "second"), *both[2:]]
    assert driven(model, adapters, under) == driven(model, adapters, [("adapter", "second"), *both[2:]])
    same = [("adapter", "first"), ("adapter", "queries"), *both[2:]]
    assert driven(model, adapters, same) == oracle.drive(LORA, same).sequence


def merged(under: Path, over: Path) -> bytes:
    """An adapter file with the tensors of both, filled up to one rank."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for path in (under, over):
        tensors = onnxruntime.AdapterFormat.read_adapter(str(path)).get_parameters()
        arrays |= {name: value.numpy() for name, value in tensors.items()}
    with tempfile.NamedTemporaryFile(suffix=".onnx_adapter") as out:
        write_arrays(Path(out.name), filled_up(arrays, 8))
        return Path(out.name).read_bytes()


def filled_up(arrays: dict[str, np.ndarray[Any, Any]], rank: int) -> dict[str, np.ndarray[Any, Any]]:
    """Factors of that rank, with zeros behind; layers are wider than any rank."""
    return {
        name: np.pad(array, [(0, rank - size if size < rank else 0) for size in array.shape])
        for name, array in arrays.items()
    }


def write_arrays(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    file.export_adapter(str(path))


@pytest.mark.parametrize("module", ["native", "capstan"])
def test_an_adapter_in_use_cannot_be_unloaded(module: str) -> None:
    """As the native package has it: counted by generators, by name, of one Adapters each."""
    config = og.Config(str(LORA))
    config.clear_providers()
    model: Any = og.Model(config) if module == "native" else Model(str(LORA))
    kinds: Any = (og.Adapters, og.Generator, og.GeneratorParams) if module == "native" else None
    kinds = kinds or (Adapters, Generator, GeneratorParams)
    adapters = kinds[0](model)
    path = str(LORA / "first.onnx_adapter")
    adapters.load(path, "a")
    with pytest.raises(RuntimeError, match="already loaded"):
        adapters.load("/nothing", "a")
    generator = kinds[1](model, kinds[2](model))
    with pytest.raises(RuntimeError, match="other"):
        generator.set_active_adapter(adapters, "other")
    others = kinds[0](model)
    others.load(path, "a")
    with pytest.raises(RuntimeError, match=r"single|another Adapters"):
        generator.set_active_adapter(others, "a")
    generator.set_active_adapter(adapters, "a")
    with pytest.raises(RuntimeError, match="still in use"):
        adapters.unload("a")
    del generator
    gc.collect()
    adapters.unload("a")
    for name in ("a", "other"):
        with pytest.raises(RuntimeError, match=name):
            adapters.unload(name)
    adapters.load(path, "a")


def test_adapters_that_are_dropped_stay_with_their_generator(model: Model) -> None:
    adapters: Adapters | None = Adapters(model)
    assert adapters is not None
    adapters.load("first.onnx_adapter", "first")
    weights = adapters.find("first").weights
    generator = Generator(model)
    generator.set_active_adapter(adapters, "first")
    adapters = None
    gc.collect()
    generator.append_tokens(PROMPT)
    for _ in range(16):
        generator.generate_next_token()
    assert generator.get_sequence() == expected("first")
    generator.close()
    del generator
    gc.collect()
    assert weights.buffer.closed


async def test_the_second_of_two_loads_under_one_name_is_refused_and_freed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    load = model.load_adapter

    async def slowly(*given: Any) -> Any:
        await asyncio.sleep(0)
        loaded.append(await load(*given))
        return loaded[-1]

    monkeypatch.setattr(model, "load_adapter", slowly)
    adapters = Adapters(model)

    files = ("first.onnx_adapter", "second.onnx_adapter")
    first, second = await asyncio.gather(*(adapters.load_async(file, "a") for file in files), return_exceptions=True)
    assert first is None
    with pytest.raises(OptionError, match="adapter 'a' is already loaded"):
        raise second or AssertionError("both were loaded")
    assert [weights.buffer.closed for weights in loaded] == [False, True]
    assert adapters.find("a").weights is loaded[0]


def test_an_unloaded_adapter_is_freed(model: Model) -> None:
    adapters = Adapters(model)
    adapters.load("first.onnx_adapter", "first")
    weights = adapters.find("first").weights
    with Generator(model) as generator:
        generator.set_active_adapter(adapters, "first")
    assert not weights.buffer.closed
    adapters.unload("first")
    assert weights.buffer.closed


MISFITS: dict[str, tuple[Callable[[Shapes], Any], int, type[Exception], tuple[str, ...]]] = {
    "another tensor": (
        lambda shapes: {**shapes, "stranger": (64, None)},
        *(4, BindingError, ("stranger float32 [64, 4]", "no input")),
    ),
    "another shape": (
        lambda shapes: {**shapes, QUERIES: (63, None)},
        *(4, BindingError, (QUERIES, "float32 [63, 4]", "float32 [64, lora_r]")),
    ),
    "another number of dimensions": (
        lambda shapes: {**shapes, QUERIES: (64, None, 1)},
        *(4, BindingError, ("float32 [64, 4, 1]",)),
    ),
    "half of a product": (
        lambda shapes: {name: shape for name, shape in shapes.items() if "lora_A" in name},
        *(4, BindingError, (QUERIES, "rank 4", "multiplied, has 0")),
    ),
    "a rank larger than any layer": (lambda shapes: shapes, 129, BindingError, ("rank 129", "128")),
}


@pytest.mark.parametrize("what", MISFITS)
def test_an_adapter_that_does_not_fit_is_refused(what: str, model: Model, tmp_path: Path) -> None:
    change, rank, kind, words = MISFITS[what]
    write_adapter(tmp_path / "a", change(add_inputs(FIXTURES / "nano-apart", tmp_path / "model")), rank, 1)
    with pytest.raises(kind) as raised:
        Adapters(model).load(tmp_path / "a", "x")
    assert all(word in str(raised.value) for word in ("adapter 'x'", *words)), raised.value


def test_a_model_without_inputs_for_adapters_says_so() -> None:
    model = Model(str(FIXTURES / "nano-apart"))
    with pytest.raises(
        UnsupportedModelError, match=r"no inputs for LoRA adapters, and none for model\.layers\.\S+ float32"
    ):
        Adapters(model).load(LORA / "first.onnx_adapter", "a")


NORM = "model.layers.0.input_layernorm.weight"


def with_inputs(folder: Path, out: Path, wanted: Callable[[str], bool]) -> Model:
    """A copy of a model whose initializers of these names are inputs, too, so that they may be overridden."""
    shutil.copytree(folder, out)
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    for tensor in model.graph.initializer:
        if wanted(tensor.name) and tensor.name not in {value.name for value in model.graph.input}:
            dims = list(tensor.dims)
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, dims))
    onnx.save(model, str(out / "model.onnx"))
    return Model(str(out))


@pytest.mark.parametrize("source", ["nano-apart", "nano-lora"])
@pytest.mark.parametrize("name", [NORM, "model.layers.0.attn.q_proj.MatMul.weight_scales", "ghost.weight"])
@pytest.mark.parametrize("overridable", [True, False], ids=["overridable", "constant"])
def test_what_no_adapter_can_fill_is_refused_by_its_name(
    name: str, source: str, overridable: bool, tmp_path: Path
) -> None:
    """The native package takes any input with a default, and fails in the first run for constants."""
    model = with_inputs(FIXTURES / source, tmp_path / "m", lambda each: overridable and each == name)
    write_arrays(tmp_path / "one.onnx_adapter", {name: np.zeros((64, 2), np.float32)})
    with pytest.raises((BindingError, UnsupportedModelError)) as raised:
        Adapters(model).load(tmp_path / "one.onnx_adapter", "one")
    words = "not a factor of a LoRA product" if overridable and name != "ghost.weight" else "no input"
    assert f"{name} float32 [64, 2]" in str(raised.value)
    assert words in str(raised.value)
    assert any(
        remedy in str(raised.value) for remedy in ("fold the tensor's values", "Olive's", "exported with this model")
    )


def test_a_model_that_lists_all_weights_as_inputs_has_no_more_for_adapters(tmp_path: Path) -> None:
    model = with_inputs(LORA, tmp_path / "m", lambda _: True)
    adapters = Adapters(model)
    adapters.load("first.onnx_adapter", "first")
    for name in ("none", "first"):
        assert driven(model, adapters, RUNS[name]) == expected(name)
    # A product by a gate lies between those of an MLP.
    plain = with_inputs(FIXTURES / "nano-float", tmp_path / "plain", lambda _: True)
    name = "model.layers.0.mlp.down_proj.MatMul.weight"
    write_arrays(tmp_path / "one.onnx_adapter", {name: np.zeros((128, 64), np.float32)})
    with pytest.raises(BindingError, match=r"down_proj\S+ float32 .* not a factor of a LoRA product"):
        Adapters(plain).load(tmp_path / "one.onnx_adapter", "one")


def test_a_default_of_another_shape_than_its_input_is_refused(tmp_path: Path) -> None:
    Defaults(4, free=False).make(tmp_path)
    model = onnx.load(str(tmp_path / "model.onnx"), load_external_data=False)
    value = next(value for value in model.graph.input if value.name == QUERIES)
    value.CopyFrom(onnx.helper.make_tensor_value_info(QUERIES, onnx.TensorProto.FLOAT, [64, 5]))
    onnx.save(model, str(tmp_path / "model.onnx"))
    with pytest.raises(ModelFileError) as raised:
        Model(str(tmp_path))
    assert all(word in str(raised.value) for word in (QUERIES, "float32 [64, 5]", "[64, 4]", "export"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int32, np.int64])
def test_defaults_are_read_from_any_field_of_a_tensor(dtype: type[Any]) -> None:
    """ONNX has elements as raw bytes, or in a field of numbers, where float16 is its bits."""
    told = parse_genai_config((LORA / "genai_config.json").read_bytes()).decoder
    values = np.arange(1, 129).reshape(64, 2).astype(dtype)
    exported = onnx.load(str(LORA / "model.onnx"), load_external_data=False)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in exported.graph.initializer:
        if tensor.name == QUERIES:
            tensor.CopyFrom(onnx.helper.make_tensor(QUERIES, kind, values.shape, values.ravel().tolist()))
            assert not tensor.raw_data
    for value in exported.graph.input:
        if value.name == QUERIES:
            value.type.tensor_type.elem_type = kind
    found = {each.name: each for each in graph.lora_inputs(graph.parse(exported.SerializeToString()), told)}[QUERIES]
    assert (found.silent, found.held, found.default) == (False, 2, values.tobytes())


@pytest.mark.parametrize(
    "path", ["nothing.onnx_adapter", "../nano-lora/none", "%2e%2e/none", "/none", "http://x/none", ""]
)
def test_a_file_that_is_not_there_or_outside_is_refused(path: str, model: Model) -> None:
    with pytest.raises(ModelFileError, match=r"adapter 'a'|nothing"):
        Adapters(model).load(path, "a")


def test_use_that_makes_no_sense_is_refused(model: Model, adapters: Adapters) -> None:
    with pytest.raises(OptionError, match="5"):
        adapters.load("first.onnx_adapter", 5)  # type: ignore[arg-type]
    other = Model(str(LORA))
    with Generator(other) as generator, pytest.raises(OptionError, match="another model"):
        generator.set_active_adapter(adapters, "first")
    with Generator(model) as generator, pytest.raises(OptionError, match="give an Adapters"):
        generator.set_active_adapter("first", "first")  # type: ignore[arg-type]
    params = GeneratorParams(model)
    params.set_search_options(num_beams=2)
    with Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        with pytest.raises(OptionError, match="beams"):
            generator.set_active_adapter(adapters, "first")


def test_the_graph_without_adapters_is_the_one_before_them() -> None:
    told = parse_genai_config((LORA / "genai_config.json").read_bytes()).decoder
    exported, plain = (graph.parse((folder / "model.onnx").read_bytes()) for folder in (LORA, FIXTURES / "nano-apart"))
    inputs = graph.lora_inputs(exported, told)
    assert len(inputs) == 28
    assert graph.lora_inputs(plain, told) == ()
    left = graph.without_lora(exported, inputs)
    for mine, theirs in zip(left.graph.node, plain.graph.node, strict=True):
        assert mine.SerializeToString() == theirs.SerializeToString()
    assert [value.name for value in left.graph.input] == [value.name for value in plain.graph.input]


def test_a_default_that_is_read_otherwise_is_refused() -> None:
    told = parse_genai_config((LORA / "genai_config.json").read_bytes()).decoder
    exported = graph.parse((LORA / "model.onnx").read_bytes())
    total = next(node for node in exported.graph.node if node.name.endswith("lora/Add"))
    total.op_type = "Max"
    with pytest.raises(UnsupportedModelError, match=rf"{total.name} \(Max\)"):
        graph.without_lora(exported, graph.lora_inputs(exported, told))


def test_a_default_that_adds_something_stays() -> None:
    told = parse_genai_config((LORA / "genai_config.json").read_bytes()).decoder
    exported = graph.parse((LORA / "model.onnx").read_bytes())
    for tensor in exported.graph.initializer:
        if tensor.name.startswith("model.layers.0.attn.q_proj.lora_"):
            tensor.dims[:] = [size or 2 for size in tensor.dims]
            tensor.ClearField("float_data")
            tensor.raw_data = np.ones(list(tensor.dims), np.float32).tobytes()
    left = graph.without_lora(exported, graph.lora_inputs(exported, told))
    kept = [node.name for node in left.graph.node if "lora" in node.output[0]]
    assert kept == [f"/model/layers.0/attn/q_proj/{name}" for name in ("MatMul_A", "MatMul_B", "lora/Mul", "lora/Add")]
    assert {tensor.name for tensor in left.graph.initializer} >= {QUERIES}


async def test_a_dropped_generator_lets_go_of_its_adapters_before_its_decoder_is_given_back(model: Model) -> None:
    """While an event loop runs, as in a page, the decoder is given back later."""
    adapters = Adapters(model)
    adapters.load("first.onnx_adapter", "first")

    generator = Generator(model)
    generator.set_active_adapter(adapters, "first")
    generator.append_tokens(PROMPT)
    await generator.generate_next_token_async()
    del generator
    gc.collect()
    adapters.unload("first")
