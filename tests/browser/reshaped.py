"""nano-llama in other shapes, with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from capstan.graph.onnx_pb2 import AttributeProto, ModelProto, TensorProto
from tests.browser.model_variants import Variants

__all__ = ["Shape"]

VOCABULARY, CONTEXT, INNER = 512, 512, 128
KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.uint8): TensorProto.UINT8}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder like nano-llama, and how its weights are packed."""

    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    hidden: int = 64
    bits: int = 4
    block: int = 32
    zeros: bool = False

    def mount(self, variants: Variants, name: str) -> str:
        """A mounted folder of it."""
        path = variants.place / variants.graph(name, self.change) / "genai_config.json"
        tree = json.loads(path.read_text())
        sizes = {"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_size": self.head}
        tree["model"]["decoder"] |= sizes | {"hidden_size": self.hidden}
        path.write_text(json.dumps(tree))
        return name

    def change(self, model: ModelProto) -> None:
        random, graph = np.random.default_rng(1), model.graph
        del graph.value_info[:], graph.initializer[:]

        def constant(name: str, values: np.ndarray[Any, np.dtype[Any]]) -> None:
            tensor = graph.initializer.add(name=name, data_type=KINDS[values.dtype], raw_data=values.tobytes())
            tensor.dims.extend(values.shape)

        def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
            return random.standard_normal(shape).astype(np.float32)

        constant("model.embed_tokens.weight", normal(VOCABULARY, self.hidden))
        half = self.head // 2
        angles = np.outer(np.arange(CONTEXT), 10000.0 ** (-np.arange(half) / half))
        constant("cos_cache", np.cos(angles).astype(np.float32))
        constant("sin_cache", np.sin(angles).astype(np.float32))
        width = self.heads * self.head
        sizes = {
            "qkv_proj": (self.hidden, width + 2 * self.kv_heads * self.head),
            "o_proj": (width, self.hidden),
            "gate_proj": (self.hidden, INNER),
            "up_proj": (self.hidden, INNER),
            "down_proj": (INNER, self.hidden),
            "lm_head": (self.hidden, VOCABULARY),
        }
        for node in graph.node:
            if node.op_type.endswith("LayerNormalization"):
                weight = next(name for name in node.input if name.endswith("weight"))
                constant(weight, 1 + 0.1 * normal(self.hidden))
            if node.op_type == "GroupQueryAttention":
                asked = {"num_heads": self.heads, "kv_num_heads": self.kv_heads}
                for attribute in node.attribute:
                    if attribute.name in asked:
                        attribute.i = asked[attribute.name]
                    if attribute.name == "scale":
                        attribute.f = self.head**-0.5
            if node.op_type != "MatMulNBits":
                continue
            k, n = next(size for part, size in sizes.items() if part in node.name)
            blocks = -(-k // self.block)
            constant(node.input[1], random.integers(0, 256, (n, blocks, self.block * self.bits // 8), np.uint8))
            constant(node.input[2], (0.2 / 2 ** (self.bits - 2) * k**-0.5 * np.abs(1 + normal(n, blocks))))
            if self.zeros:
                row = -(-blocks * self.bits // 8)
                node.input.append(f"{node.name}/zeros")
                constant(node.input[3], random.integers(0, 256, n * row, np.uint8))
            asked = {"K": k, "N": n, "bits": self.bits, "block_size": self.block}
            del node.attribute[:]
            for name, number in asked.items():
                node.attribute.add(name=name, type=AttributeProto.INT, i=number)
        for value in [*graph.input, *graph.output]:
            dims = value.type.tensor_type.shape.dim
            if len(dims) == 4:
                dims[1].dim_value, dims[3].dim_value = self.kv_heads, self.head
