"""Which attention of a recorded prefill run becomes ours; the constants keep the limits in the header of
prefill_attention.wgsl, for shapes of models and kinds of GPU adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from capstan.errors import TapeError
from capstan.graph import LeftOut
from capstan.tape import PrefillAttention, Recorded, Recording, WorkgroupLimits, attends_prompts, fuse_prefill
from capstan.tape.kernel_plan import MatrixSize
from capstan.tape.ops.attention_plan import levels_bytes
from capstan.tape.ops.prefill_attention import (
    TILINGS,
    AttentionTiling,
    fits_prefill_attention,
    plan_prefill_attention,
    tune_prefill_attention,
)
from capstan.tape.recording import BindGroup, Dispatch, Pipeline, Write
from tests.unit.recorded_kernels import Number, pack_uniforms
from tests.unit.shader_declarations import declared_bindings, declared_constants, workgroup_bytes

ROWS = 64
NAMES = ("q", "present_key", "present_value", "seqlens_k", "output")
WITH_SINKS = ("q", "present_key", "present_value", "seqlens_k", "head_sink", "output")
FIELDS = (
    ("new_sequence_length", "u32"),
    ("total_sequence_length", "u32"),
    ("present_sequence_length", "u32"),
    ("batch_size", "u32"),
    ("n_reps", "u32"),
    ("alpha", "f32"),
    ("num_seq_tile", "u32"),
    ("local_window_size", "u32"),
)
UNIFORMS: dict[str, Number] = {
    "new_sequence_length": ROWS,
    "total_sequence_length": 0,
    "present_sequence_length": 512,
    "batch_size": 1,
    "n_reps": 3,
    "alpha": 0.125,
    "num_seq_tile": 1,
    "local_window_size": 0,
}
LINES = (
    "const head_size : u32 = 64;",
    "const num_heads : u32 = 9;",
    "return u32(seqlens_k[batch_idx]) + 1u;",
    "return k_idx >= local_window_start && k_idx < causal_end;",
    "q_idx_global * head_size_vec * num_heads +",
    "q_tile[idx] = q[idx + offset] * alpha;",
    "loadq(batch_idx, q_idx_global, head_idx, q_element_t(uniforms.alpha));",
    "let offset = batch_head_idx / uniforms.n_reps * uniforms.present_sequence_length * head_size_vec +",
    "let past_sequence_length = select(total_sequence_length - uniforms.new_sequence_length,",
    "let seq_causal_length = past_sequence_length + q_idx_global + 1;",
    "let local_window_start = 0u;",
    "var previous_max : qk_precision = qk_min_value;",
    "o_idx_global * num_heads * head_size_vec + head_idx * head_size_vec;",
)
"""The lines that make it this operation, in onnxruntime-web 1.30.0's kernels both with and without subgroups."""
SINK_LINES = (
    *(line for line in LINES if "qk_min_value" not in line),
    "let sink_value = q_element_t(head_sink[head_idx]);",
    "var previous_max : qk_precision = qk_precision(sink_value);",
    "var previous_denom : qk_precision = 1;",
)
WHOLE = MatrixSize(16, 16, 16)
LIMITS = WorkgroupLimits(32, 1024, 49152, matrices=(WHOLE,))
ADAPTERS = [
    *[WorkgroupLimits(lanes, 1024, 49152, matrices=(WHOLE,)) for lanes in (8, 16, 32, 64)],
    WorkgroupLimits(32, 256, 32768, matrices=(WHOLE, MatrixSize(16, 8, 16))),
    WorkgroupLimits(32, 256, 32768, matrices=(MatrixSize(8, 8, 8),)),
    WorkgroupLimits(32, 256, 16384, matrices=(MatrixSize(8, 8, 8),)),
    WorkgroupLimits(16, 1024, 65536, matrices=(MatrixSize(8, 16, 16),)),
]
SHAPES = [
    PrefillAttention(rows, *shape, 4096, 0.125, 2)
    for rows in (512, 2048, 50)
    for shape in ((9, 3, 64), (32, 8, 64), (32, 8, 128), (14, 2, 64), (16, 16, 80))
]
WHAT = PrefillAttention(ROWS, 9, 3, 64, 512, 0.125, 2)


def code_of(
    lines: tuple[str, ...],
    fields: tuple[tuple[str, str], ...] = FIELDS,
    element: str = "f16",
    names: tuple[str, ...] = NAMES,
) -> str:
    kinds = {"seqlens_k": "i32", "head_sink": element}
    declared = [
        f"@group(0) @binding({i}) var<storage, {'read_write' if name == 'output' else 'read'}> {name}: "
        f"array<{kinds.get(name, f'vec4<{element}>')}>;"
        for i, name in enumerate(names)
    ]
    inside = ",\n".join(f"  {name}: {kind}" for name, kind in fields)
    return "\n".join([*declared, f"struct Uniforms {{\n{inside}\n}};", *lines])


def fused(
    code: str,
    uniforms: dict[str, Number] = UNIFORMS,
    limits: WorkgroupLimits = LIMITS,
    names: tuple[str, ...] = NAMES,
    fields: tuple[tuple[str, str], ...] = FIELDS,
    left_out: Mapping[int, LeftOut] = MappingProxyType({}),
    sinks_first: bool = False,
) -> list[Any]:
    """The nodes that one recorded attention over caches becomes; its buffers are 1 to 5, in the order of names, sinks
    are 6. With `sinks_first` the run writes the sinks."""
    buffers = [6 if name == "head_sink" else i + 1 for i, name in enumerate(NAMES)]
    if "head_sink" in names:
        buffers.insert(names.index("head_sink"), 6)
    last = len(names)
    access = {(0, i): "read_write" if i == last - 1 else "read" for i in range(last)} | {(0, last): "uniform"}
    bound = {(0, i): name for i, name in enumerate(names)} | {(0, last): "uniforms"}
    fill = "@group(0) @binding(0) var<storage, read_write> x: array<f16>;"
    pipelines = {
        0: Pipeline("attention", access, code, bound),
        1: Pipeline("fill", {(0, 0): "read_write"}, fill, {(0, 0): "x"}),
    }
    groups = {
        0: BindGroup((*((i, buffer, 0, 1 << 20) for i, buffer in enumerate(buffers)), (last, 7, 0, 64))),
        1: BindGroup(((0, 6, 0, 1 << 20),)),
    }
    ops = [*([Dispatch(1, (1,), 1, 1, 1)] if sinks_first else []), Dispatch(0, (0,), 9, 1, 1)]
    write = Write(7, 0, pack_uniforms(fields, uniforms))
    recording = Recording(1, (write, *ops), pipelines, groups, dict.fromkeys(range(1, 8), 1 << 20))
    placement = fuse_prefill(recording, ops, [2, 3, 5, 6], {}, ROWS, limits, left_out)
    return [(node.what, [placement.places[v].id for v in (*node.reads, *node.writes)]) for node in placement.nodes]


def kinds(*arguments: Any, **named: Any) -> list[type]:
    return [type(what) for what, _ in fused(*arguments, **named)]


def test_causal_attention_over_whole_caches_becomes_ours() -> None:
    assert fused(code_of(LINES)) == [(WHAT, [1, 2, 3, 4, 5])]


def test_sinks_are_read() -> None:
    code = code_of(SINK_LINES, names=WITH_SINKS)
    assert fused(code, names=WITH_SINKS) == [(replace(WHAT, sinks=6), [1, 2, 3, 4, 5])]
    found = fused(code, names=WITH_SINKS, sinks_first=True)
    assert [type(what) for what, _ in found] == [Recorded, Recorded], "what the run computes may be elsewhere by then"


@pytest.mark.parametrize("line", SINK_LINES)
def test_a_kernel_with_sinks_that_lacks_a_line_is_another(line: str) -> None:
    lines = tuple(other for other in SINK_LINES if other != line)
    assert kinds(code_of(lines, names=WITH_SINKS), names=WITH_SINKS) == [Recorded]


def test_what_the_recorded_kernel_leaves_out_is_computed() -> None:
    asked = LeftOut("past_key_values.0.key", window=96, softcap=30.0)
    wanted = replace(WHAT, window=96, softcap=30.0)
    assert fused(code_of(LINES), left_out={2: asked}) == [(wanted, [1, 2, 3, 4, 5])]
    (kernel,) = wanted.kernels([1, 2, 3, 4], [5], LIMITS)
    assert (kernel.plan.constants["WINDOW"], kernel.plan.constants["SOFTCAP"]) == (96, 30.0)
    plain = WHAT.kernels([1, 2, 3, 4], [5], LIMITS)[0].plan.constants
    assert not plain["SOFTCAPPED"]
    assert not plain["WINDOWED"]


def test_a_run_is_refused_where_ours_does_not_compute_what_is_left_out() -> None:
    asked = LeftOut("past_key_values.0.key", window=96)
    with pytest.raises(TapeError, match=r"none of our kernels computes attention over past_key_values\.0\.key"):
        fused(code_of(LINES), limits=replace(LIMITS, matrices=()), left_out={2: asked})
    with pytest.raises(TapeError, match="past_key_values"):
        fused(code_of(LINES), left_out={99: asked})


def test_which_adapters_can_have_attention_of_ours() -> None:
    assert attends_prompts(LIMITS, "float16")
    assert not attends_prompts(LIMITS, "float32")
    assert not attends_prompts(replace(LIMITS, matrices=()), "float16")
    assert not attends_prompts(replace(LIMITS, lanes=0), "float16")


@pytest.mark.parametrize(
    "what", [WHAT, replace(WHAT, sinks=6), replace(WHAT, window=7, softcap=5.0, sinks=6)], ids=["plain", "sinks", "all"]
)
def test_its_kernel_binds_what_the_shader_declares(what: PrefillAttention) -> None:
    (kernel,) = what.kernels([1, 2, 3, 4], [5], LIMITS)
    made = declared_bindings(
        {**vars(kernel.plan), "half": kernel.half, "lanes": LIMITS.lanes, "bindings": kernel.bindings}
    )
    assert [name for name, _ in made] == list(kernel.bindings)
    assert what.written_bytes(0) == ROWS * 9 * 64 * 2


@pytest.mark.parametrize("line", LINES)
def test_a_kernel_that_lacks_a_line_is_another(line: str) -> None:
    assert kinds(code_of(tuple(other for other in LINES if other != line))) == [Recorded]


@pytest.mark.parametrize(
    "line",
    [
        "score = uniforms.softcap * tanh(score / uniforms.softcap);",
        "let c1 = qk_precision(attention_bias[min(offset, offset_max)]);",
    ],
)
def test_what_ours_does_not_compute_stays_as_recorded(line: str) -> None:
    assert kinds(code_of((*LINES, line))) == [Recorded]


@pytest.mark.parametrize(
    "other",
    [
        {"new_sequence_length": ROWS // 2},
        {"batch_size": 2},
        {"local_window_size": 512},
        {"n_reps": 2},
        {"n_reps": 0},
    ],
    ids=str,
)
def test_other_shapes_stay_as_recorded(other: dict[str, Number]) -> None:
    assert kinds(code_of(LINES), UNIFORMS | other) == [Recorded]


def test_heads_that_groups_do_not_divide_stay_as_recorded() -> None:
    code = code_of(LINES).replace("num_heads : u32 = 9", "num_heads : u32 = 10")
    assert kinds(code, UNIFORMS | {"n_reps": 5}) == [PrefillAttention]
    assert kinds(code, UNIFORMS | {"n_reps": 4}) == [Recorded]


def test_float32_and_adapters_without_subgroup_matrices_stay_as_recorded() -> None:
    assert kinds(code_of(LINES, element="f32")) == [Recorded]
    assert kinds(code_of(LINES), limits=replace(LIMITS, matrices=())) == [Recorded]


def test_other_bindings_are_another_kernel() -> None:
    assert kinds(code_of(LINES), names=(*NAMES[:-1], "out_split_vx")) == [Recorded]


@pytest.mark.parametrize("name", ["n_reps", "present_sequence_length", "alpha", "local_window_size"])
def test_another_version_of_the_uniforms_is_another_kernel(name: str) -> None:
    fields = tuple((f"{field}_2" if field == name else field, kind) for field, kind in FIELDS)
    uniforms = {f"{field}_2" if field == name else field: value for field, value in UNIFORMS.items()}
    assert kinds(code_of(LINES, fields), uniforms, fields=fields) == [Recorded]


@pytest.mark.parametrize("limits", ADAPTERS, ids=str)
@pytest.mark.parametrize("what", SHAPES, ids=str)
def test_a_tiling_keeps_the_limits_of_the_shader_and_the_adapter(
    what: PrefillAttention, limits: WorkgroupLimits
) -> None:
    fits = fits_prefill_attention(what, limits)
    assert fits == ((limits.memory, what.head) != (16384, 128)), "keys and values of 32 positions alone take 17 KiB"
    if not fits:
        return
    plan = plan_prefill_attention(what, limits)
    found = declared_constants(plan.shader, plan.constants, half=True, lanes=limits.lanes)
    assert found["WORKGROUP"] <= limits.threads
    assert MatrixSize(found["SIZE_M"], found["SIZE_N"], found["SIZE_K"]) in limits.matrices
    assert what.head % found["SIZE_N"] == what.head % found["SIZE_K"] == 0
    assert found["BLOCK"] % found["SIZE_N"] == found["BLOCK"] % found["SIZE_K"] == 0
    # Threads own all rows of a tile, and each row's positions; what they load is what is staged.
    assert found["OWN"] * found["WORKGROUP"] == found["SHARE"] * found["TILE"]
    assert found["SHARE"] * found["OCTETS"] * 8 == found["BLOCK"]
    assert 0 <= found["LOADS"] * found["WORKGROUP"] - found["STAGED"] < found["WORKGROUP"]
    assert workgroup_bytes(plan.shader, plan.constants, half=True, lanes=limits.lanes) <= limits.memory
    assert not callable(plan.counts)
    tiles, heads, _ = plan.counts
    assert heads == what.kv_heads
    assert 0 <= tiles * found["TILE"] - found["ROWS"] < found["TILE"]


@pytest.mark.parametrize("shape", TILINGS, ids=str)
def test_memory_is_what_the_shader_declares(shape: tuple[int, int, int]) -> None:
    tiling = AttentionTiling(WHOLE, 32, *shape)
    what = {"M": 512, "GROUP": 4, "KV_HEADS": 8, "HEAD": 64, "CAPACITY": 4096, "SCALE": 0.125}
    what |= {"WINDOWED": False, "SOFTCAPPED": False}
    for bits in (0, 8, 4):
        read = {"QUANTIZED": bits != 0, "FOUR_BITS": bits == 4}
        declared = workgroup_bytes("prefill_attention", {**what, **read, **tiling.constants(64)}, half=True, lanes=32)
        assert tiling.memory(64) + levels_bytes(bits) == declared


def test_short_runs_are_cut_into_small_tiles_so_that_processors_are_busy() -> None:
    large, small = (tune_prefill_attention(replace(WHAT, rows=rows), LIMITS) for rows in (2048, 64))
    assert large is not None
    assert small is not None
    assert large.tile > small.tile


@pytest.mark.parametrize(("head", "words"), [(64, 192), (128, 192), (256, 240)])
def test_large_heads_have_tilings_that_leave_registers(head: int, words: int) -> None:
    for rows in (64, 512, 2048):
        what = replace(WHAT, rows=rows, head=head)
        tiling = tune_prefill_attention(what, LIMITS)
        assert tiling is not None
        # Queries and results are whole rows of a tile, in float16 and float32; 4 words are loaded at a time.
        rows_held = tiling.tile * head * 6 / 4
        staged = 4 * 2 * -(-tiling.block * head // 8 // tiling.workgroup)
        assert rows_held / tiling.workgroup + staged + tiling.tile * tiling.block / tiling.workgroup <= words


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, matrices=()),
        replace(LIMITS, lanes=0),
        replace(LIMITS, memory=8192),
        replace(LIMITS, threads=32),
        replace(LIMITS, matrices=(MatrixSize(16, 16, 4),)),
        replace(LIMITS, matrices=(MatrixSize(12, 16, 16),)),
    ],
    ids=str,
)
def test_adapters_without_what_it_needs_keep_the_recorded_kernel(limits: WorkgroupLimits) -> None:
    assert fits_prefill_attention(WHAT, LIMITS)
    assert not fits_prefill_attention(WHAT, limits)
    assert kinds(code_of(LINES), limits=limits) == [Recorded]


def test_heads_that_matrices_do_not_divide_stay_as_recorded() -> None:
    assert not fits_prefill_attention(replace(WHAT, head=72), LIMITS)
    assert fits_prefill_attention(replace(WHAT, head=72), replace(LIMITS, matrices=(MatrixSize(8, 8, 8),)))
