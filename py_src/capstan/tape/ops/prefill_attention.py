"""Computes attention of a prefill run with subgroup matrices, over caches that are already written:
prefill_attention.wgsl.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..kernel_plan import KernelPlan, MatrixSize, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import RunReader, bound, element_of
from ..recording import Dispatch
from ..step_graph import Node
from .attention_plan import IN_4_BITS, levels_bytes

__all__ = [
    "AttentionTiling",
    "PrefillAttention",
    "PrefillAttentions",
    "attends_prompts",
    "fits_prefill_attention",
    "plan_prefill_attention",
    "tune_prefill_attention",
]


@dataclass(frozen=True)
class PrefillAttention(Operation):
    """Causal attention of the last `rows` positions, each over itself and earlier ones, in float16. Reads the rotated
    queries [rows, heads, head], keys and values [kv_heads, capacity, head], and the number of filled positions minus
    one. With `whole`, attention of all `rows` positions over all of them: keys and values are [rows, kv_heads, head],
    and there is no number.
    """

    rows: int
    heads: int
    kv_heads: int
    head: int
    capacity: int
    scale: float
    key: int
    """The recorded buffer of the keys."""
    sinks: int | None = None
    """A recorded buffer with one more score for each head's softmax."""
    window: int = 0
    """Positions of the window, including the new one; 0 means all."""
    softcap: float = 0.0
    """The cap of scores; 0 for none."""
    cache_bits: int = 0
    """8 or 4 for quantized caches, 0 for float16."""
    whole: bool = False

    def with_left_out(self, window: int, softcap: float) -> PrefillAttention:
        """The same attention with the window and soft cap that the recorded kernels ignore."""
        return replace(self, window=window, softcap=softcap)

    def written_bytes(self, index: int) -> int:
        return self.rows * self.heads * self.head * ELEMENT_BYTES["f16"]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        names = ("q", "keys", "values", *(() if self.whole else ("lengths",)))
        bindings: dict[str, Binding] = {name: Value(value) for name, value in zip(names, reads, strict=True)}
        sinks: dict[str, Binding] = {} if self.sinks is None else {"head_sink": Buffer(self.sinks)}
        return [Kernel(plan_prefill_attention(self, limits), True, {**bindings, "y": Value(writes[0]), **sinks})]


@dataclass(frozen=True)
class AttentionTiling:
    """The tiling of prefill_attention.wgsl; it changes the speed, and the order of sums."""

    size: MatrixSize
    """The size of one matrix operation."""
    lanes: int
    matrices: int
    """Operations of a subgroup over rows."""
    subgroups: int
    """Subgroups of a workgroup, over rows."""
    block: int
    """Positions that are staged at a time."""

    @property
    def tile(self) -> int:
        """Rows of a workgroup."""
        return self.size.m * self.matrices * self.subgroups

    @property
    def workgroup(self) -> int:
        """Threads."""
        return self.lanes * self.subgroups

    @property
    def share(self) -> int:
        """Threads that own a row of scores."""
        return max(1, self.workgroup // self.tile)

    def width(self, head: int) -> int:
        """Elements of a staged row: whole matrices."""
        part = math.lcm(self.size.n, self.size.k)
        return -(-head // part) * part

    def memory(self, head: int) -> int:
        """Bytes of workgroup memory: keys and values, scores, weights, each row with 16 bytes to spare; two words."""
        stride = self.width(head) // 8 + 1
        staged = 2 * self.block * stride
        through = self.tile * (self.block // 4 + 1 + self.block // 8 + 1)
        return 16 * max(staged + through, self.tile * stride) + 4 * (self.tile + self.subgroups)

    def held(self, head: int) -> int:
        """The number of words that a thread holds at once: its parts of the queries and results, keys and values in
        transit, and its scores.
        """
        width = self.width(head)
        matrices = self.matrices * width * (self.size.m // 2 + self.size.m) // self.lanes
        requested = 8 * -(-self.block * width // 8 // self.workgroup)
        return matrices + requested + self.block * self.tile // self.workgroup

    def fits(self, head: int, limits: WorkgroupLimits) -> bool:
        """Whether the shader's header and the adapter allow it."""
        size, rows = self.size, self.size.m * self.matrices
        whole = all(part % 8 == 0 and self.block % part == 0 for part in (size.n, size.k))
        owned = self.lanes % rows == 0 or rows % self.lanes == 0
        shared = self.block % (8 * self.share) == 0
        return whole and owned and shared and self.memory(head) <= limits.memory and self.workgroup <= limits.threads

    def workgroups(self, rows: int, group: int, kv_heads: int) -> tuple[int, int, int]:
        """The workgroups over tiles of the rows of a key/value head, and over these heads."""
        return -(-rows * group // self.tile), kv_heads, 1

    def constants(self, head: int) -> dict[str, int | float | bool]:
        """The constants by their names in the shader."""
        size, width = self.size, self.width(head)
        octets = self.block // 8 // self.share
        return {
            "SIZE_M": size.m,
            "SIZE_N": size.n,
            "SIZE_K": size.k,
            "MM": self.matrices,
            "SUBGROUPS": self.subgroups,
            "BLOCK": self.block,
            "WIDTH": width,
            "LOADS": -(-self.block * width // 8 // self.workgroup),
            "K_PARTS": width // size.k,
            "N_PARTS": width // size.n,
            "SCORES": self.block // size.n,
            "WEIGHTS": self.block // size.k,
            "QUERIES": self.matrices * (width // size.k),
            "RESULTS": self.matrices * (width // size.n),
            "SHARE": self.share,
            "SHARED": self.share > 1,
            "OWN": self.tile * self.share // self.workgroup,
            "OCTETS": octets,
            "QUADS": 2 * octets,
        }


TILINGS = (
    (1, 4, 64),
    (1, 2, 64),
    (1, 4, 32),
    (1, 2, 32),
    (1, 4, 16),
    (1, 2, 16),
)
"""Matrix operations of a subgroup over rows, subgroups, positions: the best first, if there are enough workgroups.

Measured on an NVIDIA H200 with 512 and 2048 positions: the first tiling takes 19 and 143 us for 9 heads on 3 of 64
(onnxruntime-web's kernel 222 and 1036), and 84 and 234 us for 32 on 8 (240 and 1682).
"""
WHOLE_TILINGS = ((1, 8, 16), (1, 8, 32), *TILINGS)
"""The tilings if all positions attend to all positions. 27 layers of 4096 rows and 16 heads of 72 on an H200: the first
two take 23 and 26 ms, the others 28 to 72; with two operations over rows 27 to 121.
"""
LIGHT = 192
"""Words that a thread may hold without spilling: GPUs have 128 to 256 registers a thread."""
FILLED = 64
"""A sufficient number of workgroups: 72 tiles of 64 rows took 18.8 us on an H200, 144 of half the rows 18.4."""


def tune_prefill_attention(what: PrefillAttention, limits: WorkgroupLimits) -> AttentionTiling | None:
    """The first tiling that has FILLED workgroups, else the one with the most, among those of TILINGS whose threads
    hold at most LIGHT words (with large heads, the fewest); None if none fits the adapter, or its subgroups have
    several sizes. Measured on an H200, see benches/NOTES.md.
    """
    limits = replace(limits, memory=limits.memory - levels_bytes(what.cache_bits))
    fitting = [
        tiling
        for size in (limits.matrices if limits.lanes else ())
        for shape in (WHOLE_TILINGS if what.whole else TILINGS)
        if (tiling := AttentionTiling(size, limits.lanes, *shape)).fits(what.head, limits)
        and (what.whole or tiling.width(what.head) == what.head)
    ]
    least = min((tiling.held(what.head) for tiling in fitting), default=0)
    fitting = [tiling for tiling in fitting if tiling.held(what.head) <= max(LIGHT, least)]
    tiles = {tiling: tiling.workgroups(what.rows, what.heads // what.kv_heads, what.kv_heads) for tiling in fitting}
    enough = (tiling for tiling in fitting if tiles[tiling][0] * tiles[tiling][1] >= FILLED)
    return next(enough, max(fitting, key=lambda tiling: tiles[tiling][0], default=None))


def attends_prompts(limits: WorkgroupLimits, dtype: str) -> bool:
    """Whether Capstan's attention can run in prefill runs with caches of that type."""
    return dtype == "float16" and bool(limits.lanes and limits.matrices)


def fits_prefill_attention(what: PrefillAttention, limits: WorkgroupLimits) -> bool:
    """Whether prefill_attention.wgsl covers this attention on this adapter."""
    return what.heads % what.kv_heads == 0 and what.head % 8 == 0 and tune_prefill_attention(what, limits) is not None


def plan_prefill_attention(what: PrefillAttention, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes it, and its workgroups. Call fits_prefill_attention first."""
    tiling = tune_prefill_attention(what, limits)
    assert tiling is not None, "the caller checked fits_prefill_attention"
    group = what.heads // what.kv_heads
    constants: dict[str, int | float | bool] = {
        "M": what.rows,
        "GROUP": group,
        "KV_HEADS": what.kv_heads,
        "HEAD": what.head,
        "CAPACITY": what.capacity,
        "SCALE": what.scale,
        "WINDOWED": what.window != 0,
        "SOFTCAPPED": what.softcap != 0.0,
        "QUANTIZED": what.cache_bits != 0,
        "FOUR_BITS": what.cache_bits == IN_4_BITS,
    }
    if what.window:
        constants["WINDOW"] = what.window
    if what.softcap:
        constants["SOFTCAP"] = what.softcap
    counts = tiling.workgroups(what.rows, group, what.kv_heads)
    return KernelPlan("prefill_attention", {**constants, **tiling.constants(what.head)}, counts)


BINDINGS = ("q", "present_key", "present_value", "seqlens_k", "output")
BINDINGS_SINKS = ("q", "present_key", "present_value", "seqlens_k", "head_sink", "output")
LINES = (
    "return u32(seqlens_k[batch_idx]) + 1u;",
    "return k_idx >= local_window_start && k_idx < causal_end;",
    "q_idx_global * head_size_vec * num_heads +",
    "q_tile[idx] = q[idx + offset] * alpha;",
    "loadq(batch_idx, q_idx_global, head_idx, q_element_t(uniforms.alpha));",
    "let past_sequence_length = select(total_sequence_length - uniforms.new_sequence_length,",
    "let seq_causal_length = past_sequence_length + q_idx_global + 1;",
    "let local_window_start = 0u;",
    "o_idx_global * num_heads * head_size_vec + head_idx * head_size_vec;",
)
"""Lines of onnxruntime-web's flash attention, with subgroups and without: causal, over all positions, heads side by
side in q and in the output.
"""
CACHES = {
    0: ("batch_head_idx / uniforms.n_reps * uniforms.present_sequence_length * head_size_vec",),
    8: ("const KV_CACHE_QUANT_BITS : u32 = 8;", "vec4<i32>(bytes) - vec4<i32>(128)"),
    4: ("const KV_CACHE_QUANT_BITS : u32 = 4;", "tq_lut[packed & KV_CACHE_QUANT_VALUE_MASK]", "-0.2377, -0.1809,"),
}
"""Lines that show the bits of the caches' elements, 0 for caches of floats."""
PLAIN = ("var previous_max : qk_precision = qk_min_value;",)
SINKS = (
    "let sink_value = q_element_t(head_sink[head_idx]);",
    "var previous_max : qk_precision = qk_precision(sink_value);",
    "var previous_denom : qk_precision = 1;",
)
"""The start of a row's softmax, without and with a sink."""
LACKS = ("softcap", "attention_bias[")
SIZE = r"const {} : u32 = (\d+);"


def number_in(code: str, name: str) -> int:
    """A constant of the WGSL; 0 if there is none of that name."""
    found = re.search(SIZE.format(name), code)
    return int(found[1]) if found else 0


@dataclass
class PrefillAttentions(RunReader):
    """Reads the attention of a recorded run of `rows` positions, if it is causal, in float16, over whole caches."""

    def read(self, index: int, reads: Mapping[int, int], writes: Mapping[int, int]) -> list[Node] | None:
        """The nodes that replace a recorded operation, given the values that it reads and writes, by buffer; None if it
        is not such attention.
        """
        op = self.ops[index]
        met = bound(self.recording, op, self.uploaded)
        if not isinstance(op, Dispatch) or met is None or tuple(met[0]) not in (BINDINGS, BINDINGS_SINKS):
            return None
        at, uniforms = met
        sinks = at.get("head_sink")
        pipeline = self.recording.pipelines[op.pipeline]
        code = pipeline.code
        asked = (*LINES, *(PLAIN if sinks is None else SINKS))
        cache_bits = next((bits for bits, lines in CACHES.items() if all(line in code for line in lines)), None)
        known = all(line in code for line in asked) and not any(line in code for line in LACKS)
        heads, head = number_in(code, "num_heads"), number_in(code, "head_size")
        if not known or cache_bits is None or element_of(pipeline) != "f16" or not heads or not head:
            return None
        try:
            group, capacity = uniforms["n_reps"], uniforms["present_sequence_length"]
            one = uniforms["batch_size"] == 1 and uniforms["new_sequence_length"] == self.rows
            scale, window = uniforms["alpha"], uniforms["local_window_size"]
        except KeyError:
            return None  # The uniforms' fields differ from this kernel's: it is another version.
        if not one or window != 0 or not isinstance(group, int) or not isinstance(capacity, int):
            return None
        if not isinstance(scale, float) or group == 0 or heads % group:
            return None
        key = at["present_key"]
        what = PrefillAttention(self.rows, heads, heads // group, head, capacity, scale, key, sinks)
        what = replace(what, cache_bits=cache_bits)
        if not fits_prefill_attention(what, self.limits) or sinks in self.changed:
            return None
        read = tuple(reads[at[name]] for name in BINDINGS[:-1])  # Sinks are weights, not a value of the run.
        return [Node(what, read, (writes[at["output"]],), index, frozenset({index}))]
