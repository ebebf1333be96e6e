"""Steps of small decoders, as sketches: the kernels of onnxruntime-web for each model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from capstan.tape import NBitsWeights
from tests.unit.recorded_kernels import BLOCK_SUMS, MATMUL_SCALARS, Number
from tests.unit.step_simulator import Recorded, Sketch

__all__ = ["HEADS", "SMALL_DECODERS", "Small"]

WIDTH, INNER, VOCABULARY, CAPACITY, BLOCK = 32, 64, 48, 160, 32
HEADS, KV_HEADS, HEAD = 4, 2, 16
QKV = (HEADS + 2 * KV_HEADS) * HEAD
EPSILON = 1e-5


@dataclass
class Small:
    """A decoder of two layers under construction; `step` makes llama, other functions the parts of other families."""

    layers: int = 2
    dense: bool = False
    """Whether the weights of products are dense; else int4."""
    packed: str = ""
    """The suffix of their kernel's name: zero points, int8."""
    rounded: bool = False
    """Whether the inputs of products are rounded to int8 first."""
    sinks: bool = False
    affine: bool = False
    """Whether what the weights' minima add is computed apart, as in the graph of a GGUF file."""
    gates: bool = False
    """Whether another vector follows each query: the gate of the attention's result."""
    sketch: Sketch = field(default_factory=Sketch)
    calls: dict[str, int] = field(default_factory=dict)
    """The operations by name."""

    shares: dict[int, int] = field(default_factory=dict)
    """The sigmoids of the gates, by layer."""
    sums: dict[int, int] = field(default_factory=dict)
    """The sums of a tensor's blocks."""
    minima: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Scales, minima, n and k by the tensor of their weights."""

    def __post_init__(self) -> None:
        s = self.sketch
        self.ids = s.lasting(1, 3)
        self.mask = s.lasting(CAPACITY)
        self.logits = s.lasting(VOCABULARY)
        self.caches = [s.lasting(KV_HEADS * CAPACITY * HEAD) for _ in range(2 * self.layers)]
        for cache in self.caches:
            s.given[cache] = 0.3 * s.rng.standard_normal(s.sizes[cache])
        self.table = s.weights(16 * WIDTH)
        self.cos = s.weights(CAPACITY * HEAD // 2)
        self.sin = s.weights(CAPACITY * HEAD // 2)

    def named(self, name: str) -> None:
        """The last operation goes by this name."""
        self.calls[name] = len(self.sketch.calls) - 1

    def embedded(self) -> int:
        return self.sketch.unknown(
            lambda ids, table: table.reshape(16, WIDTH)[int(ids[0]) % 16], [self.ids, self.table], WIDTH
        )

    def products(self, step: Recorded) -> dict[int, NBitsWeights]:
        """As fuse_step takes them, by the recorded step's buffers."""
        at = step.buffer_of
        return {
            at[weights]: NBitsWeights(at[scales], n, k, BLOCK, False, minima=at[minima])
            for weights, (scales, minima, n, k) in self.minima.items()
        }

    def matmul(self, x: int, n: int, k: int, into: int | None = None) -> int:
        s = self.sketch
        if self.affine and into is None:
            return self.affine_matmul(x, n, k)
        writes = {"output": n} if into is None else {}
        there = {} if into is None else {"output": into}
        if self.dense:
            shapes: dict[str, Number] = {
                "a_shape": (1, 1, k // 4),
                "b_shape": (k, n // 4),
                "output_shape": (1, 1, n // 4),
            }
            sizes = {"dim_a_outer": 1, "dim_b_outer": n, "dim_inner": k}
            [y] = s.run("matmul", {"a": x, "b": s.weights(n * k)}, writes, {**shapes, **sizes}, into=there)
            return y
        source = {"input_a": x}
        if self.rounded:
            words, factors = s.run("to_int8", source, {"output": k, "scales": 1}, {"output_size": k // 4})
            source = {"input_a": words, "scales_a": factors}
        reads = {**source, "input_b": s.weights(n * k), "scales_b": s.weights(n * k // BLOCK, 1.0)}
        uniforms = {"M": 1, "N": n, "K": k, "block_size": BLOCK, "batch_count": 1, "dispatch_M": 1}
        if "zeros" in self.packed:
            blocks = k // BLOCK if "bytes" in self.packed else (k // BLOCK + 1) // 2 * 2
            uniforms["zero_blocks_per_col"] = blocks
            reads["zero_points"] = s.weights(n * blocks)
        kernel = "matvec_int8_4" if self.rounded else "matmul_nbits"
        [y] = s.run(f"{kernel}{self.packed}", reads, writes, uniforms, into=there)
        return y

    def affine_matmul(self, x: int, n: int, k: int) -> int:
        s = self.sketch
        reads = {"input_a": x, "input_b": s.weights(n * k), "scales_b": s.weights(n * k // BLOCK, 1.0)}
        uniforms = {"M": 1, "N": n, "K": k, "block_size": BLOCK, "batch_count": 1, "dispatch_M": 1}
        [y] = s.run("matmul_nbits", reads, {"output": n}, uniforms)
        if x not in self.sums:
            [self.sums[x]] = s.run(BLOCK_SUMS, {"_A": x}, {"output": k // BLOCK}, {"reduceSize": BLOCK})
        minima = s.weights(n * k // BLOCK)
        sizes = {"dim_b_outer": n, "dim_inner": k // BLOCK}
        [below] = s.run(MATMUL_SCALARS, {"a": self.sums[x], "b": minima}, {"output": n}, sizes)
        self.minima[reads["input_b"]] = (reads["scales_b"], minima, n, k)
        return self.add(y, below, n)

    def concat(self, x: int, last_first: bool = False) -> int:
        """q and k of one product, and v of another, which runs first if so asked."""
        sizes = (QKV - KV_HEADS * HEAD, KV_HEADS * HEAD)
        both = {f"input_{i}": self.matmul(x, sizes[i], WIDTH) for i in ((1, 0) if last_first else (0, 1))}
        shapes: dict[str, Number] = {f"input_{i}_shape": (1, 1, size) for i, size in enumerate(sizes)}
        [y] = self.sketch.run("concat", both, {"output": QKV}, {**shapes, "output_size": QKV})
        return y

    def add(self, a: int, b: int, size: int) -> int:
        shapes: dict[str, Number] = {"bcast_indices_shape": (1, 1, size), "bcast_indices_stride": (size, size)}
        uniforms = {**shapes, "a_indices_shape": (1, 1, size), "b_indices_shape": size, "element_count": size}
        [y] = self.sketch.run("add", {"input_a": a, "input_b": b}, {"output": size}, uniforms)
        return y

    def silu(self, x: int, size: int, alpha: float = 1.0) -> int:
        [y] = self.sketch.run("silu", {"x": x}, {"y": size}, {"vec_size": size // 4, "attr": alpha})
        return y

    def gelu(self, x: int, size: int) -> int:
        [y] = self.sketch.run("gelu", {"x": x}, {"y": size}, {"vec_size": size // 4})
        return y

    def multiply(self, a: int, b: int, size: int) -> int:
        uniforms = {"vec_size": size // 4, "element_count": size}
        [y] = self.sketch.run("multiply", {"input_a": a, "input_b": b}, {"output": size}, uniforms)
        return y

    def norm(self, x: int) -> int:
        uniforms = {"components": 4, "norm_count": 1, "norm_size": WIDTH, "epsilon": EPSILON}
        [y] = self.sketch.run("norm", {"x": x, "scale": self.sketch.weights(WIDTH, 1.0)}, {"y": WIDTH}, uniforms)
        return y

    def skip_norm(self, x: int, skip: int) -> tuple[int, int]:
        """The normalised sum, and the sum."""
        reads = {"x": x, "skip": skip, "gamma": self.sketch.weights(WIDTH, 1.0)}
        uniforms = {"components": 4, "hidden_size": WIDTH, "epsilon": EPSILON, "skip_size": WIDTH}
        y, total = self.sketch.run("skip_norm", reads, {"output": WIDTH, "input_skip_bias_sum": WIDTH}, uniforms)
        return y, total

    def last_norm(self, x: int, skip: int) -> int:
        reads = {"x": x, "skip": skip, "gamma": self.sketch.weights(WIDTH, 1.0)}
        uniforms = {"components": 4, "hidden_size": WIDTH, "epsilon": EPSILON, "skip_size": WIDTH}
        [y] = self.sketch.run("skip_norm_alone", reads, {"output": WIDTH}, uniforms)
        return y

    def gated_mlp(self, x: int, skip: int) -> tuple[int, int]:
        """silu(gate) * up of the normalised sum, and the sum."""
        y, total = self._gated("gated_mlp", {"input_a": x, "skip": skip}, {"input_skip_bias_sum": WIDTH})
        return y, total

    def gated_mlp_alone(self, x: int) -> int:
        """silu(gate) * up of x, normalised."""
        [y] = self._gated("gated_mlp_alone", {"input_a": x}, {})
        return y

    def _gated(self, kernel: str, reads: dict[str, int], total: dict[str, int]) -> list[int]:
        s = self.sketch
        reads = {**reads, "norm_scale": s.weights(WIDTH, 1.0)}
        for half in ("gate", "up"):
            reads |= {f"{half}_b": s.weights(INNER * WIDTH), f"{half}_scales_b": s.weights(INNER * WIDTH // BLOCK, 1.0)}
        sizes = {"N": INNER, "K": WIDTH, "block_size": BLOCK, "batch_count": 1, "skip_size": WIDTH if total else 0}
        return s.run(kernel, reads, {"output": INNER, **total}, {**sizes, "epsilon": EPSILON})

    def lengths(self) -> tuple[int, int]:
        """(position of the new token, positions with it), reduced from the mask."""
        total = self.sketch.unknown(lambda mask: np.sum(mask), [self.mask], 1)
        return self.sketch.unknown(lambda n: n[:1] - 1, [total], 1), total

    @property
    def packed_size(self) -> int:
        """Elements of the packed q, k and v."""
        return QKV + self.gates * HEADS * HEAD

    def opened(self, parts: list[int], layer: int) -> None:
        """Split the queries, the first of `parts`, from the gates that follow each."""
        s, size = self.sketch, HEADS * HEAD
        sizes: dict[str, Number] = {"input_size": 2 * size // 4, "segment_sizes": (HEAD // 4, HEAD // 4)}
        outputs = {f"output_{i}": size for i in range(2)}
        parts[0], gates = s.run("split_heads", {"input": parts[0]}, outputs, sizes)
        self.named(f"split of q {layer}")
        [self.shares[layer]] = s.run("sigmoid", {"x": gates}, {"y": size}, {"vec_size": size // 4})
        self.named(f"sigmoid {layer}")

    def rotated_apart(
        self, qkv: int, layer: int, lengths: tuple[int, int], norms: str, rotary: str = ""
    ) -> tuple[int, int]:
        """The rotated q, and the counts: q, k and v are split, and norms of q and k are "inside" the rotary kernel,
        "apart", or none if that is "no"; with "all" there is one of v, too. `rotary`: "partial" for half of a head."""
        s = self.sketch
        sizes = {"input_size": self.packed_size // 4, "total_segment_elements": self.packed_size // 4}
        rows = [HEADS * HEAD * (1 + self.gates), KV_HEADS * HEAD, KV_HEADS * HEAD]
        parts = s.run(
            "qkv_split",
            {"input": qkv},
            {f"output_{i}": size for i, size in enumerate(rows)},
            {**sizes, "segment_sizes": tuple(size // 4 for size in rows)},
        )
        self.named(f"split of qkv {layer}")
        if self.gates:
            self.opened(parts, layer)
            rows[0] = HEADS * HEAD
        q, k, v = parts
        gammas = [s.weights(HEAD, 1.0) for _ in range(3)]
        if norms in ("apart", "all"):
            for i, count in ((1, KV_HEADS), (0, HEADS), (2, KV_HEADS))[: 3 if norms == "all" else 2]:
                [parts[i]] = s.run(
                    "norm",
                    {"x": parts[i], "scale": gammas[i]},
                    {"y": rows[i]},
                    {"components": 4, "norm_count": count, "norm_size": HEAD, "epsilon": EPSILON},
                )
                self.named(f"norm of {'qkv'[i]} {layer}")
            q, k, v = parts
        half = HEAD // 4 if rotary == "partial" else HEAD // 2
        shapes: dict[str, Number] = {
            "cos_cache_shape": (CAPACITY, half),
            "q_global_shape": (1, 1, HEADS, HEAD - half),
            "k_global_shape": (1, 1, KV_HEADS, HEAD - half),
        }
        inside = {"q_norm_weight": gammas[0], "k_norm_weight": gammas[1]} if norms == "inside" else {}
        query, rotated = s.run(
            "rotary_normed" if inside else "rotary_apart",
            {"q_input": q, "k_input": k, "seqlens": lengths[0], "cos_cache": self.cos, "sin_cache": self.sin, **inside},
            {"q_output": rows[0], "k_output": rows[1]},
            {**shapes, "head_size": HEAD, "qk_norm_epsilon": EPSILON},
        )
        self.named(f"rotary {layer}")
        key, value = self.caches[2 * layer : 2 * layer + 2]
        written: dict[str, Number] = {
            "key_shape": (1, 1, KV_HEADS, HEAD // 4),
            "present_key_shape": (1, KV_HEADS, CAPACITY, HEAD // 4),
        }
        _, _, counts = s.run(
            "cache_write",
            {"key": rotated, "value": v, "seqlen_k": lengths[0], "total_sequence_length_input": lengths[1]},
            {"indirect_buffer": 3},
            {**written, "kv_sequence_length": 1, "num_heads": HEADS, "batch_size": 1},
            into={"present_key": key, "present_value": value},
        )
        self.named(f"cache {layer}")
        return query, counts

    def attention(
        self, qkv: int, layer: int, lengths: tuple[int, int], norms: str | None = None, rotary: str = ""
    ) -> int:
        """`norms` of q and k: None for packed q, k and v without; else as in `rotated_apart`. `rotary`: see
        `rotated`."""
        if norms is not None:
            query, counts = self.rotated_apart(qkv, layer, lengths, norms, rotary)
        else:
            query, counts = self.rotated(qkv, layer, lengths, rotary)
        y = self.attended(query, counts, layer, lengths)
        if self.gates:
            y = self.multiply(y, self.shares[layer], HEADS * HEAD)
            self.named(f"gate {layer}")
        return y

    def over_the_caches_of(self, source: int, query: int, layer: int, lengths: tuple[int, int]) -> int:
        """Attention of a layer with queries alone, which are normalised and rotated."""
        s, size = self.sketch, HEADS * HEAD
        sizes: dict[str, Number] = {"components": 4, "norm_count": HEADS, "norm_size": HEAD, "epsilon": EPSILON}
        [query] = s.run("norm", {"x": query, "scale": s.weights(HEAD, 1.0)}, {"y": size}, sizes)
        self.named(f"norm of q {layer}")
        shapes: dict[str, Number] = {
            "cos_cache_shape": (CAPACITY, HEAD // 2),
            "global_shape": (1, 1, HEADS, HEAD // 2),
            "input_output_stride": (size, size, HEAD, 1),
        }
        reads = {"input": query, "seqlens": lengths[0], "cos_cache": self.cos, "sin_cache": self.sin}
        [query] = s.run("rotary_query", reads, {"output": size}, shapes)
        self.named(f"rotary {layer}")
        counts = s.unknown(lambda total: np.array([1.0 + (total[0] - 1) // 64, HEADS, 1.0]), [lengths[1]], 3)
        return self.attended(query, counts, source, lengths, layer)

    def rotated(self, qkv: int, layer: int, lengths: tuple[int, int], rotary: str) -> tuple[int, int]:
        """The rotated q, and the counts. `rotary`: "" for halves of whole heads, "partial" for those of half of a head,
        "interleaved" for neighbours."""
        s = self.sketch
        unit = 1 if rotary == "interleaved" else 4
        half = HEAD // 4 if rotary == "partial" else HEAD // 2
        key, value = self.caches[2 * layer : 2 * layer + 2]
        sizes = {"sequence_length": 1, "num_heads": HEADS, "kv_num_heads": KV_HEADS, "head_size": HEAD // unit}
        sizes |= {"half_rotary_dim": half // unit, "present_sequence_length": CAPACITY, "batch_size": 1}
        query, _, _, counts = s.run(
            "rotary_interleaved" if rotary == "interleaved" else "rotary",
            {
                "packed_qkv": qkv,
                "seqlens": lengths[0],
                "cos_cache": self.cos,
                "sin_cache": self.sin,
                "total_sequence_length_input": lengths[1],
            },
            {"query": HEADS * HEAD, "indirect_buffer": 3},
            {**sizes, "query_shape": (1, 1, 8), "present_key_shape": (1, KV_HEADS, CAPACITY, HEAD // 4)},
            into={"present_key": key, "present_value": value},
        )
        self.named(f"rotary {layer}")
        return query, counts

    def attended(self, query: int, counts: int, source: int, lengths: tuple[int, int], layer: int | None = None) -> int:
        """Attention over the caches of a layer, of that one or another."""
        s, layer = self.sketch, source if layer is None else layer
        key, value = self.caches[2 * source : 2 * source + 2]
        sizes = {"head_size_vec": HEAD // 4, "present_sequence_length": CAPACITY, "n_reps": HEADS // KV_HEADS}
        sizes |= {"num_heads": HEADS, "batch_size": 1, "attn_bias_dim0": 1, "attn_bias_dim1": 1}
        out, metadata = s.run(
            "attention_split",
            {
                "q": query,
                "present_key": key,
                "present_value": value,
                "seqlens_k": lengths[0],
                "total_sequence_length_input": lengths[1],
                "indirect_buffer": counts,
            },
            {"out_split_vx": HEADS * HEAD, "metadata": 2 * HEADS},
            {**sizes, "new_sequence_length": 1, "alpha": 0.35},
            counts=counts,
        )
        self.named(f"split {layer}")
        reads = {"input": out, "metadata": metadata, "seqlens_k": lengths[0]}
        sizes = {"head_size_vec": HEAD // 4, "new_sequence_length": 1, "num_heads": HEADS}
        if self.sinks:
            reads["head_sink"] = s.weights(HEADS, 1.0)
        join = "attention_join_sinks" if self.sinks else "attention_join"
        [y] = s.run(join, reads, {"output": HEADS * HEAD}, sizes)
        self.named(f"join {layer}")
        return y

    def scaled(self, x: int, by: float, size: int = WIDTH) -> int:
        """Times a number, by a kernel that nobody recognises."""
        return self.sketch.unknown(lambda v: by * v[:size], [x], size)


def decoder(
    *,
    bias: bool = False,
    multipliers: bool = False,
    gated: bool = True,
    watched: bool = False,
    patched: bool = False,
    dense: bool = False,
    packed: str = "",
    rounded: bool = False,
    swapped: bool = False,
    norms: str | None = None,
    rotary: str = "",
    sinks: bool = False,
    affine: bool = False,
    apart: bool = False,
    shared: bool = False,
    layers: int = 2,
    gates: bool = False,
) -> Small:
    """Llama, unless otherwise asked.

    `bias`: added to q, k and v (qwen2). `multipliers`: unknown kernels after the embedding, attention and feed-forward
    (granite). `gated`: the first half of the feed-forward is one kernel; else its two products read one norm.
    `dense`: weights as they are, and a gate of separate operations; so has `packed` (zero points, int8). `rounded`:
    products of int8. `swapped`: the gate's factors in the other order.
    `norms`: of q and k, "inside" the rotary kernel or "apart" (qwen3), "all" with one of v (gemma4), or "no" with q, k
    and v split all the same. `apart`: v has a product of its own, put behind that of q and k. `affine`: weights have
    minima, whose products are apart. `shared`: all layers but the first read its caches.
    `rotary`: "partial" (phi) or "interleaved" (ernie). `sinks`: one more score in each head's softmax (gpt-oss).
    `gates`: of attention's results, beside the queries (qwen3_5).
    `watched`: an unknown kernel reads a residual and a norm. `patched`: the next kernel changes a part of a copy.
    """
    m = Small(layers, dense, packed, rounded, sinks, affine, gates)
    s = m.sketch
    x = m.embedded()
    if multipliers:
        x = m.scaled(x, 1.5)
    y = m.norm(x)
    m.named("first norm")
    lengths: tuple[int, int] | None = None
    for layer in range(layers):
        of_others = shared and layer > 0
        qkv = m.concat(y) if apart else m.matmul(y, HEADS * HEAD if of_others else m.packed_size, WIDTH)
        m.named(f"qkv {layer}")
        if bias:
            qkv = m.add(qkv, s.weights(QKV), QKV)
            m.named(f"bias {layer}")
        lengths = lengths or m.lengths()
        if of_others:
            attended = m.over_the_caches_of(0, qkv, layer, lengths)
        else:
            attended = m.attention(qkv, layer, lengths, norms, rotary)
        out = m.matmul(attended, WIDTH, HEADS * HEAD)
        m.named(f"out {layer}")
        if multipliers:
            out = m.scaled(out, 0.7)
        if dense or packed or affine:
            y, x = m.skip_norm(out, x)
            gate, up = (m.matmul(y, INNER, WIDTH) for _ in range(2))
            activated = m.silu(gate, INNER)
            m.named(f"silu {layer}")
            y = m.multiply(up, activated, INNER) if swapped else m.multiply(activated, up, INNER)
        elif gated:
            y, x = m.gated_mlp(out, x)
            m.named(f"gated {layer}")
        else:
            y, x = m.skip_norm(out, x)
            m.named(f"inner norm {layer}")
            halves = [m.matmul(y, INNER, WIDTH) for _ in range(2)]
            y = s.unknown(lambda a, b: a[:INNER] * np.tanh(b[:INNER]), halves, INNER)
        down = m.matmul(y, WIDTH, INNER)
        m.named(f"down {layer}")
        if multipliers:
            down = m.scaled(down, 0.7)
        if layer + 1 < layers:
            y, x = m.skip_norm(down, x)
            m.named(f"norm {layer}")
    if watched:
        y, x = m.skip_norm(down, x)
        m.named("watched norm")
        for tensor in (x, y):
            s.unknown(lambda v: v[:WIDTH], [tensor], WIDTH, into=s.lasting(WIDTH))
    else:
        y = m.last_norm(down, x)
        m.named("last norm")
    if patched:
        copied = s.tensor(WIDTH)
        s.copy(y, copied, WIDTH)
        m.named("copy")
        s.unknown(lambda v: v[:4] ** 2, [x], 4, into=copied, first=8)
        y = copied
    if multipliers or patched:
        product = m.matmul(y, VOCABULARY, WIDTH)
        s.unknown(lambda v: v[:VOCABULARY] / 3, [product], VOCABULARY, into=m.logits)
    else:
        m.matmul(y, VOCABULARY, WIDTH, into=m.logits)
    m.named("head")
    return m


SMALL_DECODERS: Mapping[str, Callable[[], Small]] = {
    "llama": decoder,
    "qwen2": lambda: decoder(bias=True),
    "granite": lambda: decoder(multipliers=True),
    "qwen3": lambda: decoder(norms="apart"),
    "gemma4": lambda: decoder(norms="all"),
    "caches of another layer": lambda: decoder(norms="all", shared=True, layers=3),
    "qwen3, norms inside": lambda: decoder(norms="inside"),
    "q, k and v split": lambda: decoder(norms="no"),
    "two products": lambda: decoder(gated=False),
    "watched": lambda: decoder(watched=True),
    "patched": lambda: decoder(patched=True),
    "everything": lambda: decoder(bias=True, multipliers=True, gated=False, watched=True, patched=True),
    "dense": lambda: decoder(dense=True, bias=True),
    "dense everything": lambda: decoder(dense=True, swapped=True, multipliers=True, watched=True, patched=True),
    "zero points": lambda: decoder(packed="_zeros"),
    "int8": lambda: decoder(packed="_bytes"),
    "int8 and zero points": lambda: decoder(packed="_bytes_zeros", swapped=True, multipliers=True, watched=True),
    "activations in int8": lambda: decoder(rounded=True, bias=True),
    "activations in int8, zero points": lambda: decoder(rounded=True, packed="_zeros", gated=False, watched=True),
    "partial rotary": lambda: decoder(rotary="partial"),
    "interleaved rotary": lambda: decoder(rotary="interleaved"),
    "sinks": lambda: decoder(sinks=True),
    "affine": lambda: decoder(affine=True),
    "affine everything": lambda: decoder(affine=True, bias=True, swapped=True, multipliers=True, watched=True),
    "q, k and v of two types": lambda: decoder(apart=True, affine=True),
    "dense ones": lambda: decoder(apart=True, dense=True),
    "qwen3_5's attention": lambda: decoder(norms="apart", rotary="partial", gates=True),
    "one layer": lambda: decoder(layers=1),
}
