"""How the attention of one new token is cut into workgroups, for web/src/shaders/attention.wgsl and its join."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from .kernel_plan import KernelPlan

__all__ = ["AttentionShape", "fits_attention", "join_rows", "plan_attention", "team_constants"]

LONGEST_HEAD = 256
WORKGROUP_BYTES = 16_384
"""Workgroup memory that every WebGPU device has."""
UNSHUFFLED = 64
"""Threads of a workgroup without subgroups, and positions of a block there."""
TILE, POSITIONS, ALONE = 3, 128, 384
"""With subgroups: query heads of a workgroup at most, positions of a block, positions that one split takes alone.

Measured on an NVIDIA H200 with 32 heads on 8 of 64 float16, the caches of 16 layers in turn, an empty dispatch being
1.9 us: blocks of 256 positions take 0.6 us longer than of 128 at length 128, tiles of 4 heads 0.8 us longer than of 2;
each further block of a split adds 1 us, a join 2.6 us; 32 splits are no faster than 16 at length 4096.
"""


class AttentionShape(Protocol):
    """What of an attention decides its plan."""

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
    def element(self) -> str:
        """f16 or f32."""


Counts = Callable[[int], tuple[int, int, int]]


def fits_attention(what: AttentionShape) -> bool:
    """Whether the kernel covers this shape: the halves of a head must be whole chunks of 16 bytes."""
    return what.heads % what.kv_heads == 0 and what.head % (2 * chunk_elements(what)) == 0 and what.head <= LONGEST_HEAD


def plan_attention(what: AttentionShape, lanes: int) -> tuple[KernelPlan, KernelPlan, int]:
    """The kernel that attends, the one that joins its splits, and the bytes of the partials between them.

    `lanes` is the adapter's one subgroup size, 0 without. Both kernels' workgroups are functions of the sequence
    length, the new token included; layers of one shape get the same functions.
    """
    per = chunk_elements(what)
    chunks = what.head // per
    team = 1 << (chunks - 1).bit_length()
    group = what.heads // what.kv_heads
    shuffled = team <= lanes
    tile = evenly(group, TILE if shuffled else 32 // per)
    while not shuffled and unshuffled_bytes(tile, what.head, chunks) > WORKGROUP_BYTES:
        tile = evenly(group, tile - 1)
    tiles = -(-group // tile)
    constants: dict[str, int | float | bool] = {
        "HEADS": what.heads,
        "KV_HEADS": what.kv_heads,
        "HEAD": what.head,
        "CAPACITY": what.capacity,
        "SCALE": what.scale,
        "TILE": tile,
        "SHUFFLED": shuffled,
    }
    if shuffled:
        warps = 256 // lanes
        while warps * tile * what.head * 4 > WORKGROUP_BYTES * 3 // 4:
            warps //= 2
        workgroup = warps * lanes
        batch = min(team, max(1, min(8, POSITIONS * team // workgroup)))
        block = workgroup // team * batch
        constants |= team_constants(team, batch, tile) | {"WARPS": warps}
        alone, most = max(1, ALONE // block), 16 if what.kv_heads * tiles >= 8 else 32
    else:
        workgroup = block = UNSHUFFLED
        alone, most = 2, 32
    constants |= {"WORKGROUP": workgroup, "BLOCK": block, "ALONE": alone, "MAX_SPLITS": most}
    join_constants: dict[str, int | float | bool] = {
        "HEADS": what.heads,
        "HEAD": what.head,
        "BLOCK": block,
        "ALONE": alone,
        "MAX_SPLITS": most,
        **join_rows(what.head, most),
    }
    attend, join = counts(block, alone, most, what.kv_heads * tiles, what.heads)
    partial_bytes = what.heads * most * (4 + what.head) * 4
    return KernelPlan("attention", constants, attend), KernelPlan("attention_join", join_constants, join), partial_bytes


def evenly(group: int, most: int) -> int:
    """Heads of a tile where a group is cut into as few tiles of up to `most` as there can be."""
    return -(-group // -(-group // most))


def unshuffled_bytes(tile: int, head: int, chunks: int) -> int:
    """Workgroup memory of the kernel without subgroups: query, new key and value, weights, two reductions, results."""
    rows = UNSHUFFLED // chunks
    return 4 * (tile * head + 8 * chunks + UNSHUFFLED * tile + 2 * UNSHUFFLED + rows * tile * head)


def team_constants(team: int, batch: int, tile: int) -> dict[str, int]:
    """What follows from a team of `team` lanes that takes `batch` positions for `tile` heads at once."""
    halvings = batch.bit_length() - 1
    folds = team.bit_length() - 1 - halvings
    return {"TEAM": team, "BATCH": batch, "HALVINGS": halvings, "FOLDS": folds, "HALF_SCORES": batch // 2 * tile}


def join_rows(head: int, most: int) -> dict[str, int]:
    """Of the join of up to `most` splits: rows of threads, at least 4 and a thread for each split; splits of a row."""
    quads = head // 4
    rows = max(4, -(-most // quads))
    return {"WORKGROUP": rows * quads, "ROWS": rows, "SHARE": -(-most // rows)}


def chunk_elements(what: AttentionShape) -> int:
    """Elements in 16 bytes."""
    return 8 if what.element == "f16" else 4


@lru_cache(maxsize=64)
def counts(block: int, alone: int, most: int, rows: int, heads: int) -> tuple[Counts, Counts]:
    """Workgroups of the attention and of the join by sequence length; a split alone needs no join."""

    def splits(length: int) -> int:
        blocks = -(-length // block)
        return 1 if blocks <= alone else min(blocks, most)

    def attend(length: int) -> tuple[int, int, int]:
        return splits(length), rows, 1

    def join(length: int) -> tuple[int, int, int]:
        return heads if splits(length) > 1 else 0, 1, 1

    return attend, join
