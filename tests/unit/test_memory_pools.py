"""The sizes of a model's pools, the packing of tensors into one buffer, and the estimate of a run's scratch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from capstan import graph
from capstan.device.model_memory import requirements
from capstan.device.run_inputs import sequence_items
from capstan.graph import GraphDescription, WeightEntry
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.wiring import value_info
from capstan.memory import (
    AlignmentRequirements,
    Capabilities,
    MemoryInfo,
    MemoryRequirements,
    MemoryType,
    PoolItem,
    PoolSize,
    pack,
    row_items,
    weight_items,
)
from capstan.model_files.genai_config_file import parse_genai_config

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
ROUNDS = 2000


@pytest.fixture(scope="module")
def model() -> ModelProto:
    return graph.total_length_on_gpu(graph.parse((NANO / "model.onnx").read_bytes()))


@pytest.fixture(scope="module")
def about(model: ModelProto) -> GraphDescription:
    return graph.describe(model, parse_genai_config((NANO / "genai_config.json").read_bytes()).decoder, 512)


@pytest.fixture(scope="module")
def weights(model: ModelProto) -> list[WeightEntry]:
    return graph.weights_to_inputs(model)[1]


def sizes(items: tuple[PoolItem, ...]) -> dict[str, int]:
    assert len({item.name for item in items}) == len(items)
    return {item.name: item.bytes for item in items}


def test_a_sequence_holds_its_cache_its_io_and_what_the_sampler_carries(about: GraphDescription) -> None:
    cache = 2 * 256 * 16 * 4
    assert sizes(sequence_items(about, 256, 64)) == {
        "kv past_key_values.0.key": cache,
        "kv past_key_values.0.value": cache,
        "kv past_key_values.1.key": cache,
        "kv past_key_values.1.value": cache,
        "mask": 256 * 8,
        "logits": 512 * 4,
        "input ids": 16,
        "prompt ids": 64 * 8,
        "state": 32,
        "ring": 256 * 4,
    }


def test_positions_and_float16_and_int32_change_the_sizes(about: GraphDescription) -> None:
    half = replace(
        about,
        position_ids="position_ids",
        cache_dtype="float16",
        logits_dtype="float16",
        mask_dtype="int32",
        vocab_size=509,
    )
    found = sizes(sequence_items(half, 256, 64))
    assert found["kv past_key_values.0.key"] == 2 * 256 * 16 * 2
    assert (found["mask"], found["logits"]) == (256 * 4, 1024)
    assert (found["positions"], found["prompt positions"]) == (16, 64 * 8)


def test_each_cache_has_its_own_heads_and_head_size(about: GraphDescription) -> None:
    caches = [replace(pair, heads=1, head_size=32 if pair.kind == "key" else 24) for pair in about.cache[2:]]
    found = sizes(sequence_items(replace(about, cache=(*about.cache[:2], *caches)), 256, 64))
    assert [size for name, size in found.items() if name.startswith("kv")] == [
        *(2 * 256 * 16 * 4, 2 * 256 * 16 * 4),
        *(256 * 32 * 4, 256 * 24 * 4),
    ]


def test_sizes_are_multiples_of_16_bytes(about: GraphDescription) -> None:
    items = sequence_items(about, 257, 1)
    assert all(item.bytes % 16 == 0 for item in items)
    assert sizes(items)["ring"] == 1040


def test_joint_rows_have_a_part_of_each_buffer_and_room_to_become_one_another(about: GraphDescription) -> None:
    cache = 2 * 257 * 16 * 4
    found = row_items(about, 3, 257, 64)
    assert sizes(found) == {
        **{f"rows kv past_key_values.{layer}.{kind}": 3 * cache for layer in (0, 1) for kind in ("key", "value")},
        "rows state": 96,
        "rows ring": 3 * 257 * 4 + 4,
        "rows apart": 3 * cache,
        "rows input ids": 32,
        "rows mask": 3 * 257 * 8 + 8,
        "rows positions": 32,
        "rows logits": 3 * 2048,
    }
    assert {item.name for item in found if not item.bound} == {"rows state", "rows ring"}
    assert {item.name for item in found if item.pool == "io"} == {
        f"rows {name}" for name in ("input ids", "mask", "positions", "logits")
    }
    short = sizes(row_items(about, 3, 4, 64))
    assert short["rows apart"] == 3 * 2048, "logits are larger than a cache then"


def test_caches_that_are_written_apart_are_told(about: GraphDescription) -> None:
    plain, apart = sequence_items(about, 256, 64), sequence_items(about, 256, 64, apart=True)
    more = [item for item in apart if item not in plain]
    assert [item.name for item in more] == [f"apart {item.name}" for item in plain if item.name.startswith("kv ")]
    assert {(item.pool, item.bytes, item.bound) for item in more} == {("persistent", 2 * 256 * 16 * 4, True)}


def test_only_what_onnxruntime_does_not_bind_may_share_a_buffer(about: GraphDescription) -> None:
    items = sequence_items(about, 256, 64)
    assert {item.name for item in items if not item.bound} == {"state", "ring"}
    assert {item.pool for item in items if item.name.startswith("kv") or not item.bound} == {"persistent"}
    assert {item.name for item in items if item.pool == "io"} == {"mask", "logits", "input ids", "prompt ids"}


def test_requirements_are_the_sums_of_their_items(about: GraphDescription, weights: list[WeightEntry]) -> None:
    need = requirements(about, weights, batch_size=2, max_length=512, chunk=64)
    assert need.weights == PoolSize(sum(-(-entry.length // 16) * 16 for entry in weights))
    assert need.persistent == PoolSize(4 * 2 * 2 * 512 * 16 * 4 + 64 + 2 * 512 * 4)
    assert need.io == PoolSize(2 * 512 * 8 + 2 * 2048 + 2 * 16 + 2 * 64 * 8)
    assert need.scratch == PoolSize(0, exact=False)
    assert need.total == PoolSize(need.weights.bytes + need.persistent.bytes + need.io.bytes, exact=False)
    assert (need.device, need.batch_size, need.max_length, need.rows) == ("webgpu", 2, 512, "separate")
    assert need.pool("persistent") == tuple(item for item in need.items if item.pool == "persistent")
    assert len(need.pool("weights")) == len(weights)


def test_separate_rows_have_the_tensors_of_a_sequence_each(about: GraphDescription, weights: list[WeightEntry]) -> None:
    one, three = (requirements(about, weights, batch_size=n, max_length=256, chunk=64) for n in (1, 3))
    assert len({item.name for item in three.items}) == len(three.items)
    for pool in ("persistent", "io"):
        alone = [(item.name, item.bytes, item.bound) for item in one.items if item.pool == pool]
        told = [(item.name, item.bytes, item.bound) for item in three.items if item.pool == pool]
        assert sorted(told) == sorted((f"row {row} {name}", *rest) for row in range(3) for name, *rest in alone)


def test_joint_rows_have_a_sequence_for_their_prompts_beside(
    about: GraphDescription, weights: list[WeightEntry]
) -> None:
    one = requirements(about, weights, batch_size=1, max_length=256, chunk=64)
    joint = requirements(about, weights, batch_size=3, max_length=256, chunk=64, rows="joint")
    assert joint.rows == "joint"
    for pool in ("persistent", "io"):
        beside = tuple(item for item in row_items(about, 3, 256, 64) if item.pool == pool)
        assert joint.pool(pool) == (*one.pool(pool), *beside)


def test_scratch_of_tapes_is_told_once_it_is_known(about: GraphDescription, weights: list[WeightEntry]) -> None:
    def need(tape_scratch: list[int] | str) -> MemoryRequirements:
        return requirements(about, weights, batch_size=3, max_length=256, chunk=64, tape_scratch=tape_scratch)

    assert (need("not yet").pool("scratch"), need("not yet").no_scratch) == ((), "not yet")
    known = need([1000, 16])
    assert [(item.name, item.bytes, item.bound) for item in known.pool("scratch")] == [
        ("tape scratch 0", 1008, True),
        ("tape scratch 1", 16, True),
    ]
    assert known.no_scratch == ""
    assert known.scratch == PoolSize(1024, exact=False), "onnxruntime's is not in it"
    assert "no scratch" in need([]).no_scratch


def test_measured_scratch_is_exact_and_estimated_scratch_is_not(
    model: ModelProto, about: GraphDescription, weights: list[WeightEntry]
) -> None:
    activations = graph.activations(model)
    guess = requirements(about, weights, batch_size=1, max_length=256, chunk=64, activations=activations)
    assert guess.scratch == PoolSize(activations.peak(1, 64, 256), exact=False)
    short = requirements(about, weights, batch_size=1, max_length=16, chunk=64, activations=activations)
    assert short.scratch == PoolSize(activations.peak(1, 16, 16), exact=False)
    measured = requirements(
        about, weights, batch_size=1, max_length=256, chunk=64, activations=activations, scratch=PoolSize(12345)
    )
    assert measured.scratch == PoolSize(12345)
    assert measured.total.exact


def test_a_weight_of_no_bytes_is_a_buffer_all_the_same(weights: list[WeightEntry]) -> None:
    assert weight_items([replace(weights[0], length=0)])[0].bytes == 16


def test_alignments_come_from_the_place_and_the_probe() -> None:
    memory = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT, alignment=32)
    probed = Capabilities("test", True, True, False, False, False, False, True, True, 1 << 28, 1 << 27, 256)
    assert AlignmentRequirements.of(memory, probed) == AlignmentRequirements(start=32, size=16, span_offset=256)
    assert AlignmentRequirements.of(memory, replace(probed, offset_alignment=4)).span_offset == 32


def test_packed_tensors_never_overlap_and_waste_less_than_an_alignment_each() -> None:
    rng = random.Random(5)
    for _ in range(ROUNDS):
        alignment = rng.choice([1, 4, 16, 32, 256])
        items = [
            PoolItem(f"t{i}", "io", 16 * rng.randrange(0, 40), rng.choice([1, 16, 64]), False)
            for i in range(rng.randrange(0, 9))
        ]
        packing = pack(items, alignment)
        taken = 0
        for item in sorted(items, key=lambda item: (packing.offsets[item.name], item.bytes)):
            start = packing.offsets[item.name]
            assert start % alignment == 0
            assert start % item.alignment == 0
            assert start >= taken
            taken = start + item.bytes
        assert taken <= packing.bytes <= sum(item.bytes + max(alignment, item.alignment, 16) - 1 for item in items)
        assert packing.bytes % 16 == 0


def test_a_bound_tensor_is_not_packed(about: GraphDescription) -> None:
    items = sequence_items(about, 256, 64)
    with pytest.raises(ValueError, match="kv past_key_values.0.key is bound by onnxruntime"):
        pack(items, 256)
    packing = pack([item for item in items if not item.bound], 256)
    assert (packing.offsets, packing.bytes) == ({"state": 0, "ring": 256}, 256 + 1024)


def test_two_tensors_of_one_name_are_not_packed() -> None:
    with pytest.raises(ValueError, match="two tensors are called ring"):
        pack([PoolItem("ring", "io", 16, 16, False)] * 2, 16)


def chain(*steps: tuple[str, list[str], list[str]]) -> ModelProto:
    """A graph of nodes, each (operator, inputs, outputs)."""
    model = ModelProto()
    for kind, reads, makes in steps:
        model.graph.node.append(NodeProto(op_type=kind, name=makes[0], input=reads, output=makes))
    return model


def declare(model: ModelProto, name: str, *dims: int | str, where: str = "value_info") -> None:
    getattr(model.graph, where).append(value_info(name, TensorProto.FLOAT, dims))


def test_scratch_is_the_most_that_is_alive_at_once() -> None:
    model = chain(("Mul", ["x"], ["a"]), ("Mul", ["a"], ["b"]), ("Add", ["b", "a"], ["c"]), ("Mul", ["c"], ["y"]))
    declare(model, "x", "batch_size", "sequence_length", 1, where="input")
    declare(model, "y", "batch_size", "sequence_length", 1, where="output")
    declare(model, "a", "batch_size", "sequence_length", 10)
    declare(model, "b", "batch_size", "sequence_length", 100)
    declare(model, "c", "batch_size", "sequence_length", 1000)
    found = graph.activations(model)
    assert [(tensor.name, tensor.made, tensor.read) for tensor in found.tensors] == [
        ("a", 0, 2),
        ("b", 1, 2),
        ("c", 2, 3),
    ]
    assert found.assumed == ()
    assert found.peak(1, 1, 8) == 4 * 1110
    assert found.peak(2, 3, 8) == 2 * 3 * 4 * 1110
    model.graph.node[2].input[1] = "b"
    assert graph.activations(model).peak(1, 1, 8) == 4 * 1100


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("batch_size", 2),
        ("sequence_length", 3),
        ("total_sequence_length", 50),
        ("past_sequence_length + 1", 50),
        ("batch_size*sequence_length", 6),
        ("batch_size * 5", 10),
        ("?", 1),
    ],
)
def test_free_dimensions_are_known_by_their_names(name: str, size: int) -> None:
    model = chain(("Mul", ["x"], ["a"]), ("Mul", ["a"], ["y"]))
    declare(model, "a", name)
    declare(model, "y", 1, where="output")
    assert graph.activations(model).peak(2, 3, 50) == 4 * size


def test_a_tensor_of_unknown_shape_is_taken_to_be_like_the_largest_that_its_node_reads() -> None:
    model = chain(("Gather", ["table", "x"], ["a"]), ("Mul", ["a", "table"], ["y"]), ("Shape", ["a"], ["s"]))
    declare(model, "x", "batch_size", "sequence_length", where="input")
    declare(model, "table", 50000, 64, where="input")
    declare(model, "y", 1, where="output")
    found = graph.activations(model)
    assert found.assumed == ("a",)
    assert [tensor.name for tensor in found.tensors] == ["a"]
    assert found.peak(2, 3, 50) == 24


def test_the_fixtures_scratch_grows_with_the_tokens_of_a_run(model: ModelProto) -> None:
    prefill, reason = graph.last_token_logits(graph.weights_to_inputs(model)[0])
    assert not reason
    found = graph.activations(prefill)
    assert found.assumed == ("/capstan/last_token/Slice",)
    # Everything alive then is a row for each token, but for the two lengths of 4 bytes that attention takes.
    assert found.peak(1, 64, 256) == 64 * found.peak(1, 1, 1) - 63 * 8
    assert found.peak(4, 64, 256) > 3.9 * found.peak(1, 64, 256)
