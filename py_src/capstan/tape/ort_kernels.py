"""Recognises the decode kernels of onnxruntime-web in a recording, by what their WGSL declares and contains.

A kernel is taken for what it looks like only if its bindings, the fields of its uniforms and the lines that make it
this operation and no other are all there. Whoever replaces it still compares a step with an eager one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from .recording import Dispatch, DispatchIndirect, Op, Pipeline, Recording
from .uniforms import Number, uniform_values

__all__ = ["OrtKernel", "recognise"]


@dataclass(frozen=True)
class OrtKernel:
    """One recognised dispatch."""

    kind: str
    """'matmul_nbits', 'matmul', 'add', 'multiply', 'silu', 'norm', 'skip_norm', 'gated_mlp', 'rotary',
    'attention_split' or 'attention_join'."""
    at: Mapping[str, int]
    """Buffers by the WGSL's names of their bindings."""
    uniforms: Mapping[str, Number]
    element: str
    """'f16' or 'f32'."""
    weights: frozenset[int] = frozenset()
    """Those of the buffers whose contents a replacement takes for constant."""

    def number(self, name: str) -> int:
        value = self.uniforms[name]
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self.uniforms[name]
        assert isinstance(value, float), name
        return value


@dataclass(frozen=True)
class Signature:
    """How a kernel's WGSL tells what it is."""

    kind: str
    bindings: tuple[str, ...]
    """In order, uniforms left out."""
    has: tuple[str, ...]
    asked: tuple[str, ...]
    """Uniforms that a replacement needs to know."""
    weights: tuple[str, ...] = ()
    """Bindings whose contents a replacement takes for constant."""
    lacks: tuple[str, ...] = ()
    holds: Callable[[OrtKernel], bool] = lambda _: True
    """What must be true of the uniforms."""


NORM_LACKS = ("x_element_t(mean)", "beta", "bias[")
SPREAD = ("input_a[0]", "input_b[0]")
"""An operand of one element, which is declared like any other."""
ATTENTION_LACKS = ("softcap", "head_sink", "local_window", "attn_bias[", "attention_bias[")


def one_row(kernel: OrtKernel) -> bool:
    return all(kernel.uniforms[name] == 1 for name in ("M", "batch_count", "dispatch_M"))


def one_dense_row(kernel: OrtKernel) -> bool:
    """A row of k elements by a matrix [k, n]; the uniforms have shapes in vectors of four elements."""
    k, n = kernel.number("dim_inner"), kernel.number("dim_b_outer")
    sizes = {
        name: prod(shape) for name in ("a", "output") if isinstance(shape := kernel.uniforms[f"{name}_shape"], tuple)
    }
    whole = sizes == {"a": k // 4, "output": n // 4} and kernel.uniforms["b_shape"] == (k, n // 4)
    return whole and k % 4 == n % 4 == 0 and kernel.uniforms["dim_a_outer"] == 1


def one_token(kernel: OrtKernel) -> bool:
    whole_head = 2 * kernel.number("half_rotary_dim") == kernel.number("head_size")
    return whole_head and kernel.uniforms["sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1


def one_query(kernel: OrtKernel) -> bool:
    biased = any(kernel.uniforms[f"attn_bias_dim{axis}"] not in (0, 1) for axis in (0, 1))
    return kernel.uniforms["new_sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1 and not biased


def same_sizes(kernel: OrtKernel) -> bool:
    """Neither operand of a sum is spread over the other."""
    count = kernel.uniforms["element_count"]
    shapes = [kernel.uniforms.get(f"{side}_indices_shape", count) for side in ("a", "b")]
    return all((prod(shape) if isinstance(shape, tuple) else shape) == count for shape in shapes)


SIGNATURES = (
    Signature(
        "matmul_nbits",
        ("input_a", "input_b", "scales_b", "output"),
        has=(
            "const default_zero_point = 8;",
            "const bit_mask = 0xFu;",
            "const b_base_offset : u32 = 0;",
            "const b_scale_offset : u32 = 0;",
            "output[output_idx]=output_value;",
        ),
        asked=("N", "K", "block_size"),
        weights=("input_b", "scales_b"),
        holds=one_row,
    ),
    Signature(
        "matmul",
        ("a", "b", "output"),
        has=(
            "a: array<vec4<f",
            "b: array<vec4<f",
            "output: array<vec4<f",
            "return a[i2o_a(indices_fnarg)];",
            "return b[i2o_b(indices_fnarg)];",
            "a_indices[1]=u32(row);\na_indices[2]=u32(colIn);\n        value = get_a_by_indices(a_indices);\n    }",
            "b_indices[0]=u32(row);\nb_indices[1]=u32(colIn);\n        value = get_b_by_indices(b_indices);\n    }",
            "var kStart = 0;",
            "acc[i] = BCached0 * ACached.x + acc[i];",
            "acc[i] = BCached3 * ACached.w + acc[i];",
            "mm_write(batch, globalRow + innerRow, globalCol, acc[innerRow]);",
            "var value = valueIn;\n    let coords = vec3(u32(batch), u32(row), u32(colIn));\n    \n"
            "    set_output_by_indices(coords, value);",
            "output[i2o_output(indices)]=value;",
        ),
        asked=("dim_inner", "dim_b_outer"),
        weights=("b",),
        holds=one_dense_row,
    ),
    Signature(
        "multiply",
        ("input_a", "input_b", "output"),
        has=("output[global_idx]=a * b;", "input_a: array<vec4<f", "input_b: array<vec4<f"),
        asked=("element_count",),
        lacks=SPREAD,
        holds=same_sizes,
    ),
    Signature(
        "silu",
        ("x", "y"),
        has=(
            "x: array<vec4<f",
            "let v = a * alpha_vec;",
            "x1[i] = one / (one + exp(-v[i]));",
            "x1[i] = one - one / (one + exp(v[i]));",
            "return a * x1;",
            "y[global_idx]=quick_gelu_v(a);",
        ),
        asked=("vec_size",),
        holds=lambda kernel: kernel.uniforms["attr"] == 1,
    ),
    Signature(
        "add",
        ("input_a", "input_b", "output"),
        has=("output[global_idx]=a + b;", "input_a: array<vec4<f", "input_b: array<vec4<f"),
        asked=("element_count",),
        lacks=SPREAD,
        holds=same_sizes,
    ),
    Signature(
        "norm",
        ("x", "scale", "y"),
        has=("inverseSqrt(", "uniforms.norm_size", "x_element_t(inv_std_dev) * scale["),
        asked=("norm_size", "epsilon"),
        weights=("scale",),
        lacks=NORM_LACKS,
        holds=lambda kernel: kernel.uniforms["norm_count"] == 1,
    ),
    *(
        Signature(
            "skip_norm",
            ("x", "skip", "gamma", "output", *with_sum),
            has=(
                "inverseSqrt(",
                "uniforms.hidden_size",
                "x_element_t(inv_std_dev) * gamma[",
                "input_value + skip_value",
            ),
            asked=("hidden_size", "epsilon"),
            weights=("gamma",),
            lacks=NORM_LACKS,
            holds=lambda kernel: kernel.uniforms["skip_size"] == kernel.uniforms["hidden_size"],
        )
        for with_sum in ((), ("input_skip_bias_sum",))
    ),
    Signature(
        "gated_mlp",
        (
            "input_a",
            "skip",
            "norm_scale",
            "gate_b",
            "gate_scales_b",
            "up_b",
            "up_scales_b",
            "output",
            "input_skip_bias_sum",
        ),
        has=(
            "const default_zero_point = output_element_t(8);",
            "& 0x0F0F0F0Fu",
            "inverseSqrt(",
            "gate_output_value * (one / (one + exp(-gate_output_value)))",
            "activated_value * up_output_value",
        ),
        asked=("N", "K", "block_size", "epsilon"),
        weights=("norm_scale", "gate_b", "gate_scales_b", "up_b", "up_scales_b"),
        lacks=("bias[", "gate_bias", "up_bias"),
        holds=lambda kernel: (
            kernel.uniforms["batch_count"] == 1 and kernel.uniforms["skip_size"] == kernel.uniforms["K"]
        ),
    ),
    Signature(
        "rotary",
        (
            "packed_qkv",
            "seqlens",
            "cos_cache",
            "sin_cache",
            "total_sequence_length_input",
            "query",
            "present_key",
            "present_value",
            "indirect_buffer",
        ),
        has=(
            "packed_qkv: array<vec4<f",
            "present_key: array<vec4<f",
            "present_value: array<vec4<f",
            "let base_position = 0u;",
            "let idx_j = idx_i + uniforms.half_rotary_dim;",
            "let q_re = q_i * cos_v - q_j * sin_v;",
            "let k_im = k_i * sin_v + k_j * cos_v;",
        ),
        asked=("num_heads", "kv_num_heads", "head_size", "present_sequence_length"),
        weights=("cos_cache", "sin_cache"),
        holds=one_token,
    ),
    Signature(
        "attention_split",
        (
            "q",
            "present_key",
            "present_value",
            "seqlens_k",
            "total_sequence_length_input",
            "indirect_buffer",
            "out_split_vx",
            "metadata",
        ),
        has=("q: array<vec4<f", "return q_element_t(0);", "q_element_t(uniforms.alpha)", "exp(f32(tile_qk"),
        asked=("alpha",),
        lacks=ATTENTION_LACKS,
        holds=one_query,
    ),
    Signature(
        "attention_join",
        ("input", "metadata", "seqlens_k", "output"),
        has=("metadata[meta_base + i].x", "m_value.y * exp(m_value.x - g_max)"),
        asked=(),
        lacks=ATTENTION_LACKS,
        holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
    ),
)
BY_BINDINGS: dict[tuple[str, ...], list[Signature]] = {}
for signature in SIGNATURES:
    BY_BINDINGS.setdefault(signature.bindings, []).append(signature)


FLOATS = re.compile(r"var<storage, \w+> (\w+) ?: array<(?:vec[24]<)?(f16|f32)>")


def element_of(pipeline: Pipeline) -> str | None:
    """'f16' or 'f32', None if the pipeline's arrays are of both or neither; attention's sums are always f32."""
    found = {element for name, element in FLOATS.findall(pipeline.code) if name != "metadata"}
    return found.pop() if len(found) == 1 else None


def recognise(recording: Recording, op: Op, uploaded: Mapping[int, bytes]) -> OrtKernel | None:
    """What a recorded operation is, None if it is not one of SIGNATURES. `uploaded` is `recording.uploaded()`."""
    if not isinstance(op, Dispatch | DispatchIndirect):
        return None
    pipeline = recording.pipelines[op.pipeline]
    bound = sorted(
        (index, binding, buffer, offset)
        for index, group in enumerate(op.groups)
        for binding, buffer, offset, _ in recording.groups[group].entries
    )
    at: dict[str, int] = {}
    uniforms: Mapping[str, Number] = {}
    for index, binding, buffer, offset in bound:
        name = pipeline.names.get((index, binding))
        if name is None or offset:
            # What replaces it binds whole buffers.
            return None
        if pipeline.access[index, binding] == "uniform":
            uniforms = uniform_values(pipeline.code, uploaded.get(buffer, b""))
        else:
            at[name] = buffer
    signatures = BY_BINDINGS.get(tuple(at), ())
    element = element_of(pipeline) if signatures else None
    if element is None:
        return None
    kernel = OrtKernel("", at, uniforms, element)
    for signature in signatures:
        code = pipeline.code
        fits = all(part in code for part in signature.has) and not any(part in code for part in signature.lacks)
        try:
            if fits and set(signature.asked) <= uniforms.keys() and signature.holds(kernel):
                weights = frozenset(at[name] for name in signature.weights)
                return replace(kernel, kind=signature.kind, weights=weights)
        except KeyError:
            # The uniforms have other fields than this kernel's: another version of it.
            continue
    return None
