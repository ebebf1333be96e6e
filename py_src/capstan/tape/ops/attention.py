"""Attention of one new token, for attention.wgsl and attention_join.wgsl, which joins its splits; over caches of 4 bits
attention_turn.wgsl runs before these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, STATE, TABLE, Binding, Buffer, Kernel, Operation, Shared, Value
from ..witness import Witness

__all__ = [
    "IN_4_BITS",
    "Attention",
    "AttentionShape",
    "HeadNorms",
    "by_length",
    "fits_attention",
    "levels_bytes",
    "join_rows",
    "plan_attention",
    "team_constants",
    "unfit_heads",
]

LONGEST_HEAD = 512
IN_4_BITS = 4
LEVELS_BYTES = 64
"""Workgroup memory for the levels of caches of 4 bits."""
CHECKED = 1024
"""Positions at most whose terms are counted."""
WORKGROUP_BYTES = 16_384
"""Bytes of workgroup memory of every WebGPU device."""
UNSHUFFLED = 64
"""Threads of a workgroup without subgroups, and positions of a block there; one for each chunk of longer heads."""
TURNING = 64
"""Threads that turn a head by a Hadamard matrix."""
JOINING = 256
"""Threads that a workgroup has on every WebGPU device."""
LARGE_HEAD = 128
"""A workgroup takes only one of longer heads, which leaves memory for sums of 256 threads: Gemma 3's 4 heads on 1 of
256 then take 8.3 us a layer on an NVIDIA H200 instead of 10.3.
"""
SCARCE = 8
"""If a split has fewer workgroups, they take fewer heads each: with SmolLM2's 9 heads on 3 of 64, 9 workgroups instead
of 3 save 0.03 ms of a step of 0.68 on an NVIDIA H200, at 350 as at 1000 positions.
"""
LARGEST_BATCH = 8
"""Positions that a team takes at once, at most."""
TILE, POSITIONS, ALONE = 3, 128, 384
"""With subgroups: query heads of a workgroup at most, positions of a block, positions that one split takes alone.

Measured on an NVIDIA H200 with 32 heads on 8 of 64 float16, the caches of 16 layers in turn, an empty dispatch being
1.9 us: blocks of 256 positions take 0.6 us longer than of 128 at length 128, tiles of 4 heads 0.8 us longer than of 2;
each further block of a split adds 1 us, a join 2.6 us; 32 splits are no faster than 16 at length 4096.
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
        """Whether an element is rotated with its neighbour, not with one of the other half."""

    @property
    def sinks(self) -> int | None:
        """Not None if each head's softmax has one more score."""

    @property
    def window(self) -> int:
        """Positions in sight, the new one included; 0 means all."""

    @property
    def softcap(self) -> float:
        """0 if scores have no cap."""

    @property
    def element(self) -> str:
        """f16 or f32."""

    @property
    def cache_bits(self) -> int:
        """Bits of an element of the caches, 8 or 4; 0 for those of `element`."""

    @property
    def slides(self) -> bool:
        """Whether the caches and the rotary tables begin at the sequence's base."""

    @property
    def prepared(self) -> bool:
        """Whether the queries are rotated and the caches written already."""


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of each head of q and k, and of v where there is a gamma for it; the gammas are buffers of weights."""

    q_gamma: int
    k_gamma: int
    epsilon: float
    v_gamma: int | None = None

    @property
    def gammas(self) -> dict[str, int]:
        """By the names that the templates give them."""
        found = {"q_gamma": self.q_gamma, "k_gamma": self.k_gamma}
        return found if self.v_gamma is None else {**found, "v_gamma": self.v_gamma}


@dataclass(frozen=True)
class Attention(Operation):
    """Norms of q, k and v if there are any, rotary embedding, cache write and grouped-query attention of one token:
    reads[0] is the packed q, k and v, unless it is `prepared`."""

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
    norms: HeadNorms | None = None
    rotary: int = 0
    interleaved: bool = False
    sinks: int | None = None
    """A buffer of weights: of each head, one more score of its softmax."""
    window: int = 0
    softcap: float = 0.0
    cache_bits: int = 0
    """8 or 4 for quantized caches (quantized_rows.wgsl), 0 for caches of `element`."""
    prepared: bool = False
    """Whether reads[0] has the queries alone, as they are multiplied by the keys, and a recorded kernel has written the
    new rows."""
    slides: bool = False
    """Whether the caches and the rotary tables hold the positions from the sequence's base on alone."""
    rows: int = 1
    """Sequences that advance together, each by a token; caches and the sampler's state have a part for each."""
    along: bool = False
    """Whether these are positions of one sequence instead, one behind the other."""
    packed: bool = False
    """Whether these are positions of any of the sequences whose caches there are, as the state says of each."""
    tabled: bool = False
    """Whether a table says for each row and position whose caches hold it; a row writes its own."""

    @property
    def as_recorded(self) -> Attention:
        return self.with_left_out(0, 0.0)

    @property
    def turned(self) -> bool:
        """Whether queries, new rows and results are turned by a Hadamard matrix."""
        return is_turned(self)

    def with_left_out(self, window: int, softcap: float) -> Attention:
        """The same with what the recorded kernels leave out."""
        return replace(self, window=window, softcap=softcap)

    @property
    def in_place(self) -> frozenset[int]:
        return frozenset() if self.prepared else frozenset({self.key, self.value})

    @property
    def title(self) -> str:
        return f"attention of {self.heads} heads"

    @property
    def terms(self) -> int:
        # The check's caches repeat their rows: roundings of equal terms are equal, which shows in float32 at last.
        return self.head if self.element == "f16" else max(self.head, min(self.window or self.capacity, CHECKED))

    def written_bytes(self, index: int) -> int:
        """The caches are recorded buffers: of what it makes only the result is placed."""
        return self.rows * self.heads * self.head * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        own = self.norms if not self.turned else None
        epsilon, normed = (own.epsilon, own.v_gamma is not None) if own else (None, False)
        split, join, partial_bytes = plan_attention(
            self, limits.lanes, epsilon, limits.buffers - self.tabled, normed, self.rows, self.along, self.packed
        )
        half, out = self.element == "f16", Value(writes[0])
        passed: dict[str, Binding] = {"state": STATE, "partials": Shared(partial_bytes)}
        results: dict[str, Binding] = {"y": out}
        rotary: dict[str, Binding] = {"cos_cache": Buffer(self.cos), "sin_cache": Buffer(self.sin)}
        caches: dict[str, Binding] = {"key_cache": Buffer(self.key), "value_cache": Buffer(self.value)}
        gammas: dict[str, Binding] = {}
        if self.norms:
            gammas = {name: Buffer(gamma) for name, gamma in self.norms.gammas.items()}
        sinks: dict[str, Binding] = {} if self.sinks is None else {"head_sink": Buffer(self.sinks)}
        first, second = (results | sinks, {}) if join.constants["ALONE_WRITES"] else ({}, sinks)
        table: dict[str, Binding] = {"table": TABLE} if self.tabled else {}
        qkv: dict[str, Binding] = {"qkv": Value(reads[0])}
        last = Kernel(join, half, {**passed, **results, **second})
        if self.turned:
            queries = Shared(self.written_bytes(0))
            before = self._turn(split, {**qkv, "state": STATE, **rotary}, caches, gammas, queries, limits)
            read = {"qkv": queries, **caches, **table, **passed}
            return [*before, *(Kernel(plan, half, read) for plan in by_length(split)), last]
        written = {} if self.prepared else rotary
        bound: dict[str, Binding] = {**qkv, **written, **caches, **table, **passed, **gammas, **first}
        kernels = [*(Kernel(plan, half, bound) for plan in by_length(split)), last]
        if not split.constants["APPENDED"]:
            return kernels
        return [Kernel(plan_append(split), half, bound), *kernels]

    def _turn(
        self,
        split: KernelPlan,
        given: Mapping[str, Binding],
        caches: Mapping[str, Binding],
        gammas: Mapping[str, Binding],
        queries: Shared,
        limits: WorkgroupLimits,
    ) -> list[Kernel]:
        """The kernel before attention over caches of 4 bits; one for queries and one for new rows where the adapter
        lets a kernel bind fewer buffers."""
        constants = turn_constants(split, self)

        def made(first: int, heads: int, names: Collection[str], by: Mapping[str, Binding]) -> Kernel:
            own = {name: gamma for name, gamma in gammas.items() if name[0] in names}
            plan = KernelPlan("attention_turn", {**constants, "FIRST": first}, (heads, self.rows, 1))
            return Kernel(plan, self.element == "f16", {**given, **own, **by})

        whole = made(0, self.heads + 2 * self.kv_heads, "qkv", {**caches, "queries": queries})
        if len(whole.bindings) <= limits.buffers:
            return [whole]
        asked = made(0, self.heads, "q", {"queries": queries})
        return [asked, made(self.heads, 2 * self.kv_heads, "kv", caches)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """A step of several sequences has no truth: it is compared with steps of one."""
        if self.rows > 1:
            return
        half, each = self.element == "f16", ELEMENT_BYTES[self.element]
        width, kv_width = self.heads * self.head, self.kv_heads * self.head
        # A kernel binds a part of a buffer from a multiple of 256 bytes on: of 32 pairs.
        values_at = -(-kv_width // 32) * 32
        constants: dict[str, int | float | bool] = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD": self.head,
            **form_constants(self),
            "LONGEST": witness.longest,
            "VALUES_AT": values_at,
        }
        constants |= {"NORMED": self.norms is not None, "TURNED": self.turned}
        gammas: dict[str, list[Any]] = {}
        if self.norms:
            constants["EPSILON"] = self.norms.epsilon
            gammas = {name: ["recorded", gamma] for name, gamma in self.norms.gammas.items()}
        packed = width if self.prepared else width + 2 * kv_width
        shared = {"qkv": witness.keep(reads[0], packed * each), "state": witness.length_at}
        rotary: dict[str, list[Any]] = {}
        if not self.prepared:
            rotary = {"cos_cache": ["recorded", self.cos], "sin_cache": ["recorded", self.sin]}
        keys, values = ["recorded", self.key], ["recorded", self.value]
        scores, truth = witness.scores(self.heads * witness.longest), witness.truths(width)

        def run(normed: str, bindings: Mapping[str, list[Any]], counts: tuple[int, int, int]) -> None:
            """`normed` are the initials of what has to be normalised."""
            by = {name: gamma for name, gamma in gammas.items() if name[0] in normed}
            witness.run("truth_attention", constants, half, {**shared, **by, **bindings}, counts)

        counts = (-(-witness.length // 64), self.heads, 1)
        run("qk", {**rotary, "key_cache": keys, "scores": scores}, counts)
        sinks: dict[str, list[Any]] = {} if self.sinks is None else {"head_sink": ["recorded", self.sinks]}
        run("v", {"value_cache": values, **sinks, "scores": scores, "truth": truth}, (-(-width // 64), 1, 1))
        witness.judge("result", self.element, witness.keep(writes[0], width * each), truth)
        if self.prepared or self.turned:
            # A part of a turned row may be past the last level: no bound of its error is known.
            return
        rows = witness.truths(values_at + kv_width)
        run("kv", {**rotary, "truth": rows}, (-(-kv_width // 64), 1, 1))
        kind, number, offset, _ = rows
        for part, cache, start in (("new keys", keys, 0), ("new values", values, 8 * values_at)):
            row = [kind, number, offset + start, 8 * kv_width]
            witness.judge(part, self.element, cache, row, (self.capacity, self.head), self.cache_bits, self.slides)


def is_turned(what: AttentionShape) -> bool:
    """Whether attention_turn.wgsl runs before the kernel, which finds all in the caches, and the join turns results."""
    return what.cache_bits == IN_4_BITS and not what.prepared


def levels_bytes(cache_bits: int) -> int:
    """Workgroup memory that reading such caches takes."""
    return LEVELS_BYTES if cache_bits == IN_4_BITS else 0


Counts = Callable[[int], tuple[int, int, int]]


def fits_attention(what: AttentionShape) -> bool:
    """Whether the kernel covers this shape."""
    return not unfit_heads(what.heads, what.kv_heads, what.head, what.rotary, what.element)


def unfit_heads(heads: int, kv_heads: int, head: int, rotary: int, element: str) -> str:
    """Why the kernel refuses heads of this shape; empty for a shape that it covers. Heads, and the halves of the
    `rotary` elements that are rotated (0 for all), must be whole chunks of 16 bytes."""
    per = 16 // ELEMENT_BYTES[element]
    if heads % kv_heads:
        return f"{heads} heads are no multiple of {kv_heads}"
    if head > LONGEST_HEAD:
        return f"heads of {head} elements are longer than {LONGEST_HEAD}"
    if head % per or (rotary or head) % (2 * per):
        return f"heads of {head} elements, {rotary or head} of them rotated, are no whole chunks of {per} and {2 * per}"
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
    """The kernel that attends, the one that joins its splits, and the bytes of the partials between them. With an
    epsilon it normalises q and k, and with `normed_values` v.

    `lanes` is the adapter's one subgroup size, 0 without; `buffers` the storage buffers that a kernel may bind; `rows`
    the sequences that advance together, whose longest has the sequence length; with `along` they are positions of one,
    and `packed` ones of any.
    Both kernels' workgroups are functions of the sequence length, the new token included; layers of one shape get the
    same functions.
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
    # If the attention kernel would bind too many buffers, the join writes every result and adds the sinks.
    # So it does where it turns them.
    turned = is_turned(what)
    alone_writes = not turned and 8 + 2 * (epsilon is not None) + normed_values + (what.sinks is not None) <= buffers
    constants: dict[str, int | float | bool] = {
        "HEADS": what.heads,
        "KV_HEADS": what.kv_heads,
        "HEAD": what.head,
        **form_constants(what),
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
        **join_rows(what.head, most),
    }
    attend, join = counts(block, alone, most, what.kv_heads * tiles, what.heads, what.window, alone_writes, rows)
    partial_bytes = rows * what.heads * most * (4 + what.head) * 4
    return KernelPlan("attention", constants, attend), KernelPlan("attention_join", join_constants, join), partial_bytes


def by_length(attention: KernelPlan) -> list[KernelPlan]:
    """The kernels of a plan of one sequence, each without workgroups at the lengths of the other: while one split takes
    all positions, workgroups of one head and as many positions at once as can be are faster.

    Measured on an NVIDIA H100, a whole step at 128 positions: 3.7 % for 32 heads on 8 of 64, 2.6 % for 32 on 8 of 128.
    At 4000 they read the caches once for each head, and take 7 % longer.
    """
    constants = attention.constants
    if not constants["SHUFFLED"] or constants["TILE"] == 1 or constants["SEQUENCES"] > 1:
        return [attention]
    heads, team, workgroup = (int(constants[name]) for name in ("HEADS", "TEAM", "WORKGROUP"))
    reach, batch = int(constants["ALONE"] * constants["BLOCK"]), min(team, LARGEST_BATCH)
    block = workgroup // team * batch
    cut = {**team_constants(team, batch, 1), "TILE": 1, "BLOCK": block, "ALONE": -(-reach // block)}
    assert callable(attention.counts)
    short, long = counts_by_length(attention.counts, reach, int(constants["WINDOW"]), heads)
    return [replace(attention, constants={**constants, **cut}, counts=short), replace(attention, counts=long)]


def plan_append(attention: KernelPlan) -> KernelPlan:
    """The kernel that writes the caches before attention of several positions of a sequence, of the plan for that."""
    workgroups = (int(attention.constants["KV_HEADS"]), int(attention.constants["SEQUENCES"]), 1)
    return KernelPlan("attention_append", attention.constants, workgroups)


def turn_constants(attention: KernelPlan, what: Attention) -> dict[str, int | float | bool]:
    """The constants of attention_turn.wgsl before attention by this plan."""
    names = ("HEADS", "KV_HEADS", "HEAD", "ROTARY", "INTERLEAVED", "CAPACITY", "SLIDING", "ALONG", "TABLES_APART")
    normed: dict[str, int | float | bool] = {} if what.norms is None else {"EPSILON": what.norms.epsilon}
    kept = {name: attention.constants[name] for name in names}
    return {**kept, **normed, "NORMED": what.norms is not None, "WORKGROUP": min(TURNING, what.head // 2)}


def form_constants(what: AttentionShape) -> dict[str, int | float | bool]:
    """The constants for rotation, scores and positions in sight, which the kernel and its truth share."""
    constants: dict[str, int | float | bool] = {
        "ROTARY": what.rotary or what.head,
        "INTERLEAVED": what.interleaved,
        "CAPACITY": what.capacity,
        "WINDOW": what.window or what.capacity,
        "SCALE": what.scale,
        "SOFTCAPPED": what.softcap != 0.0,
        "QUANTIZED": what.cache_bits != 0,
        "FOUR_BITS": what.cache_bits == IN_4_BITS,
        "PREPARED": what.prepared,
        "SLIDING": what.slides,
    }
    if what.softcap:
        constants["SOFTCAP"] = what.softcap
    return constants


def evenly(group: int, most: int) -> int:
    """The tile height when a group is cut into the fewest tiles of at most `most` heads."""
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
    """The constants of the join of up to `most` splits: rows of threads, 4 where a workgroup has room for them, and at
    least one thread per split; splits per row.
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
    """Workgroups of the attention and of the join by sequence length; a split alone needs no join where it writes the
    result."""

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
    """Workgroups of the kernel for up to `reach` positions in sight, one for each head, and of that for more."""

    def short(length: int) -> tuple[int, int, int]:
        return (1, heads, 1) if min(length, window) <= reach else (0, 1, 1)

    def long(length: int) -> tuple[int, int, int]:
        return every(length) if min(length, window) > reach else (0, 1, 1)

    return short, long
