"""Computes the pools of a model, whose sizes are known before anything is allocated.

    weights     the external initializers; shared by every sequence of the model
    persistent  tensors that a sequence keeps from step to step: key/value cache, sampler state, token ring
    io          inputs and outputs of a step: ids, mask, positions, logits
    scratch     buffers that sessions allocate for themselves, and those between the kernels of a tape

The first three are lists of tensors, exact to the byte. In scratch, the part of tapes is exact after a tape was made;
the part of sessions is an estimate until one of them ran. QNN's LPAI backend requests its pools in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .info import Limits, MemoryInfo

if TYPE_CHECKING:
    from ..graph import GraphDescription, SplitWeight, WeightEntry

__all__ = [
    "AlignmentRequirements",
    "MemoryRequirements",
    "Packing",
    "SNAPSHOTS",
    "Pool",
    "PoolItem",
    "PoolSize",
    "ROWS_APART",
    "Rows",
    "TAPE_SCRATCH",
    "cache_sizes",
    "cross_sizes",
    "pack",
    "pool_item",
    "round_up",
    "row_items",
    "row_prefix",
    "tape_scratch_items",
    "weight_items",
    "window_table_sizes",
]

Pool = Literal["weights", "persistent", "io", "scratch"]
Rows = Literal["separate", "joint"]
"""How the rows of a generator are held: as separate sequences, or in buffers that have a part for every row, besides
one sequence that runs the prompts.
"""

BYTES = {"float32": 4, "float16": 2, "int64": 8, "int32": 4}
STATE_BYTES = 32
SNAPSHOTS = 6
"""The number of copies of a sequence's states, which runs overwrite: one from before the end of its prompt, the others
from the starts of bursts. One of these is read while at most four are in flight.
"""
ROWS_APART = "rows apart"
"""Copies of joint rows while they replace one another."""
TAPE_SCRATCH = "tape scratch"
SIZE_ALIGNMENT = 16
"""Sizes of buffers are multiples of this number of bytes."""


@dataclass(frozen=True)
class PoolItem:
    """Describes one tensor of a pool. A buffer of `bytes` bytes, rounded up to the size alignment, is enough for it."""

    name: str
    pool: Pool
    bytes: int
    alignment: int
    """Its start is a multiple of this number of bytes."""
    bound: bool
    """Whether it needs a separate buffer: onnxruntime binds it whole, or a kernel reads it while it writes another
    tensor, which WebGPU refuses within one buffer. Other items may be parts of one buffer.
    """


@dataclass(frozen=True)
class PoolSize:
    """The bytes of a pool. `exact` is False for an estimate."""

    bytes: int
    exact: bool = True

    def __add__(self, other: PoolSize) -> PoolSize:
        return PoolSize(self.bytes + other.bytes, self.exact and other.exact)


@dataclass(frozen=True)
class AlignmentRequirements:
    """The alignments, in bytes, that buffers given to a model need."""

    start: int
    """The start of a buffer is a multiple of this."""
    size: int
    """The size of a buffer is a multiple of this."""
    span_offset: int
    """The offset of a span inside a buffer is a multiple of this, unless the item is `bound`: a bound item starts at
    offset 0 of a separate buffer.
    """

    @classmethod
    def of(cls, memory: MemoryInfo, limits: Limits) -> AlignmentRequirements:
        """The alignments of a device for buffers made in `memory`; `limits` are the device's or its probe's."""
        return cls(memory.alignment, SIZE_ALIGNMENT, max(memory.alignment, limits.offset_alignment))


@dataclass(frozen=True)
class MemoryRequirements:
    """The memory of one device that a model and `batch_size` sequences of `max_length` tokens need."""

    device: str
    batch_size: int
    max_length: int
    weights: PoolSize
    scratch: PoolSize
    persistent: PoolSize
    io: PoolSize
    items: tuple[PoolItem, ...]
    rows: Rows = "separate"
    """How the items hold several rows."""
    no_scratch: str = ""
    """The reason why no scratch can be given, or not yet; empty if the scratch pool has items."""
    split: tuple[SplitWeight, ...] = ()
    """The weights of the file that are larger than the GPU adapter binds: the number of parts of each, or the reason
    why it has none and the device cannot hold it.
    """
    looked_up: int = 0
    """The bytes of weights that could stay on disk, with `embedding_tables="disk"` of a load."""
    draft: MemoryRequirements | None = None
    """The memory of the draft model and of its sequence, which takes no pools of the caller; None without one."""

    @property
    def total(self) -> PoolSize:
        """All four pools together, and those of the draft model."""
        own = self.weights + self.scratch + self.persistent + self.io
        return own if self.draft is None else own + self.draft.total

    def pool(self, name: Pool) -> tuple[PoolItem, ...]:
        """The items of one pool, in the order in which they are allocated."""
        return tuple(item for item in self.items if item.pool == name)


def pool_item(name: str, pool: Pool, size: int, *, bound: bool = True) -> PoolItem:
    """A tensor of `size` bytes."""
    return PoolItem(name, pool, round_up(size, SIZE_ALIGNMENT), SIZE_ALIGNMENT, bound)


def cache_sizes(about: GraphDescription, capacity: int, chunk: int) -> dict[str, int]:
    """Bytes of each key/value cache of a sequence of `capacity` positions, by the name of its item."""
    dims = {f"kv {pair.past}": pair.dims(1, about.positions(pair, capacity, chunk)) for pair in about.cache}
    return {name: math.prod(sizes) * BYTES[about.cache_dtype] for name, sizes in dims.items()}


def cross_sizes(about: GraphDescription) -> dict[str, int]:
    """Bytes of each of an encoder's outputs that a sequence holds, by the name of its item."""
    sizes = {each.name: [size for size in each.dims if isinstance(size, int)] for each in about.cross}
    return {f"cross {each.name}": math.prod(sizes[each.name]) * BYTES[each.dtype] for each in about.cross}


def window_table_sizes(about: GraphDescription, capacity: int, chunk: int) -> dict[str, int]:
    """The bytes of each rotary table that a sequence with sliding caches needs, by the name of its item."""
    if about.sliding is None:
        return {}
    room = about.sliding.room(capacity, chunk)
    return {f"window {each.name}": room * each.width * BYTES[each.dtype] for each in about.sliding.tables}


def row_items(
    about: GraphDescription, rows: int, capacity: int, chunk: int, *, start: int = SIZE_ALIGNMENT
) -> tuple[PoolItem, ...]:
    """Every tensor that `rows` joint rows of `capacity` positions hold, except those of the sequence that runs their
    prompts. Each tensor has the rows one after another, and memory for rows that replace other rows.
    """

    def item(name: str, pool: Pool, size: int, *, bound: bool) -> PoolItem:
        return PoolItem(name, pool, round_up(size, SIZE_ALIGNMENT), start, bound)

    caches = {**cache_sizes(about, capacity, chunk), **cross_sizes(about)}
    # Rows whose caches slide have separate bases, and so separate tables.
    tables = window_table_sizes(about, capacity, chunk) if about.slides(capacity, chunk) else {}
    logits = about.vocab_size * BYTES[about.logits_dtype]
    persistent = {**caches, "state": STATE_BYTES, "ring": 4 * capacity}
    io = {"input ids": 8, "mask": 8 * capacity, "positions": 8, "logits": logits}
    return (
        *(item(f"rows {name}", "persistent", rows * size, bound=name in caches) for name, size in persistent.items()),
        item(ROWS_APART, "persistent", rows * max([*caches.values(), *tables.values(), logits]), bound=True),
        *(item(f"rows {name}", "io", rows * size, bound=True) for name, size in io.items()),
        *(item(f"rows {name}", "weights", rows * size, bound=True) for name, size in tables.items()),
    )


def row_prefix(row: int, rows: int) -> str:
    """The beginning of the names of a separate row's tensors; empty for a single row."""
    return f"row {row} " if rows > 1 else ""


def tape_scratch_items(sizes: Iterable[int], start: int = SIZE_ALIGNMENT) -> tuple[PoolItem, ...]:
    """The scratch that the kernels of a generator's tapes use in turn. Each item is a separate buffer, since WebGPU
    does not let a kernel read and write parts of one buffer.
    """
    return tuple(
        PoolItem(f"{TAPE_SCRATCH} {number}", "scratch", round_up(size, SIZE_ALIGNMENT), start, True)
        for number, size in enumerate(sizes)
    )


def weight_items(weights: Iterable[WeightEntry], *, start: int = SIZE_ALIGNMENT) -> tuple[PoolItem, ...]:
    """The weights that became graph inputs: each is a separate buffer, except that weights made from the same parts of
    a file share one buffer.
    """
    alike = {(entry.location, entry.pieces): entry for entry in reversed(list(weights))}
    return tuple(
        PoolItem(entry.name, "weights", max(SIZE_ALIGNMENT, round_up(entry.length, SIZE_ALIGNMENT)), start, True)
        for entry in reversed(alike.values())
    )


@dataclass(frozen=True)
class Packing:
    """The offset of each item in one buffer of `bytes` bytes."""

    offsets: dict[str, int]
    bytes: int


def pack(items: Iterable[PoolItem], alignment: int) -> Packing:
    """Put items that onnxruntime does not bind into one buffer, in order, each at a multiple of `alignment`.

    No items overlap. For each item the buffer grows by less than `alignment` (or the item's own alignment, if larger)
    beyond its size.
    """
    offsets: dict[str, int] = {}
    end = 0
    for item in items:
        if item.bound:
            raise ValueError(f"{item.name} is bound by onnxruntime, which takes no offset; give it a separate buffer")
        if item.name in offsets:
            raise ValueError(f"two tensors are called {item.name}; names must differ")
        offsets[item.name] = round_up(end, max(alignment, item.alignment))
        end = offsets[item.name] + item.bytes
    return Packing(offsets, round_up(end, SIZE_ALIGNMENT))


def round_up(value: int, multiple: int) -> int:
    """The first multiple that is not below `value`."""
    return -(-value // multiple) * multiple
