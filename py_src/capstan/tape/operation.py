"""Defines the interface of Capstan's operations: the values that an operation writes, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .kernel_plan import KernelPlan, WorkgroupLimits
from .witness import Witness

__all__ = [
    "ELEMENT_BYTES",
    "STATE",
    "TABLE",
    "Binding",
    "Buffer",
    "Kernel",
    "Operation",
    "Shared",
    "State",
    "Table",
    "Value",
]

ELEMENT_BYTES = {"f16": 2, "f32": 4}


@dataclass(frozen=True)
class Value:
    """A value of the step, in its buffer."""

    id: int


@dataclass(frozen=True)
class Buffer:
    """A recorded buffer."""

    id: int


@dataclass(frozen=True)
class Shared:
    """Scratch between the kernels of one operation; operations that need the same number of bytes share it."""

    bytes: int


@dataclass(frozen=True)
class State:
    """The sampler's state, whose first word is the sequence's length."""


STATE = State()


@dataclass(frozen=True)
class Table:
    """The table that names, for each position of each row, the row whose caches hold that position."""


TABLE = Table()

Binding = Value | Buffer | Shared | State | Table


@dataclass(frozen=True)
class Kernel:
    """A kernel to dispatch, and its bindings by the names that its template declares."""

    plan: KernelPlan
    half: bool
    """Whether activations are float16."""
    bindings: Mapping[str, Binding]


class Operation(Protocol):
    """The computation of a node in the step's graph, if it is not replayed as recorded.

    A frozen dataclass: equal operations compute equal results from equal reads.
    """

    @property
    def loose(self) -> bool:
        """Whether no kernel computes it alone: it joins a neighbour, or its recorded operation stays."""
        return False

    @property
    def in_place(self) -> frozenset[int]:
        """The recorded buffers that the operation may both read and write."""
        return frozenset()

    @property
    def title(self) -> str:
        """The operation's name in messages."""
        return type(self).__name__

    @property
    def terms(self) -> int:
        """The number of terms that are added for an element of its result."""
        return 1

    @property
    def rounded(self) -> bool:
        """Whether the recorded kernels round their inputs to int8, which accuracy_level 4 allows; ours do not."""
        return False

    @property
    def as_recorded(self) -> Operation:
        """The operation that the replaced kernels compute: this one without the parts that those kernels ignore."""
        return self

    def written_bytes(self, index: int) -> int:
        """Bytes of the `index`-th value that it writes."""

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> Sequence[Kernel]:
        """The kernels that compute it, in order; `reads` and `writes` are the node's values."""

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Have `witness` compute the correct results from its reads, and compare the kernel's results with them.
        Operations without a truth are checked only by the comparison of whole runs.
        """
        return
