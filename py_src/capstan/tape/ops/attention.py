"""Attention of one new token, for web/src/shaders/attention.wgsl and attention_join.wgsl, which joins its splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, STATE, Binding, Buffer, Kernel, Operation, Shared, Value
from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, Recorded, StepGraph
from ..witness import Witness

__all__ = ["RULES", "Attention", "AttentionShape", "fits_attention", "join_rows", "plan_attention", "team_constants"]

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


@dataclass(frozen=True)
class Attention(Operation):
    """Rotary embedding, cache write and grouped-query attention of one token: reads[0] is the packed q, k and v."""

    heads: int
    kv_heads: int
    head: int
    capacity: int
    scale: float
    cos: int
    sin: int
    key: int
    value: int
    element: str

    @property
    def in_place(self) -> frozenset[int]:
        return frozenset({self.key, self.value})

    @property
    def title(self) -> str:
        return f"attention of {self.heads} heads"

    @property
    def terms(self) -> int:
        return self.head

    def written_bytes(self, index: int) -> int:
        """The caches are recorded buffers: of what it makes only the result is placed."""
        return self.heads * self.head * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        split, join, partial_bytes = plan_attention(self, limits.lanes)
        half, out = self.element == "f16", Value(writes[0])
        passed: dict[str, Binding] = {"state": STATE, "partials": Shared(partial_bytes), "y": out}
        rotary: dict[str, Binding] = {"cos_cache": Buffer(self.cos), "sin_cache": Buffer(self.sin)}
        caches: dict[str, Binding] = {"key_cache": Buffer(self.key), "value_cache": Buffer(self.value)}
        attend = Kernel(split, half, {"qkv": Value(reads[0]), **rotary, **caches, **passed})
        return [attend, Kernel(join, half, passed)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        half, each = self.element == "f16", ELEMENT_BYTES[self.element]
        width, kv_width = self.heads * self.head, self.kv_heads * self.head
        # A kernel binds a part of a buffer from a multiple of 256 bytes on: of 32 pairs.
        values_at = -(-kv_width // 32) * 32
        constants: dict[str, int | float | bool] = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD": self.head,
            "CAPACITY": self.capacity,
            "SCALE": self.scale,
            "LONGEST": witness.longest,
            "VALUES_AT": values_at,
        }
        shared = {"qkv": witness.keep(reads[0], (width + 2 * kv_width) * each), "state": witness.length_at}
        rotary = {"cos_cache": ["recorded", self.cos], "sin_cache": ["recorded", self.sin]}
        keys, values = ["recorded", self.key], ["recorded", self.value]
        scores, truth = witness.scores(self.heads * witness.longest), witness.truths(width)
        rows = witness.truths(values_at + kv_width)

        def run(part: str, bindings: Mapping[str, list[Any]], counts: tuple[int, int, int]) -> None:
            chosen = {name: name == part for name in ("SCORES", "RESULT", "ROWS")}
            witness.run("truth_attention", {**constants, **chosen}, half, {**shared, **bindings}, counts)

        run("SCORES", {**rotary, "key_cache": keys, "scores": scores}, (-(-witness.length // 64), self.heads, 1))
        run("RESULT", {"value_cache": values, "scores": scores, "truth": truth}, (-(-width // 64), 1, 1))
        run("ROWS", {**rotary, "truth": rows}, (-(-kv_width // 64), 1, 1))
        witness.judge("result", self.element, witness.keep(writes[0], width * each), truth)
        kind, number, offset, _ = rows
        for part, cache, start in (("new keys", keys, 0), ("new values", values, 8 * values_at)):
            row = [kind, number, offset + start, 8 * kv_width]
            witness.judge(part, self.element, cache, row, (self.capacity, self.head))


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


def one_token(kernel: OrtKernel) -> bool:
    whole_head = 2 * kernel.number("half_rotary_dim") == kernel.number("head_size")
    return whole_head and kernel.uniforms["sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1


def one_query(kernel: OrtKernel) -> bool:
    biased = any(kernel.uniforms[f"attn_bias_dim{axis}"] not in (0, 1) for axis in (0, 1))
    return kernel.uniforms["new_sequence_length"] == 1 and kernel.uniforms["batch_size"] == 1 and not biased


ATTENTION_LACKS = ("softcap", "head_sink", "local_window", "attn_bias[", "attention_bias[")


def grouped(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Rotary embedding, split attention and its join, where nothing else reads what passes between them, as one."""
    readers = graph.readers()
    by_index = {node.what.index: node for node in graph.nodes if isinstance(node.what, Recorded)}

    def only_reader(value: int, kind: str) -> int | None:
        readings = [node.what for node in readers.get(value, ())]
        if len(readings) != 1 or not isinstance(readings[0], Recorded):
            return None
        index = readings[0].index
        return index if index in met and met[index].kernel.kind == kind else None

    replaced: dict[int, Node | None] = {}
    for index, found in met.items():
        rotary, written = found.kernel, found.writes
        if rotary.kind != "rotary":
            continue
        at = rotary.at
        split = only_reader(written[at["query"]], "attention_split")
        if split is None or only_reader(written[at["indirect_buffer"]], "attention_split") != split:
            continue
        partial = met[split].kernel
        caches = (at["present_key"], at["present_value"])
        reads = {graph.homes[value]: value for value in by_index[index].reads}
        filled = {written[cache] for cache in caches}
        if not filled <= set(by_index[split].reads) or not graph.last.keys() >= set(caches):
            # Attention of ours is over what the rotary kernel has put into caches that outlive the step.
            continue
        join = only_reader(met[split].writes[partial.at["out_split_vx"]], "attention_join")
        if join is None or only_reader(met[split].writes[partial.at["metadata"]], "attention_join") != join:
            continue
        # Positions and sizes of the rotary kernel are counted in vectors of four elements.
        what = Attention(
            heads=rotary.number("num_heads"),
            kv_heads=rotary.number("kv_num_heads"),
            head=4 * rotary.number("head_size"),
            capacity=rotary.number("present_sequence_length"),
            scale=partial.real("alpha"),
            cos=at["cos_cache"],
            sin=at["sin_cache"],
            key=at["present_key"],
            value=at["present_value"],
            element=rotary.element,
        )
        if not fits_attention(what):
            continue
        replaced |= {index: None, split: None}
        replaced[join] = Node(
            what,
            (reads[at["packed_qkv"]], *(reads[cache] for cache in caches)),
            (met[join].writes[met[join].kernel.at["output"]], *(written[cache] for cache in caches)),
            join,
            frozenset({index, split, join}),
        )
    kept: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.what, Recorded) and node.what.index in replaced:
            joined = replaced[node.what.index]
            kept += [joined] if joined else []
        else:
            kept.append(node)
    return replace(graph, nodes=tuple(kept))


RULES = Rules(
    (
        Signature(
            "rotary",
            "attention",
            (
                "packed_qkv",
                "seqlens",
                "cos_cache",
                "sin_cache",
                "total_sequence_length_input",
                "query",
                "present_key",
                "present_value",
                "indirect_buffer",
            ),
            has=(
                "packed_qkv: array<vec4<f",
                "present_key: array<vec4<f",
                "present_value: array<vec4<f",
                "let base_position = 0u;",
                "let idx_j = idx_i + uniforms.half_rotary_dim;",
                "let q_re = q_i * cos_v - q_j * sin_v;",
                "let k_im = k_i * sin_v + k_j * cos_v;",
            ),
            asked=("num_heads", "kv_num_heads", "head_size", "present_sequence_length"),
            weights=("cos_cache", "sin_cache"),
            holds=one_token,
        ),
        Signature(
            "attention_split",
            "attention",
            (
                "q",
                "present_key",
                "present_value",
                "seqlens_k",
                "total_sequence_length_input",
                "indirect_buffer",
                "out_split_vx",
                "metadata",
            ),
            has=("q: array<vec4<f", "return q_element_t(0);", "q_element_t(uniforms.alpha)", "exp(f32(tile_qk"),
            asked=("alpha",),
            lacks=ATTENTION_LACKS,
            holds=one_query,
        ),
        Signature(
            "attention_join",
            "attention",
            ("input", "metadata", "seqlens_k", "output"),
            has=("metadata[meta_base + i].x", "m_value.y * exp(m_value.x - g_max)"),
            asked=(),
            lacks=ATTENTION_LACKS,
            holds=lambda kernel: kernel.uniforms["new_sequence_length"] == 1,
        ),
    ),
    groups={"attention": grouped},
)
