"""Writes the per-layer embeddings of a GGUF file's graph, as in Gemma 4's small models.

A table has a row with all layers' elements for each token; a product of the first layer's input, normed layer by layer,
is added to the row. After its MLP a layer gates its share; the normed product of that is added to the layer's output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

from ...model_files.gguf.gguf_file import GgufFile, GgufTensor
from .gguf_tensors import Rows, TensorWriter, node_name

__all__ = ["LayerInputs"]


@dataclass
class LayerInputs:
    """The embeddings of all layers of one graph."""

    t: TensorWriter
    file: GgufFile
    layers: int
    hidden: int
    vocabulary: int
    epsilon: float
    size: int = field(init=False)
    """Elements of a layer's embedding; 0 for a file without them."""
    made: str = field(init=False, default="")
    """The name of the tensor with the embeddings of all layers."""

    def __post_init__(self) -> None:
        self.size = self.file.integer(self.file.key("embedding_length_per_layer_input"), least=0)

    def write(self, x: str) -> None:
        """Write the nodes before the layers; `x` is the input of the first layer."""
        t, width, front = self.t, self.layers * self.size, "/model/per_layer_inputs"
        table = t.tensor("per_layer_token_embd.weight", self.vocabulary, width)
        found = t.lookup("model.embed_tokens_per_layer", table, "input_ids", quantized=True)
        own = t.node("Mul", f"{front}/embed/Mul", [found, t.number(sqrt(self.size))])
        rows = [Rows(t.tensor("per_layer_model_proj.weight", width, self.hidden))]
        projected = t.product("model.per_layer_model_projection.MatMul", x, rows)
        apart = t.node("Reshape", f"{front}/Reshape_1", [projected, t.integers(0, 0, self.layers, self.size)])
        weight = t.tensor("per_layer_proj_norm.weight", self.size)
        # The product is divided by the root of the hidden size, which a norm undoes except in its epsilon.
        normed = self.norm("per_layer_projection_norm", apart, weight, self.epsilon * self.hidden)
        whole = t.node("Reshape", f"{front}/Reshape_2", [normed, t.integers(0, 0, width)])
        both = t.node("Add", f"{front}/Add", [whole, own])
        self.made = t.node("Mul", f"{front}/Mul", [both, t.number(sqrt(0.5))])

    def add(self, layer: int, x: str) -> str:
        """Write the nodes after a layer's MLP, which add their result to `x`, the layer's output so far."""
        t, tensors = self.t, f"blk.{layer}"
        front, node = f"model.layers.{layer}", f"/model/layers.{layer}/per_layer_input"
        gate_rows = [Rows(t.tensor(f"{tensors}.inp_gate.weight", self.size, self.hidden))]
        gate = t.product(f"{front}.per_layer_input_gate.MatMul", x, gate_rows)
        active = t.node("Gelu", f"{node}/act_fn/FastGelu", [gate], approximate="tanh")
        share = [t.integers(place * self.size) for place in (layer, layer + 1)]
        own = t.node("Slice", f"{node}/Slice", [self.made, *share, t.integers(2)])
        gated = t.node("Mul", f"{node}/Mul", [active, own])
        rows = [Rows(t.tensor(f"{tensors}.proj.weight", self.hidden, self.size))]
        made = t.product(f"{front}.per_layer_projection.MatMul", gated, rows)
        weight = t.tensor(f"{tensors}.post_norm.weight", self.hidden)
        return self.norm(f"layers.{layer}.post_per_layer_input_norm", made, weight, self.epsilon)

    def norm(self, name: str, x: str, tensor: GgufTensor, epsilon: float) -> str:
        weight = self.t.vector(f"model.{name}.weight", [Rows(tensor)])
        return self.t.rms_norm(f"{node_name(f'model.{name}')}/LayerNorm", x, weight, epsilon)
