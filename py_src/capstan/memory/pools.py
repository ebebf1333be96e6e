"""The pools of a model, whose sizes are known before anything is allocated.

    weights     the external initializers; shared by every sequence of the model
    persistent  what a sequence carries from step to step: key/value cache, sampler state, token ring
    io          what enters and leaves a step: ids, mask, positions, logits
    scratch     what the sessions allocate for themselves

The first three are lists of tensors, exact to the byte; scratch is an estimate until a session has run. QNN's LPAI
backend asks for its pools in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .info import Limits, MemoryInfo

if TYPE_CHECKING:
    from ..graph import Activations, GraphDescription, WeightEntry

__all__ = [
    "AlignmentRequirements",
    "MemoryRequirements",
    "Packing",
    "SNAPSHOTS",
    "Pool",
    "PoolItem",
    "PoolSize",
    "pack",
    "requirements",
    "round_up",
    "sequence_items",
    "weight_items",
]

Pool = Literal["weights", "persistent", "io"]

BYTES = {"float32": 4, "float16": 2, "int64": 8, "int32": 4}
STATE_BYTES = 32
SNAPSHOTS = 6
"""Of a sequence's states that runs overwrite: one before the end of its prompt, the others at the starts of bursts, of
which one is being read and at most four are under way."""
SIZE_ALIGNMENT = 16
"""Buffers are made in multiples of this many bytes."""


@dataclass(frozen=True)
class PoolItem:
    """One tensor of a pool; a buffer of `bytes` bytes, which are rounded up to the size alignment, is enough for it."""

    name: str
    pool: Pool
    bytes: int
    alignment: int
    """Bytes that its start is a multiple of."""
    bound: bool
    """onnxruntime binds it, and so it has a buffer of its own; the others are read by Capstan's kernels alone."""


@dataclass(frozen=True)
class PoolSize:
    """Bytes of a pool; `exact` is False for an estimate."""

    bytes: int
    exact: bool = True

    def __add__(self, other: PoolSize) -> PoolSize:
        return PoolSize(self.bytes + other.bytes, self.exact and other.exact)


@dataclass(frozen=True)
class AlignmentRequirements:
    """What buffers given to a model must keep to; bytes."""

    start: int
    """The start of a buffer is a multiple of this."""
    size: int
    """So is its size of this."""
    span_offset: int
    """And the offset of a span inside a buffer of this, where Capstan's kernels alone read it. A tensor that
    onnxruntime binds starts at offset 0 of a buffer of its own."""

    @classmethod
    def of(cls, memory: MemoryInfo, limits: Limits) -> AlignmentRequirements:
        """What a device says of itself, or its probe, for buffers made in `memory`."""
        return cls(memory.alignment, SIZE_ALIGNMENT, max(memory.alignment, limits.offset_alignment))


@dataclass(frozen=True)
class MemoryRequirements:
    """What a model and `batch_size` sequences of `max_length` tokens take of one device."""

    device: str
    batch_size: int
    max_length: int
    weights: PoolSize
    scratch: PoolSize
    persistent: PoolSize
    io: PoolSize
    items: tuple[PoolItem, ...]

    @property
    def total(self) -> PoolSize:
        return self.weights + self.scratch + self.persistent + self.io

    def pool(self, name: Pool) -> tuple[PoolItem, ...]:
        """The items of one pool, in the order in which they are allocated."""
        return tuple(item for item in self.items if item.pool == name)


def sequence_items(
    about: GraphDescription, capacity: int, chunk: int, batch_size: int = 1, *, start: int = SIZE_ALIGNMENT
) -> tuple[PoolItem, ...]:
    """Every tensor that `batch_size` sequences of `capacity` positions hold, in the order of allocation.

    `chunk` is the most prompt tokens of one run, `start` the alignment of a buffer's start.
    """
    rows = batch_size

    def item(name: str, pool: Pool, size: int, *, bound: bool = True) -> PoolItem:
        return PoolItem(name, pool, round_up(size, SIZE_ALIGNMENT), start, bound)

    caches = [(f"kv {p.past}", math.prod(p.dims(rows, capacity)) * BYTES[about.cache_dtype]) for p in about.cache]
    items = [item(name, "persistent", size) for name, size in caches]
    if about.growing:
        items += [item(f"grown {name}", "persistent", size) for name, size in caches]
    items += [
        item("mask", "io", rows * capacity * BYTES[about.mask_dtype]),
        item("logits", "io", rows * about.vocab_size * BYTES[about.logits_dtype]),
        item("input ids", "io", rows * BYTES["int64"]),
        item("prompt ids", "io", rows * chunk * BYTES["int64"]),
    ]
    if about.has_position_ids:
        items += [
            item("positions", "io", rows * BYTES["int64"]),
            item("prompt positions", "io", rows * chunk * BYTES["int64"]),
        ]
    sizes = [rows * math.prod(state.sizes) * BYTES[state.dtype] for state in about.states]
    for state, size in zip(about.states, sizes, strict=True):
        items += [item(state.past, "persistent", size), item(state.present, "persistent", size)]
    if sizes:
        each = sum(round_up(size, SIZE_ALIGNMENT) for size in sizes)
        items.append(item("snapshots", "persistent", SNAPSHOTS * each, bound=False))
    items += [item(f"lora {slot.name}", "weights", math.prod(slot.dims) * BYTES[slot.dtype]) for slot in about.lora]
    items += [
        item("state", "persistent", rows * STATE_BYTES, bound=False),
        item("ring", "persistent", rows * capacity * 4, bound=False),
    ]
    return tuple(items)


def weight_items(weights: Iterable[WeightEntry], *, start: int = SIZE_ALIGNMENT) -> tuple[PoolItem, ...]:
    """The weights that became graph inputs: each is a buffer of its own."""
    return tuple(
        PoolItem(entry.name, "weights", max(SIZE_ALIGNMENT, round_up(entry.length, SIZE_ALIGNMENT)), start, True)
        for entry in weights
    )


def requirements(
    description: GraphDescription,
    weights: Sequence[WeightEntry],
    *,
    batch_size: int,
    max_length: int,
    chunk: int,
    device: str = "webgpu",
    scratch: PoolSize | None = None,
    activations: Activations | None = None,
) -> MemoryRequirements:
    """What `batch_size` sequences of `max_length` positions and the weights take.

    `scratch` is what was measured once a session has run. Before that it is estimated from the prefill graph's
    `activations`, the largest set of tensors alive at once in a run over `chunk` tokens; with neither it is 0, inexact.
    """
    items = (*weight_items(weights), *sequence_items(description, max_length, chunk, batch_size))
    if scratch is None:
        estimate = activations.peak(batch_size, min(chunk, max_length), max_length) if activations else 0
        scratch = PoolSize(estimate, exact=False)

    def size(pool: Pool) -> PoolSize:
        return PoolSize(sum(item.bytes for item in items if item.pool == pool))

    return MemoryRequirements(
        device=device,
        batch_size=batch_size,
        max_length=max_length,
        weights=size("weights"),
        scratch=scratch,
        persistent=size("persistent"),
        io=size("io"),
        items=items,
    )


@dataclass(frozen=True)
class Packing:
    """Where each item lies in one buffer of `bytes` bytes."""

    offsets: dict[str, int]
    bytes: int


def pack(items: Iterable[PoolItem], alignment: int) -> Packing:
    """Put items that onnxruntime does not bind into one buffer, in order, each at a multiple of `alignment`.

    None overlap, and the buffer is less than `alignment` (or an item's own, if larger) a tensor larger than their sum.
    """
    offsets: dict[str, int] = {}
    end = 0
    for item in items:
        if item.bound:
            raise ValueError(f"{item.name} is bound by onnxruntime, which takes no offset; give it a buffer of its own")
        if item.name in offsets:
            raise ValueError(f"two tensors are called {item.name}; names must differ")
        offsets[item.name] = round_up(end, max(alignment, item.alignment))
        end = offsets[item.name] + item.bytes
    return Packing(offsets, round_up(end, SIZE_ALIGNMENT))


def round_up(value: int, multiple: int) -> int:
    """The first multiple that is not below `value`."""
    return -(-value // multiple) * multiple
