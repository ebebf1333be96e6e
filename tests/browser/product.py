"""A product as the fused kernels compute it: its case, random contents, and the result by float64.

An error counts relative to the sum of the absolute products of its element, as rounding grows with that sum: 2^-20 is 8
roundings of float32, and sums of 32 and more products stay far below it. No software adapter has float16, so kernels
for float16 run with float32 in its place: this shows how they unpack x and the weights, exactly if weights are dense,
and otherwise to the precision of float16 x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.browser.kernel_page import BOUND, EPSILON, UNTOUCHED, KernelPage, guarded, results
from tests.browser.packed_weights import PackedWeights

__all__ = ["EPSILON_INNER", "MOST_SPLITS", "Problem", "Product", "compare"]

HALF_BOUND = 2.0**-10
EPSILON_INNER, FACTOR = 0.3, 2.5
HEAD, MOST_SPLITS, POSITIONS = 32, 8, 64
"""Elements of a head of attention, the most splits of its positions, and positions of a split."""
ENDINGS = ("", "_up")
"""Endings of the names of the two matrices of a gated layer."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Product:
    """y = x @ weights for `m` rows of x, and what is before and behind it."""

    k: int
    n: int
    m: int = 1
    bits: int = 4
    """Bits of a weight; 0 for float16."""
    block: int = 32
    zeros: bool = False
    minima: bool = False
    first: int = 0
    """The element of each row of y at which the result begins."""
    behind: bool = False
    """Whether x is normalised and added to `skip` first."""
    norm: bool = False
    centered: bool = False
    wide: bool = False
    """Whether what is normalised is float32 in the kernel for float16 too."""
    bias: bool = False
    gated: bool = False
    times: bool = False
    """Whether the other half of a gated layer is given."""
    activated: bool = False
    gelu: bool = False
    erf: bool = False
    power: int = 0
    factor: str = ""
    """'*', '/' or 'cap'."""
    residual: bool = False
    second: bool = False
    splits: int = 0
    """The splits of attention of which x is joined; 0 where x is given."""

    def attended(self, lanes: int) -> dict[str, int | bool]:
        """The constants of matvec_q4.wgsl for the attention of which x is joined."""
        shape = {"HEADS": self.k // HEAD, "HEAD": HEAD, "MAX_SPLITS": MOST_SPLITS}
        shape["SHUFFLED"] = lanes > 0 and lanes % MOST_SPLITS == 0
        return {**shape, "POSITIONS": POSITIONS, "WINDOW": 1000, "ALONE": 1} if self.splits else {}

    def activation(self) -> dict[str, bool]:
        """The constants of each kernel for what is behind its product."""
        factor = {"DIVIDED": self.factor == "/", "CAPPED": self.factor == "cap", "PAIRED": False}
        return {"ACTIVATED": self.activated, "GELU": self.gelu, "ERF": self.erf, **factor}


class Problem:
    """A product with random contents; x and dense weights are exact in float16, with `half` scales and minima, too."""

    def __init__(self, product: Product, half: bool = False) -> None:
        k, n, m = product.k, product.n, product.m
        random = np.random.default_rng(k * 7 + n * 3 + m)
        self.product = product
        self.x: NDArray[np.floating[Any]] = random.normal(0.3, 1, (m, k)).astype(np.float16)
        matrices = 1 + product.gated
        if product.bits:
            about = {"zeros": product.zeros, "minima": product.minima, "half": half}
            self.packed = PackedWeights(random, (matrices, n, k), product.block, product.bits, **about)
            self.weights = self.packed.numbers().swapaxes(1, 2)
        else:
            self.weights = random.normal(0, 0.05, (matrices, k, n)).astype(np.float16).astype(np.float64)
        self.gamma, self.gamma_inner = random.uniform(0.5, 1.5, (2, k)).astype(np.float16)
        self.beta, self.skip = random.normal(0.3, 1, (2, k)).astype(np.float16)
        self.residual, self.second, self.up = random.normal(0, 3, (3, m, n)).astype(np.float32)
        self.bias, self.bias_up = random.normal(0, 3, (2, n)).astype(np.float32)
        self.partials = np.full((k // HEAD, MOST_SPLITS, 4 + HEAD), np.nan, np.float32)
        if product.splits:
            parts = self.partials[:, : product.splits]
            parts[...] = random.uniform(0.5, 2, parts.shape)
            weights = np.exp2(parts[..., :1].astype(np.float64))
            values, sums = (weights * parts[..., 4:]).sum(1), (weights * parts[..., 1:2]).sum(1)
            self.x = (values / sums).reshape(1, -1)

    def weight_buffers(self, half: bool) -> dict[str, bytes]:
        """The bindings of all matrices; dense ones are float16 with `half`."""
        if self.product.bits:
            return self.packed.buffers()
        kind = np.float16 if half else np.float32
        both = zip(ENDINGS, self.weights, strict=False)
        return {f"weights{ending}": each.astype(kind).tobytes() for ending, each in both}

    def buffers(self, half: bool) -> dict[str, bytes]:
        """The kernel's bindings."""
        product = self.product
        kind = np.float16 if half else np.float32
        stream = np.float32 if product.wide else kind
        rows = product.m * product.k
        given = {"x": self.x.astype(kind if product.behind else stream).tobytes()}
        if product.splits:
            partials = self.partials[..., :4].tobytes() + self.partials[..., 4:].tobytes()
            given = {"partials": partials, "state": np.array([product.splits * POSITIONS], np.uint32).tobytes()}
            given["attended"] = guarded(rows // 2 if half else rows)
        buffers = {
            **given,
            "y": guarded(product.m * (product.first + product.n)),
            **self.weight_buffers(half),
        }
        asked = {
            "gamma": (product.norm, self.gamma.astype(stream)),
            "beta": (product.centered, self.beta.astype(stream)),
            "gamma_inner": (product.behind, self.gamma_inner.astype(stream)),
            "skip": (product.behind, self.skip.astype(stream)),
            "residual": (product.residual, self.residual),
            "second": (product.second, self.second),
            "bias": (product.bias, self.bias),
            "bias_up": (product.gated and product.bias, self.bias_up),
            "exponent": (product.power > 0, np.int32(product.power)),
            "factor": (product.factor != "", np.float32(FACTOR)),
            "up": (product.times, self.up),
        }
        total = {"total": guarded(rows if product.wide or not half else rows // 2)} if product.behind else {}
        return buffers | total | {name: data.tobytes() for name, (wanted, data) in asked.items() if wanted}

    def total(self) -> Floats:
        """The sum that the norm before the product reads."""
        x = self.x.astype(np.float64)
        away = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPSILON_INNER)
        return np.asarray(self.skip + x / away * self.gamma_inner)

    def multiplied(self, x: Floats) -> list[tuple[Floats, Floats]]:
        """x by each matrix, and the sums of the absolute products."""
        return [(x @ weights, np.abs(x) @ np.abs(weights)) for weights in self.weights]

    def expected(self, x: Floats | None = None) -> tuple[Floats, Floats]:
        """y, and the sizes to which its errors are relative, for this x or the problem's."""
        product = self.product
        if x is None:
            x = self.total() if product.behind else self.x.astype(np.float64)
        x = x - x.mean(axis=1, keepdims=True) if product.centered else x
        if product.norm:
            x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPSILON) * self.gamma
        x = x + self.beta if product.centered else x
        both = self.multiplied(x)
        if product.bias:
            both = [(y + b, s + np.abs(b)) for (y, s), b in zip(both, (self.bias, self.bias_up), strict=False)]
        y, size = both[0]
        bent = y * (1.5957691216 + 0.0713548163 * y * y) if product.gelu else y
        if product.gated or product.times:
            up, up_size = both[1] if product.gated else (self.up, np.abs(self.up))
            y, size = y / (1 + np.exp(-bent)) * up, size * up_size
        if product.power:
            size = size * (product.power * np.maximum(y, 0) ** (product.power - 1) + 1)
            y = np.maximum(y, 0) ** product.power
        elif product.activated:
            y = y * (1 + np.vectorize(erf)(y / 2**0.5)) / 2 if product.erf else y / (1 + np.exp(-bent))
        if product.factor == "cap":
            y, size = np.tanh(y / FACTOR) * FACTOR, size + FACTOR
        elif product.factor:
            by = FACTOR if product.factor == "*" else 1 / FACTOR
            y, size = y * by, size * by
        for added in [self.residual] * product.residual + [self.second] * product.second:
            y, size = y + added, size + np.abs(added)
        return y, size


def compare(
    page: KernelPage,
    shader: str,
    product: Product,
    constants: Mapping[str, int | float | bool],
    workgroups: Sequence[int],
    *,
    half: bool,
    lanes: int,
) -> None:
    """The kernel's results are within the bound, nothing else is written, and of a norm behind its sum is right."""
    problem = Problem(product)

    def found(read: str) -> bytes:
        buffers = problem.buffers(half)
        return page.run(shader, constants, buffers, workgroups, read=read, half=half, lanes=lanes)

    width = product.first + product.n
    before, got = np.split(results(found("y"), product.m * width).reshape(product.m, -1), [product.first], axis=1)
    assert np.all(before == UNTOUCHED)
    wanted, size = problem.expected()
    errors = np.nan_to_num(np.abs(got - wanted) / size, nan=np.inf)
    worst = np.unravel_index(int(np.argmax(errors)), errors.shape)
    bound = HALF_BOUND if half and product.bits else BOUND
    assert errors[worst] <= bound, f"y{worst} of {product} is {got[worst]}, not {wanted[worst]}, with {constants}"
    if product.splits:
        attended = found("attended")
        x = results(attended, product.k // 2).view(np.float16) if half else results(attended, product.k)
        np.testing.assert_allclose(x, problem.x[0], 2**-10 if half else 2**-20)
    if product.behind:
        narrow = half and not product.wide
        total = (
            results(found("total"), product.k // 2).view(np.float16) if narrow else results(found("total"), product.k)
        )
        np.testing.assert_allclose(total, problem.total()[0], 2**-10 if narrow else 2**-20, 2**-20)
