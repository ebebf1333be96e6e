"""Compares each operation of a step with the truth, which is its float32 result for the same inputs. A step is played
once, and the inputs and outputs of its operations are kept. Plain kernels (truth_gemv.wgsl, truth_attention.wgsl) then
compute every result again from the kept inputs, with the 2-norm of the summed terms. judge.wgsl gives the distance of
each result from the truth in units of rounding. Errors do not add up from operation to operation. So the bound is that
of a single operation, and a wrong operation is identified. docs/design_checking.md has the derivation.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BEYOND", "FOUND_BYTES", "UNIT", "CacheRows", "Found", "Witness", "cache_rows"]

UNIT = {"f16": 2.0**-11, "f32": 2.0**-24}
"""The unit roundoff of each type."""
FLOOR = {"f16": 2.0**-13, "f32": 2.0**-120}
"""The error allowed for subnormal numbers, which a GPU may flush to zero."""
LARGEST = {"f16": 65504.0, "f32": 3.4028234e38}

ALIGNMENT = 256
"""The alignment in bytes of the parts of a buffer that a kernel binds; the largest that a device may require."""
FOUND_BYTES = ALIGNMENT
"""The bytes of a judgement, padded to the alignment of the next one."""
LOG, TRUTHS, SCORES, FOUND = range(4)
"""The names of the first scratch buffers, in order."""
THREADS = 64
MOST_WORKGROUPS = 65535
"""The most workgroups in one dimension of a dispatch, on every device."""

BEYOND = 0x54005400
"""Fills the rows of a cache that a step must not read: 64 as float16, 4e12 as float32."""


@dataclass(frozen=True)
class Found:
    """The distance of a result from the truth."""

    node: int
    """Index of the node."""
    part: str
    """'result', 'new keys' or 'new values'."""
    element_type: str
    """'f16' or 'f32'."""
    largest: float
    """The largest error, in units of rounding."""
    mean: float
    """The root of the mean square of the errors."""
    got: float
    wanted: float
    element: int
    unlike: int
    """The number of elements that are finite in only one of result and truth."""


def nowhere(value: int) -> None:
    """Outside of a watched step no value has a place."""


@dataclass
class Witness:
    """A WitnessSpec of web/src/worker/gpu/witness.ts, filled by operations, with the meaning of its results."""

    owner: str
    state: tuple[int, int, int]
    """The sampler's state (handle, offset, bytes), whose first word is the length."""
    length: int = 0
    """The number of positions that the step sees."""
    longest: int = 0
    """The largest number of positions that any step sees."""
    place: Callable[[int], tuple[str, int] | None] = nowhere
    """A value's buffer, 'recorded' or 'scratch', and its id; None if the step does not make the value."""
    after: Mapping[int, int] = field(default_factory=dict)
    """The played operation after which a value is in its place."""
    node: int = 0
    """Index of the node whose truth is being planned."""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    before: int = 0
    copies: list[list[Any]] = field(default_factory=list)
    judged: list[tuple[int, str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    kept: dict[int, list[Any]] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        scratch = [max(ALIGNMENT, size) for size in self.sizes]
        return {
            "kernels": {"kernels": self.kernels, "scratch": scratch, "owner": self.owner},
            "counts": self.counts,
            "before": self.before,
            "copies": self.copies,
            "results": [FOUND, self.sizes[FOUND]],
        }

    def found(self, data: bytes) -> list[Found]:
        """The results in the bytes that were read back."""
        every = []
        for i, judged in enumerate(self.judged):
            largest, mean, got, wanted, element, unlike = struct.unpack_from("<4f2I", data, FOUND_BYTES * i)
            every.append(Found(*judged, largest, math.sqrt(mean), got, wanted, element, unlike))
        return every

    def is_made(self, value: int) -> bool:
        """Whether the step makes a value; if not, the truth takes its place."""
        return self.place(value) is not None

    def keep(self, value: int, size: int) -> list[Any]:
        """The binding of the copy that keeps a value of `size` bytes."""
        if value not in self.kept:
            place = self.place(value)
            if place is None:
                # A kernel that reads other values writes it, and one dispatch may not read and write the same buffer.
                self.kept[value] = ["scratch", len(self.sizes)]
                self.sizes.append(-(-size // ALIGNMENT) * ALIGNMENT)
            else:
                self.kept[value] = self.part(LOG, size)
                _, _, offset, padded = self.kept[value]
                self.copies.append([self.after.get(value, -1), *place, padded, offset])
        return self.kept[value]

    def truths(self, count: int) -> list[Any]:
        """Scratch for `count` pairs of value and spread, as a binding."""
        return self.part(TRUTHS, 8 * count)

    def scores(self, count: int) -> list[Any]:
        """Scratch for `count` pairs between the kernels of one truth, as a binding; operations share it in turn."""
        self.sizes[SCORES] = max(self.sizes[SCORES], 8 * count)
        return ["scratch", SCORES]

    def part(self, buffer: int, size: int) -> list[Any]:
        """A new part of a scratch buffer, as a binding."""
        offset = self.sizes[buffer]
        self.sizes[buffer] = offset + -(-size // ALIGNMENT) * ALIGNMENT
        return ["part", buffer, offset, -(-size // 4) * 4]

    @property
    def length_at(self) -> list[Any]:
        """The sampler's state, as a binding."""
        return ["span", *self.state]

    def run(
        self,
        shader: str,
        constants: Mapping[str, int | float | bool],
        half: bool,
        bindings: Mapping[str, list[Any]],
        counts: tuple[int, int, int],
    ) -> None:
        """Add a kernel; its bindings by the names that its template declares."""
        floats = [name for name, value in constants.items() if isinstance(value, float)]
        text = {"shader": shader, "constants": dict(constants), "floats": floats, "half": half, "lanes": 0}
        self.kernels.append({**text, "bindings": dict(bindings)})
        self.counts.append(counts)

    def judge(
        self,
        part: str,
        element: str,
        y: list[Any],
        truth: list[Any],
        rows: tuple[int, int] | None = None,
        cache_bits: int = 0,
        slides: bool = False,
    ) -> None:
        """Compare `y`, of an element type, with the truth. With `rows` (capacity, head) `y` is a cache: only its row at
        the new position counts, its elements may have 8 bits, and it may slide.
        """
        capacity, head = rows or (1, 1)
        constants: dict[str, int | float | bool] = {
            "UNIT": UNIT[element],
            "FLOOR": FLOOR[element],
            "LARGEST": LARGEST[element],
            "HALF_VALUES": element == "f16",
            "ROWS": rows is not None,
            "QUANTIZED": cache_bits != 0,
            "FOUR_BITS": False,
            "HEAD": head,
            "CAPACITY": capacity,
            "SLIDING": slides,
        }
        self.judged.append((self.node, part, element))
        bindings = {"y": y, "truth": truth, "state": self.length_at, "result": self.part(FOUND, 24)}
        self.run("judge", constants, False, bindings, (1, 1, 1))


@dataclass(frozen=True)
class CacheRows:
    """A cache by its recorded id; its rows are `head_bytes` long, one for each head and position."""

    cache: int
    heads: int
    head_bytes: int
    positions: int
    """The capacity in positions."""
    slides: bool = False
    """Whether its positions count from the sequence's base."""


def cache_rows(
    caches: Sequence[CacheRows], filled: int, beyond: int, state: tuple[int, int, int], owner: str
) -> Witness:
    """Prepare these caches for a step at position state[0] - 1: rows from `filled` on repeat the earlier rows, and rows
    from the step's position on are filled with the u32 word `beyond`.
    """
    witness = Witness(owner, state)
    for each in caches:
        words = each.head_bytes // 4
        constants = {"CAPACITY": each.positions, "WORDS": words, "FILLED": filled, "REPEAT": filled > 0, "WORD": beyond}
        constants["SLIDING"] = each.slides
        counts = (min(-(-each.positions * words // THREADS), MOST_WORKGROUPS), each.heads, 1)
        witness.run("rows", constants, False, {"cache": ["recorded", each.cache], "state": witness.length_at}, counts)
    return witness
