"""Defines attention of one new token, which attention.wgsl computes in splits and attention_join.wgsl joins. Over
caches of 4 bits, attention_turn.wgsl runs before these kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, STATE, TABLE, Binding, Buffer, Kernel, Operation, Shared, Value
from ..witness import Witness
from .attention_plan import by_length, form_constants, is_turned, plan_append, plan_attention, turn_constants

__all__ = ["Attention", "HeadNorms"]

CHECKED = 1024
"""The most positions whose terms are counted."""


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of each head of q, and of k and v if these have gammas; the gammas are buffers of weights."""

    q_gamma: int
    k_gamma: int | None
    epsilon: float
    v_gamma: int | None = None

    @property
    def gammas(self) -> dict[str, int]:
        """The norms by their names in the templates."""
        found = {"q_gamma": self.q_gamma, "k_gamma": self.k_gamma, "v_gamma": self.v_gamma}
        return {name: gamma for name, gamma in found.items() if gamma is not None}


@dataclass(frozen=True)
class Attention(Operation):
    """Attention of one token: norms of q, k and v if there are any, rotary embedding, cache write and grouped-query
    attention. reads[0] is the packed q, k and v, unless the caches are `written` already.
    """

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
    """A buffer of weights: for each head, one more score of its softmax."""
    window: int = 0
    softcap: float = 0.0
    cache_bits: int = 0
    """8 or 4 for quantized caches (quantized_rows.wgsl), 0 for caches of `element`."""
    prepared: bool = False
    """Whether reads[0] has only the rotated queries, and a recorded kernel has written the new rows."""
    shares: bool = False
    """Whether the caches are those of an earlier layer, which has written the new rows; reads[0] has the queries."""
    whole: bool = False
    """Whether the caches are an encoder's outputs, all of whose positions are attended at any length of the
    sequence.
    """
    slides: bool = False
    """Whether the caches and the rotary tables hold only the positions from the sequence's base on."""
    rows: int = 1
    """The number of sequences that advance together, each by a token; caches and the sampler's state have a part for
    each.
    """
    along: bool = False
    """Whether these are successive positions of one sequence instead."""
    packed: bool = False
    """Whether these are positions of any sequences; the state has the sequence of each."""
    tabled: bool = False
    """Whether a table gives the row whose caches hold each position of each row; a row writes only its own caches."""
    gated: bool = False
    """Whether another vector follows each head of the queries in reads[0]; HeadGate multiplies the result by it."""

    @property
    def as_recorded(self) -> Attention:
        return self.with_left_out(0, 0.0)

    @property
    def written(self) -> bool:
        """Whether the caches have the new rows already."""
        return self.prepared or self.shares

    @property
    def turned(self) -> bool:
        """Whether queries, new rows and results are turned by a Hadamard matrix."""
        return is_turned(self)

    def with_left_out(self, window: int, softcap: float) -> Attention:
        """The same attention with the window and soft cap that the recorded kernels ignore."""
        return replace(self, window=window, softcap=softcap)

    @property
    def in_place(self) -> frozenset[int]:
        return frozenset() if self.written else frozenset({self.key, self.value})

    @property
    def title(self) -> str:
        return f"attention of {self.heads} heads"

    @property
    def terms(self) -> int:
        # The caches of the check repeat their rows, so that equal terms have equal rounding errors, which add up even
        # in float32.
        return self.head if self.element == "f16" else max(self.head, min(self.window or self.capacity, CHECKED))

    def written_bytes(self, index: int) -> int:
        """The caches are recorded buffers, so only the result needs a place."""
        return self.rows * self.heads * self.head * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        tabled = self.tabled and not self.whole
        own = self.norms if not self.turned else None
        epsilon, normed = (own.epsilon, own.v_gamma is not None) if own else (None, False)
        split, join, partial_bytes = plan_attention(
            self, limits.lanes, epsilon, limits.buffers - tabled, normed, self.rows, self.along, self.packed
        )
        half, out = self.element == "f16", Value(writes[0])
        length: dict[str, Binding] = {} if self.whole else {"state": STATE}
        passed: dict[str, Binding] = {**length, "partials": Shared(partial_bytes)}
        results: dict[str, Binding] = {"y": out}
        rotary: dict[str, Binding] = {"cos_cache": Buffer(self.cos), "sin_cache": Buffer(self.sin)}
        caches: dict[str, Binding] = {"key_cache": Buffer(self.key), "value_cache": Buffer(self.value)}
        gammas: dict[str, Binding] = {}
        if self.norms:
            gammas = {name: Buffer(gamma) for name, gamma in self.norms.gammas.items()}
        sinks: dict[str, Binding] = {} if self.sinks is None else {"head_sink": Buffer(self.sinks)}
        first, second = (results | sinks, {}) if join.constants["ALONE_WRITES"] else ({}, sinks)
        table: dict[str, Binding] = {"table": TABLE} if tabled else {}
        qkv: dict[str, Binding] = {"qkv": Value(reads[0])}
        # At a fixed length with one split there is nothing to join.
        idle = self.whole and join.counts == (0, 1, self.rows)
        last = [] if idle else [Kernel(join, half, {**passed, **results, **second})]
        if self.turned:
            queries = Shared(self.written_bytes(0))
            before = self._turn(split, {**qkv, "state": STATE, **rotary}, caches, gammas, queries, limits)
            read = {"qkv": queries, **caches, **table, **passed}
            return [*before, *(Kernel(plan, half, read) for plan in by_length(split)), *last]
        angles = {} if self.prepared else rotary
        bound: dict[str, Binding] = {**qkv, **angles, **caches, **table, **passed, **gammas, **first}
        kernels = [*(Kernel(plan, half, bound) for plan in by_length(split)), *last]
        if self.written or not split.constants["APPENDED"]:
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
        """The kernel before attention over caches of 4 bits; two kernels, for queries and for new rows, if the adapter
        lets a kernel bind fewer buffers.
        """
        constants = turn_constants(split, self.norms.epsilon if self.norms else None)

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
        # A binding begins at a multiple of 256 bytes, which are 32 pairs.
        values_at = -(-kv_width // 32) * 32
        length, longest = (self.capacity, self.capacity) if self.whole else (witness.length, witness.longest)
        constants: dict[str, int | float | bool] = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD": self.head,
            **form_constants(self),
            "LONGEST": longest,
            "VALUES_AT": values_at,
        }
        constants |= {"NORMED": self.norms is not None, "TURNED": self.turned}
        constants["CACHED"] = self.written or self.cache_bits != 0
        gammas: dict[str, list[Any]] = {}
        if self.norms:
            constants["EPSILON"] = self.norms.epsilon
            gammas = {name: ["recorded", gamma] for name, gamma in self.norms.gammas.items()}
        asked = width * (1 + self.gated)
        packed = asked if self.written else asked + 2 * kv_width
        shared = {"qkv": witness.keep(reads[0], packed * each)}
        if not self.whole:
            shared["state"] = witness.length_at
        rotary: dict[str, list[Any]] = {}
        if not self.prepared:
            rotary = {"cos_cache": ["recorded", self.cos], "sin_cache": ["recorded", self.sin]}
        keys, values = ["recorded", self.key], ["recorded", self.value]
        scores, truth = witness.scores(self.heads * longest), witness.truths(width)

        def run(normed: str, bindings: Mapping[str, list[Any]], counts: tuple[int, int, int]) -> None:
            """`normed` has the initials of the vectors to normalise."""
            by = {name: gamma for name, gamma in gammas.items() if name[0] in normed}
            witness.run("truth_attention", constants, half, {**shared, **by, **bindings}, counts)

        counts = (-(-length // 64), self.heads, 1)
        run("qk", {**rotary, "key_cache": keys, "scores": scores}, counts)
        sinks: dict[str, list[Any]] = {} if self.sinks is None else {"head_sink": ["recorded", self.sinks]}
        run("v", {"value_cache": values, **sinks, "scores": scores, "truth": truth}, (-(-width // 64), 1, 1))
        witness.judge("result", self.element, witness.keep(writes[0], width * each), truth)
        if self.written or self.turned:
            # An element of a turned row may be past the last level, and its error has no known bound.
            return
        rows = witness.truths(values_at + kv_width)
        run("kv", {**rotary, "truth": rows}, (-(-kv_width // 64), 1, 1))
        kind, number, offset, _ = rows
        for part, cache, start in (("new keys", keys, 0), ("new values", values, 8 * values_at)):
            row = [kind, number, offset + start, 8 * kv_width]
            witness.judge(part, self.element, cache, row, (self.capacity, self.head), self.cache_bits, self.slides)
