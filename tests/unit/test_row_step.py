"""A placed step of one sequence as a step of several: what it binds of the rows, and what has no form for several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capstan.errors import TapeError
from capstan.tape import MatVec, Recorded, Recording, RowSpans, WorkgroupLimits, row_step
from capstan.tape.operation import Operation
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.convolution import Convolution
from capstan.tape.ops.delta_rule import DeltaRule, GatedHeadNorm
from capstan.tape.ops.head_gate import HeadGate
from capstan.tape.ops.norm import RmsNorm
from capstan.tape.placement import Place, Placement
from capstan.tape.recording import BindGroup, Dispatch, Pipeline, Write
from capstan.tape.step_graph import Node
from tests.unit.shader_declarations import declared_bindings

IDS, TABLE, EMBEDDED, KEY, VALUE, LOGITS, UPLOADED = range(11, 18)
WEIGHTS, SCALES, GAMMA, COS, SIN = range(21, 26)
ROWS, WIDTH, VOCAB, CAPACITY = 3, 64, 96, 300
STATE = (99, 0, 96)
SPANS = {IDS: (91, 0, 24), KEY: (92, 0, 4096), VALUE: (93, 0, 4096), LOGITS: (94, 0, 1152)}
LOOKUP = """
@group(0) @binding(0) var<storage, read> data: array<f32>;
@group(0) @binding(1) var<storage, read> input_indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;
struct Uniforms {
  data_indices_shape: vec2<u32>
};
"""
AS_WORDS = dict.fromkeys(("NUMBERS", "WIDE", "DIVIDED", "PARTED"), False)
ATTENTION = Attention(4, 2, 16, CAPACITY, 0.25, COS, SIN, KEY, VALUE, "f32")
LAST = MatVec(WEIGHTS, SCALES, VOCAB, WIDTH, 32, "f32", norm=RmsNorm(GAMMA, 0.5))


def recording(
    names: tuple[str, str, str] = ("data", "input_indices", "output"), code: str = LOOKUP, indices: int = IDS
) -> Recording:
    """The lookup of an id's embedding."""
    bound = {(0, i): name for i, name in enumerate(names)} | {(0, 3): "uniforms"}
    access = {(0, 0): "read", (0, 1): "read", (0, 2): "read_write", (0, 3): "uniform"}
    group = BindGroup(((0, TABLE, 0, 1 << 20), (1, indices, 0, 8), (2, EMBEDDED, 0, 256), (3, UPLOADED, 0, 16)))
    upload = Write(UPLOADED, 0, (VOCAB).to_bytes(4, "little") + (WIDTH).to_bytes(4, "little") + bytes(8))
    dispatch = Dispatch(0, (0,), 1, 1, 1)
    sizes = dict.fromkeys((TABLE, IDS, EMBEDDED, KEY, VALUE, LOGITS, UPLOADED), 1 << 20)
    return Recording(1, (upload, dispatch), {0: Pipeline("lookup", access, code, bound)}, {0: group}, sizes)


def placement(*others: Node) -> Placement:
    """Embedding, a product, attention over caches, and the logits; values 1 and 3 are the id and the table."""
    nodes = (
        Node(Recorded(0), (1, 3), (2,), 0, frozenset({0})),
        Node(MatVec(WEIGHTS, SCALES, 128, WIDTH, 32, "f32"), (2,), (4,), 1, frozenset({1})),
        Node(ATTENTION, (4, 5, 6), (7, 8, 9), 2, frozenset({2})),
        *others,
        Node(LAST, (7,), (10,), 4, frozenset({4})),
    )
    homes = {1: IDS, 2: EMBEDDED, 3: TABLE, 5: KEY, 6: VALUE, 8: KEY, 9: VALUE, 10: LOGITS}
    places = {value: Place("recorded", home) for value, home in homes.items()}
    return Placement(nodes, places, (), homes)


def made(placed: Placement, known: Recording, table: tuple[int, int, int] | None = None, packed: bool = False) -> Any:
    ops = [op for op in known.ops if isinstance(op, Dispatch)]
    places = {recorded: span for recorded, span in SPANS.items() if not packed or recorded != LOGITS}
    spans = RowSpans(STATE, places, IDS, table, packed)
    return row_step(placed, known, ops, spans, ROWS, WorkgroupLimits(), CAPACITY)


def test_every_operation_is_over_all_rows_and_binds_the_rows_buffers() -> None:
    step = made(placement(), recording())
    kernels = {kernel["shader"]: kernel for kernel in step.kernels}
    assert [kernel["shader"] for kernel in step.kernels] == [
        *("gather_rows", "few_rows_q4", "attention", "attention_join", "norm_rows", "few_rows_q4"),
    ]
    assert step.played[0] == ["kernel", 0, 1, ROWS, 1]
    for kernel in step.kernels:
        assert {name for name, _ in declared_bindings(kernel)} == set(kernel["bindings"])
    span = {recorded: ["span", *where] for recorded, where in SPANS.items()}
    assert kernels["gather_rows"]["bindings"]["ids"] == span[IDS]
    assert kernels["gather_rows"]["bindings"]["table"] == ["recorded", TABLE]
    attention = kernels["attention"]
    assert (attention["bindings"]["key_cache"], attention["bindings"]["value_cache"]) == (span[KEY], span[VALUE])
    assert attention["bindings"]["state"] == ["span", *STATE]
    assert (attention["constants"]["SEVERAL"], attention["constants"]["SEQUENCES"]) == (True, ROWS)
    assert step.kernels[-1]["bindings"]["y"] == span[LOGITS]
    assert step.kernels[-1]["constants"]["M"] == ROWS
    # Values between operations have a row for each sequence.
    _, number = step.kernels[1]["bindings"]["y"]
    assert step.scratch[number] >= ROWS * 128 * 4
    assert step.kernels[1]["bindings"]["y"] == attention["bindings"]["qkv"]


def test_embeddings_of_vectors_are_as_wide() -> None:
    code = LOOKUP.replace("data: array<f32>", "data: array<vec4<f32>>").replace(
        "output: array<f32>", "output: array<vec4<f32>>"
    )
    step = made(placement(), recording(code=code))
    assert step.kernels[0]["constants"] == {"WORDS": 4 * WIDTH, **AS_WORDS}


IN_4_BITS = """
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read> indices: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;
struct Uniforms {
  input_shape_shape: vec2<u32>,
  quantize_axis: u32,
  gather_axis: u32,
  block_size: u32
};
  let packed_4bit_quantized_data = input[data_offset / 8];
  let quantized_data_vec = unpack4xU8(u32(packed_8bit_quantized_data));
  let zero_point = input_element_t(8);
"""


def quantized(code: str = IN_4_BITS, axes: tuple[int, int] = (1, 0)) -> Recording:
    """The lookup of an id's embedding in a table in 4 bits."""
    known = recording(("input", "indices", "scales"), code)
    names = {(0, 0): "input", (0, 1): "indices", (0, 2): "scales", (0, 3): "output", (0, 4): "uniforms"}
    access = {(0, 0): "read", (0, 1): "read", (0, 2): "read", (0, 3): "read_write", (0, 4): "uniform"}
    where = ((TABLE, 1 << 20), (IDS, 8), (SCALES, 1 << 10), (EMBEDDED, 256), (UPLOADED, 32))
    group = BindGroup(tuple((i, buffer, 0, size) for i, (buffer, size) in enumerate(where)))
    words = b"".join(number.to_bytes(4, "little") for number in (VOCAB, WIDTH, *axes, 32))
    ops = (Write(UPLOADED, 0, words + bytes(12)), Dispatch(0, (0,), 1, 1, 1))
    pipelines = {0: Pipeline("lookup", access, code, names)}
    return replace(known, ops=ops, pipelines=pipelines, groups={0: group}, sizes={**known.sizes, SCALES: 1 << 10})


def test_embeddings_in_4_bits_are_taken_apart() -> None:
    step = made(placement(), quantized())
    kernel = step.kernels[0]
    numbers = {"WORDS": WIDTH, **AS_WORDS, "NUMBERS": True}
    assert kernel["constants"] == {**numbers, "BYTES": False, "SIGNED": False, "BLOCK": 32, "SCALES": WIDTH // 32}
    assert kernel["bindings"]["scales"] == ["recorded", SCALES]
    assert {name for name, _ in declared_bindings(kernel)} == set(kernel["bindings"])
    assert step.played[0] == ["kernel", 0, 1, ROWS, 1]


@pytest.mark.parametrize(
    "other",
    [
        {"code": IN_4_BITS.replace("unpack4xU8(u32(", "unpack4xI8(u32(")},
        {"code": IN_4_BITS.replace("input_element_t(8)", "zero_points[0]")},
        {"axes": (0, 1)},
    ],
    ids=["signed", "zero points", "other axes"],
)
def test_other_tables_are_of_one_row_only(other: dict[str, Any]) -> None:
    with pytest.raises(TapeError, match="operation 0 of the step has a form only for one row"):
        made(placement(), quantized(**other))


@pytest.mark.parametrize(
    "other", [{"names": ("data", "indices", "output")}, {"names": ("x", "scale", "y")}, {"indices": EMBEDDED}], ids=str
)
def test_a_recorded_operation_that_is_no_lookup_of_ids_is_of_one_row_only(other: dict[str, Any]) -> None:
    with pytest.raises(TapeError, match="operation 0 of the step has a form only for one row"):
        made(placement(), recording(**other))


def test_what_is_read_of_other_buffers_is_of_one_row_only() -> None:
    placed = placement(Node(replace(LAST, norm=None), (11,), (12,), 3, frozenset({3})))
    last = replace(placed.nodes[-1], reads=(12,))
    placed = replace(placed, nodes=(*placed.nodes[:-1], last))
    with pytest.raises(TapeError, match="reads 1 buffers that are not the rows'"):
        made(placed, recording())


BIAS = 31


def with_product(reads: tuple[int, ...], homes: dict[int, int], **about: Any) -> Placement:
    """The step with another product behind attention, which adds something to its result."""
    what = MatVec(WEIGHTS, SCALES, WIDTH, WIDTH, 32, "f32", **about)
    placed = placement(Node(what, reads, (12,), 3, frozenset({3})))
    *others, last = placed.nodes
    everything = {**placed.homes, **homes}
    places = {value: Place("recorded", home) for value, home in everything.items()}
    return replace(placed, nodes=(*others, replace(last, reads=(12,))), homes=everything, places=places)


def product_of(step: Any) -> dict[str, Any]:
    """The kernel of that product."""
    return next(kernel for kernel in step.kernels if kernel["constants"].get("N") == WIDTH)


def test_all_rows_share_a_bias() -> None:
    """A residual of the step of one row that the step does not change is one."""
    bindings = product_of(made(with_product((7, 11), {11: BIAS}, residual=True), recording()))["bindings"]
    assert bindings["bias"] == ["recorded", BIAS]
    assert "residual" not in bindings
    both = made(with_product((7, 11, 2), {11: BIAS}, bias=True, residual=True), recording())
    bindings = product_of(both)["bindings"]
    assert (bindings["bias"], bindings["residual"][0]) == (["recorded", BIAS], "scratch")


@pytest.mark.parametrize(
    ("reads", "homes", "about", "told"),
    [
        ((7, 11), {11: BIAS}, {"residual": True, "activated": True}, "reads 1 buffers that are not the rows'"),
        ((7, 2), {}, {"bias": True, "activated": True}, "adds a vector that differs from row to row"),
    ],
    ids=["behind an activation", "made by the step"],
)
def test_what_is_added_and_is_no_bias_is_of_one_row_only(
    reads: tuple[int, ...], homes: dict[int, int], about: dict[str, Any], told: str
) -> None:
    with pytest.raises(TapeError, match=told):
        made(with_product(reads, homes, **about), recording())


def test_attention_reads_caches_by_the_table_of_the_rows() -> None:
    kernels = {kernel["shader"]: kernel["bindings"] for kernel in made(placement(), recording(), (95, 0, 3600)).kernels}
    assert kernels["attention"]["table"] == ["span", 95, 0, 3600]
    assert "table" not in kernels["attention_join"]
    plain = {kernel["shader"]: kernel["bindings"] for kernel in made(placement(), recording()).kernels}
    assert "table" not in plain["attention"]


def test_packed_tokens_are_written_before_any_is_read_and_have_no_logits() -> None:
    """No kernel serves the logits alone."""
    step = made(placement(), recording(), packed=True)
    kernels = {kernel["shader"]: kernel for kernel in step.kernels}
    assert [kernel["shader"] for kernel in step.kernels] == [
        *("gather_rows", "few_rows_q4", "attention_append", "attention", "attention_join"),
    ]
    assert step.played[2] == ["kernel", 2, ATTENTION.kv_heads, ROWS, 1]
    for shader in ("attention_append", "attention"):
        constants, bound = kernels[shader]["constants"], kernels[shader]["bindings"]
        assert (constants["PACKED"], constants["APPENDED"], constants["ALONG"]) == (True, True, False)
        assert (bound["state"], bound["key_cache"]) == (["span", *STATE], ["span", *SPANS[KEY]])


def test_packed_tokens_need_caches_that_our_kernels_write() -> None:
    placed = placement()
    nodes = [
        replace(node, what=replace(ATTENTION, prepared=True)) if node.position == 2 else node for node in placed.nodes
    ]
    with pytest.raises(TapeError, match="writes the caches, which works only for separate rows"):
        made(replace(placed, nodes=tuple(nodes)), recording(), packed=True)


PAST, PRESENT, WEIGHT, RATE = range(41, 45)
STATEFUL: dict[str, tuple[Operation, int]] = {
    "convolution": (Convolution(WIDTH, 4, WEIGHT, BIAS, PAST, PRESENT, "f32", silu=True), 2),
    "delta_rule": (DeltaRule(1, 2, 16, 32, 0.25, 1e-6, BIAS, RATE, None, PAST, PRESENT, "f32", "f32"), 4),
}


def along(placed: Placement) -> Any:
    spans = RowSpans(STATE, {**SPANS, PAST: (96, 0, 768), PRESENT: (97, 0, 2304)}, IDS)
    ops = [op for op in recording().ops if isinstance(op, Dispatch)]
    return row_step(placed, recording(), ops, spans, ROWS, WorkgroupLimits(), CAPACITY, along=True)


def with_state(what: Operation, reads: int) -> Placement:
    """The step with an operation behind attention that has a state in PAST, where it puts the new one."""
    placed = placement(Node(what, (7, *(2,) * (reads - 2), 11), (12, 13), 3, frozenset({3})))
    *others, last = placed.nodes
    homes = {**placed.homes, 11: PAST, 13: PAST}
    places = {value: Place("recorded", home) for value, home in homes.items()}
    return replace(placed, nodes=(*others, replace(last, reads=(12,))), homes=homes, places=places)


@pytest.mark.parametrize("shader", STATEFUL)
def test_what_has_a_state_takes_the_positions_of_one_sequence(shader: str) -> None:
    """It keeps the state after each, and has no form for separate sequences."""
    placed = with_state(*STATEFUL[shader])
    [kernel] = [kernel for kernel in along(placed).kernels if kernel["shader"] == shader]
    assert kernel["constants"]["POSITIONS"] == ROWS
    assert (kernel["bindings"]["past"], kernel["bindings"]["kept"]) == (["span", 96, 0, 768], ["span", 97, 0, 2304])
    assert {name for name, _ in declared_bindings(kernel)} == set(kernel["bindings"])
    with pytest.raises(TapeError, match=f"{STATEFUL[shader][0].title} has a form only for one sequence"):
        made(placed, recording())


@pytest.mark.parametrize(
    ("shader", "what"),
    [
        ("gated_head_norm", GatedHeadNorm(4, 16, GAMMA, 1e-6, "f32")),
        ("head_gate", HeadGate(4, 16, 128, "f32")),
    ],
)
def test_gates_are_over_all_rows(shader: str, what: Operation) -> None:
    placed = placement(Node(what, (7, 4), (12,), 3, frozenset({3})))
    *others, last = placed.nodes
    step = made(replace(placed, nodes=(*others, replace(last, reads=(12,)))), recording())
    index = [kernel["shader"] for kernel in step.kernels].index(shader)
    [played] = [op for op in step.played if op[:2] == ["kernel", index]]
    assert played[3] == ROWS
    _, number = step.kernels[index]["bindings"]["y"]
    assert step.scratch[number] >= ROWS * 64 * 4
