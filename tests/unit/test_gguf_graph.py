"""Graphs of GGUF files: the model builder's nodes, and what the definition in float32 computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import Generator, GeneratorParams, Model, graph
from capstan.device.reference.unpacked import weight_bytes
from capstan.device.webgpu.webgpu_graphs import Graphs, rewrite
from capstan.errors import ModelFileError, UncomputedError, UnsupportedModelError
from capstan.graph.carried import cache_pairs
from capstan.graph.gguf.gguf_types import PACKED
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.quantized_caches import quantized_caches
from capstan.graph.split_caches import whole_because
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.model_files.gguf.gguf_config import gguf_decoder
from capstan.model_files.gguf.header import GgmlType
from capstan.onnxruntime.layered_run import layered_run
from tests.gguf_keys import CASES, ids_of
from tests.gguf_models import FIXTURES, FURTHER, MIXED, SIZES, VOCABULARY, Made, before, folder_of, make

PROMPT = 6
TOKENS = 24


def compared(made: Made, rewrite: Callable[[ModelProto], ModelProto] | None = None) -> None:
    """A prompt and then steps over the caches, in onnxruntime, give the definition's logits and picks."""
    session = made.session(rewrite)
    fed = before(session)
    names = [value.name for value in session.get_outputs()]
    ids = np.random.default_rng(3).integers(0, VOCABULARY, PROMPT + TOKENS)
    steps = []
    for end in range(PROMPT, len(ids) + 1):
        given = ids[None, :end] if end == PROMPT else ids[None, end - 1 : end]
        mask = np.ones((1, end), np.int64)
        found = dict(zip(names, session.run(None, {"input_ids": given, "attention_mask": mask, **fed}), strict=True))
        fed = {name: found[name.replace("past_key_values", "present").replace("past.", "present.")] for name in fed}
        steps.append(found["logits"][0, -1])
    wanted = made.defined(ids.tolist())[PROMPT - 1 :]
    np.testing.assert_allclose(steps, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())
    assert np.array_equal(np.argmax(steps, -1), wanted.argmax(-1))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
def test_a_model_of_each_type_computes_what_its_weights_say(kind: GgmlType) -> None:
    compared(make("llama", {"": kind}, {"block_count": 1}, tied=kind % 2 == 0))


def test_sums_of_blocks_may_be_products() -> None:
    made = make("llama", {"": GgmlType.Q4_K, "attn": GgmlType.Q4_1}, {"block_count": 1})
    before = [node.op_type for node in made.graph().graph.node]
    after = [node.op_type for node in graph.sums_by_products(made.graph()).graph.node]
    # The sums of q, k and v are the same ones; those of a mask stay.
    assert (before.count("ReduceSum"), after.count("ReduceSum")) == (6, 1)
    assert len(after) == len(before)
    compared(made, graph.sums_by_products)


def test_other_sums_stay() -> None:
    for change, left in ((None, 1), (change_axis, 2), (unknown_block, 2)):
        model = make("llama", {"": GgmlType.Q4_1}, {"block_count": 1}, tied=False).graph()
        if change:
            change(model)
        found = [node.op_type for node in graph.sums_by_products(model).graph.node]
        assert found.count("ReduceSum") == left
    half = graph.sums_by_products(make("llama", {"": GgmlType.Q4_1}, {"block_count": 1}, tied=False).graph("float16"))
    assert [node.op_type for node in half.graph.node].count("ReduceSum") == 6


def test_steps_over_states_give_the_logits_of_a_whole_run() -> None:
    """Those of a whole run are llama.cpp's (test_gguf_keys.py)."""
    session = CASES["more heads of values than of keys"].made.session()
    ids, names = np.array([ids_of(20)]), [value.name for value in session.get_outputs()]
    fed, start, steps = before(session), 0, []
    for end in (12, *range(13, 21)):
        given = {"input_ids": ids[:, start:end], "attention_mask": np.ones((1, end), np.int64), **fed}
        found = dict(zip(names, session.run(None, given), strict=True))
        fed = {name: found[name.replace("past_key_values", "present").replace("past.", "present.")] for name in fed}
        steps.append(found["logits"][0])
        start = end
    whole = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **before(session)})[0][0]
    np.testing.assert_allclose(np.concatenate(steps), whole, rtol=0, atol=1e-4 * np.abs(whole).max())


def gemma4(types: GgmlType = GgmlType.F32) -> Made:
    """Its last two layers read the caches of the first two, one of which has a window."""
    return make("gemma4", {"": types}, FURTHER["gemma4"])


def test_attention_over_caches_of_other_layers_is_computed_apart() -> None:
    """On WebGPU where there is a window, and on the CPU, whose kernel of onnxruntime-web 1.30 reads other memory."""
    sizes = {"past_key_values.0.key": 64, "past_key_values.1.key": 128}
    for change, left in ((graph.soft_caps_apart, 3), (graph.shared_caches_apart, 2)):
        changed = [node.op_type for node in change(gemma4().graph(), sizes).graph.node]
        assert changed.count("GroupQueryAttention") == left
        compared(gemma4(), partial(change, head_sizes=sizes))


def test_a_window_over_caches_of_another_layer_is_left_out_once_for_each_layer() -> None:
    model = gemma4().graph()
    [found] = graph.left_out(model)
    assert (found.key, found.window, found.layers) == ("past_key_values.0.key", 8, 2)
    last = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][2]
    next(item for item in last.attribute if item.name == "local_window_size").i = 9
    with pytest.raises(UnsupportedModelError, match=r"over past_key_values\.0\.key looks back 9 positions .* one 8"):
        graph.left_out(model)


def test_caches_that_other_layers_read_stay_whole_and_floats() -> None:
    made = gemma4()
    model, decoder = made.graph(), gguf_decoder(made.file, "model.gguf")
    pairs = cache_pairs(decoder, model.graph)
    assert [pair.layer for pair in pairs] == [0, 0, 1, 1]
    assert "layers.2/attn/GroupQueryAttention reads the caches of another node" in whole_because(model, pairs)
    with pytest.raises(
        UnsupportedModelError, match=r"int8 cannot be used if other layers read it, as /model/layers\.2"
    ):
        quantized_caches(model, pairs, 8, 1024)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", list(FURTHER))
def test_each_family_computes_what_its_weights_say(family: str) -> None:
    compared(make(family, MIXED, FURTHER[family]))


def test_the_reference_device_runs_a_graph_over_the_file(tmp_path: Path) -> None:
    made = make("qwen2", MIXED, vocabulary=512)
    graphs = {"model.gguf": graph.serialize(made.graph())}

    async def logits() -> list[float]:
        folder = folder_of(made, tmp_path / "model")
        async with (
            await Model.load(folder, device="reference", graphs=graphs) as model,
            Generator(model, GeneratorParams(model)) as generator,
        ):
            generator.append_tokens([5, 60, 17])
            return list(await generator.get_logits_async())

    wanted = made.defined([5, 60, 17])[-1]
    np.testing.assert_allclose(asyncio.run(logits()), wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


def test_a_graph_s_facts_come_back_from_their_note(tmp_path: Path) -> None:
    made = make("gemma3", {**MIXED, "": GgmlType.F16}, FURTHER["gemma3"], vocabulary=512)
    folder = folder_of(made, tmp_path / "model")
    config = parse_genai_config((folder / "genai_config.json").read_bytes(), "genai_config.json")
    rewriting = rewrite(graph.serialize(made.graph("float16")), config, no_weights, 16)
    found = asyncio.run(rewriting)
    assert Graphs.parse(found.serialize()) == found


def test_layers_are_not_run_one_at_a_time(tmp_path: Path) -> None:
    made = make("llama", MIXED, vocabulary=512)
    folder = folder_of(made, tmp_path / "model")
    config = parse_genai_config((folder / "genai_config.json").read_bytes(), "genai_config.json")
    host: Any = None
    layers = layered_run(host, "", config, graph.serialize(made.graph()), "reference", [1])
    with pytest.raises(UnsupportedModelError, match="a run of one layer at a time takes no GGUF file"):
        asyncio.run(anext(layers))  # type: ignore[arg-type]


async def no_weights(location: str) -> Any:
    raise AssertionError(f"bytes of {location} are not needed")


def test_parts_are_told_by_no_other_file() -> None:
    data = graph.serialize(make("llama", MIXED).graph())
    assert graph.parse(data, "model.gguf").graph.node
    with pytest.raises(ModelFileError, match="external data with 'capstan.parts'"):
        graph.parse(data, "model.onnx")


def told(model: ModelProto, without: str) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The nodes and their attributes, without those of constants; x sigmoid(x) is one node or two."""
    kinds = ("Constant", "Sigmoid")
    nodes = [node for node in model.graph.node if node.op_type not in kinds and not node.name.startswith("/model/rot")]
    for node in nodes:
        if node.name.endswith(("act_fn/Mul", "act_fn/QuickGelu")):
            node.op_type = "SiLU"
            del node.attribute[:]
    kept = [(node.op_type, [item for item in node.attribute if item.name != without]) for node in nodes]
    return [(kind, sorted(map(shown, attributes), key=str)) for kind, attributes in kept]


def shown(item: Any) -> tuple[str, Any]:
    return item.name, (round(item.f, 5), item.i, item.s)


@pytest.mark.parametrize(
    "family", [name for name in FURTHER if (FIXTURES / f"nano-{name}").exists() and name != "phi3"]
)
def test_the_nodes_are_those_of_the_model_builder(family: str) -> None:
    """But for how the rotary tables come about, and for gemma3's windows: the fixture has one layer of each kind."""
    built = graph.parse((FIXTURES / f"nano-{family}/model.onnx").read_bytes())
    layers = sum(node.op_type == "GroupQueryAttention" for node in built.graph.node)
    small = {**SIZES, "block_count": layers, "embedding_length": 64, "feed_forward_length": 128, "context_length": 512}
    further = {**FURTHER[family], "attention.key_length": 16, "attention.layer_norm_rms_epsilon": 1e-5}
    if family == "gemma2":
        further |= {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "attention.sliding_window": 24}
    if family == "granite":
        further |= {"attention.scale": 0.2}
    types = {"": GgmlType.Q4_0, "token_embd": GgmlType.F32}
    made = make(family, types, {**further, **small}, tied=False, vocabulary=512).graph()
    without = "local_window_size" if family == "gemma3" else ""
    assert told(made, without) == told(built, without)
    assert {value.name for value in made.graph.input} == {value.name for value in built.graph.input}
    assert [value.name for value in made.graph.output] == [value.name for value in built.graph.output]


@pytest.mark.parametrize("kind", list(PACKED), ids=lambda kind: kind.name)
def test_products_of_affine_types_tell_their_minima(kind: GgmlType) -> None:
    made = make("llama", {"": kind, "token_embd": GgmlType.Q8_0}, {"block_count": 1}).graph()
    products = graph.nbits_products(made)
    minima = [node.input[1] for node in made.graph.node if "minima" in node.name]
    assert len(minima) == (5 if PACKED[kind].shift is not None else 0)
    assert [each.minima for each in products] == [*(minima or [""] * 5), ""]
    assert all(each.minima.startswith(each.weights[: -len("_Q4")]) for each in products if each.minima)


def change_shape(model: ModelProto) -> None:
    next(node for node in model.graph.node if "blocks_32" in node.name).input[1] = (
        "/model/constants/INT64/[0, 0, 1, 256]"
    )


def change_axis(model: ModelProto) -> None:
    next(node for node in model.graph.node if "sums_32" in node.name).input[1] = "/model/constants/INT64/[1]"


def change_input(model: ModelProto) -> None:
    next(node for node in model.graph.node if "blocks_32" in node.name).input[0] = "/model/embed_tokens/Gather/output_0"


def unknown_block(model: ModelProto) -> None:
    next(node for node in model.graph.node if "blocks_32" in node.name).input[1] = "input_ids"


def read_besides(model: ModelProto) -> None:
    model.graph.output.add(name=next(node for node in model.graph.node if "MatMul_Q4" in node.name).output[0])


@pytest.mark.parametrize("change", [change_shape, change_axis, change_input, read_besides])
def test_what_is_added_to_a_product_is_not_always_that_of_its_minima(change: Callable[[ModelProto], None]) -> None:
    model = make("llama", {"": GgmlType.Q4_1}, {"block_count": 1}, tied=False).graph()
    first = graph.nbits_products(model)[0]
    change(model)
    assert first.minima
    assert graph.nbits_products(model)[0] == replace(first, minima="")


def test_a_float16_graph_has_weights_in_float16() -> None:
    made = make("llama", MIXED).graph("float16")
    kinds = {entry.dtype for entry in graph.external_entries(made)}
    assert kinds == {"float16", "uint8"}


def test_tied_products_and_tables_share_their_buffers() -> None:
    entries = {entry.name: entry for entry in graph.external_entries(make("llama", MIXED).graph())}
    table, output = entries["model.embed_tokens.weight_Q8"], entries["lm_head.MatMul.weight_Q8"]
    assert table.parts == output.parts
    assert table.dims == (96, 256)
    assert output.dims == (96, 8, 32)


HEADS = {
    "rotary embedding of heads of 24 elements": ("qwen3", {"attention.key_length": 24}),
    "heads of 36 elements": ("qwen3", {"attention.key_length": 36}),
    "rotary embedding of 24 elements of a head": ("phi3", {"rope.dimension_count": 24}),
}


@pytest.mark.parametrize("said", list(HEADS))
def test_heads_that_attention_does_not_take_are_refused_on_each_device(said: str) -> None:
    family, given = HEADS[said]
    model = make(family, {"": GgmlType.F32}, {"block_count": 1, **given}).graph()
    for device in ("webgpu", "wasm"):
        with pytest.raises(UncomputedError, match=rf"refuses on {device} {said} \(multiples of (8|16) are computed\)"):
            graph.require_computed(model, device)
    graph.require_computed(make("phi3", {"": GgmlType.Q4_0}, {"rope.dimension_count": 48}).graph(), "webgpu")


@pytest.mark.parametrize("kinds", ["Q4_0 Q4_0", "Q4_0 Q8_0", "IQ4_NL Q6_K", "Q3_K Q4_0", "MXFP4 MXFP4"])
def test_experts_are_held_as_their_types_need(kinds: str) -> None:
    gate, down = (GgmlType[kind] for kind in kinds.split())
    types = {"": GgmlType.F32, "ffn_gate_exps": gate, "ffn_up_exps": gate, "ffn_down_exps": down}
    made = make("qwen3moe", types, {**FURTHER["qwen3moe"], "block_count": 1, "expert_feed_forward_length": 256})
    model = made.graph()
    [node] = [node for node in model.graph.node if node.op_type == "QMoE"]
    numbers = {item.name: item.i for item in node.attribute}
    held = [PACKED[kind] for kind in (gate, down)]
    bits, block = max(each.bits for each in held), min(each.block for each in held)
    assert (numbers["expert_weight_bits"], numbers["block_size"]) == (bits, block)
    entries = [entry for entry in graph.external_entries(made.graph("float16")) if ".moe.experts." in entry.name]
    assert sum(entry.length for entry in entries) == 6 * 3 * 256 * 256 * (bits / 8 + 2 / block)
    gates, ups, downs = (made.tensors[f"blk.0.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
    both = np.stack([gates, ups], axis=2).reshape(6, 512, 256)
    held_by = {entry.name: entry for entry in graph.external_entries(model)}
    for place, wanted in ((2, both), (5, downs)):
        quants, scales = (held_by[name] for name in node.input[place : place + 2])
        q = np.frombuffer(weight_bytes(quants, made.read), np.uint8)
        q = np.stack([q & 15, q >> 4], axis=1).reshape(-1) if bits == 4 else q
        d = np.frombuffer(weight_bytes(scales, made.read), np.float32)
        values = (q.astype(np.float32).reshape(-1, block) - (1 << (bits - 1))) * d[:, None]
        assert np.array_equal(values.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("kind", ["Q4_K", "Q4_1", "F16"])
def test_types_that_experts_cannot_be_held_in_are_refused(kind: str) -> None:
    types = {"": GgmlType.Q8_0, "ffn_down_exps": GgmlType[kind]}
    made = make("qwen3moe", types, {**FURTHER["qwen3moe"], "expert_feed_forward_length": 256})
    with pytest.raises(
        UnsupportedModelError,
        match=rf"tensor blk\.0\.ffn_down_exps\.weight is of type {kind}; experts may be of Q4_0, Q5_0, .*: convert "
        "the file with llama-quantize to Q4_0 or Q8_0",
    ):
        made.graph()


def test_experts_whose_rows_cannot_alternate_are_refused() -> None:
    made = make("qwen3moe", {"": GgmlType.Q4_0}, {**FURTHER["qwen3moe"], "embedding_length": 224})
    assert made.graph().graph.node
    with pytest.raises(UnsupportedModelError, match=r"ffn_gate_exps\.weight have 224 elements; only multiples of 64"):
        made.graph("float16")
    tensors = {name: replace(each, shard=int("_up_" in name)) for name, each in made.file.tensors.items()}
    made.file = replace(made.file, tensors=tensors)
    with pytest.raises(UnsupportedModelError, match=r"are in different shards; merge the shards .* --merge"):
        made.graph()


def test_what_a_graph_would_leave_out_is_refused() -> None:
    for key, value, part in (
        ("expert_count", 8, r"metadata llama\.expert_count \(8\) is not supported"),
        ("rope.dimension_count", 32, "only 64 is supported"),
    ):
        with pytest.raises(UnsupportedModelError, match=part):
            make("llama", MIXED, {key: value}).graph()
    with pytest.raises(UnsupportedModelError, match=r"'rwkv6' is unknown.*llama, qwen2"):
        make("rwkv6", MIXED).graph()
    made = make("llama", MIXED)
    gate = made.file.tensors["blk.0.ffn_gate.weight"]
    made.file = replace(made.file, tensors={**made.file.tensors, "blk.0.ffn_gate.bias": gate})
    with pytest.raises(UnsupportedModelError, match=r"of llama does not use 1 tensors, such as blk\.0\.ffn_gate\.bias"):
        made.graph()
    for held, found in ({gate.name: replace(gate, dims=(256, 512))}, "256 x 512"), ({}, "none"):
        tensors = {name: each for name, each in made.file.tensors.items() if name != gate.name}
        made.file = replace(made.file, tensors={**tensors, **held})
        with pytest.raises(ModelFileError, match=rf"blk\.0\.ffn_gate\.weight: expected 512 x 256, .*, found {found};"):
            made.graph()
