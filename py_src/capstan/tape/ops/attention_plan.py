"""Plans the workgroups of attention.wgsl, attention_join.wgsl and attention_turn.wgsl for heads and an adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from ..kernel_plan import KernelPlan
from ..operation import ELEMENT_BYTES

__all__ = [
    "IN_4_BITS",
    "AttentionShape",
    "by_length",
    "fits_attention",
    "form_constants",
    "is_turned",
    "join_rows",
    "levels_bytes",
    "plan_append",
    "plan_attention",
    "team_constants",
    "turn_constants",
    "unfit_heads",
]

LONGEST_HEAD = 512
IN_4_BITS = 4
LEVELS_BYTES = 64
"""Bytes of workgroup memory for the levels of caches of 4 bits."""
WORKGROUP_BYTES = 16_384
"""Bytes of workgroup memory of every WebGPU device."""
UNSHUFFLED = 64
"""The number of threads in a workgroup without subgroups, which is also the number of positions in a block. Longer
heads have one thread for each chunk.
"""
TURNING = 64
"""Threads that turn a head by a Hadamard matrix."""
JOINING = 256
"""Threads of a workgroup that every WebGPU device allows."""
LARGE_HEAD = 128
"""The longest head of which a workgroup takes several. With only one of the longer heads there is memory for sums of
256 threads: Gemma 3's 4 heads on 1 of 256 then take 8.3 us a layer on an NVIDIA H200 instead of 10.3.
"""
SCARCE = 8
"""If a split has fewer workgroups than this, each workgroup takes fewer heads: with SmolLM2's 9 heads on 3 of 64, 9
workgroups instead of 3 save 0.03 ms of a step of 0.68 on an NVIDIA H200, both at 350 and at 1000 positions.
"""
LARGEST_BATCH = 8
"""The most positions that a team takes at once."""
TILE, POSITIONS, ALONE = 3, 128, 384
"""With subgroups: the most query heads of a workgroup, positions of a block, positions that one split takes alone.

Measured on an NVIDIA H200 with 32 heads on 8 of 64 float16 and the caches of 16 layers in turn, where an empty dispatch
takes 1.9 us: blocks of 256 positions take 0.6 us longer than blocks of 128 at length 128, tiles of 4 heads 0.8 us
longer than tiles of 2; each further block of a split adds 1 us, a join 2.6 us; 32 splits are no faster than 16 at
length 4096.
"""


class AttentionShape(Protocol):
    """The properties of an attention that decide its plan."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head(self) -> int:
        """Elements of a head."""

    @property
    def capacity(self) -> int:
        """Positions that the caches hold."""

    @property
    def scale(self) -> float: ...
    @property
    def rotary(self) -> int:
        """Elements of a head that are rotated; 0 means all."""

    @property
    def interleaved(self) -> bool:
        """Whether an element is rotated with its neighbour instead of with an element of the other half."""

    @property
    def sinks(self) -> int | None:
        """The buffer with one more score for each head's softmax; None without sinks."""

    @property
    def window(self) -> int:
        """Positions of the window, including the new one; 0 means all."""

    @property
    def softcap(self) -> float:
        """The cap of scores; 0 for none."""

    @property
    def element(self) -> str:
        """f16 or f32."""

    @property
    def gated(self) -> bool:
        """Whether another vector, the gate of its result, follows each head of the queries."""

    @property
    def cache_bits(self) -> int:
        """Bits of an element of the caches, 8 or 4; 0 for caches of `element`."""

    @property
    def slides(self) -> bool:
        """Whether the caches and the rotary tables begin at the sequence's base."""

    @property
    def written(self) -> bool:
        """Whether the caches are written already."""

    @property
    def prepared(self) -> bool:
        """Whether the queries are rotated, too."""

    @property
    def whole(self) -> bool:
        """Whether all positions in the caches are attended at any length of the sequence."""


def is_turned(what: AttentionShape) -> bool:
    """Whether attention_turn.wgsl runs before the kernel and fills the caches, and the join turns results."""
    return what.cache_bits == IN_4_BITS and not what.prepared


def levels_bytes(cache_bits: int) -> int:
    """Bytes of workgroup memory for reading caches of `cache_bits` bits an element."""
    return LEVELS_BYTES if cache_bits == IN_4_BITS else 0


Counts = Callable[[int], tuple[int, int, int]]


def fits_attention(what: AttentionShape) -> bool:
    """Whether the kernel covers this shape."""
    return not unfit_heads(what.heads, what.kv_heads, what.head, what.rotary, what.element)


def unfit_heads(heads: int, kv_heads: int, head: int, rotary: int, element: str) -> str:
    """The reason why the kernel refuses heads of this shape; empty for a shape that it covers. Heads, and the halves of
    the `rotary` elements that are rotated (0 for all), must be whole chunks of 16 bytes.
    """
    per = 16 // ELEMENT_BYTES[element]
    if heads % kv_heads:
        return f"{heads} heads are not a multiple of {kv_heads}"
    if head > LONGEST_HEAD:
        return f"heads of {head} elements are longer than {LONGEST_HEAD}"
    if head % per or (rotary or head) % (2 * per):
        return (
            f"heads of {head} elements, {rotary or head} of them rotated, are not whole chunks of {per} and {2 * per}"
        )
    return ""


def plan_attention(
    what: AttentionShape,
    lanes: int,
    epsilon: float | None = None,
    buffers: int = 10,
    normed_values: bool = False,
    rows: int = 1,
    along: bool = False,
    packed: bool = False,
) -> tuple[KernelPlan, KernelPlan, int]:
    """The attention kernel, the kernel that joins its splits, and the bytes of the partial results between them. With
    an epsilon the attention kernel normalises q and k, with `normed_values` also v.

    `lanes` is the adapter's only subgroup size, or 0; `buffers` is the number of storage buffers that a kernel may
    bind; `rows` is the number of sequences that advance together, the longest of which determines the length. With
    `along` the rows are positions of one sequence, with `packed` positions of any sequences. Both kernels' workgroups
    are functions of the sequence length, including the new token; layers of one shape share these functions.
    """
    per = chunk_elements(what)
    chunks = what.head // per
    team = 1 << (chunks - 1).bit_length()
    group = what.heads // what.kv_heads
    shuffled = team <= lanes
    tile = evenly(group, (TILE if what.head <= LARGE_HEAD else 1) if shuffled else 32 // per)
    while shuffled and tile > 1 and what.kv_heads * -(-group // tile) < SCARCE:
        tile = evenly(group, tile - 1)
    room = WORKGROUP_BYTES - levels_bytes(what.cache_bits)
    while not shuffled and unshuffled_bytes(tile, what.head, chunks) > room:
        tile = evenly(group, tile - 1)
    tiles = -(-group // tile)
    # The join writes every result and adds the sinks if the attention kernel would bind too many buffers, or if the
    # join turns the results.
    turned = is_turned(what)
    alone_writes = not turned and 8 + 2 * (epsilon is not None) + normed_values + (what.sinks is not None) <= buffers
    constants: dict[str, int | float | bool] = {
        "HEADS": what.heads,
        "KV_HEADS": what.kv_heads,
        "HEAD": what.head,
        **form_constants(what),
        "WRITTEN": what.written or turned,
        "PREPARED": what.prepared or turned,
        "TILE": tile,
        "SHUFFLED": shuffled,
        "SEVERAL": rows > 1,
        "ALONG": along,
        "PACKED": packed,
        "APPENDED": along or packed,
        "TABLES_APART": what.slides and rows > 1 and not along,
        "SEQUENCES": rows,
    }
    if epsilon is not None:
        constants["EPSILON"] = epsilon
    if shuffled:
        warps = 256 // lanes
        while warps * tile * what.head * 4 > WORKGROUP_BYTES * 3 // 4:
            warps //= 2
        workgroup = warps * lanes
        batch = min(team, max(1, min(LARGEST_BATCH, POSITIONS * team // workgroup)))
        block = workgroup // team * batch
        constants |= team_constants(team, batch, tile) | {"WARPS": warps}
        alone, most = max(1, ALONE // block), 16 if what.kv_heads * tiles >= 8 else 32
    else:
        workgroup = block = max(UNSHUFFLED, team)
        alone, most = 2, 32
    constants |= {"WORKGROUP": workgroup, "BLOCK": block, "ALONE": alone, "MAX_SPLITS": most}
    join_constants: dict[str, int | float | bool] = {
        "HEADS": what.heads,
        "HEAD": what.head,
        "WINDOW": what.window or what.capacity,
        "BLOCK": block,
        "ALONE": alone,
        "MAX_SPLITS": most,
        "ALONE_WRITES": alone_writes,
        "ALONG": along,
        "SEQUENCES": rows,
        "TURNED": turned,
        "WHOLE": what.whole,
        **join_rows(what.head, most),
    }
    attend, join = counts(block, alone, most, what.kv_heads * tiles, what.heads, what.window, alone_writes, rows)
    partial_bytes = rows * what.heads * most * (4 + what.head) * 4
    plans = KernelPlan("attention", constants, attend), KernelPlan("attention_join", join_constants, join)
    if what.whole:
        plans = replace(plans[0], counts=attend(what.capacity)), replace(plans[1], counts=join(what.capacity))
    return *plans, partial_bytes


def by_length(attention: KernelPlan) -> list[KernelPlan]:
    """The two attention kernels of a plan for one sequence; each has no workgroups at the lengths of the other. While
    one split takes all positions, workgroups of one head with as many positions as possible are faster.

    Measured on an NVIDIA H100, they make a whole step at 128 positions faster by 3.7 % with 32 query and 8 key heads of
    64 elements, by 2.6 % with heads of 128. At 4000 positions they read the caches once for each head, and take 7 %
    longer.
    """
    constants = attention.constants
    if not constants["SHUFFLED"] or constants["TILE"] == 1 or constants["SEQUENCES"] > 1 or constants["WHOLE"]:
        return [attention]
    heads, team, workgroup = (int(constants[name]) for name in ("HEADS", "TEAM", "WORKGROUP"))
    reach, batch = int(constants["ALONE"] * constants["BLOCK"]), min(team, LARGEST_BATCH)
    block = workgroup // team * batch
    cut = {**team_constants(team, batch, 1), "TILE": 1, "BLOCK": block, "ALONE": -(-reach // block)}
    assert callable(attention.counts)
    short, long = counts_by_length(attention.counts, reach, int(constants["WINDOW"]), heads)
    return [replace(attention, constants={**constants, **cut}, counts=short), replace(attention, counts=long)]


def plan_append(attention: KernelPlan) -> KernelPlan:
    """The kernel that writes the caches before attention of several positions of a sequence, from the plan of that
    attention.
    """
    workgroups = (int(attention.constants["KV_HEADS"]), int(attention.constants["SEQUENCES"]), 1)
    return KernelPlan("attention_append", attention.constants, workgroups)


def turn_constants(attention: KernelPlan, epsilon: float | None) -> dict[str, int | float | bool]:
    """The constants of attention_turn.wgsl, which runs before attention by this plan; with an epsilon it normalises."""
    names = ("HEADS", "KV_HEADS", "HEAD", "ROTARY", "INTERLEAVED", "CAPACITY", "SLIDING", "ALONG", "TABLES_APART")
    normed: dict[str, int | float | bool] = {} if epsilon is None else {"EPSILON": epsilon}
    kept = {name: attention.constants[name] for name in names}
    workgroup = min(TURNING, int(attention.constants["HEAD"]) // 2)
    return {**kept, **normed, "NORMED": epsilon is not None, "WORKGROUP": workgroup}


def form_constants(what: AttentionShape) -> dict[str, int | float | bool]:
    """The constants for rotation, scores and the window, which the kernel and its truth share."""
    constants: dict[str, int | float | bool] = {
        "ROTARY": what.rotary or what.head,
        "INTERLEAVED": what.interleaved,
        "QUERY_HEAD": what.head * (1 + what.gated),
        "CAPACITY": what.capacity,
        "WINDOW": what.window or what.capacity,
        "SCALE": what.scale,
        "SOFTCAPPED": what.softcap != 0.0,
        "QUANTIZED": what.cache_bits != 0,
        "FOUR_BITS": what.cache_bits == IN_4_BITS,
        "WRITTEN": what.written,
        "PREPARED": what.prepared,
        "SLIDING": what.slides,
        "WHOLE": what.whole,
    }
    if what.softcap:
        constants["SOFTCAP"] = what.softcap
    return constants


def evenly(group: int, most: int) -> int:
    """The heads of a tile if a group is cut into the fewest equal tiles of at most `most` heads."""
    return -(-group // -(-group // most))


def unshuffled_bytes(tile: int, head: int, chunks: int) -> int:
    """Workgroup memory of the kernel without subgroups: query, new key and value, weights, two reductions, results."""
    threads = max(UNSHUFFLED, 1 << (chunks - 1).bit_length())
    rows = threads // chunks
    return 4 * (tile * head + 8 * chunks + threads * tile + 2 * threads + rows * tile * head)


def team_constants(team: int, batch: int, tile: int) -> dict[str, int]:
    """The constants of a team of `team` lanes that processes `batch` positions for `tile` heads at once."""
    halvings = batch.bit_length() - 1
    folds = team.bit_length() - 1 - halvings
    return {"TEAM": team, "BATCH": batch, "HALVINGS": halvings, "FOLDS": folds, "HALF_SCORES": batch // 2 * tile}


def join_rows(head: int, most: int) -> dict[str, int]:
    """The constants of the join of up to `most` splits: rows of threads (4 if a workgroup has room, with at least one
    thread for each split) and splits for each row.
    """
    quads = head // 4
    rows = max(min(4, JOINING // quads), -(-most // quads))
    return {"WORKGROUP": rows * quads, "ROWS": rows, "SHARE": -(-most // rows)}


def chunk_elements(what: AttentionShape) -> int:
    """Elements in 16 bytes."""
    return 8 if what.element == "f16" else 4


@lru_cache(maxsize=64)
def counts(
    block: int, alone: int, most: int, tiles: int, heads: int, window: int, alone_writes: bool, rows: int
) -> tuple[Counts, Counts]:
    """Workgroups of the attention and of the join by sequence length; a single split needs no join if it writes the
    result.
    """

    def splits(length: int) -> int:
        blocks = -(-min(length, window or length) // block)
        return 1 if blocks <= alone else min(blocks, most)

    def attend(length: int) -> tuple[int, int, int]:
        return splits(length), tiles, rows

    def join(length: int) -> tuple[int, int, int]:
        return heads if splits(length) > 1 or not alone_writes else 0, 1, rows

    return attend, join


@lru_cache(maxsize=64)
def counts_by_length(every: Counts, reach: int, window: int, heads: int) -> tuple[Counts, Counts]:
    """Workgroups of the kernel for up to `reach` positions, one for each head, and of the kernel for more."""

    def short(length: int) -> tuple[int, int, int]:
        return (1, heads, 1) if min(length, window) <= reach else (0, 1, 1)

    def long(length: int) -> tuple[int, int, int]:
        return every(length) if min(length, window) > reach else (0, 1, 1)

    return short, long
