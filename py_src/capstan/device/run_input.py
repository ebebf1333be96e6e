"""Defines the base class of every input and output of a decoder's runs; run_inputs.py has the subclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..memory import DeviceSpan, Pool, PoolItem, pool_item
from .device_interface import DeviceInterface
from .element_types import byte_count

if TYPE_CHECKING:
    from ..graph import GraphDescription
    from .rope_tables import RopeTables

__all__ = [
    "AFTER",
    "BEFORE",
    "FREE",
    "STATE_BYTES",
    "STEP",
    "WRITTEN",
    "HostTensor",
    "Room",
    "Run",
    "RunInput",
    "RunTensor",
    "SequenceMemory",
    "TokenRows",
]

FREE = -1
BEFORE = -2
AFTER = -3
"""Sizes that depend on the run: its number of tokens, and the positions that are valid before and after it."""
STATE_BYTES = 32
WRITTEN = 4
"""WebGPU writes multiples of this number of bytes."""


@dataclass(frozen=True)
class RunTensor:
    """An input or output of the graph, and its item of the sequence's memory. Sizes are numbers, FREE, BEFORE or
    AFTER."""

    name: str
    item: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class HostTensor:
    """An input of one run, in the host's memory."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    data: bytes | memoryview


class TokenRows(Protocol):
    """The tables of a model on disk."""

    async def rows(self, tokens: Sequence[int]) -> tuple[list[bytes], int]:
        """The rows of these tokens by table, one after another, and the number of bytes that were read."""


@dataclass(frozen=True)
class Room:
    """The sizes of a sequence in tokens, and the contents of its tables."""

    capacity: int
    chunk: int
    """The most tokens of one run over a prompt."""
    apart: bool = False
    """Whether attention writes its caches to buffers apart from those that it reads."""
    rope: RopeTables | None = None
    """The rows of the rotary tables, where these depend on the sequence's length."""
    disk: TokenRows | None = None
    """Reads the rows of tables on disk."""


@dataclass(frozen=True)
class Run:
    """A kind of run: over the 'input' of a step, or over a 'prompt' or part of one."""

    which: str
    tokens: int
    """The number of tokens; FREE for any number."""
    every: bool = False
    """Whether it gives the logits of all its positions, not only of the last one."""


STEP = Run("input", 1)


class SequenceMemory(Protocol):
    """The buffers of one sequence."""

    @property
    def device(self) -> DeviceInterface: ...
    @property
    def spans(self) -> Mapping[str, DeviceSpan]: ...


class RunInput:
    """A kind of input or output of one sequence's runs. A provider overrides the methods that apply to it; the defaults
    are empty.
    """

    pool: Pool = "io"
    """The pool of its memory."""
    changes = True
    """Whether its tensors may be written between two replays of a tape."""

    def __init__(self, about: GraphDescription, room: Room) -> None:
        self.about = about
        self.room = room

    def items(self) -> list[PoolItem]:
        """The memory of a sequence: room for each tensor of a step, and of a run over a prompt."""
        tensors = [tensor for run in (STEP, Run("prompt", self.room.chunk)) for tensor in self.tensors(run)]
        longest = self.room.capacity
        sizes = {each.item: byte_count(each.dtype, [s if s >= 0 else longest for s in each.dims]) for each in tensors}
        return [pool_item(name, self.pool, size) for name, size in sizes.items()]

    def tensors(self, run: Run) -> list[RunTensor]:
        """All inputs and outputs of a run of this kind."""
        return [*self.feeds(run), *self.fetches(run)]

    def feeds(self, run: Run) -> list[RunTensor]:
        """The inputs of a run of this kind; a session binds only inputs of its graph."""
        return []

    def fetches(self, run: Run) -> list[RunTensor]:
        """The outputs of a run of this kind."""
        return []

    def carried(self) -> list[str]:
        """The names of the items that are copied with the sequence."""
        return []

    def rotate(self, memory: SequenceMemory, long: bool) -> None:
        """Note that the sequence is rotated by the long factors of a long rope from now on, or by the short ones."""

    def hold(self, memory: SequenceMemory, valid: int) -> None:
        """Note that the sequence now has `valid` positions, whatever it had before."""

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        """Write the inputs of a run over these ids, after `past` positions. `valid` is the largest possible number of
        positions at present; None if unknown.
        """

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        """Write the inputs of a step that the host begins. In a burst the sampler's kernels write ids, mask and
        positions; every other input keeps the value of the previous step, and all rows of a tape share it."""

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        """For a device that takes tensors of the host: the inputs of a run over these ids, without the fixed ones."""
        return []

    def fixed_on_host(self, long: bool) -> list[HostTensor]:
        """The fixed inputs: they stay the same until the sequence is rotated by other factors."""
        return []
