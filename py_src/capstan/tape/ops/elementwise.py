"""Sums, products and activations of vectors, element by element: no kernel of ours makes these, products join them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..operation import ELEMENT_BYTES, Kernel, Operation
from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node

__all__ = ["RULES", "Add", "Gelu", "Loose", "Multiply", "Silu", "total_of"]


@dataclass(frozen=True)
class Loose(Operation):
    """A vector of `size` elements that no kernel of ours makes by itself."""

    size: int
    element: str

    @property
    def loose(self) -> bool:
        return True

    def written_bytes(self, index: int) -> int:
        return self.size * ELEMENT_BYTES[self.element]

    def kernels(self, *_: object) -> list[Kernel]:
        raise NotImplementedError(f"{self} joins a product or stays as it was recorded")


@dataclass(frozen=True)
class Add(Loose):
    """reads[0] + reads[1]"""


@dataclass(frozen=True)
class Silu(Loose):
    """x * sigmoid(x) of reads[0]"""


@dataclass(frozen=True)
class Gelu(Loose):
    """GELU of reads[0], in the form with tanh."""


@dataclass(frozen=True)
class Multiply(Loose):
    """reads[0] * reads[1]"""


SPREAD = ("input_a[0]", "input_b[0]")
"""An operand of one element, which is declared like any other."""


def same_sizes(kernel: OrtKernel) -> bool:
    """Neither operand of a sum is spread over the other."""
    count = kernel.uniforms["element_count"]
    shapes = [kernel.uniforms.get(f"{side}_indices_shape", count) for side in ("a", "b")]
    return all((prod(shape) if isinstance(shape, tuple) else shape) == count for shape in shapes)


def total_of(met: Met, x: str, skip: str, total: str, size: int) -> tuple[Node, int]:
    """The sum that a kernel computes first, as a node, and its value, which has no buffer where it is not kept."""
    value = met.written(total)
    return met.node(Add(size, met.kernel.element), (met.read(x), met.read(skip)), value), value


def added(met: Met) -> list[Node]:
    return [total_of(met, "input_a", "input_b", "output", met.kernel.number("element_count"))[0]]


def multiplied(met: Met) -> list[Node]:
    what = Multiply(met.kernel.number("element_count"), met.kernel.element)
    return [met.node(what, (met.read("input_a"), met.read("input_b")), met.written("output"))]


def activated(met: Met) -> list[Node]:
    what = Silu(4 * met.kernel.number("vec_size"), met.kernel.element)
    return [met.node(what, (met.read("x"),), met.written("y"))]


def gelu_activated(met: Met) -> list[Node]:
    what = Gelu(4 * met.kernel.number("vec_size"), met.kernel.element)
    return [met.node(what, (met.read("x"),), met.written("y"))]


RULES = Rules(
    (
        Signature(
            "add",
            "residual",
            ("input_a", "input_b", "output"),
            has=("output[global_idx]=a + b;", "input_a: array<vec4<f", "input_b: array<vec4<f"),
            asked=("element_count",),
            lacks=SPREAD,
            holds=same_sizes,
            parts=added,
        ),
        Signature(
            "multiply",
            "gated",
            ("input_a", "input_b", "output"),
            has=("output[global_idx]=a * b;", "input_a: array<vec4<f", "input_b: array<vec4<f"),
            asked=("element_count",),
            lacks=SPREAD,
            holds=same_sizes,
            parts=multiplied,
        ),
        Signature(
            "silu",
            "gated",
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
            parts=activated,
        ),
        Signature(
            "gelu",
            "gated",
            ("x", "y"),
            has=(
                "x: array<vec4<f",
                "let expr = exp(-2 * abs(a));",
                "return sign(a) * (1 - expr) / (1 + expr);",
                "y[global_idx]=a * (0.5 + 0.5 * tanh_v(a * (0.035677408136300125 * a * a + 0.7978845608028654)));",
            ),
            asked=("vec_size",),
            holds=lambda kernel: kernel.number("vec_size") > 0,
            parts=gelu_activated,
        ),
    ),
)
