"""Defines norms, alone or of a sum. The matrix products that read a norm compute it; no kernel of Capstan computes a
norm alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node
from .elementwise import Loose, total_of

__all__ = ["NORM_LACKS", "RULES", "CenteredNorm", "Norm", "RmsNorm"]


@dataclass(frozen=True)
class RmsNorm:
    """x * rsqrt(mean(x^2) + epsilon) * gamma; `gamma` is a buffer of weights."""

    gamma: int
    epsilon: float


@dataclass(frozen=True)
class CenteredNorm(RmsNorm):
    """(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + epsilon) * gamma + beta, a LayerNorm; `beta` is a buffer of
    weights."""

    beta: int


@dataclass(frozen=True)
class Norm(Loose):
    """The norm of reads[0]."""

    by: RmsNorm


NORM_LACKS = ("x_element_t(mean)", "beta", "bias[")


def norm_by(met: Met, gamma: str, beta: str) -> RmsNorm:
    """The norm of a kernel that binds its weights under these names; a LayerNorm if it binds `beta`."""
    at, epsilon = met.kernel.at, met.kernel.real("epsilon")
    return CenteredNorm(at[gamma], epsilon, at[beta]) if beta in at else RmsNorm(at[gamma], epsilon)


def normed(met: Met) -> list[Node]:
    kernel = met.kernel
    by = norm_by(met, "scale", "bias")
    return [met.node(Norm(kernel.number("norm_size"), kernel.element, by), (met.read("x"),), met.written("y"))]


def sum_normed(met: Met) -> list[Node]:
    kernel = met.kernel
    size = kernel.number("hidden_size")
    total, value = total_of(met, "x", "skip", "input_skip_bias_sum", size)
    by = norm_by(met, "gamma", "beta")
    return [total, met.node(Norm(size, kernel.element, by), (value,), met.written("output"))]


CENTERED = {
    "": (
        "let mean = (sum.x + sum.y + sum.z + sum.w) / f32(uniforms.{size});",
        "/ f32(uniforms.{size}) - mean * mean + uniforms.epsilon);",
        "- x_element_t(mean) ) * x_element_t(inv_std_dev) * {gamma}[offset1d + i] + {beta}[offset1d + i] ;",
    ),
    "split_": (
        "let mean = sum_shared[0] / f32(uniforms.{size});",
        "let inv_std_dev = inverseSqrt(sum_squared_shared[0] / f32(uniforms.{size}) - mean * mean + uniforms.epsilon);",
        "- x_element_t(mean) ) * x_element_t(inv_std_dev) * {gamma}[offset] + {beta}[offset] );",
    ),
}
"""Lines that distinguish a LayerNorm with a bias, by the names of its size and its weights. One row whose size is a
multiple of 512 is split among workgroups.
"""


def centered(lines: tuple[str, ...], size: str, gamma: str, beta: str) -> tuple[str, ...]:
    return tuple(line.format(size=size, gamma=gamma, beta=beta) for line in lines)


def one_norm(kernel: OrtKernel) -> bool:
    return kernel.uniforms["norm_count"] == 1


def whole_skip(kernel: OrtKernel) -> bool:
    return kernel.uniforms["skip_size"] == kernel.uniforms["hidden_size"]


SUM_LINES = ("inverseSqrt(", "uniforms.hidden_size", "input_value + skip_value")

RULES = Rules(
    (
        Signature(
            "norm",
            "norm",
            ("x", "scale", "y"),
            has=("inverseSqrt(", "uniforms.norm_size", "x_element_t(inv_std_dev) * scale["),
            asked=("norm_size", "epsilon"),
            weights=("scale",),
            lacks=NORM_LACKS,
            holds=one_norm,
            parts=normed,
        ),
        *(
            Signature(
                f"{split}layer_norm",
                "norm",
                ("x", "scale", "bias", "y"),
                has=("inverseSqrt(", *centered(lines, "norm_size", "scale", "bias")),
                asked=("norm_size", "epsilon"),
                weights=("scale", "bias"),
                holds=one_norm,
                parts=normed,
            )
            for split, lines in CENTERED.items()
        ),
        *(
            Signature(
                kind,
                "norm",
                ("x", "skip", *weights, "output", *with_sum),
                has=(*SUM_LINES, *lines),
                asked=("hidden_size", "epsilon"),
                weights=weights,
                lacks=lacks,
                parts=sum_normed,
                holds=whole_skip,
            )
            for kind, weights, lines, lacks in (
                ("skip_norm", ("gamma",), ("x_element_t(inv_std_dev) * gamma[",), NORM_LACKS),
                *(
                    (
                        f"{split}skip_layer_norm",
                        ("gamma", "beta"),
                        centered(lines, "hidden_size", "gamma", "beta"),
                        ("bias[",),
                    )
                    for split, lines in CENTERED.items()
                ),
            )
            for with_sum in ((), ("input_skip_bias_sum",))
        ),
    ),
)
