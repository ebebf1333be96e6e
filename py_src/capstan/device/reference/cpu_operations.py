"""Defines the operations of a program for the CPU (device/wasm/cpu_program.py), over an image of its memory.

Each sum has the order of the kernels in web/kernels, and each step one rounding to float32, so that the kernels give
the same bits, with relaxed SIMD and without it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..wasm.cpu_program import BLOCK, GROUP, WORDS, Kind, Scales, quantized_bytes, scale_bytes, whole_bytes

__all__ = ["CpuRun", "run"]

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class CpuRun:
    """A run: `rows` tokens after `past` positions, of which the last `kept` give logits, over caches of `room`
    positions at `cache`."""

    memory: NDArray[np.uint8]
    rows: int
    past: int
    kept: int
    cache: int
    room: int

    def floats(self, address: int, *shape: int) -> Floats:
        """A view of float32 numbers."""
        found: Floats = self._view(address, np.float32, shape)
        return found

    def integers(self, address: int, *shape: int) -> NDArray[np.int32]:
        found: NDArray[np.int32] = self._view(address, np.int32, shape)
        return found

    def matrix(self, address: int, rows: int, width: int, row: int) -> Floats:
        """A view of rows that are `row` bytes apart."""
        return self.floats(address, rows, row // 4)[:, :width]

    def _view(self, address: int, kind: Any, shape: Sequence[int]) -> Any:
        size = int(np.prod(shape)) * 4
        return self.memory[address : address + size].view(kind).reshape(shape)


def run(given: CpuRun, words: Sequence[int]) -> None:
    """Run the operations of a program over the memory."""
    for at in range(0, len(words), WORDS):
        each = words[at : at + WORDS]
        OPERATIONS[Kind(each[0])](given, given.kept if each[1] else given.rows, each)


def real(word: int) -> np.float32:
    return np.float32(struct.unpack("<f", struct.pack("<I", word))[0])


def look_up(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    ids, to, width, _, form, weight = words[2:8]
    y = given.floats(to, rows, width)
    for row, token in enumerate(given.integers(ids, rows)):
        if form == 2**32 - 1:
            y[row] = given.floats(weight + 4 * width * int(token), width)
        else:
            y[row] = unpacked(given, form, weight, int(token) // GROUP + 1, width)[token]


def norm(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """x / sqrt(mean of squares + epsilon) * weight; with a skip the same for x + skip, which is written too."""
    from_, to, width, skip, total, weight, epsilon = words[2:9]
    x = given.floats(from_, rows, width)
    if skip:
        x = x + given.floats(skip, rows, width)
        given.floats(total, rows, width)[:] = x
    given.floats(to, rows, width)[:] = normal(x, given.floats(weight, width), real(epsilon))


def normal(x: Floats, weight: Floats, epsilon: np.float32) -> Floats:
    """The norm along the last axis."""
    squares = in_lanes(np.square(x))[..., None] / np.float32(x.shape[-1])
    made: Floats = x * (1 / np.sqrt(squares + epsilon)) * weight
    return made


def quantize(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """Write the activations as integers from -127 to 127, with a scale for each 32, and the sums of each 32 and of each
    16.
    """
    from_, to, width = words[2:5]
    for row in range(rows):
        x = given.floats(from_ + 4 * width * row, width // BLOCK, BLOCK)
        largest = np.abs(x).max(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            factor = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
        q = np.rint(x * factor).astype(np.int8)
        scale = largest[:, 0] / np.float32(127)
        halves = q.reshape(-1, 2, 16).sum(axis=2, dtype=np.int32)
        at = to + quantized_bytes(width) * row
        given.memory[at : at + width] = q.reshape(-1).view(np.uint8)
        tail = np.concatenate([scale, scale * halves.sum(axis=1), (scale[:, None] * halves).reshape(-1)])
        given.floats(at + width, width // 8)[:] = tail


def product(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """Compute the sum over blocks of (activations' scale * weights' scale * product of the integers) + (weights'
    minimum * sum of the activations).
    """
    from_, to, width, groups, form, weight = words[2:8]
    y = given.floats(to, rows, GROUP * groups)
    numbers, scales, minima = packed(given, form, weight, groups, width)
    blocks = scales.shape[1]
    for row in range(rows):
        at = from_ + quantized_bytes(width) * row
        q = given.memory[at : at + width].view(np.int8).reshape(blocks, -1).astype(np.int32)
        scale, sums, halves = np.split(given.floats(at + width, width // 8), [width // 32, width // 16])
        whole = np.einsum("nbk,bk->nb", numbers.reshape(len(numbers), blocks, -1), q).astype(np.float32)
        products = whole * np.repeat(scale, blocks // len(scale)) * scales
        if blocks == len(scale):
            terms = np.stack([products, sums * minima], axis=2)
        elif form >> 1 == Scales.BYTES:
            terms = np.stack([products, halves * minima], axis=2)
        else:  # the products of both halves of 32 columns come first
            terms = np.stack(
                [products.reshape(-1, len(scale), 2), (halves * minima).reshape(-1, len(scale), 2)], axis=2
            )
        y[row] = in_order(terms.reshape(len(terms), -1))


def bias(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    given.floats(words[2], rows, words[4])[:] += given.floats(words[7], words[4])


def rotate(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """Rotate the queries in place; write the rotated keys and the values to the caches. Heads of queries and keys get
    their norms first, if they have any."""
    q, row, size, heads, shared, half, interleaved, keys, values, cos, sin, k, v, k_row, v_row = words[2:17]
    place = slice(given.past, given.past + rows)
    angles = [given.floats(each + 4 * half * given.past, rows, 1, half) for each in (cos, sin)]

    def turned(x: Floats) -> Floats:
        """Rotate the heads of x: [rows, heads, size]."""
        pairs = x[..., : 2 * half]
        a, b = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else np.split(pairs, 2, axis=2)
        both = [a * angles[0] - b * angles[1], b * angles[0] + a * angles[1]]
        made = np.stack(both, axis=3).reshape(pairs.shape) if interleaved else np.concatenate(both, axis=2)
        return np.concatenate([made, x[..., 2 * half :]], axis=2)

    def heads_at(address: int, apart: int, count: int) -> Floats:
        return given.matrix(address, rows, count * size, apart).reshape(rows, count, size)

    def normed(x: Floats, weight: int) -> Floats:
        return normal(x, given.floats(weight, size), real(words[19])) if weight else x

    queries = normed(heads_at(q, row, heads), words[17])
    given.matrix(q, rows, heads * size, row)[:] = turned(queries).reshape(rows, -1)
    caches = [given.floats(given.cache + each * given.room, shared, given.room, size) for each in (keys, values)]
    caches[0][:, place] = turned(normed(heads_at(k, k_row, shared), words[18])).swapaxes(0, 1)
    caches[1][:, place] = heads_at(v, v_row, shared).swapaxes(0, 1)


def attend(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """Attention of each head over the positions up to that of its token, or over a window that ends there."""
    q, to, size, heads, shared, window, scale, keys, values, row = words[2:12]
    x = given.matrix(q, rows, heads * size, row).reshape(rows, heads, size)
    y = given.floats(to, rows, heads, size)
    caches = [given.floats(given.cache + each * given.room, shared, given.room, size) for each in (keys, values)]
    for place in range(rows):
        end = given.past + place + 1
        begin = max(0, end - window) if window else 0
        k, v = (np.repeat(each[:, begin:end], heads // shared, axis=0) for each in caches)
        scores = in_lanes(x[place][:, None] * k) * real(scale)
        weights = exp(scores - scores.max(axis=1, keepdims=True))
        whole = in_lanes(np.pad(weights, ((0, 0), (0, -weights.shape[1] % 4))))
        y[place] = in_order((weights[:, :, None] * v).swapaxes(1, 2)) * (1 / whole)[:, None]


def gate(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """x * sigmoid(x) * up, or gelu(x) * up in its tanh form if word 6 is set."""
    x, up = (given.floats(each, rows, words[4]) for each in (words[2], words[7]))
    inner = x * (np.float32(1.5957691) + np.float32(0.07135481) * (x * x)) if words[6] else x
    given.floats(words[3], rows, words[4])[:] = x * (1 / (1 + exp(-inner))) * up


def scale(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    given.floats(words[3], rows, words[4])[:] = given.floats(words[2], rows, words[4]) * real(words[8])


def keep(given: CpuRun, rows: int, words: Sequence[int]) -> None:
    """Copy the rows of the last tokens, which give logits."""
    from_, to, width = words[2:5]
    given.floats(to, rows, width)[:] = given.floats(from_, given.rows, width)[given.rows - rows :]


def in_order(terms: Floats) -> Floats:
    """The sums along the last axis, from the first term to the last one."""
    sums: Floats = np.add.accumulate(terms, axis=-1)[..., -1]
    return sums


def in_lanes(terms: Floats) -> Floats:
    """Like `in_order`, but in four lanes, which are summed at the end."""
    lanes = in_order(terms.reshape(*terms.shape[:-1], -1, 4).swapaxes(-1, -2))
    return (lanes[..., 0] + lanes[..., 2]) + (lanes[..., 1] + lanes[..., 3])


def exp(x: Floats) -> Floats:
    """e to the power of x, as web/kernels/arithmetic.ts has it: 2 to the power of an integer times a polynomial."""
    clamped = np.clip(x, np.float32(-87), np.float32(88))
    n = np.rint(clamped * np.float32(1.44269504))
    r = clamped - n * np.float32(0.693359375) - n * np.float32(-2.1219444e-4)
    p = np.float32(1.98756915e-4)
    for each in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + np.float32(each)
    power = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    made: Floats = (p * (r * r) + r + np.float32(1)) * power
    return made


def packed(given: CpuRun, form: int, address: int, groups: int, width: int) -> tuple[NDArray[np.int32], Floats, Floats]:
    """The numbers of a weight, [rows, columns], and the scales and minima of its blocks, [rows, blocks]; see
    web/kernels/packed.ts."""
    kind, size, first, before = Scales(form >> 1), 256 if form & 1 else 128, scale_bytes(form), whole_bytes(form)
    count = 256 // BLOCK if before else width // BLOCK
    row = before + count * (first + size)
    pieces = groups * (width // BLOCK) // count
    whole = given.memory[address : address + pieces * row].reshape(pieces, row)
    blocks = np.ascontiguousarray(whole[:, before:]).reshape(pieces * count, first + size)
    types = {Scales.FLOATS: np.float32, Scales.SIXTEEN: np.float32, Scales.BYTES: np.int8}
    heads = np.ascontiguousarray(blocks[:, :first]).view(types.get(kind, np.float16)).astype(np.float32)
    heads = heads.reshape(pieces, count, -1, GROUP)
    if before:
        factors = np.ascontiguousarray(whole[:, :before]).view(np.float16).astype(np.float32)
        heads = heads * factors.reshape(pieces, 1, -1, GROUP)
    if kind == Scales.CENTRED or (before and form & 1):
        scales, minima = heads, heads * np.float32(-32 if before else 0 if form & 1 else -8)
    else:
        scales, minima = np.split(heads, 2, axis=2)
    scales, minima = (
        each.reshape(groups, -1, GROUP).transpose(0, 2, 1).reshape(groups * GROUP, -1) for each in (scales, minima)
    )
    # [groups, blocks of columns, halves, fours of columns, rows, columns]
    data = blocks[:, first:].reshape(groups, -1, size // 128, 4, GROUP, 4)
    halves = data.view(np.int8) if form & 1 else np.concatenate([data & 15, data >> 4], axis=2)
    return halves.transpose(0, 4, 1, 2, 3, 5).reshape(groups * GROUP, width).astype(np.int32), scales, minima


def unpacked(given: CpuRun, form: int, address: int, groups: int, width: int) -> Floats:
    """The rows of a weight in float32."""
    numbers, scales, minima = packed(given, form, address, groups, width)
    apart = width // scales.shape[1]
    made: Floats = numbers.astype(np.float32) * np.repeat(scales, apart, axis=1) + np.repeat(minima, apart, axis=1)
    return made


OPERATIONS: Mapping[Kind, Callable[[CpuRun, int, Sequence[int]], None]] = {
    Kind.LOOK_UP: look_up,
    Kind.NORM: norm,
    Kind.QUANTIZE: quantize,
    Kind.PRODUCT: product,
    Kind.BIAS: bias,
    Kind.ROTATE: rotate,
    Kind.ATTEND: attend,
    Kind.GATE: gate,
    Kind.KEEP: keep,
    Kind.SCALE: scale,
}
