"""Lists the signatures of onnxruntime-web's attention kernels for one token: split, norms, rotary embedding, cache
write and attention.
"""

from __future__ import annotations

from functools import partial

from ..ort_kernels import OrtKernel, Signature
from ..uniforms import Number
from .attention_plan import unfit_heads
from .norm import NORM_LACKS

__all__ = [
    "ATTENTION_LACKS",
    "HEAD_NORMS",
    "JOINS",
    "JOIN_LINES",
    "QUANTIZED",
    "SIGNATURES",
    "SPLIT_LINES",
    "one_query",
    "vector",
]

SPLIT_LINES = ("q: array<vec4<f", "return q_element_t(0);", "q_element_t(uniforms.alpha)", "exp(f32(tile_qk")
QUANTIZED = "KV_CACHE_QUANT_BITS"
"""A name in attention over quantized caches, of 8 or 4 bits."""
SPLIT = ("q", "present_key", "present_value", "seqlens_k", "total_sequence_length_input", "indirect_buffer")
CACHE_WRITE = (
    *("key", "value", "seqlen_k", "total_sequence_length_input"),
    *("present_key", "present_value", "indirect_buffer"),
)
IN_8_BITS = (
    "let quant_scale = scale_reduction_buffer[0] / 127.0f;",
    "let quantized = i32(clamp(round(block_values[i] * inv_scale), -127.0f, 127.0f));",
    "quantized_values[i] = u32(quantized + 128);",
    "present_key[present_base + 1u + word]=packed;",
    "present_value[present_base + 1u + word]=packed;",
    "let dest_seq = past_seq_length + seq;",
)
"""Lines of the kernels that write caches of 8 bits."""
IN_4_BITS = (
    "hadamard_buffer[i] = a + b;",
    "hadamard_buffer[j] = a - b;",
    "let wht_norm = 1.0f / sqrt(f32(HEAD_SIZE));",
    "-0.2093, -0.1614, -0.1261, -0.0966, -0.0704, -0.0460, -0.0227,",
    "u32(x > TQ_BOUNDARIES[14]);",
    "let quant_scale = sqrt(scale_reduction_buffer[0]);",
    "index_buffer[i] = snap_to_centroid_index(unit_val);",
    "((index_buffer[base_elem + 1u] & 0xFu) << 4u)",
    "present_key[present_base + 1u + w]=packed;",
    "present_value[present_base + 1u + w]=packed;",
    "let dest_seq = past_seq_length + seq;",
)
"""Lines of the kernels that write caches of 4 bits."""
JOINS = ("attention_join", "attention_join_sinks")
ATTENTION_LACKS = ("softcap", "head_sink", "local_window", "attn_bias[", "attention_bias[")
HEAD_NORMS = ("head_norm", "norm")
"""The kinds of norms over several heads, and over one."""


def one_token(kernel: OrtKernel) -> bool:
    within_head = 0 < 2 * kernel.number("half_rotary_dim") <= kernel.number("head_size")
    return within_head and kernel.uniforms["sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1


def one_query(kernel: OrtKernel) -> bool:
    biased = any(kernel.uniforms[f"attn_bias_dim{axis}"] not in (0, 1) for axis in (0, 1))
    return kernel.uniforms["new_sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1 and not biased


def vector(value: Number) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def rotates_heads(kernel: OrtKernel) -> bool:
    """Whether the kernel rotates queries and keys of one token: the first elements of a head, each with its partner in
    the other half of these.
    """
    query, key = vector(kernel.uniforms["q_global_shape"]), vector(kernel.uniforms["k_global_shape"])
    half, head = vector(kernel.uniforms["cos_cache_shape"])[1], kernel.number("head_size")
    return query[:2] == key[:2] == (1, 1) and query[3] == key[3] == head - half and 2 * half <= head


def writes_one_token(kernel: OrtKernel) -> bool:
    shape = vector(kernel.uniforms["key_shape"])
    return shape[:2] == (1, 1) and kernel.number("kv_sequence_length") == 1 and kernel.number("batch_size") == 1


APART = ("q_input", "k_input", "seqlens", "cos_cache", "sin_cache")
APART_LINES = (
    "let qj = qi + select(half_rotary_dim, 1u, false);",
    "let kj = ki + select(half_rotary_dim, 1u, false);",
    "let q_re = q_at_qi * cos_v - q_at_qj * sin_v;",
    "let k_im = k_at_ki * sin_v + k_at_kj * cos_v;",
    "select(total_seqlen - uniforms.q_global_shape[1], 0u, total_seqlen <= uniforms.q_global_shape[1])",
)


QUERY_LINES = (
    "let total_seqlen = seqlen + 1u;",
    "let past_seqlen = select(total_seqlen - uniforms.global_shape[1], 0u, total_seqlen <= uniforms.global_shape[1]);",
    "let j = i + select(half_rotary_emb_dim, 1u, false);",
    "let re = input[i] * get_cos_cache_by_indices(vec2<u32>(position_id, bsnh[3])) - input[j] * get_sin_cache",
    "let im = input[i] * get_sin_cache_by_indices(vec2<u32>(position_id, bsnh[3])) + input[j] * get_cos_cache",
)
"""Lines of the kernel that rotates only queries, over caches of an earlier layer."""


def rotates_whole_queries(kernel: OrtKernel) -> bool:
    """Whether the kernel rotates queries of one token, each element of a head with its partner in the other half."""
    shape, half = vector(kernel.uniforms["global_shape"]), vector(kernel.uniforms["cos_cache_shape"])[1]
    stride = vector(kernel.uniforms["input_output_stride"])
    return shape[:2] == (1, 1) and shape[3] == half and stride[2] == 2 * half


JOIN_LINES = ("metadata[meta_base + i].x", "m_value.y * exp(m_value.x - g_max)")
SINK_LINES = (
    "let sink_value = f32(head_sink[head_idx_for_sink]);",
    "g_max = max(g_max, sink_value);",
    "g_sum += exp(sink_value - g_max);",
)


def why_not_packed(kernel: OrtKernel, unit: int) -> str:
    """The reason why heads are not packed q, k and v; empty if they are packed. Elements are counted in vectors of
    `unit`.
    """
    head, half = (unit * kernel.number(name) for name in ("head_size", "half_rotary_dim"))
    heads, kv_heads = kernel.number("num_heads"), kernel.number("kv_num_heads")
    return unfit_heads(heads, kv_heads, head, 2 * half, kernel.element)


def why_not_apart(kernel: OrtKernel) -> str:
    heads, kv_heads = (vector(kernel.uniforms[f"{name}_global_shape"])[2] for name in ("q", "k"))
    half = vector(kernel.uniforms["cos_cache_shape"])[1]
    return unfit_heads(heads, kv_heads, kernel.number("head_size"), 2 * half, kernel.element)


def rotary(kind: str, element: str, pairs: tuple[str, ...]) -> Signature:
    """The kernel that splits packed q, k and v, rotates q and k, and writes the caches. Its arrays are of `element`;
    `pairs` are the lines that determine which elements are rotated with each other.
    """
    return Signature(
        kind,
        "attention",
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
            f"packed_qkv: array<{element}",
            f"present_key: array<{element}",
            f"present_value: array<{element}",
            "let base_position = 0u;",
            *pairs,
            "let q_re = q_i * cos_v - q_j * sin_v;",
            "let k_im = k_i * sin_v + k_j * cos_v;",
            "let actual_idx = uniforms.half_rotary_dim + in_head_idx;",
        ),
        asked=("num_heads", "kv_num_heads", "head_size", "half_rotary_dim", "present_sequence_length"),
        weights=("cos_cache", "sin_cache"),
        holds=one_token,
        why=partial(why_not_packed, unit=4 if kind == "rotary" else 1),
    )


def quantized_split(kind: str, bits: int, *lines: str) -> Signature:
    """Attention over caches of `bits` bits an element; `lines` are the lines that read them."""
    return Signature(
        kind,
        "attention",
        (*SPLIT, "out_split_vx", "metadata"),
        has=(
            *SPLIT_LINES,
            f"const {QUANTIZED} : u32 = {bits};",
            *lines,
        ),
        asked=("alpha", "head_size_vec", "n_reps", "num_heads", "present_sequence_length"),
        lacks=ATTENTION_LACKS,
        holds=one_query,
    )


def one_token_quantized(kernel: OrtKernel) -> bool:
    return kernel.uniforms["kv_sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1


def why_not_quantized(kernel: OrtKernel) -> str:
    heads, kv_heads = kernel.number("num_heads"), kernel.number("kv_num_heads")
    half = vector(kernel.uniforms["cos_cache_shape"])[1]
    return unfit_heads(heads, kv_heads, kernel.number("hidden_size") // heads, 2 * half, kernel.element)


def quantized_rotary(bits: int, *lines: str) -> Signature:
    """The kernel that rotates packed q and k, and writes caches of `bits` bits an element."""
    return Signature(
        f"rotary_int{bits}",
        "attention",
        (
            "packed_qkv",
            "cos_cache",
            "sin_cache",
            "seqlen_k",
            "total_sequence_length_input",
            "query",
            "present_key",
            "present_value",
            "indirect_buffer",
        ),
        has=(*lines, "let base_position = 0u;"),
        asked=("num_heads", "kv_num_heads", "hidden_size", "cos_cache_shape", "present_seq_length"),
        weights=("cos_cache", "sin_cache"),
        holds=one_token_quantized,
        why=why_not_quantized,
    )


def quantized_write(bits: int, *lines: str) -> Signature:
    """The kernel that writes caches of `bits` bits an element from separate keys and values."""
    return Signature(
        f"cache_write_int{bits}",
        "attention",
        CACHE_WRITE,
        has=lines,
        asked=("kv_num_heads", "present_seq_length"),
        holds=one_token_quantized,
    )


SIGNATURES = (
    quantized_rotary(
        8,
        *IN_8_BITS,
        "query[q_dst_base + i]=q_i * cos_value - q_j * sin_value;",
        "block_values[i + HALF_ROTARY_DIM] = k_i * sin_value + k_j * cos_value;",
        "block_values[i] = f32(packed_qkv[src_base + i]);",
    ),
    quantized_rotary(
        4,
        *IN_4_BITS,
        "let q_re = q_i * cos_v - q_j * sin_v;",
        "query[q_dst_base + i]=q_re;",
        "hadamard_buffer[i + HALF_ROTARY_DIM] = k_i * sin_v + k_j * cos_v;",
        "hadamard_buffer[i] = f32(packed_qkv[src_base + i]);",
    ),
    quantized_write(
        8, *IN_8_BITS, "value_to_quantize = key[src_base + i];", "value_to_quantize = value[src_base + i];"
    ),
    quantized_write(4, *IN_4_BITS, "val = key[src_base + i];", "val = value[src_base + i];"),
    Signature(
        "hadamard",
        "attention",
        ("input", "output"),
        has=(
            *("hadamard_buffer[i] = a + b;", "hadamard_buffer[j] = a - b;"),
            "let norm = input_element_t(1) / input_element_t(sqrt(f32(HADAMARD_SIZE)));",
            "output[base_offset + i]=output_value_t(v0, v1, v2, v3);",
        ),
        asked=("num_slices",),
    ),
    quantized_split("attention_split_int8", 8, "vec4<i32>(bytes) - vec4<i32>(128)"),
    quantized_split(
        "attention_split_int4", 4, "tq_lut[packed & KV_CACHE_QUANT_VALUE_MASK]", "-0.2377, -0.1809, -0.1419"
    ),
    rotary("rotary", "vec4<f", ("let idx_i = in_head_idx;", "let idx_j = idx_i + uniforms.half_rotary_dim;")),
    rotary("rotary_interleaved", "f", ("let idx_i = in_head_idx + in_head_idx;", "let idx_j = idx_i + 1u;")),
    Signature(
        "attention_split",
        "attention",
        (*SPLIT, "out_split_vx", "metadata"),
        has=SPLIT_LINES,
        asked=("alpha",),
        lacks=(*ATTENTION_LACKS, QUANTIZED),
        holds=one_query,
    ),
    Signature(
        "attention_join",
        "attention",
        ("input", "metadata", "seqlens_k", "output"),
        has=JOIN_LINES,
        asked=(),
        lacks=ATTENTION_LACKS,
        holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
    ),
    Signature(
        "attention_join_sinks",
        "attention",
        ("input", "metadata", "seqlens_k", "head_sink", "output"),
        has=(*JOIN_LINES, *SINK_LINES),
        asked=(),
        weights=("head_sink",),
        lacks=tuple(other for other in ATTENTION_LACKS if other != "head_sink"),
        holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
    ),
    Signature(
        "qkv_split",
        "attention",
        ("input", "output_0", "output_1", "output_2"),
        has=(
            "input: array<vec4<f",
            "let segment_size = uniforms.segment_sizes[2];",
            "output_2[outer_index * segment_size + within_outer - segment_start]=input[global_idx];",
        ),
        asked=("segment_sizes",),
        holds=lambda kernel: kernel.uniforms["input_size"] == kernel.uniforms["total_segment_elements"],
    ),
    Signature(
        "head_norm",
        "attention",
        ("x", "scale", "y"),
        has=("inverseSqrt(", "uniforms.norm_size", "x_element_t(inv_std_dev) * scale["),
        asked=("norm_count", "norm_size", "epsilon"),
        weights=("scale",),
        lacks=NORM_LACKS,
        holds=lambda kernel: kernel.number("norm_count") > 1,
    ),
    Signature(
        "rotary_apart",
        "attention",
        (*APART, "q_output", "k_output"),
        has=(*APART_LINES, "let q_at_qi = q_input[qi];", "let k_at_kj = k_input[kj];"),
        asked=("head_size",),
        weights=("cos_cache", "sin_cache"),
        holds=rotates_heads,
        why=why_not_apart,
    ),
    Signature(
        "rotary_normed",
        "attention",
        (*APART, "q_norm_weight", "k_norm_weight", "q_output", "k_output"),
        has=(
            *APART_LINES,
            "inverseSqrt(q_sumsq / f32(uniforms.head_size) + uniforms.qk_norm_epsilon)",
            "inverseSqrt(k_sumsq / f32(uniforms.head_size) + uniforms.qk_norm_epsilon)",
            "let q_at_qi = (q_input[qi] * q_inv_rms * q_norm_weight[bsnh[3]]);",
            "let k_at_kj = (k_input[kj] * k_inv_rms * k_norm_weight[(bsnh[3] + half_rotary_dim)]);",
        ),
        asked=("head_size", "qk_norm_epsilon"),
        weights=("cos_cache", "sin_cache", "q_norm_weight", "k_norm_weight"),
        holds=rotates_heads,
        why=why_not_apart,
    ),
    Signature(
        "rotary_query",
        "attention",
        ("input", "seqlens", "cos_cache", "sin_cache", "output"),
        has=QUERY_LINES,
        asked=("global_shape", "input_output_stride", "cos_cache_shape"),
        weights=("cos_cache", "sin_cache"),
        holds=rotates_whole_queries,
    ),
    Signature(
        "cache_write",
        "attention",
        CACHE_WRITE,
        has=(
            "present_key: array<vec4<f",
            "present_value: array<vec4<f",
            "present_key_indices_t(batch, num_head_id, past_sequence_length + sequence_id, head_size_id)",
            "present_key[present_offset]=key[offset];",
            "present_value[present_offset]=value[offset];",
        ),
        asked=("present_key_shape", "key_shape"),
        holds=writes_one_token,
    ),
)
