"""Products of families beside Llama take in their neighbours: norms behind halves of layers, LayerNorm, biases,
factors, activations without a gate, casts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from capstan.tape import PASSES, fuse_step
from capstan.tape.ops.beside import Beside
from tests.unit.recorded_kernels import KERNELS, Kernel, Vector, geluated, normed
from tests.unit.small_decoders import EPSILON, INNER, QKV, VOCABULARY, WIDTH, Small
from tests.unit.test_fusions import check, made_of

COUNT = (("vec_size", "u32"), ("element_count", "u32"))
SPREAD = ("let a = input_a[global_idx];", "let b = input_b_value_t(input_b[0].x);")
TANH = KERNELS["gelu"].lines[:2]


def put(target: Vector, values: Vector) -> None:
    target[: values.size] = values


def over(compute: Any) -> Any:
    """A kernel's meaning: `compute` of input_a and the first element of input_b."""

    def run(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
        put(at["output"], compute(at["input_a"][: u["element_count"]], at["input_b"][0]))

    return run


def each(compute: Any) -> Any:
    """A kernel's meaning: `compute` of each element of x."""

    def run(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
        put(at["y"], compute(at["x"][: 4 * u["vec_size"]]))

    return run


def centered(x: Vector, gamma: Vector, beta: Vector) -> Vector:
    return normed(x - x.mean(), gamma, EPSILON) + beta[: x.size]


def layer_norm(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["y"], centered(at["x"][: u["norm_size"]], at["scale"], at["bias"]))


def skip_layer_norm(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    total = at["x"][: u["hidden_size"]] + at["skip"][: u["hidden_size"]]
    put(at["output"], centered(total, at["gamma"], at["beta"]))
    put(at["input_skip_bias_sum"], total)


def bias_gelu(at: Mapping[str, Vector], u: Mapping[str, Any], erf: bool = False) -> None:
    x = at["x"][: 4 * u["vec_size"]] + at["bias"][: 4 * u["vec_size"]]
    put(at["y"], geluated(x, erf))


def centering(size: str, gamma: str, beta: str) -> tuple[str, ...]:
    return (
        f"let mean = (sum.x + sum.y + sum.z + sum.w) / f32(uniforms.{size});",
        f"let inv_std_dev = inverseSqrt(sq / f32(uniforms.{size}) - mean * mean + uniforms.epsilon);",
        f"y[offset + i] = (y[offset + i] - x_element_t(mean) ) * x_element_t(inv_std_dev) * {gamma}[offset1d + i] + "
        f"{beta}[offset1d + i] ;",
    )


def split_centering(size: str, gamma: str, beta: str) -> tuple[str, ...]:
    """The lines for one row of a multiple of 512 elements."""
    return (
        f"let mean = sum_shared[0] / f32(uniforms.{size});",
        "let inv_std_dev = inverseSqrt(sum_squared_shared[0] / "
        f"f32(uniforms.{size}) - mean * mean + uniforms.epsilon);",
        "y[offset] = ((cur_input - x_element_t(mean) ) * x_element_t(inv_std_dev) * "
        f"{gamma}[offset] + {beta}[offset] );",
    )


NORM, SKIP_NORM = KERNELS["norm"], KERNELS["skip_norm"]
LAYER_NORM, SPLIT_LAYER_NORM = (
    replace(NORM, reads=("x", "scale", "bias"), lines=lines("norm_size", "scale", "bias"), compute=layer_norm)
    for lines in (centering, split_centering)
)
SKIP_LAYER_NORM, SPLIT_SKIP_LAYER_NORM = (
    replace(
        SKIP_NORM,
        reads=(*SKIP_NORM.reads, "beta"),
        lines=("let value = input_value + skip_value;", *lines("hidden_size", "gamma", "beta")),
        compute=skip_layer_norm,
    )
    for lines in (centering, split_centering)
)
BIAS_GELU = Kernel(
    ("x", "bias"),
    ("y",),
    (("bias_shape", "u32"), ("vec_size", "u32")),
    ("a += bias[global_idx % uniforms.bias_shape];", *KERNELS["gelu"].lines),
    bias_gelu,
)
BIAS_GELU_ERF = replace(
    BIAS_GELU,
    lines=("a += bias[global_idx % uniforms.bias_shape];", *KERNELS["gelu_erf"].lines),
    compute=partial(bias_gelu, erf=True),
)
SCALE, DIVIDE = (
    Kernel(("input_a", "input_b"), ("output",), COUNT, (*SPREAD, f"output[global_idx]=a {sign} b;"), over(compute))
    for sign, compute in (("*", lambda a, b: a * b), ("/", lambda a, b: a / b))
)


@dataclass(frozen=True)
class Typed(Kernel):
    """A kernel whose arrays have types of their own."""

    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        code = super().code
        for name, kind in self.types.items():
            code = code.replace(f"{name}: array<vec4<f32>>", f"{name}: array<vec4<{kind}>>")
        return code


POWER = Typed(
    ("input_a", "input_b"),
    ("output",),
    COUNT,
    (*SPREAD, "return a * a;", "output[global_idx]=pow_v(a, b);"),
    over(lambda a, b: a**b),
    types={"input_b": "i32"},
)
TANHED = Kernel(("x",), ("y",), (("vec_size", "u32"),), (*TANH, "y[global_idx]=tanh_v(a);"), each(np.tanh))
RELU = Kernel(
    ("x",),
    ("y",),
    (("vec_size", "u32"),),
    ("y[global_idx]=select(x_value_t(0), a, a > x_value_t(0));",),
    each(lambda x: np.maximum(x, 0)),
)


class Wider(Small):
    """A decoder with the kernels above."""

    def number(self, value: float) -> int:
        made = self.sketch.weights(1)
        self.sketch.given[made][0] = value
        return made

    def by(self, kernel: Kernel, x: int, number: int, size: int, into: int | None = None) -> int:
        writes, there = ({"output": size}, {}) if into is None else ({}, {"output": into})
        reads, sizes = {"input_a": x, "input_b": number}, {"vec_size": size // 4, "element_count": size}
        [y] = self.sketch.run(kernel, reads, writes, sizes, into=there)
        return y

    def mapped(self, kernel: Kernel, x: int, size: int, **reads: int) -> int:
        sizes = {"vec_size": size // 4} | ({"bias_shape": size // 4} if reads else {})
        [y] = self.sketch.run(kernel, {"x": x, **reads}, {"y": size}, sizes)
        return y

    def layer_norm(self, x: int, kernel: Kernel = LAYER_NORM) -> int:
        reads = {"x": x, "scale": self.sketch.weights(WIDTH, 1.0), "bias": self.sketch.weights(WIDTH)}
        sizes = {"components": 4, "norm_count": 1, "norm_size": WIDTH, "epsilon": EPSILON}
        [y] = self.sketch.run(kernel, reads, {"y": WIDTH}, sizes)
        return y

    def skip_layer_norm(self, x: int, skip: int, kernel: Kernel = SKIP_LAYER_NORM) -> tuple[int, int]:
        reads = {"x": x, "skip": skip, "gamma": self.sketch.weights(WIDTH, 1.0), "beta": self.sketch.weights(WIDTH)}
        sizes = {"components": 4, "hidden_size": WIDTH, "epsilon": EPSILON, "skip_size": WIDTH}
        y, total = self.sketch.run(kernel, reads, {"output": WIDTH, "input_skip_bias_sum": WIDTH}, sizes)
        return y, total

    def made(self, x: int) -> Mapping[str, int]:
        """The kernels of the fused step that ends with a product of `x`."""
        self.matmul(x, VOCABULARY, WIDTH, into=self.logits)
        return made_of(check(self, self.sketch.record(recycle=False), PASSES))


def test_norms_behind_each_half_of_a_layer() -> None:
    """The first product that reads a normalised sum writes the sum, to which later layers add; the last one none."""
    small = Wider()
    x = small.embedded()
    for _ in range(2):
        y, x = small.skip_norm(x, small.norm(small.matmul(small.cos, WIDTH, WIDTH)))
        gate, up = (small.matmul(y, INNER, WIDTH) for _ in range(2))
        down = small.matmul(small.multiply(small.gelu(gate, INNER), up, INNER), WIDTH, INNER)
        y, x = small.skip_norm(x, small.norm(down))
        small.cos = small.matmul(y, WIDTH, WIDTH)
    y = small.last_norm(x, small.norm(small.matmul(small.cos, WIDTH, WIDTH)))
    assert small.made(y) == {
        "recorded": 1,
        "product": 5,
        "product inner total norm gated": 2,
        "product inner total norm": 2,
        "product inner norm": 1,
    }


def test_of_two_products_behind_a_sum_the_first_computes_it() -> None:
    small = Wider()
    y, x = small.skip_norm(small.embedded(), small.norm(small.matmul(small.cos, WIDTH, WIDTH)))
    both = small.add(small.matmul(y, WIDTH, WIDTH), small.matmul(y, WIDTH, WIDTH), WIDTH)
    made = small.made(small.add(both, x, WIDTH))
    assert made == {"recorded": 1, "product": 2, "product inner total norm": 1, "product norm bias residual": 1}


def test_a_sum_that_is_read_before_its_product_stays() -> None:
    small = Wider()
    s = small.sketch
    y, x = small.skip_norm(small.embedded(), small.norm(small.matmul(small.cos, WIDTH, WIDTH)))
    s.unknown(lambda v: v[:8], [x], 8, into=s.lasting(8))
    made = small.made(y)
    assert made == {"recorded": 4, "product": 2}


def test_a_normalised_half_that_is_read_elsewhere_stays() -> None:
    small = Wider()
    s = small.sketch
    half = small.norm(small.matmul(small.cos, WIDTH, WIDTH))
    s.unknown(lambda v: v[:8], [half], 8, into=s.lasting(8))
    y, _ = small.skip_norm(small.embedded(), half)
    assert small.made(y) == {"recorded": 4, "product": 2}


def test_a_sum_with_a_normalised_half_stays_before_dense_weights() -> None:
    small = Wider(dense=True)
    y, _ = small.skip_norm(small.embedded(), small.norm(small.matmul(small.cos, WIDTH, WIDTH)))
    assert small.made(y) == {"recorded": 3, "product": 2}


@pytest.mark.parametrize(
    "kernels", [(LAYER_NORM, SKIP_LAYER_NORM), (SPLIT_LAYER_NORM, SPLIT_SKIP_LAYER_NORM)], ids=["whole", "split"]
)
@pytest.mark.parametrize("dense", [False, True])
def test_a_layer_norm(dense: bool, kernels: tuple[Kernel, Kernel]) -> None:
    norm, skip_norm = kernels
    small = Wider(dense=dense)
    x = small.embedded()
    y, _ = small.skip_layer_norm(x, small.matmul(small.layer_norm(x, norm), WIDTH, WIDTH), skip_norm)
    assert small.made(y) == {"recorded": 1, "product norm residual": 1, "product norm": 1}


@pytest.mark.parametrize(
    ("kernel", "line"), [(kernel, line) for kernel in (LAYER_NORM, SPLIT_LAYER_NORM) for line in kernel.lines]
)
def test_a_layer_norm_is_told_by_each_of_its_lines(kernel: Kernel, line: str) -> None:
    small = Wider()
    assert small.made(small.layer_norm(small.embedded(), kernel.without(line))) == {"recorded": 2, "product": 1}


@pytest.mark.parametrize("dense", [False, True])
def test_a_squared_relu(dense: bool) -> None:
    small = Wider(dense=dense)
    relu = small.mapped(RELU, small.matmul(small.embedded(), INNER, WIDTH), INNER)
    y = small.matmul(small.by(POWER, relu, small.number(2.0), INNER), WIDTH, INNER)
    assert small.made(y) == {"recorded": 1, "product activated": 1, "product": 2}


def test_a_power_of_what_may_be_negative_stays() -> None:
    small = Wider()
    y = small.by(POWER, small.matmul(small.embedded(), WIDTH, WIDTH), small.number(2.0), WIDTH)
    assert small.made(y) == {"recorded": 2, "product": 2}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("erf", [False, True])
def test_gelu_of_a_product_with_a_bias(dense: bool, erf: bool) -> None:
    small = Wider(dense=dense)
    up = small.mapped(
        BIAS_GELU_ERF if erf else BIAS_GELU,
        small.matmul(small.embedded(), INNER, WIDTH),
        INNER,
        bias=small.sketch.weights(INNER),
    )
    assert small.made(small.matmul(up, WIDTH, INNER)) == {"recorded": 1, "product bias activated": 1, "product": 2}


@pytest.mark.parametrize("dense", [False, True])
def test_a_gate_whose_products_have_biases(dense: bool) -> None:
    small = Wider(dense=dense)
    x = small.embedded()
    gate, up = (small.add(small.matmul(x, INNER, WIDTH), small.sketch.weights(INNER), INNER) for _ in range(2))
    y = small.matmul(small.multiply(small.silu(gate, INNER), up, INNER), WIDTH, INNER)
    assert small.made(y) == {"recorded": 1, "product bias gated": 1, "product": 2}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kernel", [SCALE, DIVIDE], ids=["times", "by"])
def test_a_residual_of_a_multiple(kernel: Kernel, dense: bool) -> None:
    small = Wider(dense=dense)
    x = small.embedded()
    y = small.by(kernel, small.matmul(x, WIDTH, WIDTH), small.number(0.7), WIDTH)
    assert small.made(small.add(x, y, WIDTH)) == {"recorded": 1, "product factor residual": 1, "product": 1}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_a_soft_cap(same: bool, dense: bool) -> None:
    small = Wider(dense=dense)
    cap = small.number(0.8)
    y = small.by(DIVIDE, small.matmul(small.embedded(), WIDTH, WIDTH), cap, WIDTH)
    y = small.by(SCALE, small.mapped(TANHED, y, WIDTH), cap if same else small.number(0.8), WIDTH)
    assert small.made(y) == {"recorded": 1 if same else 3, "product factor": 1, "product": 1}


@pytest.mark.parametrize("last_first", [False, True])
def test_products_beside_one_another_share_a_sum_behind_a_norm(last_first: bool) -> None:
    """The one that was recorded first computes it and writes it, for the other and for what comes later."""
    small = Wider()
    x = small.embedded()
    y, x = small.skip_norm(small.norm(small.matmul(small.norm(x), WIDTH, WIDTH)), x)
    y = small.matmul(small.concat(y, last_first), WIDTH, QKV)
    small.matmul(small.last_norm(y, x), VOCABULARY, WIDTH, into=small.logits)
    placement = check(small, small.sketch.record(), PASSES)
    assert made_of(placement) == {"recorded": 1, "product norm": 2, "beside": 1, "product residual": 1}
    [what] = [node.what for node in placement.nodes if isinstance(node.what, Beside)]
    assert [(each.inner is not None, each.total) for each in what.products] == [(True, True), (False, False)]
    assert [each.first for each in what.products] == ([96, 0] if last_first else [0, 96])


def half(kernel: Kernel) -> Kernel:
    """Over arrays of float16."""
    types = dict.fromkeys((*kernel.reads, *kernel.writes), "f16")
    return Typed(kernel.reads, kernel.writes, kernel.fields, kernel.lines, kernel.compute, types=types)


def cast(to: str) -> Kernel:
    types = {"x": "f16" if to == "f32" else "f32", "y": to}
    lines = ("let a = x[global_idx];", f"y[global_idx]=vec4<{to}>(a);")
    return Typed(("x",), ("y",), (("vec_size", "u32"),), lines, each(lambda x: x), types=types)


def test_norms_in_float32_between_float16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts between norms and products are the products' own; the one of an embedding stays."""
    monkeypatch.setitem(KERNELS, "matmul_nbits", half(KERNELS["matmul_nbits"]))
    small = Wider()
    s = small.sketch
    x = small.mapped(cast("f32"), small.embedded(), WIDTH)
    product = small.matmul(small.mapped(cast("f16"), small.norm(x), WIDTH), WIDTH, WIDTH)
    y, x = small.skip_norm(x, small.norm(small.mapped(cast("f32"), product, WIDTH)))
    y = small.matmul(small.mapped(cast("f16"), y, WIDTH), WIDTH, WIDTH)
    y = small.last_norm(x, small.norm(small.mapped(cast("f32"), y, WIDTH)))
    small.matmul(small.mapped(cast("f16"), y, WIDTH), VOCABULARY, WIDTH, into=small.logits)
    step = s.record(recycle=False)
    placement = fuse_step(step.recording, step.ops, step.lasting, PASSES)
    assert made_of(placement) == {
        "recorded": 2,
        "product norm": 1,
        "product inner total norm": 1,
        "product inner norm": 1,
    }
    assert all(getattr(node.what, "wide", True) for node in placement.nodes)
