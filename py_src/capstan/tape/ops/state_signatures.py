"""Lists the signatures of onnxruntime-web's kernels around states, for one token: convolutions and linear attention,
and the vectors between them.
"""

from __future__ import annotations

from ..ort_kernels import OrtKernel, Signature

__all__ = ["CONVOLUTIONS", "SIGNATURES", "STATES"]

STATES = "states"
"""The pass that replaces the kernels."""
CONVOLUTIONS = ("convolution", "convolution_silu")


def vector_turned(kernel: OrtKernel) -> bool:
    """Whether a transposed tensor has one dimension above 1, so that the order of its elements stays."""
    shape = kernel.uniforms["a_shape"]
    return isinstance(shape, tuple) and sum(size > 1 for size in shape) == 1


def one_input(kernel: OrtKernel) -> bool:
    plain = kernel.uniforms["batch_size"] == kernel.uniforms["input_length"] == kernel.uniforms["dilation"] == 1
    return plain and kernel.uniforms["state_length"] == kernel.number("kernel_size") - 1


def one_step(kernel: OrtKernel) -> bool:
    one = kernel.uniforms["batch_size"] == kernel.uniforms["seq_length"] == 1
    # With more heads of q than of v this is their quotient.
    few = kernel.number("heads_per_group") < 2
    alike = few and kernel.uniforms["q_num_heads"] == kernel.uniforms["n_k_heads"]
    return one and alike and kernel.number("kv_per_k_head") * kernel.number("n_k_heads") == kernel.number("num_heads")


def convolution(kind: str, biased: bool) -> Signature:
    bias = ("bias",) if biased else ()
    return Signature(
        kind,
        STATES,
        ("input", "weight", *bias, "conv_state", "output", "present_state"),
        has=(
            "let weight_base = channel_idx * kernel_size;",
            "let virtual_pos = pos + j * dilation;",
            "let state_base = (batch_idx * channels + channel_idx) * state_length;",
            "acc = acc + val * w;",
            "present_state[state_base + s * state_pos_stride] = state_val;",
            *(("acc = acc + bias[channel_idx];",) if biased else ()),
            *(("acc = silu(acc);", "return x / (1.0 + exp(-x));") if kind == "convolution_silu" else ()),
        ),
        asked=("channels", "kernel_size"),
        weights=("weight", *bias),
        lacks=() if kind == "convolution_silu" else ("silu(",),
        holds=one_input,
    )


def recurrence(mixed: bool) -> Signature:
    """Linear attention by the gated delta rule; `mixed` if only its state is float32."""
    return Signature(
        "recurrence",
        STATES,
        ("query", "key", "value", "initial_state", "decay", "beta", "output", "present_state"),
        has=(
            f"initial_state: array<vec4<f{'32>>' if mixed else ''}",
            f"present_state: array<vec4<f{'32>>' if mixed else ''}",
            f"value: array<vec4<f{'16>>' if mixed else ''}",
            "let exp_g = exp(f32(decay[bt_offset * uniforms.num_heads + head_idx]));",
            "state[j] *= exp_g;",
            "let delta_j = beta_val * (v_val - retrieved",  # the name of a sum by subgroups ends in _sum
            " + delta_j * kq_dot) * uniforms.scale);",
            "state[j] += k_val * broadcast_buf[j];",
        ),
        asked=("num_heads", "head_dim_k", "head_dim_v", "scale", "q_num_heads"),
        holds=one_step,
        mixed=mixed,
    )


SIGNATURES = (
    *(convolution(kind, biased) for kind in CONVOLUTIONS for biased in (False, True)),
    recurrence(mixed=False),
    recurrence(mixed=True),
    Signature(
        "turned_vector",
        STATES,
        ("a", "output"),
        has=(
            "fn perm(i: output_indices_t)->a_indices_t {",
            "output[global_idx]=get_a_by_indices(x_indices);",
        ),
        asked=("output_size",),
        holds=vector_turned,
    ),
    Signature(
        "sigmoid",
        STATES,
        ("x", "y"),
        has=("x: array<vec4<f", "let a = x[global_idx];", "y[global_idx]=1.0 / (1.0 + exp(-a));"),
        asked=("vec_size",),
        holds=lambda kernel: kernel.number("vec_size") > 0,
    ),
    Signature(
        "softplus",
        STATES,
        ("x", "y"),
        has=("x: array<vec4<f32>>", "select(log(1.0 + exp(a)), a + log(1.0 + exp(-a)), a > x_value_t(0))"),
        asked=("vec_size",),
        holds=lambda kernel: kernel.number("vec_size") > 0,
    ),
    Signature(
        "split_heads",
        STATES,
        ("input", "output_0", "output_1"),
        has=(
            "input: array<vec4<f",
            "let segment_size = uniforms.segment_sizes[1];",
            "output_1[outer_index * segment_size + within_outer - segment_start]=input[global_idx];",
        ),
        asked=("segment_sizes", "input_size"),
        lacks=("output_2",),
    ),
)
