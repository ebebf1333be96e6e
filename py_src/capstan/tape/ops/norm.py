"""RMS norms, alone or of a sum: no kernel of ours computes one alone, the products that read it do."""

from __future__ import annotations

from dataclasses import dataclass

from ..ort_kernels import Met, Rules, Signature
from ..step_graph import Node
from .elementwise import Loose, total_of

__all__ = ["NORM_LACKS", "RULES", "Norm", "RmsNorm"]


@dataclass(frozen=True)
class RmsNorm:
    """x * rsqrt(mean(x^2) + epsilon) * gamma; `gamma` is a buffer of weights."""

    gamma: int
    epsilon: float


@dataclass(frozen=True)
class Norm(Loose):
    """RMS norm of reads[0]."""

    by: RmsNorm


NORM_LACKS = ("x_element_t(mean)", "beta", "bias[")


def normed(met: Met) -> list[Node]:
    kernel = met.kernel
    by = RmsNorm(kernel.at["scale"], kernel.real("epsilon"))
    return [met.node(Norm(kernel.number("norm_size"), kernel.element, by), (met.read("x"),), met.written("y"))]


def sum_normed(met: Met) -> list[Node]:
    kernel = met.kernel
    size = kernel.number("hidden_size")
    total, value = total_of(met, "x", "skip", "input_skip_bias_sum", size)
    by = RmsNorm(kernel.at["gamma"], kernel.real("epsilon"))
    return [total, met.node(Norm(size, kernel.element, by), (value,), met.written("output"))]


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
            holds=lambda kernel: kernel.uniforms["norm_count"] == 1,
            parts=normed,
        ),
        *(
            Signature(
                "skip_norm",
                "norm",
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
                parts=sum_normed,
                holds=lambda kernel: kernel.uniforms["skip_size"] == kernel.uniforms["hidden_size"],
            )
            for with_sum in ((), ("input_skip_bias_sum",))
        ),
    ),
)
