"""Decode kernels as onnxruntime-web has them, as far as they can be told by their WGSL, and what each computes.

Bindings and uniforms are in the order of theirs. Vectors are numpy arrays of float64, one for each buffer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK_SUMS",
    "KERNELS",
    "MATMUL_SCALARS",
    "SCALE",
    "Kernel",
    "Number",
    "Vector",
    "attend",
    "gated",
    "geluated",
    "normed",
    "pack_uniforms",
    "product",
    "rotated",
]

Vector = NDArray[np.float64]
Number = int | float | tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """WGSL and meaning of a recorded kernel."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    """Bindings in order: what is read, what is written, then the uniforms."""
    fields: tuple[tuple[str, str], ...]
    """Uniforms: name and WGSL type."""
    lines: tuple[str, ...]
    """The lines of its body that make it this operation."""
    compute: Callable[[Mapping[str, Vector], Mapping[str, Any]], None]
    vectors: bool = True
    """Whether it binds arrays of vec4<f32>; else of f32."""

    @property
    def bindings(self) -> tuple[tuple[str, str], ...]:
        """Name and access."""
        named = [(name, "read") for name in self.reads] + [(name, "read_write") for name in self.writes]
        return (*named, ("uniforms", "uniform")) if self.fields else tuple(named)

    @property
    def code(self) -> str:
        element = "vec4<f32>" if self.vectors else "f32"
        declared = [
            f"@group(0) @binding({i}) var<storage, {access}> {name}: array<{element}>;"
            for i, (name, access) in enumerate(self.bindings)
            if access != "uniform"
        ]
        if self.fields:
            inside = ",\n".join(f"  {name}: {kind}" for name, kind in self.fields)
            declared.append(f"struct Uniforms {{\n{inside}\n}};")
            declared.append(f"@group(0) @binding({len(self.bindings) - 1}) var<uniform> uniforms: Uniforms;")
        return "\n".join([*declared, "fn main() {", *(f"  {line}" for line in self.lines), "}"])

    def without(self, line: str) -> Kernel:
        return replace(self, lines=tuple(other for other in self.lines if other != line))

    def with_line(self, line: str) -> Kernel:
        return replace(self, lines=(*self.lines, line))


def pack_uniforms(fields: Sequence[tuple[str, str]], values: Mapping[str, Number]) -> bytes:
    """As WGSL lays out a struct: scalars at multiples of 4, vec2 of 8, vec3 and vec4 of 16; the whole of 16."""
    assert {name for name, _ in fields} == set(values)
    data = b""
    for name, kind in fields:
        value = values[name]
        items = value if isinstance(value, tuple) else (value,)
        size = int(kind[3]) if kind.startswith("vec") else 1
        assert len(items) == size, name
        data += bytes(-len(data) % {1: 4, 2: 8, 3: 16, 4: 16}[size])
        data += struct.pack(f"<{size}{'f' if kind == 'f32' else 'I'}", *items)
    return data + bytes(-len(data) % 16)


def product(
    weights: Vector, scales: Vector, x: Vector, n: int, k: int, block: int, zeros: Vector | None = None, odd: int = 0
) -> Vector:
    """W x, with a scale for each block of a row, and a zero point if there are `zeros`: a row has `odd` unused ones."""
    blocks = k // block
    values = weights[: n * k].reshape(n, k)
    if zeros is not None:
        rows = zeros[: n * (blocks + odd)].reshape(n, blocks + odd)
        values = values - np.repeat(rows[:, :blocks], block, axis=1)
    return np.asarray((values * np.repeat(scales[: n * blocks].reshape(n, blocks), block, axis=1)) @ x[:k])


def normed(x: Vector, gamma: Vector, epsilon: float) -> Vector:
    return np.asarray(x / np.sqrt(np.mean(x * x) + epsilon) * gamma[: x.size])


def gated(gate: Vector, up: Vector, gelu: bool = False, erf: bool = False) -> Vector:
    return np.asarray((geluated(gate, erf) if gelu else gate / (1 + np.exp(-gate))) * up)


def rotated(x: Vector, cos: Vector, sin: Vector, position: int, rotary: int = 0, interleaved: bool = False) -> Vector:
    """x [heads, head] with the first `rotary` elements of each head (0 for all) rotated, neighbours or halves."""
    half = (rotary or x.shape[1]) // 2
    c, s = (cache[position * half : (position + 1) * half] for cache in (cos, sin))
    turned = x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    turned[:, first] = x[:, first] * c - x[:, second] * s
    turned[:, second] = x[:, second] * c + x[:, first] * s
    return turned


def attend(
    q: Vector, keys: Vector, values: Vector, length: int, scale: float, window: int = 0
) -> tuple[Vector, Vector, Vector]:
    """(sums of weighted values [heads, head], sums of weights [heads], largest scores [heads])

    of q [heads, head] over the first `length` positions of the caches [kv heads, capacity, head], the last `window` of
    them if there is one.
    """
    repeats = q.shape[0] // keys.shape[0]
    seen = slice(max(0, length - window) if window else 0, length)
    scores = np.einsum("hd,htd->ht", q, np.repeat(keys, repeats, axis=0)[:, seen]) * scale
    largest = scores.max(axis=1)
    weights = np.exp(scores - largest[:, None])
    return (
        np.einsum("ht,htd->hd", weights, np.repeat(values, repeats, axis=0)[:, seen]),
        weights.sum(axis=1),
        largest,
    )


def put(target: Vector, value: Vector) -> None:
    flat = value.reshape(-1)
    assert flat.size <= target.size, "the buffer is too small"
    target[: flat.size] = flat


def matmul(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    sizes = (u["N"], u["K"], u["block_size"])
    odd = u.get("zero_blocks_per_col", 0) - u["K"] // u["block_size"]
    put(at["output"], product(at["input_b"], at["scales_b"], at["input_a"], *sizes, at.get("zero_points"), odd))


def to_int8(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    """Without rounding, so that steps can be compared; all elements by one scale."""
    put(at["output"], at["input_a"][: 4 * u["output_size"]] / 2)
    at["scales"][:] = 2


def matvec_int8(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    matmul({**at, "input_a": at["input_a"] * at["scales_a"][0]}, u)


def dense(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    k, n = u["dim_inner"], u["dim_b_outer"]
    put(at["output"], at["a"][:k] @ at["b"][: k * n].reshape(k, n))


def block_sums(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    rows = min(at["output"].size, at["_A"].size // u["reduceSize"])
    put(at["output"], at["_A"][: rows * u["reduceSize"]].reshape(rows, -1).sum(axis=1))


def concat(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["output"], np.concatenate([at[f"input_{i}"][: u[f"input_{i}_shape"][2]] for i in range(2)]))


def multiply(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    count = u["element_count"]
    put(at["output"], at["input_a"][:count] * at["input_b"][:count])


def silu(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    x = at["x"][: 4 * u["vec_size"]]
    put(at["y"], x / (1 + np.exp(-u["attr"] * x)))


def gelu(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    x = at["x"][: 4 * u["vec_size"]]
    put(at["y"], geluated(x))


def gelu_by_erf(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["y"], geluated(at["x"][: 4 * u["vec_size"]], erf=True))


def geluated(x: Vector, erf: bool = False) -> Vector:
    if erf:
        return np.asarray(x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2)
    return x * (0.5 + 0.5 * np.tanh(x * (0.035677408136300125 * x * x + 0.7978845608028654)))


def add(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    count = u["element_count"]
    put(at["output"], at["input_a"][:count] + at["input_b"][:count])


def norm(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    rows = at["x"][: u["norm_count"] * u["norm_size"]].reshape(u["norm_count"], -1)
    put(at["y"], np.stack([normed(row, at["scale"], u["epsilon"]) for row in rows]))


def qkv_split(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    q, k, v = (4 * size for size in u["segment_sizes"])
    for name, part in zip(at, (None, *np.split(at["input"][: q + k + v], [q, q + k])), strict=True):
        if part is not None:
            put(at[name], part)


def rotary_apart(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    head, position = u["head_size"], int(at["seqlens"][0])
    for name in ("q", "k"):
        heads = u[f"{name}_global_shape"][2]
        rows = at[f"{name}_input"][: heads * head].reshape(heads, head)
        if f"{name}_norm_weight" in at:
            rows = np.stack([normed(row, at[f"{name}_norm_weight"], u["qk_norm_epsilon"]) for row in rows])
        rotary = 2 * u["cos_cache_shape"][1]
        put(at[f"{name}_output"], rotated(rows, at["cos_cache"], at["sin_cache"], position, rotary))


def rotary_query(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    heads, head = u["global_shape"][2], 2 * u["global_shape"][3]
    rows = at["input"][: heads * head].reshape(heads, head)
    put(at["output"], rotated(rows, at["cos_cache"], at["sin_cache"], int(at["seqlens"][0])))


def cache_write(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    _, kv, capacity, quads = u["present_key_shape"]
    head, position = 4 * quads, int(at["seqlen_k"][0])
    assert position + 1 == at["total_sequence_length_input"][0]
    for name, rows in (("present_key", at["key"]), ("present_value", at["value"])):
        cache = at[name][: kv * capacity * head].reshape(kv, capacity, head)
        cache[:, position] = rows[: kv * head].reshape(kv, head)
    put(at["indirect_buffer"], np.array([1.0 + position // 64, u["num_heads"], 1.0]))


def skip_norm(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    size = u["hidden_size"]
    total = at["x"][:size] + at["skip"][:size]
    put(at["output"], normed(total, at["gamma"], u["epsilon"]))
    if "input_skip_bias_sum" in at:
        put(at["input_skip_bias_sum"], total)


def gated_mlp(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    n, k, block = u["N"], u["K"], u["block_size"]
    total = at["input_a"][:k] + (at["skip"][:k] if "skip" in at else 0.0)
    x = normed(total, at["norm_scale"], u["epsilon"])
    gate = product(at["gate_b"], at["gate_scales_b"], x, n, k, block)
    put(at["output"], gated(gate, product(at["up_b"], at["up_scales_b"], x, n, k, block)))
    if "skip" in at:
        put(at["input_skip_bias_sum"], total)


def rotary(at: Mapping[str, Vector], u: Mapping[str, Any], interleaved: bool = False) -> None:
    unit = 1 if interleaved else 4
    heads, kv, head, capacity = u["num_heads"], u["kv_num_heads"], unit * u["head_size"], u["present_sequence_length"]
    how = (2 * unit * u["half_rotary_dim"], interleaved)
    position = int(at["seqlens"][0])
    assert position + 1 == at["total_sequence_length_input"][0]
    q, k, v = np.split(at["packed_qkv"][: (heads + 2 * kv) * head].reshape(-1, head), [heads, heads + kv])
    put(at["query"], rotated(q, at["cos_cache"], at["sin_cache"], position, *how))
    for name, rows in (
        ("present_key", rotated(k, at["cos_cache"], at["sin_cache"], position, *how)),
        ("present_value", v),
    ):
        at[name][: kv * capacity * head].reshape(kv, capacity, head)[:, position] = rows
    put(at["indirect_buffer"], np.array([1.0 + position // 64, heads, 1.0]))


def attention_split(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    heads, kv, head = u["num_heads"], u["num_heads"] // u["n_reps"], 4 * u["head_size_vec"]
    length, capacity = int(at["seqlens_k"][0]) + 1, u["present_sequence_length"]
    assert at["indirect_buffer"][0] == 1 + (length - 1) // 64
    keys, values = (
        at[name][: kv * capacity * head].reshape(kv, capacity, head) for name in ("present_key", "present_value")
    )
    # Only an eager run knows of a window.
    sum_of_values, sums, largest = attend(
        at["q"][: heads * head].reshape(heads, head), keys, values, length, u["alpha"], u.get("eager window", 0)
    )
    put(at["out_split_vx"], sum_of_values)
    put(at["metadata"], np.stack([largest, sums], axis=1))


def attention_join(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    heads, head = u["num_heads"], 4 * u["head_size_vec"]
    largest, sums = np.split(at["metadata"][: 2 * heads].reshape(heads, 2), 2, axis=1)
    if "head_sink" in at:
        sums = sums + np.exp(at["head_sink"][:heads, None] - largest)
    put(at["output"], at["input"][: heads * head].reshape(heads, head) / sums)


def convolution(at: Mapping[str, Vector], u: Mapping[str, Any], silu: bool = False) -> None:
    channels, held = u["channels"], u["state_length"]
    past = at["conv_state"][: channels * held].reshape(channels, held)
    inputs = np.concatenate([past, at["input"][:channels, None]], axis=1)
    y = (inputs * at["weight"][: inputs.size].reshape(inputs.shape)).sum(axis=1)
    y = y + at["bias"][:channels] if "bias" in at else y
    put(at["output"], gated(y, np.ones(channels)) if silu else y)
    put(at["present_state"], inputs[:, 1:])


def recurrence(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    heads, groups, key, value = u["num_heads"], u["q_num_heads"], u["head_dim_k"], 4 * u["head_dim_v"]
    q, k = (np.repeat(at[name][: groups * key].reshape(groups, key), heads // groups, 0) for name in ("query", "key"))
    state = at["initial_state"][: heads * key * value].reshape(heads, key, value)
    state = state * np.exp(at["decay"][:heads, None, None])
    learned = at["value"][: heads * value].reshape(heads, value) - np.einsum("hkv,hk->hv", state, k)
    state = state + k[..., None] * (at["beta"][:heads, None] * learned)[:, None]
    put(at["output"], np.einsum("hkv,hk->hv", state, q) * u["scale"])
    put(at["present_state"], state)


def three_products(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    for name, n in (("q", u["Nq"]), ("k", u["Nkv"]), ("v", u["Nkv"])):
        sizes = (n, u["K"], u["block_size"])
        put(at[f"{name}_output"], product(at[f"{name}_b"], at[f"{name}_scales_b"], at["input_a"], *sizes))


def turned_vector(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["output"], at["a"][: u["output_size"]])


def sigmoid(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["y"], 1 / (1 + np.exp(-at["x"][: 4 * u["vec_size"]])))


def softplus(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["y"], np.logaddexp(0, at["x"][: 4 * u["vec_size"]]))


def scale(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["output"], at["input_a"][: u["element_count"]] * at["input_b"][0])


def split_heads(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    first, second = (4 * size for size in u["segment_sizes"])
    rows = at["input"][: 4 * u["input_size"]].reshape(-1, first + second)
    put(at["output_0"], rows[:, :first])
    put(at["output_1"], rows[:, first:])


MATMUL_FIELDS = tuple((name, "u32") for name in ("M", "N", "K", "block_size", "batch_count", "dispatch_M"))
NORM_LINES = ("let inv_std_dev = inverseSqrt(mean_square / f32(size) + uniforms.epsilon);",)
SKIP_NORM = Kernel(
    ("x", "skip", "gamma"),
    ("output", "input_skip_bias_sum"),
    (("components", "u32"), ("hidden_size", "u32"), ("epsilon", "f32"), ("skip_size", "u32")),
    (
        *NORM_LINES,
        "let size = uniforms.hidden_size;",
        "let value = input_value + skip_value;",
        "output[i] = value * x_element_t(inv_std_dev) * gamma[i];",
    ),
    skip_norm,
)
MATMUL_SCALARS = Kernel(
    ("a", "b"),
    ("output",),
    tuple((name, "u32") for name in ("dim_b_outer", "dim_inner")),
    ("value = get_a_by_indices(a_indices);",),
    dense,
    vectors=False,
)
"""A product by a dense matrix that is told by its buffers alone."""
BLOCK_SUMS = Kernel(
    ("_A",),
    ("output",),
    (("reduceSize", "u32"),),
    ("bestValue = bestValue + candidate;",),
    block_sums,
    vectors=False,
)
ROTARY = Kernel(
    ("packed_qkv", "seqlens", "cos_cache", "sin_cache", "total_sequence_length_input"),
    ("query", "present_key", "present_value", "indirect_buffer"),
    (
        ("query_shape", "vec3<u32>"),
        ("present_key_shape", "vec4<u32>"),
        *(
            (name, "u32")
            for name in (
                "sequence_length",
                "num_heads",
                "kv_num_heads",
                "head_size",
                "half_rotary_dim",
                "present_sequence_length",
                "batch_size",
            )
        ),
    ),
    (
        "let base_position = 0u;",
        "let idx_i = in_head_idx;",
        "let idx_j = idx_i + uniforms.half_rotary_dim;",
        "let actual_idx = uniforms.half_rotary_dim + in_head_idx;",
        "let q_re = q_i * cos_v - q_j * sin_v;",
        "let k_im = k_i * sin_v + k_j * cos_v;",
    ),
    rotary,
)
INTERLEAVED_LINES = {
    "let idx_i = in_head_idx;": "let idx_i = in_head_idx + in_head_idx;",
    "let idx_j = idx_i + uniforms.half_rotary_dim;": "let idx_j = idx_i + 1u;",
}
ROTARY_APART = Kernel(
    ("q_input", "k_input", "seqlens", "cos_cache", "sin_cache"),
    ("q_output", "k_output"),
    (
        ("cos_cache_shape", "vec2<u32>"),
        ("q_global_shape", "vec4<u32>"),
        ("k_global_shape", "vec4<u32>"),
        ("head_size", "u32"),
        ("qk_norm_epsilon", "f32"),
    ),
    (
        "let past_seqlen = select(total_seqlen - uniforms.q_global_shape[1], 0u, "
        "total_seqlen <= uniforms.q_global_shape[1]);",
        "let qj = qi + select(half_rotary_dim, 1u, false);",
        "let kj = ki + select(half_rotary_dim, 1u, false);",
        "let q_at_qi = q_input[qi];",
        "let k_at_kj = k_input[kj];",
        "let q_re = q_at_qi * cos_v - q_at_qj * sin_v;",
        "let k_im = k_at_ki * sin_v + k_at_kj * cos_v;",
    ),
    rotary_apart,
    vectors=False,
)
MATMUL = Kernel(
    ("input_a", "input_b", "scales_b"),
    ("output",),
    MATMUL_FIELDS,
    (
        "const default_zero_point = 8;",
        "const bit_mask = 0xFu;",
        "const b_base_offset : u32 = 0;",
        "const b_scale_offset : u32 = 0;",
        "output[output_idx]=output_value;",
    ),
    matmul,
)
BYTES = ("const default_zero_point = 128;", "const bit_mask = 0xFFu;", *MATMUL.lines[2:])
ZEROS = (
    "let offset = row * c_dim + col;",
    "let packed_value = zero_points[array_index];",
    "let masked_value = (packed_value >> shift_amount) & bit_mask;",
    "let zero = mm_read_zero(b_global, block_idx, uniforms.N, uniforms.zero_blocks_per_col);",
)
MATMUL_ZEROS = replace(
    MATMUL,
    reads=(*MATMUL.reads, "zero_points"),
    fields=(*MATMUL_FIELDS, ("zero_blocks_per_col", "u32")),
    lines=(*MATMUL.lines, *ZEROS),
)
TO_INT8 = Kernel(
    ("input_a",),
    ("output", "scales"),
    (("output_size", "u32"),),
    (
        "let max_val = subgroupMax(abs(local_a));",
        "let norm_a = local_a/scale;",
        "output[global_idx]=pack4x8snorm(vec4<f32>(norm_a));",
        "scales[workgroup_idx * 2 + local_idx / 32]=scale/127;",
    ),
    to_int8,
)
MATVEC_INT8 = Kernel(
    ("input_a", "scales_a", "input_b", "scales_b"),
    ("output",),
    MATMUL_FIELDS,
    (
        "const default_zero_point = 8;",
        "const bit_mask = 0xFu;",
        "local_sum += dot4I8Packed(a2[3], b2[3]);",
        "inter_results[row_offset + local_row][local_col] += SDP8AI(own_a, own_b, own_a1, own_b1, "
        "own_scale_a * own_scale_b);",
        "output[output_idx]=output_value;",
    ),
    matvec_int8,
)
ATTENTION_JOIN = Kernel(
    ("input", "metadata", "seqlens_k"),
    ("output",),
    tuple((name, "u32") for name in ("head_size_vec", "new_sequence_length", "num_heads")),
    (
        "let g = metadata[meta_base + i].x;",
        "sum += m_value.y * exp(m_value.x - g_max);",
    ),
    attention_join,
)
GATED_MLP = Kernel(
    ("input_a", "skip", "norm_scale", "gate_b", "gate_scales_b", "up_b", "up_scales_b"),
    ("output", "input_skip_bias_sum"),
    (
        *((name, "u32") for name in ("N", "K", "block_size", "batch_count", "skip_size")),
        ("epsilon", "f32"),
    ),
    (
        *NORM_LINES,
        "const default_zero_point = output_element_t(8);",
        "let low = word & 0x0F0F0F0Fu;",
        "let activated_value = gate_output_value * (one / (one + exp(-gate_output_value)));",
        "output[n] = activated_value * up_output_value;",
    ),
    gated_mlp,
)
SCALE = Kernel(
    ("input_a", "input_b"),
    ("output",),
    (("element_count", "u32"),),
    (
        "let a = input_a[global_idx];",
        "let b = input_b_value_t(input_b[0].x);",
        "output[global_idx]=a * b;",
    ),
    scale,
)
"""A product by a vector of one element."""
CONVOLUTION = Kernel(
    ("input", "weight", "conv_state"),
    ("output", "present_state"),
    tuple(
        (name, "u32") for name in ("batch_size", "channels", "input_length", "kernel_size", "dilation", "state_length")
    ),
    (
        "let state_base = (batch_idx * channels + channel_idx) * state_length;",
        "let weight_base = channel_idx * kernel_size;",
        "let virtual_pos = pos + j * dilation;",
        "acc = acc + val * w;",
        "present_state[state_base + s * state_pos_stride] = state_val;",
    ),
    convolution,
    vectors=False,
)
BIASED_CONVOLUTION = replace(
    CONVOLUTION,
    reads=("input", "weight", "bias", "conv_state"),
    lines=(*CONVOLUTION.lines, "acc = acc + bias[channel_idx];"),
)
SILU_LINES = (
    "fn silu(x: input_element_t) -> input_element_t {\n  return x / (1.0 + exp(-x));\n}",
    "acc = silu(acc);",
)
THREE_WEIGHTS = ("q_b", "q_scales_b", "k_b", "k_scales_b", "v_b", "v_scales_b")

KERNELS: Mapping[str, Kernel] = {
    "matmul_nbits": MATMUL,
    "matmul_nbits_zeros": MATMUL_ZEROS,
    "matmul_nbits_bytes": replace(MATMUL, lines=BYTES),
    "matmul_nbits_bytes_zeros": replace(MATMUL_ZEROS, lines=(*BYTES, *ZEROS)),
    "to_int8": TO_INT8,
    "matvec_int8_4": MATVEC_INT8,
    "matvec_int8_4_zeros": replace(
        MATVEC_INT8,
        reads=(*MATVEC_INT8.reads, "zero_points"),
        fields=(*MATMUL_FIELDS, ("zero_blocks_per_col", "u32")),
        lines=(*MATVEC_INT8.lines, *ZEROS),
    ),
    "matvec_int8_8": replace(MATVEC_INT8, lines=(*BYTES[:2], *MATVEC_INT8.lines[2:])),
    "matmul": Kernel(
        ("a", "b"),
        ("output",),
        (
            ("a_shape", "vec3<u32>"),
            ("b_shape", "vec2<u32>"),
            ("output_shape", "vec3<u32>"),
            *((name, "u32") for name in ("dim_a_outer", "dim_b_outer", "dim_inner")),
        ),
        (
            "return a[i2o_a(indices_fnarg)];",
            "return b[i2o_b(indices_fnarg)];",
            "output[i2o_output(indices)]=value;",
            "a_indices[1]=u32(row);\na_indices[2]=u32(colIn);\n        value = get_a_by_indices(a_indices);\n    }",
            "b_indices[0]=u32(row);\nb_indices[1]=u32(colIn);\n        value = get_b_by_indices(b_indices);\n    }",
            "var value = valueIn;\n    let coords = vec3(u32(batch), u32(row), u32(colIn));\n    \n"
            "    set_output_by_indices(coords, value);",
            "var kStart = 0;",
            "acc[i] = BCached0 * ACached.x + acc[i];",
            "acc[i] = BCached3 * ACached.w + acc[i];",
            "mm_write(batch, globalRow + innerRow, globalCol, acc[innerRow]);",
        ),
        dense,
    ),
    "multiply": Kernel(
        ("input_a", "input_b"),
        ("output",),
        (("vec_size", "u32"), ("element_count", "u32")),
        ("output[global_idx]=a * b;",),
        multiply,
    ),
    "silu": Kernel(
        ("x",),
        ("y",),
        (("vec_size", "u32"), ("attr", "f32")),
        (
            "let v = a * alpha_vec;",
            "x1[i] = one / (one + exp(-v[i]));",
            "x1[i] = one - one / (one + exp(v[i]));",
            "return a * x1;",
            "y[global_idx]=quick_gelu_v(a);",
        ),
        silu,
    ),
    "gelu": Kernel(
        ("x",),
        ("y",),
        (("vec_size", "u32"),),
        (
            "let expr = exp(-2 * abs(a));",
            "return sign(a) * (1 - expr) / (1 + expr);",
            "y[global_idx]=a * (0.5 + 0.5 * tanh_v(a * (0.035677408136300125 * a * a + 0.7978845608028654)));",
        ),
        gelu,
    ),
    "gelu_erf": Kernel(
        ("x",),
        ("y",),
        (("vec_size", "u32"),),
        (
            *("const r0 = 0.3275911;", "const r1 = 0.254829592;", "const r2 = -0.284496736;"),
            *("const r3 = 1.421413741;", "const r4 = -1.453152027;", "const r5 = 1.061405429;"),
            "let x = 1.0 / (1.0 + r0 * absv);",
            "return sign(v) * (1.0 - ((((r5 * x + r4) * x + r3) * x + r2) * x + r1) * x * exp(-absv * absv));",
            "y[global_idx]=0.5 * a * (1.0 + erf_v(a * 0.7071067811865475));",
        ),
        gelu_by_erf,
    ),
    "concat": Kernel(
        ("input_0", "input_1"),
        ("output",),
        (("input_0_shape", "vec3<u32>"), ("input_1_shape", "vec3<u32>"), ("output_size", "u32")),
        (
            "output_indices[2] += uniforms.sizes_in_concat_axis[0];",
            "set_output_by_indices(output_indices, input_1[global_idx - uniforms.offsets[input_index]]);",
        ),
        concat,
        vectors=False,
    ),
    "add": Kernel(
        ("input_a", "input_b"),
        ("output",),
        (
            ("bcast_indices_shape", "vec3<u32>"),
            ("bcast_indices_stride", "vec2<u32>"),
            ("a_indices_shape", "vec3<u32>"),
            ("b_indices_shape", "u32"),
            ("element_count", "u32"),
        ),
        ("output[global_idx]=a + b;",),
        add,
    ),
    "norm": Kernel(
        ("x", "scale"),
        ("y",),
        (("components", "u32"), ("norm_count", "u32"), ("norm_size", "u32"), ("epsilon", "f32")),
        (*NORM_LINES, "let size = uniforms.norm_size;", "y[i] = x[i] * x_element_t(inv_std_dev) * scale[i];"),
        norm,
    ),
    "skip_norm": SKIP_NORM,
    "skip_norm_alone": replace(SKIP_NORM, writes=("output",)),
    "gated_mlp": GATED_MLP,
    "gated_mlp_alone": replace(
        GATED_MLP, reads=tuple(name for name in GATED_MLP.reads if name != "skip"), writes=("output",)
    ),
    "rotary": ROTARY,
    "rotary_interleaved": replace(
        ROTARY,
        lines=tuple(INTERLEAVED_LINES.get(line, line) for line in ROTARY.lines),
        compute=partial(rotary, interleaved=True),
        vectors=False,
    ),
    "qkv_split": Kernel(
        ("input",),
        ("output_0", "output_1", "output_2"),
        (("input_size", "u32"), ("total_segment_elements", "u32"), ("segment_sizes", "vec3<u32>")),
        (
            "let segment_size = uniforms.segment_sizes[2];",
            "output_2[outer_index * segment_size + within_outer - segment_start]=input[global_idx];",
        ),
        qkv_split,
    ),
    "rotary_apart": ROTARY_APART,
    "rotary_normed": replace(
        ROTARY_APART,
        reads=(*ROTARY_APART.reads, "q_norm_weight", "k_norm_weight"),
        lines=(
            *(line for line in ROTARY_APART.lines if "_input[" not in line),
            *(
                f"let inv = inverseSqrt({x}_sumsq / f32(uniforms.head_size) + uniforms.qk_norm_epsilon);"
                for x in ("q", "k")
            ),
            "let q_at_qi = (q_input[qi] * q_inv_rms * q_norm_weight[bsnh[3]]);",
            "let k_at_kj = (k_input[kj] * k_inv_rms * k_norm_weight[(bsnh[3] + half_rotary_dim)]);",
        ),
    ),
    "rotary_query": Kernel(
        ("input", "seqlens", "cos_cache", "sin_cache"),
        ("output",),
        (
            ("cos_cache_shape", "vec2<u32>"),
            ("global_shape", "vec4<u32>"),
            ("input_output_stride", "vec4<u32>"),
        ),
        (
            "let total_seqlen = seqlen + 1u;",
            "let past_seqlen = select(total_seqlen - uniforms.global_shape[1], 0u, "
            "total_seqlen <= uniforms.global_shape[1]);",
            "let j = i + select(half_rotary_emb_dim, 1u, false);",
            *(
                f"let {part} = input[i] * get_{by}_cache_by_indices(vec2<u32>(position_id, bsnh[3])) {sign} "
                f"input[j] * get_{other}_cache_by_indices(vec2<u32>(position_id, bsnh[3]));"
                for part, by, sign, other in (("re", "cos", "-", "sin"), ("im", "sin", "+", "cos"))
            ),
        ),
        rotary_query,
        vectors=False,
    ),
    "cache_write": Kernel(
        ("key", "value", "seqlen_k", "total_sequence_length_input"),
        ("present_key", "present_value", "indirect_buffer"),
        (
            ("key_shape", "vec4<u32>"),
            ("present_key_shape", "vec4<u32>"),
            *((name, "u32") for name in ("kv_sequence_length", "num_heads", "batch_size")),
        ),
        (
            "let present_offset = i2o_present_key("
            "present_key_indices_t(batch, num_head_id, past_sequence_length + sequence_id, head_size_id));",
            "present_key[present_offset]=key[offset];;",
            "present_value[present_offset]=value[offset];;",
        ),
        cache_write,
    ),
    "attention_split": Kernel(
        ("q", "present_key", "present_value", "seqlens_k", "total_sequence_length_input", "indirect_buffer"),
        ("out_split_vx", "metadata"),
        (
            ("head_size_vec", "u32"),
            ("alpha", "f32"),
            *(
                (name, "u32")
                for name in (
                    "present_sequence_length",
                    "n_reps",
                    "num_heads",
                    "batch_size",
                    "attn_bias_dim0",
                    "attn_bias_dim1",
                    "new_sequence_length",
                )
            ),
        ),
        (
            "return q_element_t(0);",
            "let score = sum * q_element_t(uniforms.alpha);",
            "let weight = exp(f32(tile_qk[i]) - largest);",
        ),
        attention_split,
    ),
    "attention_join": ATTENTION_JOIN,
    "attention_join_sinks": replace(
        ATTENTION_JOIN,
        reads=(*ATTENTION_JOIN.reads, "head_sink"),
        lines=(
            *ATTENTION_JOIN.lines,
            "let sink_value = f32(head_sink[head_idx_for_sink]);",
            "g_max = max(g_max, sink_value);",
            "g_sum += exp(sink_value - g_max);",
        ),
    ),
    "convolution": CONVOLUTION,
    "convolution_biased": BIASED_CONVOLUTION,
    "convolution_silu": replace(
        CONVOLUTION, lines=(*CONVOLUTION.lines, *SILU_LINES), compute=partial(convolution, silu=True)
    ),
    "convolution_silu_biased": replace(
        BIASED_CONVOLUTION, lines=(*BIASED_CONVOLUTION.lines, *SILU_LINES), compute=partial(convolution, silu=True)
    ),
    "recurrence": Kernel(
        ("query", "key", "value", "initial_state", "decay", "beta"),
        ("output", "present_state"),
        (
            *((name, "u32") for name in ("batch_size", "num_heads", "seq_length", "head_dim_k", "head_dim_v")),
            ("scale", "f32"),
            *((name, "u32") for name in ("heads_per_group", "kv_per_k_head", "q_num_heads", "n_k_heads")),
        ),
        (
            "let exp_g = exp(f32(decay[bt_offset * uniforms.num_heads + head_idx]));",
            "state[j] *= exp_g;",
            "let delta_j = beta_val * (v_val - retrieved);",
            "output[bt_offset * packed_dv_out + out_head_0 * uniforms.head_dim_v + dv_start + j] = "
            "otype((pre_out + delta_j * kq_dot) * uniforms.scale);",
            "state[j] += k_val * broadcast_buf[j];",
        ),
        recurrence,
    ),
    "turned_vector": Kernel(
        ("a",),
        ("output",),
        (("a_shape", "vec3<u32>"), ("output_size", "u32")),
        ("fn perm(i: output_indices_t)->a_indices_t {", "output[global_idx]=get_a_by_indices(x_indices);"),
        turned_vector,
        vectors=False,
    ),
    "sigmoid": Kernel(
        ("x",),
        ("y",),
        (("vec_size", "u32"),),
        ("let a = x[global_idx];", "y[global_idx]=1.0 / (1.0 + exp(-a));"),
        sigmoid,
    ),
    "softplus": Kernel(
        ("x",),
        ("y",),
        (("vec_size", "u32"),),
        (
            "y[global_idx]=select(select(log(1.0 + exp(a)), a + log(1.0 + exp(-a)), a > x_value_t(0)),a,"
            "a > x_value_t(x_element_t(uniforms.attr)));",
        ),
        softplus,
    ),
    "split_heads": Kernel(
        ("input",),
        ("output_0", "output_1"),
        (("input_size", "u32"), ("segment_sizes", "vec2<u32>")),
        (
            "let segment_size = uniforms.segment_sizes[1];",
            "output_1[outer_index * segment_size + within_outer - segment_start]=input[global_idx];",
        ),
        split_heads,
    ),
    "three_products": Kernel(
        ("input_a", *THREE_WEIGHTS),
        ("q_output", "k_output", "v_output"),
        tuple((name, "u32") for name in ("Nq", "Nkv", "K", "block_size", "batch_count", "skip_size")),
        (
            "const default_zero_point = vec4<q_output_element_t>(q_output_element_t(8));",
            "let weight_upper = unpack_nibble_values((weight[i] >> 4) & 0x0F0F0F0Fu) - default_zero_point;",
            "let inv_std = 1.0;",
            "q_output[batch * uniforms.Nq + b_global]=q_output_value_t(q_output_value);;",
            "v_output[batch * uniforms.Nkv + b_global]=v_output_value_t(v_output_value);;",
        ),
        three_products,
    ),
}
