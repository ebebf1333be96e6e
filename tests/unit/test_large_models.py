"""A model of 14 billion weights, of which there is the graph alone: what fits, and what is refused before a byte is
read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import onnx
import pytest

from capstan import OptionError, OutOfMemoryError
from capstan.device import probe
from capstan.device.model_interface import TapeOptions
from capstan.device.model_memory import ModelMemory
from capstan.device.webgpu.loaded_model import Loaded, webgpu_memory
from capstan.device.webgpu.webgpu_device import WebGpuDevice
from capstan.device.webgpu.webgpu_graphs import Graphs, OpenWeights, rewrite
from capstan.loading.folder import with_caches
from capstan.model_files.genai_config import GenaiConfig, with_room
from tests.unit.large_shapes import CONTEXT, config_of, graph_of
from tests.unit.paper_engine import PaperEngine
from tests.unit.paper_load import ABLE, PROBED, PaperFile, load_on_paper, unread

MIB = 1 << 20
BINDING = 128 * MIB
"""The least of WebGPU."""
ROWS = 8 * 128 * 4
"""Bytes of a layer's keys at one position."""


class SmallAdapter(PaperEngine):
    """An adapter with the least limits of WebGPU."""

    def adapter(self) -> dict[str, Any]:
        least = {"max_buffer_size": 256 * MIB, "max_storage_buffer_binding_size": BINDING}
        return {**super().adapter(), **least}


@cache
def rewritten(kv_cache_dtype: str | None = None, change: Callable[[onnx.ModelProto], None] | None = None) -> Graphs:
    model = graph_of()
    if change is not None:
        change(model)
    config = with_caches(config_of(), {"kv_cache_dtype": kv_cache_dtype})
    return asyncio.run(rewrite(model.SerializeToString(), config, unread, 10, None, BINDING))


@pytest.fixture(autouse=True)
def small_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(ABLE, max_buffer_size=256 * MIB, max_binding_size=BINDING)
    monkeypatch.setitem(probe.remembered, PROBED, found)


def memory_of(graphs: Graphs) -> ModelMemory:
    return webgpu_memory(WebGpuDevice(cast(Any, SmallAdapter())), graphs, config_of())


def loaded(
    engine: PaperEngine, graphs: Graphs, open_weights: OpenWeights = unread, config: GenaiConfig | None = None
) -> Loaded:
    return asyncio.run(load_on_paper(engine, graphs, config or config_of(), TapeOptions("tape"), open_weights))


def read_whole(model: onnx.ModelProto) -> None:
    """The table of tokens has another user, which takes it as a whole."""
    [head] = [node for node in model.graph.node if node.name == "/lm_head/MatMul_Q4"]
    head.op_type, head.domain, head.name = "Gemm", "", "/lm_head/Gemm"
    head.input[:] = [head.input[0], "model.embed_tokens.weight", head.input[0]]
    del head.attribute[:]
    head.attribute.append(onnx.helper.make_attribute("transB", 1))


def in_two_files(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        place = "second.data" if "layers.39." in tensor.name else "first.data"
        tensor.external_data[0].value = place


def test_it_is_read_in_parts_and_its_offsets_are_beyond_4_gib(no_running_loop: None) -> None:
    graphs = rewritten()
    assert sum(entry.length for entry in graphs.weights) > 9 << 30
    assert max(entry.offset for entry in graphs.weights) > 1 << 32
    assert {each.why for each in graphs.split} == {""}
    assert memory_of(graphs).fit(1, 4096)


def test_a_model_that_does_not_fit_is_refused_before_a_byte_of_it_is_read(no_running_loop: None) -> None:
    graphs = rewritten(None, read_whole)
    engine = SmallAdapter()
    told = f"{151936 * 5120 * 4} bytes with batch_size 1 and max_length 256; webgpu allows {BINDING}"
    message = (
        rf"^model.embed_tokens.weight takes {told} "
        r"bytes in one binding \(.*\); node /lm_head/Gemm \(Gemm\) reads it whole: .* is computed; "
        "use a smaller model, or one with fewer bits a weight$"
    )
    with pytest.raises(OutOfMemoryError, match=message):
        loaded(engine, graphs)
    assert (+engine.live, engine.wrong) == ({}, [])


def test_memory_that_ends_between_two_data_files_leaves_nothing_and_a_second_load_works(no_running_loop: None) -> None:
    graphs = rewritten(None, in_two_files)

    read: list[str] = []

    async def opened(location: str) -> Any:
        return PaperFile(location, read)

    room = sum(size for size in {(e.location, e.pieces): e.length for e in graphs.weights}.values())
    engine = SmallAdapter()
    engine.room = room - 1
    with pytest.raises(OutOfMemoryError, match="^no room$"):
        loaded(engine, graphs, opened)
    assert read == ["first.data"], "buffers of a file are made before it is read"
    assert (+engine.live, engine.wrong) == ({}, [])
    engine.room = 2 * room
    found = loaded(engine, graphs, opened)
    assert read == ["first.data", "first.data", "second.data"]
    assert set(found.weights) == {entry.name for entry in graphs.weights}


def test_caches_that_do_not_fit_are_told_with_the_longest_that_do(no_running_loop: None) -> None:
    fit = memory_of(rewritten()).fit(1)
    assert (fit.limit, fit.value, fit.allowed) == ("max_binding_size", CONTEXT * ROWS, BINDING)
    assert memory_of(rewritten("int4")).fit(1)
    assert (fit.largest_max_length, fit.by_cache) == (BINDING // ROWS, {"int8": CONTEXT, "int4": CONTEXT})
    assert fit.reason.endswith(
        "; use a max_length of at most 32768, or load the model for that length (its max_length, at most 40960), or "
        "load the model with kv_cache_dtype='int8' (at most 40960) or 'int4' (at most 40960)"
    )


@pytest.mark.extended
def test_a_load_for_a_length_whose_caches_do_not_fit_reads_nothing(no_running_loop: None) -> None:
    engine = SmallAdapter()
    ending = "; use a max_length of at most 32768, or .*, or load the model with kv_cache_dtype='int8' .*$"
    for wanted in (32769, CONTEXT, CONTEXT + 1):
        with pytest.raises(OutOfMemoryError, match=ending):
            loaded(engine, rewritten(), config=with_room(config_of(), wanted))
    assert (+engine.live, engine.wrong) == ({}, [])
    with pytest.raises(AssertionError, match="is read"):
        loaded(engine, rewritten(), config=with_room(config_of(), 32768))


@pytest.mark.parametrize("wanted", [0, -1, True, 2.5, "many"])
def test_a_length_is_a_number_of_tokens(wanted: Any) -> None:
    with pytest.raises(OptionError, match=rf"^max_length is {wanted!r}; it must be a number of tokens of at least 1"):
        with_room(config_of(), wanted)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_lengths_of_smaller_caches_are_those_of_a_load_with_them(dtype: str, no_running_loop: None) -> None:
    floats, quantized = memory_of(rewritten()), memory_of(rewritten(dtype))
    bits = int(dtype.removeprefix("int"))
    assert floats.description.with_cache_bits(bits).cache == quantized.description.cache
    for budget in (14 << 30, 15 << 30):
        told = floats.fit(1, budget=budget)
        assert not told
        found = quantized.fit(1, budget=budget).largest_max_length
        assert found
        assert told.by_cache[dtype] == found > (told.largest_max_length or 0)


def test_from_8_bits_on_4_are_told(no_running_loop: None) -> None:
    eight = memory_of(rewritten("int8"))
    assert eight.description.fewer_bits == (4,)
    four = rewritten("int4").description
    assert eight.description.with_cache_bits(4) == replace(
        four, inputs=eight.description.inputs, outputs=eight.description.outputs
    )
    assert four.fewer_bits == ()


def test_a_load_for_a_length_takes_its_caches_apart(no_running_loop: None) -> None:
    config = with_room(config_of(), CONTEXT)
    graphs = asyncio.run(rewrite(graph_of().SerializeToString(), config, unread, 10, None, BINDING))
    assert {(each.bytes, each.parts) for each in graphs.cache_parts} == {(CONTEXT * ROWS, 2)}
    memory = webgpu_memory(WebGpuDevice(cast(Any, SmallAdapter())), graphs, config)
    assert memory.fit(1)
    with pytest.raises(AssertionError, match="is read"):
        loaded(SmallAdapter(), graphs, config=config)
