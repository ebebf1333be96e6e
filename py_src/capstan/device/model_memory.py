"""What a model takes of a device, and what fits it: known from its graph, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..memory import (
    AlignmentRequirements,
    DeviceSpan,
    Fit,
    MemoryRequirements,
    Pools,
    PoolSize,
    check_given,
    plan,
    requirements,
    sequence_items,
)
from .interface import DeviceInterface

if TYPE_CHECKING:
    from ..graph import Activations, GraphDescription, WeightEntry
    from .base import Progress

__all__ = ["ModelMemory", "capacity_for", "require_lengths"]

CAPACITY_STEP = 256
"""KV caches are made for a multiple of this many positions, so that sequences of like length share a tape."""


def capacity_for(max_length: int, context_length: int) -> int:
    """Positions of the KV cache that a sequence of `max_length` tokens gets."""
    return min(-(-max_length // CAPACITY_STEP) * CAPACITY_STEP, context_length)


def require_lengths(batch_size: int, max_length: int, context_length: int) -> None:
    """Raise OptionError unless there is a sequence, of at least one token and at most the context."""
    if batch_size < 1 or not 1 <= max_length <= context_length:
        raise OptionError(
            f"batch_size {batch_size}, max_length {max_length}: batch_size is at least 1, max_length from 1 to the "
            f"context length of {context_length}"
        )


def unmeasured(capacity: int) -> PoolSize | None:
    """Nothing was recorded yet."""
    return None


@dataclass(frozen=True)
class ModelMemory:
    """The memory of a model's graph on a device; lengths count tokens, sizes bytes."""

    interface: DeviceInterface
    description: GraphDescription
    weights: tuple[WeightEntry, ...]
    chunk: int
    """Most prompt tokens of one run."""
    context_length: int
    activations: Activations | None = None
    measured: Callable[[int], PoolSize | None] = unmeasured
    """Scratch of a sequence with that capacity, once one was recorded."""

    def requirements(self, batch_size: int, max_length: int) -> MemoryRequirements:
        """What the weights and `batch_size` sequences take."""
        capacity = capacity_for(max_length, self.context_length)
        return requirements(
            self.description,
            self.weights,
            batch_size=batch_size,
            max_length=capacity,
            chunk=self.chunk,
            device=self.interface.type,
            scratch=self.measured(capacity),
            activations=self.activations,
        )

    def alignment(self) -> AlignmentRequirements:
        """Start, size and span alignments of buffers that a sequence may be given."""
        return AlignmentRequirements.of(self.interface.get_memory_info(), self.interface.about())

    def fit(self, batch_size: int, max_length: int | None = None, budget: int | None = None) -> Fit:
        """Whether that fits the device, and the largest max_length that does; without a length, whether the longest
        sequence does. Raises OptionError for lengths that there cannot be."""
        length = self.context_length if max_length is None else max_length
        require_lengths(batch_size, length, self.context_length)
        return plan(
            lambda length: self.requirements(batch_size, length),
            length,
            self.interface.about(),
            at_most=self.context_length,
            budget=budget,
        )

    def before_load(self, progress: Progress) -> None:
        """Tell how large the weights are, before any of them is read. Raises OutOfMemoryError if the device cannot hold
        them with the shortest sequence."""
        self.fit(1, 1).require()
        progress("weights", 0, self.requirements(1, 1).weights.bytes)

    def given(self, capacity: int, pools: Pools) -> Mapping[str, DeviceSpan]:
        """The user's buffers by tensor name, checked. Raises BufferMismatchError."""
        spans: dict[str, DeviceSpan] = {}
        items = sequence_items(self.description, capacity, self.chunk)
        for name in ("persistent", "io"):
            buffers = getattr(pools, name)
            if buffers is not None:
                wanted = [item for item in items if item.pool == name]
                spans |= check_given(wanted, buffers, self.interface.get_memory_info(), self.alignment())
        return spans
