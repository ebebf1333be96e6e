"""Writes Gemma 4's text model as repositories for Transformers.js have it: `embed_tokens` and `decoder_model_merged`.

The forms are those of onnx-community's exports of E2B and E4B. `embed_tokens` looks ids up in the table of embeddings
and in the table of the layers' inputs, where the ids of pictures and sounds take row 0. In the decoder the layers with
a window and caches of their own have GroupQueryAttention, behind RotaryEmbedding; the layers that attend to all
positions, and those that read another layer's caches, have MatMul and Softmax. Weights are in 4 bits with zero points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["BLOCK", "Gemma4", "Packed", "dequantized", "quantized", "write_repository"]

BLOCK = 32
INLINE = 256
"""Smaller tensors, in bytes, are within the graph."""
Packed = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]
"""Rows in 4 bits, two in a byte, with a scale and a zero point (two in a byte) for each block."""


@dataclass(frozen=True)
class Gemma4:
    """The sizes; as those of Gemma4TextConfig."""

    vocabulary: int
    hidden: int
    inner: int
    kinds: Sequence[str]
    """By layer, "sliding_attention" or "full_attention"."""
    shared: int
    """The number of the last layers, which read caches of others."""
    heads: int
    kv_heads: int
    head: int
    full_head: int
    layer_input: int
    window: int
    context: int
    cap: float
    others: tuple[int, ...]
    """The ids of pictures and sounds."""
    wide: bool = True
    """Whether the MLPs of layers that read caches of others are twice as wide."""
    epsilon: float = 1e-6

    @property
    def own(self) -> int:
        """The number of layers with caches."""
        return len(self.kinds) - self.shared

    def source(self, layer: int) -> int:
        """The layer whose caches a layer reads."""
        if layer < self.own:
            return layer
        return max(place for place in range(self.own) if self.kinds[place] == self.kinds[layer])

    def head_size(self, layer: int) -> int:
        return self.full_head if self.kinds[layer] == "full_attention" else self.head

    def inner_size(self, layer: int) -> int:
        return self.inner * (2 if self.wide and layer >= self.own else 1)


def quantized(values: NDArray[np.float32]) -> Packed:
    """Rows in 4 bits; a row is in whole blocks, and their number is even."""
    blocks = values.reshape(len(values), -1, BLOCK)
    least, most = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = np.maximum((most - least) / 15, 1e-8).astype(np.float16).astype(np.float32)
    zeros = np.clip(np.round(-least / scales), 0, 15).astype(np.uint8)
    numbers = np.clip(np.round(blocks / scales[..., None]) + zeros[..., None], 0, 15).astype(np.uint8)
    return pairs(numbers.reshape(len(values), -1)), scales, pairs(zeros)


def pairs(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(nibbles[:, ::2] | nibbles[:, 1::2] << 4)


def apart(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)


def dequantized(packed: Packed) -> NDArray[np.float32]:
    numbers, scales, zeros = packed
    blocks = apart(numbers).reshape(*scales.shape, BLOCK).astype(np.float32)
    made = (blocks - apart(zeros)[..., None]) * scales[..., None]
    return np.asarray(made.reshape(len(numbers), -1), np.float32)


class Writer:
    """Writes one graph and its data file."""

    def __init__(self, path: Path, half: bool) -> None:
        self.path, self.nodes = path, list[Any]()
        self.tensors: dict[str, TensorProto] = {}
        self.kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        self.type: Any = np.float16 if half else np.float32
        self.data = (path.parent / f"{path.name}_data").open("wb")

    def tensor(self, name: str, values: Any) -> str:
        array = np.asarray(values, order="C")
        made = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        if array.nbytes < INLINE:
            made = numpy_helper.from_array(array, name)
        elif name not in self.tensors:
            made.data_location = TensorProto.EXTERNAL
            place = {"location": Path(self.data.name).name, "offset": self.data.tell(), "length": array.nbytes}
            for key, value in place.items():
                made.external_data.add(key=key, value=str(value))
            self.data.write(array.tobytes() + bytes(-array.nbytes % 4096 if array.nbytes > 1 << 20 else 0))
        self.tensors.setdefault(name, made)
        return name

    def ints(self, *values: int) -> str:
        return self.tensor(f"/model/constants/INT64/{list(values)}", np.array(values, np.int64))

    def number(self, value: float, kind: Any = None) -> str:
        return self.tensor(
            f"/model/constants/{np.dtype(kind or self.type)}/{value}", np.array(value, kind or self.type)
        )

    def node(self, op: str, name: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        domain = "com.microsoft" if op in MICROSOFT else ""
        made = list(outputs) or [f"{name}/output_0"]
        self.nodes.append(helper.make_node(op, inputs, made, name=name, domain=domain, **attributes))
        return made[0]

    def packed(self, name: str, packed: Packed) -> list[str]:
        numbers, scales, zeros = packed
        values = (numbers, scales.astype(self.type), zeros)
        return [
            self.tensor(f"{name}_{part}", each) for part, each in zip(("quant", "scales", "zp"), values, strict=True)
        ]

    def product(self, name: str, x: str, packed: Packed) -> str:
        numbers, scales, zeros = packed
        rows, width = len(numbers), 2 * numbers.shape[1]
        blocks = numbers.reshape(rows, -1, BLOCK // 2)
        weights = self.packed(f"{name.strip('/').replace('/', '_')}_MatMul_weight", (blocks, scales, zeros))
        return self.node(
            "MatMulNBits", f"{name}/MatMul_Quant", [x, *weights], K=width, N=rows, bits=4, block_size=BLOCK
        )

    def norm(self, name: str, x: str, weight: str, epsilon: float) -> str:
        inputs = [x, weight]
        return self.node("SimplifiedLayerNormalization", name, inputs, axis=-1, epsilon=epsilon, stash_type=1)

    def save(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, list(self.tensors.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), self.path)
        self.data.close()


MICROSOFT = {"GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "RotaryEmbedding"}
Matrix = Callable[[str, int, int], Packed]
Vector = Callable[[str, int], NDArray[np.float32]]


def write_repository(folder: Path, sizes: Gemma4, matrix: Matrix, vector: Vector, half: bool) -> None:
    """Write the two graphs in dtype q4, or q4f16 with `half`; `matrix` and `vector` give the weights by transformers'
    names."""
    suffix = "_q4f16" if half else "_q4"
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    embeddings(Writer(folder / f"onnx/embed_tokens{suffix}.onnx", half), sizes, matrix)
    Decoder(Writer(folder / f"onnx/decoder_model_merged{suffix}.onnx", half), sizes, matrix, vector).write()


def value(name: str, kind: int, *dims: int | str) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


BATCH, TOKENS = "batch_size", "sequence_length"


def embeddings(w: Writer, sizes: Gemma4, matrix: Matrix) -> None:
    layers, size = len(sizes.kinds), sizes.layer_input

    def lookup(name: str, table: str, ids: str, width: int, scale: float) -> str:
        numbers, scales, zeros = w.packed(f"model_{name}_weight", matrix(table, sizes.vocabulary, width))
        about = {"bits": 4, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        found = w.node("GatherBlockQuantized", f"/model/{name}/Gather_Quant", [numbers, ids, scales, zeros], **about)
        return w.node("Mul", f"/model/{name}/Mul", [found, w.number(scale)])

    text = w.node("Less", "/model/Less", ["input_ids", w.tensor("vocab_size", np.array(sizes.vocabulary, np.int64))])
    for place, other in enumerate(sizes.others):
        equal = w.node("Equal", f"/model/Equal_{place}", ["input_ids", w.tensor(f"other_{place}", np.array(other))])
        text = w.node("And", f"/model/And_{place}", [text, w.node("Not", f"/model/Not_{place}", [equal])])
    ids = w.node("Where", "/model/Where", [text, "input_ids", w.tensor("zero_id", np.array(0, np.int64))])
    found = lookup("embed_tokens", "embed_tokens.weight", "input_ids", sizes.hidden, math.sqrt(sizes.hidden))
    w.node("Cast", "/model/embed_tokens/Cast", [found], "inputs_embeds", to=TensorProto.FLOAT)
    name = "embed_tokens_per_layer"
    found = lookup(name, f"{name}.weight", ids, layers * size, math.sqrt(size))
    found = w.node("Reshape", f"/model/{name}/Reshape", [found, w.ints(0, 0, layers, size)])
    w.node("Cast", f"/model/{name}/Cast", [found], "per_layer_inputs", to=TensorProto.FLOAT)
    w.save(
        [value("input_ids", TensorProto.INT64, BATCH, TOKENS)],
        [
            value("inputs_embeds", TensorProto.FLOAT, BATCH, TOKENS, sizes.hidden),
            value("per_layer_inputs", TensorProto.FLOAT, BATCH, TOKENS, layers, size),
        ],
    )


@dataclass
class Decoder:
    w: Writer
    sizes: Gemma4
    matrix: Matrix
    vector: Vector

    def write(self) -> None:
        w, sizes = self.w, self.sizes
        self.write_angles()
        self.write_masks()
        x = w.node("Cast", "/model/inputs_embeds/Cast", ["inputs_embeds"], to=w.kind)
        self.write_layer_inputs(x)
        for layer in range(len(sizes.kinds)):
            x = self.layer(layer, x)
        x = self.norm(f"/model/layers.{len(sizes.kinds)}/final_norm_layernorm", x, "norm.weight", sizes.hidden)
        start = w.node("Neg", "/lm_head/Neg", ["num_logits_to_keep"])
        start = w.node("Unsqueeze", "/lm_head/Unsqueeze", [start, w.ints(0)])
        x = w.node("Slice", "/lm_head/Slice", [x, start, w.ints(2**63 - 1), w.ints(1)])
        x = w.product("/lm_head", x, self.matrix("embed_tokens.weight", sizes.vocabulary, sizes.hidden))
        x = w.node("Div", "/lm_head/Div", [x, w.number(sizes.cap)])
        x = w.node("Mul", "/lm_head/Mul", [w.node("Tanh", "/lm_head/Tanh", [x]), w.number(sizes.cap)])
        w.node("Cast", "/lm_head/Cast", [x], "logits", to=TensorProto.FLOAT)
        self.save()

    def save(self) -> None:
        w, sizes = self.w, self.sizes

        def caches(front: str, length: str) -> list[Any]:
            return [
                value(f"{front}.{layer}.{part}", w.kind, BATCH, sizes.kv_heads, length, sizes.head_size(layer))
                for layer in range(sizes.own)
                for part in ("key", "value")
            ]

        inputs = [
            value("inputs_embeds", TensorProto.FLOAT, BATCH, TOKENS, sizes.hidden),
            value("attention_mask", TensorProto.INT64, BATCH, "total_sequence_length"),
            value("position_ids", TensorProto.INT64, BATCH, TOKENS),
            value("num_logits_to_keep", TensorProto.INT64),
            value("per_layer_inputs", TensorProto.FLOAT, BATCH, TOKENS, len(sizes.kinds), sizes.layer_input),
        ]
        logits = value("logits", TensorProto.FLOAT, BATCH, "num_logits_to_keep", sizes.vocabulary)
        outputs = [logits, *caches("present", "total_sequence_length")]
        w.save([*inputs, *caches("past_key_values", "past_sequence_length")], outputs)

    def write_angles(self) -> None:
        """Cosines and sines; a quarter of a long head's pairs turn."""
        w, sizes = self.w, self.sizes
        for name, head, base, share in (("local", sizes.head, 1e4, 1.0), ("global", sizes.full_head, 1e6, 0.25)):
            turned = int(share * head // 2)
            frequencies = np.zeros(head // 2, np.float32)
            frequencies[:turned] = 1 / base ** (np.arange(0, 2 * turned, 2, dtype=np.float32) / head)
            angles = np.arange(sizes.context, dtype=np.float32)[:, None] * frequencies
            w.tensor(f"cos_cache_{name}", np.cos(angles).astype(w.type))
            w.tensor(f"sin_cache_{name}", np.sin(angles).astype(w.type))

    def write_masks(self) -> None:
        w, front = self.w, "/model/attn_mask_reformat"
        mask = w.node("Cast", f"{front}/Cast", ["attention_mask"], to=TensorProto.INT32)
        summed = w.node("ReduceSum", f"{front}/ReduceSum", [mask, w.ints(1)], keepdims=0)
        less = w.node("Sub", f"{front}/Sub", [summed, w.number(1, np.int32)])
        self.lengths = [less]
        shape = w.node("Shape", f"{front}/Shape", ["attention_mask"])
        total = w.node("Gather", f"{front}/Gather", [shape, w.number(1, np.int64)], axis=0)
        self.lengths.append(w.node("Cast", f"{front}/Cast_total", [total], to=TensorProto.INT32))
        keys = w.node("Range", f"{front}/Range", [w.number(0, np.int64), total, w.number(1, np.int64)])
        queries = w.node("Unsqueeze", f"{front}/Unsqueeze", ["position_ids", w.ints(1, 3)])
        seen = w.node("LessOrEqual", f"{front}/LessOrEqual", [keys, queries])
        there = w.node("Cast", f"{front}/Cast_there", ["attention_mask"], to=TensorProto.BOOL)
        there = w.node("Unsqueeze", f"{front}/Unsqueeze_there", [there, w.ints(1, 2)])
        seen = w.node("And", f"{front}/And", [seen, there])
        first = w.node("Sub", f"{front}/Sub_window", [queries, w.number(self.sizes.window, np.int64)])
        near = w.node("Greater", f"{front}/Greater", [keys, first])
        near = w.node("And", f"{front}/And_window", [seen, near])
        self.masks = {"full_attention": seen, "sliding_attention": near}

    def write_layer_inputs(self, x: str) -> None:
        w, sizes, front = self.w, self.sizes, "/model/per_layer"
        layers, size = len(sizes.kinds), sizes.layer_input
        given = w.node("Cast", f"{front}/Cast", ["per_layer_inputs"], to=w.kind)
        weight = self.matrix("per_layer_model_projection.weight", layers * size, sizes.hidden)
        made = w.product("/model/per_layer_projection", x, weight)
        made = w.node("Mul", f"{front}/Mul", [made, w.number(sizes.hidden**-0.5)])
        made = w.node("Reshape", f"{front}/Reshape", [made, w.ints(0, 0, layers, size)])
        made = self.norm(f"{front}/projection_norm", made, "per_layer_projection_norm.weight", size)
        both = w.node("Add", f"{front}/Add", [made, given])
        self.inputs = w.node("Mul", f"{front}/Mul_1", [both, w.number(2**-0.5)])

    def norm(self, name: str, x: str, weight: str, width: int) -> str:
        stored = f"{name.strip('/').replace('/', '.')}.weight"
        values = self.vector(weight, width) if weight else np.ones(width, np.float32)
        return self.w.norm(name, x, self.w.tensor(stored, values.astype(self.w.type)), self.sizes.epsilon)

    def layer(self, layer: int, x: str) -> str:
        w, sizes = self.w, self.sizes
        front, names, hidden = f"/model/layers.{layer}", f"layers.{layer}", sizes.hidden
        made = self.norm(f"{front}/input_layernorm", x, f"{names}.input_layernorm.weight", hidden)
        made = self.attention(layer, made)
        made = self.norm(f"{front}/post_attention_layernorm", made, f"{names}.post_attention_layernorm.weight", hidden)
        x = w.node("Add", f"{front}/Add", [x, made])
        name = "pre_feedforward_layernorm"
        made = self.norm(f"{front}/{name}", x, f"{names}.{name}.weight", hidden)
        made = self.mlp(layer, made)
        name = "post_feedforward_layernorm"
        made = self.norm(f"{front}/{name}", made, f"{names}.{name}.weight", hidden)
        x = w.node("Add", f"{front}/Add_1", [x, made])
        name = "per_layer_input_gate"
        gate = w.product(
            f"{front}/per_layer/{name}", x, self.matrix(f"{names}.{name}.weight", sizes.layer_input, hidden)
        )
        gate = w.node("Gelu", f"{front}/per_layer/act_fn/Gelu", [gate], approximate="tanh")
        own = w.node("Gather", f"{front}/per_layer/Gather", [self.inputs, w.number(layer, np.int64)], axis=2)
        gate = w.node("Mul", f"{front}/per_layer/Mul", [gate, own])
        name = "per_layer_projection"
        made = w.product(
            f"{front}/per_layer/{name}", gate, self.matrix(f"{names}.{name}.weight", hidden, sizes.layer_input)
        )
        name = "post_per_layer_input_norm"
        made = self.norm(f"{front}/{name}", made, f"{names}.{name}.weight", hidden)
        x = w.node("Add", f"{front}/Add_2", [x, made])
        scalar = w.tensor(f"model.layers.{layer}.layer_scalar", self.vector(f"{names}.layer_scalar", 1).astype(w.type))
        return w.node("Mul", f"{front}/Mul", [x, scalar])

    def mlp(self, layer: int, x: str) -> str:
        w, inner = self.w, self.sizes.inner_size(layer)
        front, names = f"/model/layers.{layer}/mlp", f"layers.{layer}.mlp"
        parts = [self.matrix(f"{names}.{name}_proj.weight", inner, self.sizes.hidden) for name in ("gate", "up")]
        both = [np.concatenate(each) for each in zip(*parts, strict=True)]
        made = w.product(f"{front}/gate_up_proj", x, (both[0], both[1], both[2]))
        gate, up = (f"{front}/Split/output_{place}" for place in range(2))
        w.node("Split", f"{front}/Split", [made, w.ints(inner, inner)], gate, up, axis=-1)
        gate = w.node("Gelu", f"{front}/act_fn/Gelu", [gate], approximate="tanh")
        made = w.node("Mul", f"{front}/Mul", [gate, up])
        return w.product(f"{front}/down_proj", made, self.matrix(f"{names}.down_proj.weight", self.sizes.hidden, inner))

    def attention(self, layer: int, x: str) -> str:
        w, sizes = self.w, self.sizes
        front, names = f"/model/layers.{layer}/attn", f"layers.{layer}.self_attn"
        head, source = sizes.head_size(layer), sizes.source(layer)
        sliding = sizes.kinds[layer] == "sliding_attention"

        def projected(part: str, heads: int) -> str:
            made = w.product(
                f"{front}/{part}_proj", x, self.matrix(f"{names}.{part}_proj.weight", heads * head, sizes.hidden)
            )
            made = w.node("Reshape", f"{front}/{part}_norm/Reshape_1", [made, w.ints(0, -1, head)])
            weight = f"{names}.{part}_norm.weight" if part != "v" else ""
            made = self.norm(f"{front}/{part}_norm/layernorm", made, weight, head)
            made = w.node("Reshape", f"{front}/{part}_norm/Reshape_2", [made, w.ints(0, -1, heads * head)])
            if part == "v":
                return made
            kind = "local" if sliding else "global"
            given = [made, "position_ids", f"cos_cache_{kind}", f"sin_cache_{kind}"]
            return w.node("RotaryEmbedding", f"{front}/{part}_rotary/RotaryEmbedding", given, interleaved=0)

        def heads_apart(part: str, made: str, heads: int) -> str:
            made = w.node("Reshape", f"{front}/{part}/Reshape", [made, w.ints(0, 0, heads, head)])
            return w.node("Transpose", f"{front}/{part}/Transpose", [made], perm=[0, 2, 1, 3])

        q = projected("q", sizes.heads)
        caches = [f"present.{source}.{part}" for part in ("key", "value")]
        if layer == source:
            new = [projected(part, sizes.kv_heads) for part in "kv"]
            pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
            if sliding:
                name = f"{front}/GroupQueryAttention"
                made = w.node(
                    "GroupQueryAttention",
                    name,
                    [q, *new, *pasts, *self.lengths],
                    f"{name}/output_0",
                    *caches,
                    num_heads=sizes.heads,
                    kv_num_heads=sizes.kv_heads,
                    scale=1.0,
                    local_window_size=sizes.window,
                    do_rotary=0,
                )
                return self.output(layer, made)
            for part, past, made, cache in zip("kv", pasts, new, caches, strict=True):
                given = [past, heads_apart(part, made, sizes.kv_heads)]
                w.node("Concat", f"{front}/{part}/Concat", given, cache, axis=2)
        keys, values = (self.repeated(f"{front}/{name}", cache, head) for name, cache in zip("kv", caches, strict=True))
        turned = w.node("Transpose", f"{front}/k/Transpose_1", [keys], perm=[0, 1, 3, 2])
        scores = w.node("MatMul", f"{front}/MatMul", [heads_apart("q", q, sizes.heads), turned])
        least = w.number(float(np.finfo(w.type).min))
        scores = w.node("Where", f"{front}/Where", [self.masks[sizes.kinds[layer]], scores, least])
        shares = w.node("Softmax", f"{front}/Softmax", [scores], axis=-1)
        made = w.node("MatMul", f"{front}/MatMul_1", [shares, values])
        made = w.node("Transpose", f"{front}/Transpose", [made], perm=[0, 2, 1, 3])
        return self.output(layer, w.node("Reshape", f"{front}/Reshape", [made, w.ints(0, 0, sizes.heads * head)]))

    def repeated(self, front: str, cache: str, head: int) -> str:
        """A cache with each head repeated for the queries that read it."""
        w, sizes = self.w, self.sizes
        if sizes.kv_heads == 1:
            return cache
        made = w.node("Unsqueeze", f"{front}/repeat/Unsqueeze", [cache, w.ints(2)])
        made = w.node("Expand", f"{front}/repeat/Expand", [made, w.ints(1, 1, sizes.heads // sizes.kv_heads, 1, 1)])
        return w.node("Reshape", f"{front}/repeat/Reshape", [made, w.ints(0, sizes.heads, -1, head)])

    def output(self, layer: int, x: str) -> str:
        width = self.sizes.heads * self.sizes.head_size(layer)
        weight = self.matrix(f"layers.{layer}.self_attn.o_proj.weight", self.sizes.hidden, width)
        return self.w.product(f"/model/layers.{layer}/attn/o_proj", x, weight)
