"""A recorded kernel is taken for what it is only if everything that makes it this operation is there, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from capstan.tape import BindGroup, Clear, Copy, Dispatch, DispatchIndirect, Op, Pipeline, Recording, Write
from capstan.tape.ops import RULES
from capstan.tape.ort_kernels import OrtKernel, recognise
from tests.unit.recorded_kernels import KERNELS, Kernel, Number, pack_uniforms

SIGNATURES = [signature for rules in RULES for signature in rules.signatures]
UNIFORM = 99
ROTARY = ("rotary", "rotary_interleaved")
JOINS = ("attention_join", "attention_join_sinks")
ROTARY_SIZES: Mapping[str, Number] = {
    "query_shape": (1, 1, 64),
    "present_key_shape": (1, 2, 256, 4),
    "sequence_length": 1,
    "num_heads": 4,
    "kv_num_heads": 2,
    "head_size": 4,
    "half_rotary_dim": 2,
    "present_sequence_length": 256,
    "batch_size": 1,
}
ROTARY_APART: dict[str, Number] = {
    "cos_cache_shape": (256, 8),
    "q_global_shape": (1, 1, 4, 8),
    "k_global_shape": (1, 1, 2, 8),
    "head_size": 16,
    "qk_norm_epsilon": 0.25,
}
CONVOLUTION: dict[str, Number] = {
    "batch_size": 1,
    "channels": 128,
    "input_length": 1,
    "kernel_size": 4,
    "dilation": 1,
    "state_length": 3,
}
UNIFORMS: Mapping[str, Mapping[str, Number]] = {
    "matmul_nbits": {"M": 1, "N": 96, "K": 64, "block_size": 32, "batch_count": 1, "dispatch_M": 1},
    **{
        f"matmul_nbits{form}": {
            "M": 1,
            "N": 96,
            "K": 64,
            "block_size": 32,
            "batch_count": 1,
            "dispatch_M": 1,
            **({"zero_blocks_per_col": 2} if "zeros" in form else {}),
        }
        for form in ("_zeros", "_bytes", "_bytes_zeros")
    },
    "to_int8": {"output_size": 16},
    **{
        f"matvec_int8_{form}": {
            "M": 1,
            "N": 96,
            "K": 64,
            "block_size": 32,
            "batch_count": 1,
            "dispatch_M": 1,
            **({"zero_blocks_per_col": 2} if "zeros" in form else {}),
        }
        for form in ("4", "4_zeros", "8")
    },
    "matmul": {
        "a_shape": (1, 1, 16),
        "b_shape": (64, 24),
        "output_shape": (1, 1, 24),
        "dim_a_outer": 1,
        "dim_b_outer": 96,
        "dim_inner": 64,
    },
    "multiply": {"vec_size": 24, "element_count": 96},
    "silu": {"vec_size": 24, "attr": 1.0},
    "gelu": {"vec_size": 24},
    "gelu_erf": {"vec_size": 24},
    "concat": {"input_0_shape": (1, 1, 64), "input_1_shape": (1, 1, 32), "output_size": 96},
    "add": {
        "bcast_indices_shape": (1, 1, 64),
        "bcast_indices_stride": (64, 64),
        "a_indices_shape": (1, 1, 64),
        "b_indices_shape": 64,
        "element_count": 64,
    },
    "norm": {"components": 4, "norm_count": 1, "norm_size": 64, "epsilon": 0.25},
    "skip_norm": {"components": 4, "hidden_size": 64, "epsilon": 0.25, "skip_size": 64},
    "skip_norm_alone": {"components": 4, "hidden_size": 64, "epsilon": 0.25, "skip_size": 64},
    "gated_mlp": {"N": 96, "K": 64, "block_size": 32, "batch_count": 1, "skip_size": 64, "epsilon": 0.25},
    "gated_mlp_alone": {"N": 96, "K": 64, "block_size": 32, "batch_count": 1, "skip_size": 0, "epsilon": 0.25},
    "rotary": ROTARY_SIZES,
    "rotary_interleaved": ROTARY_SIZES,
    "qkv_split": {"input_size": 32, "total_segment_elements": 32, "segment_sizes": (16, 8, 8)},
    "rotary_apart": ROTARY_APART,
    "rotary_normed": ROTARY_APART,
    "rotary_query": {
        "cos_cache_shape": (256, 8),
        "global_shape": (1, 1, 4, 8),
        "input_output_stride": (64, 64, 16, 1),
    },
    "cache_write": {
        "key_shape": (1, 1, 2, 4),
        "present_key_shape": (1, 2, 256, 4),
        "kv_sequence_length": 1,
        "num_heads": 4,
        "batch_size": 1,
    },
    "attention_split": {
        "head_size_vec": 4,
        "alpha": 0.25,
        "present_sequence_length": 256,
        "n_reps": 2,
        "num_heads": 4,
        "batch_size": 1,
        "attn_bias_dim0": 1,
        "attn_bias_dim1": 1,
        "new_sequence_length": 1,
    },
    **{name: {"head_size_vec": 4, "new_sequence_length": 1, "num_heads": 4} for name in JOINS},
    **{name: CONVOLUTION for name in KERNELS if name.startswith("convolution")},
    "recurrence": {
        "batch_size": 1,
        "num_heads": 4,
        "seq_length": 1,
        "head_dim_k": 16,
        "head_dim_v": 4,
        "scale": 1.0,
        "heads_per_group": 0,
        "kv_per_k_head": 2,
        "q_num_heads": 2,
        "n_k_heads": 2,
    },
    "turned_vector": {"a_shape": (1, 1, 64), "output_size": 64},
    "sigmoid": {"vec_size": 1},
    "softplus": {"vec_size": 1},
    "split_heads": {"input_size": 64, "segment_sizes": (16, 16)},
    "three_products": {"Nq": 256, "Nkv": 128, "K": 64, "block_size": 32, "batch_count": 1, "skip_size": 0},
}
KIND = {name: re.sub("_alone|_bytes|_zeros|_biased", "", name) for name in KERNELS}


def found(
    kernel: Kernel,
    uniforms: Mapping[str, Number],
    *,
    code: str | None = None,
    offset: int = 0,
    names: Mapping[tuple[int, int], str] | None = None,
    upload: bytes | None = None,
    indirect: bool = False,
) -> OrtKernel | None:
    """The operation recognised in a dispatch of `kernel`, which binds buffers 10, 11, ... and UNIFORM."""
    bindings = kernel.bindings
    pipeline = Pipeline(
        "",
        {(0, b): access for b, (_, access) in enumerate(bindings)},
        kernel.code if code is None else code,
        {(0, b): name for b, (name, _) in enumerate(bindings)} if names is None else names,
    )
    buffers = [10 + b for b in range(len(bindings) - 1)]
    entries = [(b, buffer, offset if b == 1 else 0, 0) for b, buffer in enumerate(buffers)]
    group = BindGroup((*reversed(entries), (len(buffers), UNIFORM, 0, 0)))
    op: Op = DispatchIndirect(1, (5,), 60, 0) if indirect else Dispatch(1, (5,), 1, 1, 1)
    data = pack_uniforms(kernel.fields, uniforms) if upload is None else upload
    recording = Recording(7, (Write(UNIFORM, 0, data), op), {1: pipeline}, {5: group}, {})
    met = recognise(recording, op, recording.uploaded(), SIGNATURES)
    return met[0] if met else None


def change(name: str, **values: Number) -> dict[str, Number]:
    assert values.keys() <= UNIFORMS[name].keys()
    return {**UNIFORMS[name], **values}


@pytest.mark.parametrize("name", KERNELS)
class TestEach:
    def test_is_recognised_with_its_buffers_and_uniforms(self, name: str) -> None:
        kernel = found(KERNELS[name], UNIFORMS[name])
        assert kernel is not None
        assert kernel.kind == KIND[name]
        assert kernel.uniforms == UNIFORMS[name]
        bound = [binding for binding, access in KERNELS[name].bindings if access != "uniform"]
        assert kernel.at == {binding: 10 + b for b, binding in enumerate(bound)}
        assert kernel.element == "f32"

    def test_in_float16(self, name: str) -> None:
        # As onnxruntime writes it: everything but the weights in f16.
        code = KERNELS[name].code.replace("<f32>", "<f16>")
        kernel = found(KERNELS[name], UNIFORMS[name], code=code)
        if name == "softplus":
            assert kernel is None, "decays are computed in float32"
            return
        assert kernel is not None
        assert kernel.element == "f16"

    def test_lines_that_decide_are_all_needed(self, name: str) -> None:
        for line in KERNELS[name].lines:
            assert found(KERNELS[name].without(line), UNIFORMS[name]) is None, line

    def test_another_order_or_name_of_bindings_is_another_kernel(self, name: str) -> None:
        kernel = KERNELS[name]
        if len(kernel.reads) > 1:
            swapped = replace(kernel, reads=(kernel.reads[1], kernel.reads[0], *kernel.reads[2:]))
            assert found(swapped, UNIFORMS[name]) is None
        renamed = replace(kernel, reads=("other", *kernel.reads[1:]))
        assert found(renamed, UNIFORMS[name]) is None
        assert found(replace(kernel, reads=(*kernel.reads, "another")), UNIFORMS[name]) is None

    def test_a_binding_that_the_wgsl_does_not_name_is_not_understood(self, name: str) -> None:
        names = {(0, b): binding for b, (binding, _) in enumerate(KERNELS[name].bindings)}
        assert found(KERNELS[name], UNIFORMS[name], names=names) is not None
        del names[0, 1]
        assert found(KERNELS[name], UNIFORMS[name], names=names) is None

    def test_a_part_of_a_buffer_is_not_what_a_replacement_would_bind(self, name: str) -> None:
        assert found(KERNELS[name], UNIFORMS[name], offset=256) is None

    def test_uniforms_that_are_not_known_or_not_there_are_not_guessed(self, name: str) -> None:
        kernel = KERNELS[name]
        assert found(kernel, UNIFORMS[name], upload=b"") is None
        assert found(kernel, UNIFORMS[name], upload=bytes(4)) is None

    def test_every_uniform_that_counts_is_asked_for(self, name: str) -> None:
        kernel = KERNELS[name]
        harmless = {
            "add": {"bcast_indices_shape", "bcast_indices_stride", "a_indices_shape", "b_indices_shape"},
            "multiply": {"vec_size"},
            "norm": {"components"},
            "skip_norm": {"components"},
            "skip_norm_alone": {"components"},
            **{name: {"query_shape", "present_key_shape"} for name in ROTARY},
            "rotary_apart": {"qk_norm_epsilon"},
            "cache_write": {"num_heads"},
            "attention_split": {"head_size_vec", "present_sequence_length", "n_reps", "num_heads"},
            **{name: {"head_size_vec", "num_heads"} for name in JOINS},
        }.get(name, set())
        for field, _ in kernel.fields:
            fewer = replace(kernel, fields=tuple(other for other in kernel.fields if other[0] != field))
            values = {other: value for other, value in UNIFORMS[name].items() if other != field}
            assert (found(fewer, values) is not None) == (field in harmless), field


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *((name, "value = value - x_element_t(mean);") for name in ("norm", "skip_norm", "skip_norm_alone")),
        *((name, "value = value + beta[i];") for name in ("norm", "skip_norm", "skip_norm_alone")),
        ("skip_norm", "value = value + bias[i];"),
        ("matvec_int8_4", "output_value += bias[b_global];"),
        ("matvec_int8_4", "let b_offset = uniforms.weight_idx * uniforms.N;"),
        ("convolution", "acc = silu(acc);"),
        ("convolution", "acc = acc / (1.0 + exp(-acc)); // silu(acc)"),
        ("split_heads", "output_2[outer_index]=input[global_idx];"),
        *(("three_products", line) for line in ("value += bias[i];", "let inv_std = inverseSqrt(sum + epsilon);")),
        ("gated_mlp", "value = value + gate_bias[i];"),
        ("gated_mlp", "value = value + up_bias[i];"),
        *((name, "score = uniforms.softcap * tanh(score);") for name in ("attention_split", *JOINS)),
        *((name, "sum += exp(head_sink[head] - m);") for name in ("attention_split", "attention_join")),
        ("attention_split", "if (position < total - uniforms.local_window_size) { continue; }"),
        ("attention_split", "score += attn_bias[offset];"),
        ("attention_split", "score += attention_bias[offset];"),
    ],
)
def test_lines_of_a_richer_operation_are_not_passed_over(name: str, line: str) -> None:
    assert found(KERNELS[name].with_line(line), UNIFORMS[name]) is None


@pytest.mark.parametrize(
    ("name", "uniforms"),
    [
        ("matmul_nbits", change("matmul_nbits", M=2)),
        ("matmul_nbits", change("matmul_nbits", batch_count=2)),
        ("matmul_nbits", change("matmul_nbits", dispatch_M=2)),
        ("matvec_int8_4", change("matvec_int8_4", M=2)),
        ("matmul", change("matmul", dim_a_outer=2)),
        ("matmul", change("matmul", a_shape=(2, 1, 16))),
        ("matmul", change("matmul", b_shape=(32, 24))),
        ("matmul", change("matmul", b_shape=(64, 12))),
        ("matmul", change("matmul", output_shape=(2, 1, 24))),
        ("matmul", change("matmul", dim_inner=66)),
        ("matmul", change("matmul", dim_b_outer=98)),
        ("silu", change("silu", attr=1.702)),
        ("add", change("add", a_indices_shape=(1, 1, 1))),
        ("add", change("add", b_indices_shape=4)),
        ("add", change("add", element_count=128)),
        ("concat", change("concat", input_1_shape=(1, 2, 16))),
        ("concat", change("concat", output_size=97)),
        *(
            ("convolution_silu_biased", change("convolution_silu_biased", **{field: 2}))
            for field in ("batch_size", "input_length", "dilation", "state_length")
        ),
        *(("recurrence", change("recurrence", **{field: 2})) for field in ("batch_size", "seq_length")),
        ("recurrence", change("recurrence", heads_per_group=2)),
        ("recurrence", change("recurrence", q_num_heads=4)),
        ("recurrence", change("recurrence", kv_per_k_head=1)),
        ("turned_vector", change("turned_vector", a_shape=(1, 2, 32))),
        ("sigmoid", change("sigmoid", vec_size=0)),
        ("softplus", change("softplus", vec_size=0)),
        ("three_products", change("three_products", batch_count=2)),
        ("three_products", change("three_products", skip_size=64)),
        ("skip_norm", change("skip_norm", skip_size=128)),
        ("gated_mlp", change("gated_mlp", batch_count=2)),
        ("gated_mlp", change("gated_mlp", skip_size=32)),
        ("gated_mlp_alone", change("gated_mlp_alone", batch_count=2)),
        ("gated_mlp_alone", change("gated_mlp_alone", skip_size=64)),
        *((name, change(name, half_rotary_dim=half)) for name in ROTARY for half in (0, 3)),
        *((name, change(name, sequence_length=2)) for name in ROTARY),
        *((name, change(name, batch_size=2)) for name in ROTARY),
        ("qkv_split", change("qkv_split", input_size=64)),
        *(
            (name, change(name, **{field: shape}))
            for name in ("rotary_apart", "rotary_normed")
            for field, shape in (
                ("cos_cache_shape", (256, 4)),
                ("cos_cache_shape", (256, 12)),
                ("q_global_shape", (1, 1, 4, 12)),
                ("q_global_shape", (1, 2, 4, 8)),
                ("q_global_shape", (2, 1, 4, 8)),
                ("k_global_shape", (1, 1, 2, 4)),
            )
        ),
        ("rotary_query", change("rotary_query", cos_cache_shape=(256, 4))),
        ("rotary_query", change("rotary_query", global_shape=(1, 2, 4, 8))),
        ("rotary_query", change("rotary_query", input_output_stride=(96, 96, 24, 1))),
        ("cache_write", change("cache_write", kv_sequence_length=2)),
        ("cache_write", change("cache_write", batch_size=2)),
        ("cache_write", change("cache_write", key_shape=(1, 2, 2, 4))),
        ("attention_split", change("attention_split", new_sequence_length=2)),
        ("attention_split", change("attention_split", batch_size=2)),
        ("attention_split", change("attention_split", attn_bias_dim0=2)),
        ("attention_split", change("attention_split", attn_bias_dim1=4)),
        *((name, change(name, new_sequence_length=2)) for name in JOINS),
    ],
)
def test_other_shapes_are_other_operations(name: str, uniforms: Mapping[str, Number]) -> None:
    assert found(KERNELS[name], uniforms) is None


def test_linear_attention_whose_state_alone_is_float32() -> None:
    code = KERNELS["recurrence"].code.replace("<f32>", "<f16>")
    for name in ("initial_state", "present_state"):
        mixed = code.replace(f"{name}: array<vec4<f16>>", f"{name}: array<vec4<f32>>")
        code, half = mixed, code
    for text, kind in ((code, "recurrence"), (half, None)):
        kernel = found(KERNELS["recurrence"], UNIFORMS["recurrence"], code=text)
        assert (kernel.kind if kernel else None) == kind


@pytest.mark.parametrize("rotary", [8, 16])
def test_heads_that_are_rotated_in_part(rotary: int) -> None:
    """The threads of a head are its elements that are not rotated, and a half of the others."""
    threads = 16 - rotary // 2
    shapes: dict[str, Number] = {"q_global_shape": (1, 1, 4, threads), "k_global_shape": (1, 1, 2, threads)}
    for name in ("rotary_apart", "rotary_normed"):
        assert found(KERNELS[name], change(name, cos_cache_shape=(256, rotary // 2), **shapes)) is not None


def test_products_of_the_next_version_are_known() -> None:
    """onnxruntime-web 1.31.0-dev.20260914 turns its sum into the output's type as it writes it."""
    old, new = "output[output_idx]=output_value;", "output[output_idx]=output_element_t(output_value);;"
    for name in ("matmul_nbits", "matmul_nbits_zeros"):
        kernel = KERNELS[name]
        assert old in kernel.code
        assert found(kernel, UNIFORMS[name], code=kernel.code.replace(old, new)) is not None


@pytest.mark.parametrize(
    ("name", "line", "instead"),
    [
        ("matmul_nbits", "const default_zero_point = 8;", "let zero_point = get_zero_point(row, block);"),
        ("matmul_nbits", "const bit_mask = 0xFu;", "const bit_mask = 0xFFu;"),
        (
            "matmul_nbits_zeros",
            "let offset = row * c_dim + col;",
            "let offset = col * r_dim + row;",
        ),
        (
            "matmul_nbits",
            "output[output_idx]=output_value;",
            "output[output_idx]=output_value + output_element_t(bias[n]);",
        ),
        (
            "matmul",
            "var value = valueIn;\n    let coords = vec3(u32(batch), u32(row), u32(colIn));\n    \n"
            "    set_output_by_indices(coords, value);",
            "var value = valueIn;\n    let coords = vec3(u32(batch), u32(row), u32(colIn));\n    value += bias;\n"
            "    set_output_by_indices(coords, value);",
        ),
        (
            "matmul",
            "b_indices[0]=u32(row);\nb_indices[1]=u32(colIn);\n        value = get_b_by_indices(b_indices);\n    }",
            "b_indices[0]=u32(colIn);\nb_indices[1]=u32(row);\n        value = get_b_by_indices(b_indices);\n    }",
        ),
        ("matmul", "var kStart = 0;", "var kStart = kSplitK * i32(logical_global_id.z);"),
        ("multiply", "output[global_idx]=a * b;", "output[global_idx]=a / b;"),
        ("silu", "return a * x1;", "return x1;"),
        ("gelu", "let expr = exp(-2 * abs(a));", "let expr = exp(-abs(a));"),
        ("gelu_erf", "const r5 = 1.061405429;", "const r5 = 1.0;"),
        ("add", "output[global_idx]=a + b;", "output[global_idx]=a - b;"),
        ("rotary", "let idx_j = idx_i + uniforms.half_rotary_dim;", "let idx_j = idx_i + 1u;"),
        ("rotary", "let base_position = 0u;", "let base_position = u32(position_ids[0]);"),
    ],
    ids=[
        "zero points",
        "8 bits",
        "zero points by columns",
        "bias",
        "dense bias",
        "transposed",
        "split",
        "quotient",
        "sigmoid",
        "another activation",
        "another erf",
        "difference",
        "interleaved rotary",
        "given positions",
    ],
)
def test_variants_of_a_kernel_are_told_by_their_lines(name: str, line: str, instead: str) -> None:
    assert line in KERNELS[name].lines
    assert found(KERNELS[name].without(line).with_line(instead), UNIFORMS[name]) is None


@pytest.mark.parametrize("name", ["matmul", "multiply", "silu", "gelu", "add", "rotary", "attention_split"])
def test_scalar_arrays_are_another_kernel(name: str) -> None:
    assert found(replace(KERNELS[name], vectors=False), UNIFORMS[name]) is None


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        *(("matmul", operand) for operand in ("a", "b", "output")),
        *((name, operand) for name in ("add", "multiply") for operand in ("input_a", "input_b")),
        *(("rotary", operand) for operand in ("packed_qkv", "present_key", "present_value")),
        ("attention_split", "q"),
    ],
)
@pytest.mark.parametrize("other", ["f32", "u32", "vec4<u32>"])
def test_an_array_of_something_else_is_another_kernel(name: str, operand: str, other: str) -> None:
    code = KERNELS[name].code.replace(f" {operand}: array<vec4<f32>>", f" {operand}: array<{other}>")
    assert code != KERNELS[name].code
    assert found(KERNELS[name], UNIFORMS[name], code=code) is None


@pytest.mark.parametrize("name", KERNELS)
def test_arrays_of_two_precisions_are_another_kernel(name: str) -> None:
    first, *_ = KERNELS[name].reads
    element = "vec4<f32>" if KERNELS[name].vectors else "f32"
    code = KERNELS[name].code.replace(f" {first}: array<{element}>", f" {first}: array<{element.replace('32', '16')}>")
    assert code != KERNELS[name].code
    assert found(KERNELS[name], UNIFORMS[name], code=code) is None


def test_sums_of_attention_are_of_full_precision_in_float16_too() -> None:
    for name in ("attention_split", "attention_join"):
        code = KERNELS[name].code.replace("<f32>", "<f16>")
        code = code.replace(" metadata: array<vec4<f16>>", " metadata: array<vec2<f32>>")
        kernel = found(KERNELS[name], UNIFORMS[name], code=code)
        assert kernel is not None
        assert kernel.element == "f16"


@pytest.mark.parametrize("name", ["add", "multiply"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_an_operand_of_one_element_is_spread_over_the_other(name: str, side: str) -> None:
    # As onnxruntime-web writes it: the operand is declared as an array of vectors, and no shapes are uniforms.
    kernel = replace(KERNELS[name], fields=(("vec_size", "u32"), ("element_count", "u32")))
    uniforms = {"vec_size": 16, "element_count": 64}
    assert found(kernel, uniforms) is not None
    spread = f"let {side} = input_{side}_value_t(input_{side}[0].x);"
    assert found(kernel.with_line(spread), uniforms) is None


@pytest.mark.parametrize("name", ["add", "multiply"])
def test_operands_of_other_shapes_are_spread(name: str) -> None:
    kernel = replace(KERNELS[name], fields=KERNELS["add"].fields)
    assert found(kernel, UNIFORMS["add"]) is not None
    assert found(kernel, change("add", a_indices_shape=(1, 1, 1))) is None
    assert found(kernel, change("add", b_indices_shape=1)) is None


def test_sums_of_equal_shapes_declare_none() -> None:
    kernel = replace(KERNELS["add"], fields=(("vec_size", "u32"), ("element_count", "u32")))
    found_ = found(kernel, {"vec_size": 16, "element_count": 64})
    assert found_ is not None
    assert found_.number("element_count") == 64


def test_counts_may_come_from_a_buffer() -> None:
    kernel = found(KERNELS["attention_split"], UNIFORMS["attention_split"], indirect=True)
    assert kernel is not None
    assert 60 not in kernel.at.values()


@pytest.mark.parametrize("op", [Copy(1, 0, 2, 0, 64), Clear(1, 0, 64), Write(1, 0, b"")])
def test_only_dispatches_are_kernels(op: Op) -> None:
    assert recognise(Recording(7, (op,), {}, {}, {1: 64, 2: 64}), op, {}, SIGNATURES) is None


def test_a_norm_of_several_rows_is_one_of_heads() -> None:
    kernel = found(KERNELS["norm"], change("norm", norm_count=4))
    assert kernel is not None
    assert (kernel.kind, kernel.number("norm_count"), kernel.weights) == (
        "head_norm",
        4,
        frozenset({kernel.at["scale"]}),
    )


def test_weights_are_what_a_replacement_takes_for_constant() -> None:
    weights = {}
    for name in KERNELS:
        kernel = found(KERNELS[name], UNIFORMS[name])
        assert kernel is not None
        weights[name] = sorted(binding for binding, buffer in kernel.at.items() if buffer in kernel.weights)
    assert weights == {
        "matmul_nbits": ["input_b", "scales_b"],
        "matmul_nbits_zeros": ["input_b", "scales_b", "zero_points"],
        "matmul_nbits_bytes": ["input_b", "scales_b"],
        "matmul_nbits_bytes_zeros": ["input_b", "scales_b", "zero_points"],
        "to_int8": [],
        "matvec_int8_4": ["input_b", "scales_b"],
        "matvec_int8_4_zeros": ["input_b", "scales_b", "zero_points"],
        "matvec_int8_8": ["input_b", "scales_b"],
        "matmul": ["b"],
        "multiply": [],
        "silu": [],
        "gelu": [],
        "gelu_erf": [],
        "concat": [],
        "add": [],
        "norm": ["scale"],
        "skip_norm": ["gamma"],
        "skip_norm_alone": ["gamma"],
        **{
            name: ["gate_b", "gate_scales_b", "norm_scale", "up_b", "up_scales_b"]
            for name in ("gated_mlp", "gated_mlp_alone")
        },
        **{name: ["cos_cache", "sin_cache"] for name in ROTARY},
        "qkv_split": [],
        "rotary_apart": ["cos_cache", "sin_cache"],
        "rotary_normed": ["cos_cache", "k_norm_weight", "q_norm_weight", "sin_cache"],
        "rotary_query": ["cos_cache", "sin_cache"],
        "cache_write": [],
        "attention_split": [],
        "attention_join": [],
        "attention_join_sinks": ["head_sink"],
        **{f"convolution{silu}": ["weight"] for silu in ("", "_silu")},
        **{f"convolution{silu}_biased": ["bias", "weight"] for silu in ("", "_silu")},
        **{name: [] for name in ("recurrence", "turned_vector", "sigmoid", "softplus", "split_heads")},
        "three_products": ["k_b", "k_scales_b", "q_b", "q_scales_b", "v_b", "v_scales_b"],
    }


def test_numbers_are_read_by_their_type() -> None:
    kernel = found(KERNELS["norm"], UNIFORMS["norm"])
    assert kernel is not None
    assert (kernel.number("norm_size"), kernel.real("epsilon")) == (64, 0.25)
