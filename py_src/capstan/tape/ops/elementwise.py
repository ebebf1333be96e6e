"""Defines sums, multiples, activations and casts of vectors, element by element. Matrix products join these operations;
no kernel of Capstan computes them alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from ..operation import ELEMENT_BYTES, Kernel, Operation
from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node

__all__ = [
    "ADDS",
    "GATES",
    "RULES",
    "Add",
    "Cast",
    "Gelu",
    "Loose",
    "Multiply",
    "Power",
    "Relu",
    "Scale",
    "Silu",
    "Tanh",
    "total_of",
]


@dataclass(frozen=True)
class Loose(Operation):
    """A vector of `size` elements that no kernel of Capstan computes alone."""

    size: int
    element: str

    @property
    def loose(self) -> bool:
        return True

    def written_bytes(self, index: int) -> int:
        return self.size * ELEMENT_BYTES[self.element]

    def kernels(self, *_: object) -> list[Kernel]:
        raise NotImplementedError(f"{self} joins a product or stays as recorded")


@dataclass(frozen=True)
class Add(Loose):
    """reads[0] + reads[1]"""


@dataclass(frozen=True)
class Silu(Loose):
    """x * sigmoid(x) of reads[0]"""


@dataclass(frozen=True)
class Gelu(Loose):
    """GELU of reads[0], in the form with tanh or, with `erf`, with erf."""

    erf: bool = False


@dataclass(frozen=True)
class Multiply(Loose):
    """reads[0] * reads[1]"""


@dataclass(frozen=True)
class Scale(Loose):
    """reads[0] times the first element of a buffer of weights, or divided by it."""

    factor: int
    divides: bool = False


@dataclass(frozen=True)
class Tanh(Loose):
    """tanh of reads[0]"""


@dataclass(frozen=True)
class Relu(Loose):
    """max(reads[0], 0)"""


@dataclass(frozen=True)
class Power(Loose):
    """reads[0] to the power of the first element, an i32, of a buffer of weights."""

    exponent: int


@dataclass(frozen=True)
class Cast(Loose):
    """reads[0], which has the other element type, as `element`."""


SPREAD = ("input_a[0]", "input_b[0]")
"""The declaration of an operand of one element."""


def same_sizes(kernel: OrtKernel) -> bool:
    """Whether no operand of the sum is broadcast."""
    count = kernel.uniforms["element_count"]
    shapes = [kernel.uniforms.get(f"{side}_indices_shape", count) for side in ("a", "b")]
    return all((prod(shape) if isinstance(shape, tuple) else shape) == count for shape in shapes)


def total_of(met: Met, x: str, skip: str, total: str, size: int) -> tuple[Node, int]:
    """The sum that a kernel computes first, as a node, and the sum's value, which has no buffer unless the kernel keeps
    it.
    """
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


def gelu_activated(met: Met, erf: bool) -> list[Node]:
    size = 4 * met.kernel.number("vec_size")
    what = Gelu(size, met.kernel.element, erf)
    if "bias" not in met.kernel.at:
        return [met.node(what, (met.read("x"),), met.written("y"))]
    value = met.values.fresh()
    return [
        met.node(Add(size, met.kernel.element), (met.read("x"), met.read("bias")), value),
        met.node(what, (value,), met.written("y")),
    ]


def mapped(met: Met, what: type[Loose]) -> list[Node]:
    size = 4 * met.kernel.number("vec_size")
    return [met.node(what(size, met.kernel.element), (met.read("x"),), met.written("y"))]


def scaled(met: Met, divides: bool) -> list[Node]:
    kernel = met.kernel
    what = Scale(kernel.number("element_count"), kernel.element, kernel.at["input_b"], divides)
    return [met.node(what, (met.read("input_a"),), met.written("output"))]


def raised(met: Met) -> list[Node]:
    kernel = met.kernel
    what = Power(kernel.number("element_count"), kernel.element, kernel.at["input_b"])
    return [met.node(what, (met.read("input_a"),), met.written("output"))]


def cast_to(met: Met, element: str) -> list[Node]:
    what = Cast(4 * met.kernel.number("vec_size"), element)
    return [met.node(what, (met.read("x"),), met.written("y"))]


def some(kernel: OrtKernel) -> bool:
    return kernel.number("vec_size") > 0


def whole_bias(kernel: OrtKernel) -> bool:
    return kernel.uniforms["bias_shape"] == kernel.uniforms["vec_size"]


TANH_LINES = ("let expr = exp(-2 * abs(a));", "return sign(a) * (1 - expr) / (1 + expr);")
GELU_LINE = "y[global_idx]=a * (0.5 + 0.5 * tanh_v(a * (0.035677408136300125 * a * a + 0.7978845608028654)));"

ERF_LINES = (
    *("const r0 = 0.3275911;", "const r1 = 0.254829592;", "const r2 = -0.284496736;"),
    *("const r3 = 1.421413741;", "const r4 = -1.453152027;", "const r5 = 1.061405429;"),
    "let x = 1.0 / (1.0 + r0 * absv);",
    "return sign(v) * (1.0 - ((((r5 * x + r4) * x + r3) * x + r2) * x + r1) * x * exp(-absv * absv));",
    "y[global_idx]=0.5 * a * (1.0 + erf_v(a * 0.7071067811865475));",
)

ADDS = Signature(
    "add",
    "residual",
    ("input_a", "input_b", "output"),
    has=("output[global_idx]=a + b;", "input_a: array<vec4<f", "input_b: array<vec4<f"),
    asked=("element_count",),
    lacks=SPREAD,
    holds=same_sizes,
    parts=added,
)
"""A sum of two vectors."""

GATES = (
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
)
"""A product of two vectors, and SiLU of one."""

RULES = Rules(
    (
        ADDS,
        *GATES,
        *(
            Signature(
                f"{front}{kind}",
                "gated",
                ("x", *bias, "y"),
                has=("x: array<vec4<f", *added, *lines),
                asked=("vec_size",),
                lacks=("bias[",) if not bias else (),
                holds=whole_bias if bias else some,
                parts=partial(gelu_activated, erf=kind == "gelu_erf"),
            )
            for kind, lines in (("gelu", (*TANH_LINES, GELU_LINE)), ("gelu_erf", ERF_LINES))
            for front, bias, added in (
                ("", (), ()),
                ("bias_", ("bias",), ("a += bias[global_idx % uniforms.bias_shape];",)),
            )
        ),
        Signature(
            "tanh",
            "residual",
            ("x", "y"),
            has=("x: array<vec4<f", *TANH_LINES, "y[global_idx]=tanh_v(a);"),
            asked=("vec_size",),
            holds=some,
            parts=partial(mapped, what=Tanh),
        ),
        Signature(
            "relu",
            "gated",
            ("x", "y"),
            has=("x: array<vec4<f", "y[global_idx]=select(x_value_t(0), a, a > x_value_t(0));"),
            asked=("vec_size",),
            holds=some,
            parts=partial(mapped, what=Relu),
        ),
        Signature(
            "power",
            "gated",
            ("input_a", "input_b", "output"),
            has=(
                "input_a: array<vec4<f",
                "input_b: array<vec4<i32>>",
                "let b = input_b_value_t(input_b[0].x);",
                "let a = input_a[global_idx];",
                "return a * a;",
                "output[global_idx]=pow_v(a, b);",
            ),
            asked=("element_count",),
            weights=("input_b",),
            parts=raised,
        ),
        *(
            Signature(
                kind,
                "residual",
                ("input_a", "input_b", "output"),
                has=(
                    "input_a: array<vec4<f",
                    "let a = input_a[global_idx];",
                    "let b = input_b_value_t(input_b[0].x);",
                    line,
                ),
                asked=("element_count",),
                weights=("input_b",),
                parts=partial(scaled, divides=kind == "divide"),
            )
            for kind, line in (("scale", "output[global_idx]=a * b;"), ("divide", "output[global_idx]=a / b;"))
        ),
        *(
            Signature(
                f"cast_to_{to}",
                "norm",
                ("x", "y"),
                has=(
                    f"x: array<vec4<{source}>>",
                    f"y: array<vec4<{to}>>",
                    "let a = x[global_idx];",
                    f"y[global_idx]=vec4<{to}>(a);",
                ),
                asked=("vec_size",),
                mixed=True,
                parts=partial(cast_to, element=to),
            )
            for source, to in (("f16", "f32"), ("f32", "f16"))
        ),
    ),
)
