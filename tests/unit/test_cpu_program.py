"""Programs for the CPU: the plan of a graph, each operation of the kernels beside its definition, and whole models
beside onnxruntime."""

from __future__ import annotations

import json
import struct
import subprocess
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan.device.reference.cpu_operations import CpuRun, run
from capstan.device.wasm.cpu_graph import WasmGraph, prepare
from capstan.device.wasm.cpu_program import (
    KEPT,
    ROWS,
    UNIT,
    WORDS,
    CpuProgram,
    Kind,
    Scales,
    Split,
    packed_bytes,
    program_memory,
    quantized_bytes,
    scale_bytes,
    whole_bytes,
)
from capstan.device.wasm.program_places import BY_ROWS, WHOLE_ROWS, Share, UnknownGraphError
from capstan.device.wasm.program_planner import planned, program_of
from capstan.device.wasm.wasm_device import WasmDevice
from capstan.device.wasm.wasm_model import wasm_memory
from capstan.fallback import fallbacks
from capstan.graph import parse
from capstan.model_files.gguf.header import GgmlType
from tests.cpu_programs import ROOM, Definition, asked, gguf_graph, kernels, logits, opened, tried
from tests.gguf_models import FURTHER, MIXED, Made, make
from tests.unit.fixture_models import config_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
KNOWN = (
    "nano-llama",
    "nano-qwen2",
    "nano-mixed",
    "nano-blocks",
    "nano-apart",
    "nano-phi4",
    "nano-ernie",
    "nano-shape",
    "nano-qwen3",
    "nano-gemma3",
    "nano-granite",
)
WHOLE = 1 << 40
FIRST_ROOM = 256
"""Positions of a cache before it grows."""


@pytest.fixture(scope="module", params=["relaxed", "plain"])
def node(request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    return kernels(request.param)


def graph_of(model: str, level: int = 4) -> WasmGraph:
    """The graph of a fixture whose products ask for that accuracy."""
    parsed = parse((FIXTURES / model / "model.onnx").read_bytes(), model)
    for node in parsed.graph.node:
        for each in node.attribute:
            if each.name == "accuracy_level":
                each.i = level
    return prepare(parsed, config_of(model), WHOLE)


class Image:
    """A memory for single operations: activations, weights and caches at random."""

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 22, np.uint8)
        self.end = 1024
        self.random = np.random.default_rng(11)

    def put(self, values: Any) -> int:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        at, self.end = self.end, self.end + (len(data) + 63) // 64 * 64
        self.memory[at : at + len(data)] = data
        return at

    def floats(self, *shape: int) -> int:
        return self.put(self.random.standard_normal(shape).astype(np.float32))

    def weight(self, form: int, n: int, k: int) -> int:
        """A packed weight: scales and minima of a usual size, any numbers."""
        first, size, before = scale_bytes(form), 256 if form & 1 else 128, whole_bytes(form)
        pieces = -(-n // 8) * (k // (256 if before else 32))
        blocks = pieces * (8 if before else 1)
        kind = np.dtype({Scales.HALVES: np.float16, Scales.CENTRED: np.float16}.get(Scales(form >> 1), np.float32))
        heads: Any = self.random.standard_normal((blocks, first // kind.itemsize)).astype(kind).view(np.uint8)
        if before:
            heads = self.random.integers(0, 256, heads.shape).astype(np.uint8)
        data = self.random.integers(0, 64 if before and form & 1 else 256, (blocks, size)).astype(np.uint8)
        # Such numbers have no exponent in float16.
        whole = (self.random.standard_normal((pieces, before // 2)) * 3e-5).astype(np.float16).view(np.uint8)
        packed = np.concatenate([heads, data], axis=1).reshape(pieces, -1)
        made = np.concatenate([whole, packed], axis=1)
        assert made.size == packed_bytes(form, n, k)
        return self.put(made)

    def quantized(self, rows: int, width: int) -> int:
        x, q = self.floats(rows, width), self.put(np.zeros(rows * quantized_bytes(width), np.uint8))
        run(self.run(rows), words(Kind.QUANTIZE, x, q, width))
        return q

    def run(self, rows: int, kept: int = 0, past: int = 0, cache: int = 0) -> CpuRun:
        return CpuRun(self.memory, rows, past, kept, cache, ROOM)


def words(kind: Kind, *told: float, kept: int = 0, share: Share | None = None) -> list[int]:
    made = [
        struct.unpack("<I", struct.pack("<f", each))[0] if isinstance(each, float) else each % (1 << 32)
        for each in (int(kind), kept, *told)
    ]
    unit, split = share or (Share(8, Split.COLUMNS) if kind == Kind.PRODUCT else WHOLE_ROWS)
    return made + [0] * (UNIT - len(made)) + [unit, split] + [0] * (WORDS - UNIT - 2)


def compare(node: subprocess.Popen[str], image: Image, given: CpuRun, told: list[int]) -> None:
    """Run an operation in the kernels and by its definition: the same places are written, with the same numbers."""
    scores = image.put(np.zeros(3 * 1024, np.float32))
    before = image.memory.copy()
    run(given, told)
    assert not np.array_equal(before, given.memory), "the operation writes something"
    arguments = [given.rows, given.past, given.kept, given.cache, given.room, scores, 4096]
    answer = asked(node, image=b64encode(before.tobytes()).decode(), words=told, given=arguments)
    found = np.frombuffer(b64decode(answer), np.uint32).copy()
    found[scores // 4 : scores // 4 + 3 * 1024] = 0
    assert np.array_equal(found, given.memory.view(np.uint32))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("form", range(10))
def test_a_product_is_its_definition(form: int, rows: int, node: subprocess.Popen[str]) -> None:
    image, n, k = Image(), 72, 512 if form >= 2 * Scales.BYTES else 96
    weight, q, y = image.weight(form, n, k), image.quantized(rows, k), image.put(np.zeros((rows, n), np.float32))
    compare(node, image, image.run(rows), words(Kind.PRODUCT, q, y, k, n // 8, form, weight))


@pytest.mark.parametrize("form", range(-1, 10))
def test_a_lookup_is_its_definition(form: int, node: subprocess.Popen[str]) -> None:
    image, n, k = Image(), 24, 512 if form >= 2 * Scales.BYTES else 64
    weight = image.floats(n, k) if form < 0 else image.weight(form, n, k)
    ids, y = image.put(np.array([3, 17, 8], np.int32)), image.put(np.zeros((3, k), np.float32))
    compare(node, image, image.run(3), words(Kind.LOOK_UP, ids, y, k, 0, form, weight))


SHARES = (WHOLE_ROWS, Share(32, Split.COLUMNS), Share(32, Split.PARTS), BY_ROWS)


@pytest.mark.parametrize("share", SHARES)
def test_activations_become_8_bits_as_defined(share: Share, node: subprocess.Popen[str]) -> None:
    image, k = Image(), 96
    x = image.random.standard_normal((2, k)).astype(np.float32)
    x[0, 32:64] = 0
    x[1, :4] = 127, -127, 0.5, 1.5  # halves go to the even neighbour
    at, q = image.put(x), image.put(np.zeros(2 * quantized_bytes(k), np.uint8))
    compare(node, image, image.run(2), words(Kind.QUANTIZE, at, q, k, share=share))
    second = image.memory[q + quantized_bytes(k) :][:4].view(np.int8)
    assert second.tolist() == [127, -127, 0, 2]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("skip", [False, True])
def test_a_norm_is_its_definition(skip: bool, rows: int, node: subprocess.Popen[str]) -> None:
    image, k = Image(), 64
    x, weight, y = image.floats(3, k), image.floats(k), image.floats(3, k)
    other, total = (image.floats(3, k), image.floats(3, k)) if skip else (0, 0)
    told = words(Kind.NORM, x, y, k, other, total, weight, 1e-5, share=BY_ROWS)
    compare(node, image, image.run(rows), told)


@pytest.mark.parametrize("share", SHARES)
def test_a_gate_and_a_bias_are_their_definitions(share: Share, node: subprocess.Popen[str]) -> None:
    image, k = Image(), 64
    x, up, y = (
        image.put(image.random.standard_normal((2, k)).astype(np.float32) * 30),
        image.floats(2, k),
        image.floats(2, k),
    )
    compare(node, image, image.run(2), words(Kind.GATE, x, y, k, 0, 0, up, share=share))
    compare(node, image, image.run(2), words(Kind.GATE, x, y, k, 0, 1, up, share=share))
    compare(node, image, image.run(2), words(Kind.SCALE, x, y, k, 0, 0, 0, 1.7, share=share))
    compare(node, image, image.run(2), words(Kind.BIAS, x, 0, k, 0, 0, up, share=share))


def test_kept_tokens_are_the_last_ones(node: subprocess.Popen[str]) -> None:
    image, k = Image(), 32
    x, y = image.floats(5, k), image.floats(2, k)
    given = image.run(5, kept=2)
    compare(node, image, given, words(Kind.KEEP, x, y, k, kept=1))
    assert np.array_equal(given.floats(y, 2, k), given.floats(x, 5, k)[3:])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("half", "normed"), [(0, False), (4, True), (8, False)])
def test_a_rotation_is_its_definition(half: int, normed: bool, interleaved: int, node: subprocess.Popen[str]) -> None:
    image, heads, shared, size = Image(), 4, 2, 16
    row = 4 * (heads + 2 * shared) * size
    q, cache = image.floats(3, row // 4), image.floats(2, shared, ROOM, size)
    angles = image.floats(ROOM, max(half, 1)), image.floats(ROOM, max(half, 1))
    keys, values = 0, 4 * shared * size
    places = q + 4 * heads * size, q + 4 * (heads + shared) * size, row, row
    told = words(Kind.ROTATE, q, row, size, heads, shared, half, interleaved, keys, values, *angles, *places)
    if normed:
        told[17:20] = [image.floats(size), image.floats(size), *struct.unpack("<I", struct.pack("<f", 1e-6))]
    compare(node, image, image.run(3, past=5, cache=cache), told)


@pytest.mark.parametrize("size", [16, 20])
@pytest.mark.parametrize("window", [0, 6])
def test_attention_is_its_definition(window: int, size: int, node: subprocess.Popen[str]) -> None:
    image, heads, shared = Image(), 4, 2
    q, cache, y = image.floats(3, heads * size), image.floats(2, shared, ROOM, size), image.floats(3, heads * size)
    told = words(
        Kind.ATTEND, q, y, size, heads, shared, window, size**-0.5, 0, 4 * shared * size, 4 * heads * size
    )  # fmt: skip
    compare(node, image, image.run(3, past=8, cache=cache), told)


IDS = [int(each) for each in np.random.default_rng(3).integers(1, 500, 40)]


@pytest.mark.parametrize("model", KNOWN)
def test_a_model_gives_the_logits_of_its_definition(model: str, node: subprocess.Popen[str]) -> None:
    data = (FIXTURES / model / "model.onnx.data").read_bytes()
    made = opened(node, graph_of(model), config_of(model).context_length, {"model.onnx.data": data})
    found = logits(node, IDS, 0, len(IDS))
    wanted = Definition(node, made).logits(IDS)
    assert np.array_equal(found[-1], wanted)
    peaks = np.frombuffer(b64decode(asked(node, peaks=True)), np.float32)
    assert peaks.tolist() == [found.reshape(-1)[at : at + 64].max() for at in range(0, found.size, 64)]
    exact = by_onnxruntime(model, IDS)
    # Activations in 8 bits move the logits, but not by much.
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.05 * np.abs(exact).max()


def by_onnxruntime(model: str, ids: list[int]) -> Any:
    session = onnxruntime.InferenceSession(str(FIXTURES / model / "model.onnx"))
    feeds: dict[str, Any] = {}
    for value in session.get_inputs():
        if "past" in value.name:
            size = config_of(model).decoder.head_size
            feeds[value.name] = np.zeros((1, value.shape[1], 0, size), np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones((1, len(ids)), np.int64)
        else:
            feeds[value.name] = np.array([np.arange(len(ids)) if "position" in value.name else ids], np.int64)
    return session.run(["logits"], feeds)[0][0]


def test_prompts_in_parts_and_steps_give_the_same(node: subprocess.Popen[str]) -> None:
    ids = (IDS * 8)[: FIRST_ROOM + 20]
    data = (FIXTURES / "nano-llama" / "model.onnx.data").read_bytes()
    opened(node, graph_of("nano-llama"), 512, {"model.onnx.data": data})
    assert len(ids) > 2 * ROWS > KEPT
    whole = logits(node, ids, 0, len(ids))
    last = logits(node, ids, 0, 1)
    assert np.array_equal(last[0], whole[-1])
    # A cache grows while it is kept.
    rewound = [logits(node, [ids[place]], place, 1)[0] for place in range(FIRST_ROOM - 4, len(ids))]
    assert np.array_equal(np.array(rewound), whole[FIRST_ROOM - 4 :])


def test_another_sequence_takes_positions_over_and_memory_is_used_again(node: subprocess.Popen[str]) -> None:
    data = (FIXTURES / "nano-llama" / "model.onnx.data").read_bytes()
    opened(node, graph_of("nano-llama"), 512, {"model.onnx.data": data})
    whole = logits(node, IDS, 0, len(IDS))
    ends = {asked(node, adopt=20) for _ in range(4)}
    assert np.array_equal(logits(node, IDS[20:], 20, 20), whole[20:])
    assert len(ends) == 2, "each closed one makes room for the next"


def test_threads_give_the_same_logits(node: subprocess.Popen[str]) -> None:
    data = (FIXTURES / "nano-llama" / "model.onnx.data").read_bytes()
    found = []
    for threads in (1, 3):
        opened(node, graph_of("nano-llama"), 512, {"model.onnx.data": data}, threads)
        found.append([logits(node, IDS, 0, 20), *(logits(node, [each], 40 + at, 1) for at, each in enumerate(IDS))])
        asked(node, close=True)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("model", KNOWN)
def test_threads_wait_where_they_must(model: str, node: subprocess.Popen[str]) -> None:
    """Threads that run one after another as far as they may give the same logits in any order."""
    data = (FIXTURES / model / "model.onnx.data").read_bytes()
    made = opened(node, graph_of(model), config_of(model).context_length, {"model.onnx.data": data})
    found = []
    for order in ([2, 1, 0], [0, 1, 2], [1, 2, 0]):
        logits(node, IDS[::-1], 0, 1)  # so that caches have something else
        for ids, past, kept in ((IDS[:30], 0, 2), (IDS[30:-1], 30, 0), (IDS[-1:], len(IDS) - 1, 1)):
            answer = json.loads(asked(node, turns=ids, past=past, kept=kept, order=order))
            assert answer["waits"] == made.waits(len(ids))
        found.append(np.frombuffer(b64decode(answer["logits"]), np.float32))
    whole = logits(node, IDS, 0, 1)[0]
    assert all(np.array_equal(each, whole) for each in found)


def test_threads_wait_seven_times_a_layer() -> None:
    """And once more where a head has no multiple of 32 elements."""
    for found, layer in ((gguf_graph(make("llama", {"": GgmlType.Q4_0}), 64), 7), (graph_of("nano-llama"), 8)):
        made = planned(found, 2, 64)
        layers = len(found.about.cache) // 2
        assert made.waits(1) == layer * layers + 5
        assert f"on 2 threads, which wait {made.waits(1)} times" in made.about(2)
        assert made.operations > 14 * layers


def test_threads_have_as_much_memory_as_the_browser_gives(node: subprocess.Popen[str]) -> None:
    """A program asks for the memory that caches may need, then for less; without shared memory it has one thread."""
    found, data = graph_of("nano-llama"), (FIXTURES / "nano-llama" / "model.onnx.data").read_bytes()
    made = replace(planned(found, 2, 256), growth=1 << 30)
    for most, reserved in ((1 << 16, 8 + (1 << 14)), (1 << 14, 8 + (1 << 13)), (2000, 1032)):
        answer = tried(node, made, found, {"model.onnx.data": data}, 2, most)
        assert (answer["threads"], answer["reserved"], answer["alone"]) == (2, reserved, "")
        asked(node, close=True)
    answer = tried(node, made, found, {"model.onnx.data": data}, 2, 100)
    assert (answer["threads"], answer["alone"]) == (1, "there is no shared memory for it")
    assert np.array_equal(logits(node, IDS, 0, 1)[0], Definition(node, made).logits(IDS))


def test_the_memory_of_a_program_is_told() -> None:
    found, config = graph_of("nano-llama"), config_of("nano-llama")
    made = planned(found, 2, 256)
    device = WasmDevice(None, {})  # type: ignore[arg-type]
    needed = program_memory(wasm_memory(device, found, config), made).requirements(1, 256)
    assert needed.weights.bytes == sum(each.bytes for each in made.weights)
    assert needed.weights.bytes + needed.scratch.bytes == made.end
    assert needed.scratch.exact
    assert "33 operations" in made.about(2)
    assert "11 of them products" in made.about(1)


TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_K", "Q3_K", "IQ4_NL")


@pytest.mark.parametrize("kind", TYPES)
def test_a_gguf_file_gives_the_logits_of_its_weights(kind: str, node: subprocess.Popen[str]) -> None:
    check_gguf(make("llama", {"": GgmlType[kind]}), node)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "granite", "phi3", "smollm3"])
def test_a_mix_of_types_gives_the_logits_of_its_weights(family: str, node: subprocess.Popen[str]) -> None:
    check_gguf(make(family, MIXED, FURTHER[family]), node)


def check_gguf(made: Made, node: subprocess.Popen[str]) -> None:
    program = opened(node, gguf_graph(made, 64), 64, {"model.gguf": made.data})
    ids = [each % 90 for each in IDS]
    given = logits(node, ids, 0, len(ids))
    wanted = Definition(node, program).logits(ids)
    assert np.array_equal(given[-1], wanted)
    exact = made.defined(ids)
    assert np.sqrt(np.mean((given - exact) ** 2)) < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("nano-float", "no operation of a program computes a MatMul"),
        ("nano-gemma2", "attention has a soft cap"),
        ("nano-lora", "LoRA adapters"),
    ],
)
def test_what_no_operation_computes_is_told_by_name(model: str, reason: str) -> None:
    with pytest.raises(UnknownGraphError, match=reason):
        planned(graph_of(model), 1, 256)


def test_products_that_ask_for_floats_stay_with_onnxruntime() -> None:
    """That is no step down, nor is what a load asks for; a graph with something unknown is one."""
    exact, known, unknown = graph_of("nano-llama", level=1), graph_of("nano-llama"), graph_of("nano-gemma2")
    config, before = config_of("nano-llama"), fallbacks()
    assert program_of(exact, config, 1, count=True) == "its matrix products require activations in float32"
    assert program_of(known, config, 1, "off", count=True) == "capture is 'off'"
    assert isinstance(program_of(known, config, 1, count=True), CpuProgram)
    assert fallbacks() == before
    reason = program_of(unknown, config, 1, count=True)
    assert fallbacks() == {**before, f"a program for the CPU: {reason}": 1}


@pytest.mark.parametrize("model", KNOWN)
def test_values_that_live_at_once_share_no_memory(model: str) -> None:
    """No operation writes where it reads, but for those in place, and none over weights or the program."""
    made = planned(graph_of(model), 2, 256)
    held = [(each.address, each.address + each.bytes) for each in made.weights]
    held += [(made.program, made.program + 4 * len(made.words)), (made.scores, made.scores + 2 * made.score_bytes)]
    for before, after in zip(sorted(held), sorted(held)[1:], strict=False):
        assert before[1] <= after[0]
    assert max(end for _, end in held) <= made.end
    for at in range(0, len(made.words), WORDS):
        kind, _, x, y = made.words[at : at + 4]
        if kind not in (Kind.BIAS, Kind.ROTATE):
            assert x != y
            assert not any(begin <= y < end for begin, end in held)
