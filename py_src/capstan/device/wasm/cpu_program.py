"""Describes a program for the kernels of web/kernels: its operations have 24 words each, and address one memory.

A program runs up to ROWS tokens. As in llama.cpp, matrix products take activations in 8 bits, with a scale for each 32
of them, and weights in groups of 8 rows (web/kernels/packed.ts). device/reference/cpu_operations.py defines each
operation; program_planner.py plans the program of a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from ...graph import UnpackedWeight, WeightEntry, WideWeight
from ...graph.onnx_pb2 import TensorProto
from ...memory import PoolSize
from ..model_memory import ModelMemory

__all__ = [
    "BLOCK",
    "FLOAT",
    "GROUP",
    "KEPT",
    "LARGEST_HEAD",
    "ROWS",
    "UNIT",
    "WAITS",
    "WORDS",
    "CpuProgram",
    "CpuWeight",
    "Kind",
    "Scales",
    "Split",
    "aligned",
    "packed_bytes",
    "program_memory",
    "quantized_bytes",
    "scale_bytes",
    "whole_bytes",
]

WORDS = 24
"""Words of an operation."""
UNIT, WAITS = 20, 22
"""The words that say how threads share an operation: the columns of a part, a Split, and 1 where threads wait after it
in a run of one token, 2 in a run of several."""
ROWS = 64
"""Most tokens of a run."""
KEPT = 16
"""Most tokens of a run that give logits."""
GROUP = 8
"""Rows of a weight that are stored side by side."""
BLOCK = 32
"""Activations that share a scale."""
FLOAT = 4
LARGEST_HEAD = 512
"""Most elements of a head."""


class Kind(IntEnum):
    """The operations. Word 0 of an operation is its kind; word 1 is 1 if it runs only over the tokens that give logits.
    The other words are in web/kernels/program.ts.
    """

    LOOK_UP = 0
    NORM = 1
    QUANTIZE = 2
    PRODUCT = 3
    BIAS = 4
    ROTATE = 5
    ATTEND = 6
    GATE = 7
    KEEP = 8
    SCALE = 9


class Split(IntEnum):
    """How threads share an operation; web/kernels/program.ts has the same."""

    ROWS = 0
    """Each row is one thread's."""
    ROWS_OR_COLUMNS = 1
    """Rows, and columns if there is a single row."""
    COLUMNS = 2
    """Neighbouring parts of all rows are one thread's."""
    PARTS = 3
    """Parts of rows are dealt out one by one."""


class Scales(IntEnum):
    """The scales and minima of a packed weight; a weight is number * scale + minimum."""

    FLOATS = 0
    """A scale and a minimum in float32 for each 32 columns."""
    SIXTEEN = 1
    """The same for each 16."""
    HALVES = 2
    """In float16 for each 32."""
    CENTRED = 3
    """A scale in float16 for each 32; the minimum is -8 scales in 4 bits, 0 in 8."""
    BYTES = 4
    """As K types have them: in 8 bits, times a float16 for each 256. Numbers of 4 bits have both for each 32 columns.
    Numbers of 6, each in a byte, have a scale for each 16, and -32 scales as the minimum."""


@dataclass(frozen=True)
class CpuWeight:
    """A weight in the program's memory."""

    name: str
    address: int
    bytes: int
    form: int
    """-1 for floats; else 2 times one of Scales, and 1 for numbers in 8 bits instead of 4."""
    n: int
    k: int
    source: WeightEntry | WideWeight | UnpackedWeight

    def as_json(self) -> dict[str, Any]:
        """The weight as web/src/worker/cpu/packed_weights.ts reads it."""
        described = {"address": self.address, "bytes": self.bytes, "form": self.form, "n": self.n, "k": self.k}
        if isinstance(self.source, WeightEntry):
            return {**described, "floats": [self.source.location, self.source.offset]}
        return {**described, "made": self.source.as_json()}


@dataclass(frozen=True)
class CpuProgram:
    """A program, and the addresses in its memory."""

    words: tuple[int, ...]
    weights: tuple[CpuWeight, ...]
    program: int
    """The address of the words."""
    ids: int
    """The address of the tokens of a run, int32."""
    logits: int
    row: int
    """The number of logits of a token, at least the vocabulary's size."""
    vocab: int
    scores: int
    """The address of the room for the scores of attention."""
    score_bytes: int
    """Bytes of that room for each thread."""
    position: int
    """Bytes of one position of all caches."""
    growth: int
    """Bytes that caches may need: those of two sequences of the longest length."""
    end: int
    """Bytes of the memory before caches."""

    @property
    def operations(self) -> int:
        return len(self.words) // WORDS

    @property
    def products(self) -> int:
        return self.words[::WORDS].count(Kind.PRODUCT)

    def waits(self, tokens: int) -> int:
        """How often the threads of a run of `tokens` tokens wait for one another."""
        return sum(bool(each & (1 if tokens == 1 else 2)) for each in self.words[WAITS::WORDS])

    def about(self, threads: int) -> str:
        """A description of how a step runs, for reports."""
        in_threads = "1 thread" if threads == 1 else f"{threads} threads, which wait {self.waits(1)} times"
        return (
            f"each step is a program of {self.operations} operations on the CPU, {self.products} of them products "
            f"with activations in 8 bits, on {in_threads}"
        )

    def as_json(self) -> dict[str, Any]:
        """The program as web/src/worker/cpu/cpu_engine.ts reads it."""
        return {**vars(self), "weights": [each.as_json() for each in self.weights], "rows": ROWS, "kept": KEPT}


def program_memory(memory: ModelMemory, program: CpuProgram) -> ModelMemory:
    """The memory of a model that runs as a program."""
    scratch = PoolSize(program.end - sum(each.bytes for each in program.weights), exact=True)
    entries = (
        WeightEntry(each.name, (each.bytes,), TensorProto.UINT8, "program", each.address, each.bytes)
        for each in program.weights
    )
    return replace(memory, weights=tuple(entries), measured=lambda rows, capacity, kind: scratch)


def quantized_bytes(width: int) -> int:
    """Bytes of a row of activations in 8 bits: see web/kernels/operations.ts."""
    return width + width // 2


def scale_bytes(form: int) -> int:
    """Bytes of the scales and minima of a group of rows, for 32 columns."""
    return (64, 128, 32, 16, 16)[form >> 1]


def whole_bytes(form: int) -> int:
    """Bytes that a group of rows has before each 256 columns."""
    return 0 if form >> 1 != Scales.BYTES else 16 if form & 1 else 32


def packed_bytes(form: int, n: int, k: int) -> int:
    """Bytes of an [n, k] weight, packed in groups of rows."""
    block = scale_bytes(form) + (256 if form & 1 else 128)
    return -(-n // GROUP) * (k // BLOCK * block + k // 256 * whole_bytes(form))


def aligned(size: int) -> int:
    return (size + 63) // 64 * 64
