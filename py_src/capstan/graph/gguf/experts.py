"""Writes mixtures of experts into a GGUF file's graph, as QMoE nodes that use the integers of the file.

QMoE multiplies by `d * (Q - zero)` in 4 or 8 bits; all its weights have the same bits and the same number of elements
for a scale. So all tensors of a layer are held like the tensor that needs most bits and scales: Q4_0 beside Q8_0 in 8
bits, any type beside Q6_K with its scales twice. Types with minima or without blocks raise an error. Rows of gate and
up alternate in its first weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...errors import UnsupportedModelError
from ...model_files.gguf.families import Mixture
from ...model_files.gguf.gguf_file import GgufFile, GgufTensor
from .gguf_tensors import Rows, TensorWriter
from .gguf_types import PACKED, Packing

__all__ = ["Experts"]

MICROSOFT = "com.microsoft"
PARTS = ("gate", "up", "down")


@dataclass
class Experts:
    """Writes the mixture of experts of each layer."""

    t: TensorWriter
    file: GgufFile
    mixture: Mixture
    hidden: int
    inner: int
    """`feed_forward_length`."""
    count: int = field(init=False)
    used: int = field(init=False)

    def __post_init__(self) -> None:
        key, integer = self.file.key, self.file.integer
        self.count = integer(key("expert_count"))
        self.used = integer(key("expert_used_count"), most=self.count)
        if self.mixture.shares_inner:
            self.inner //= self.used
        self.inner = integer(key("expert_feed_forward_length"), self.inner)
        self.mixture.require_known(self.file)

    def write(self, layer: int, x: str) -> str:
        """Write the layer's nodes; returns the sum of the chosen experts' results."""
        t, front, node = self.t, f"model.layers.{layer}.moe", f"/model/layers.{layer}/moe"
        router = t.tensor(f"blk.{layer}.ffn_gate_inp.weight", self.count, self.hidden)
        scores = t.product(f"{front}.router.MatMul", x, [Rows(router)])
        scores = t.biased(f"{front}.router", scores, f"blk.{layer}.ffn_gate_inp.bias", self.count)
        scores = t.node("Reshape", f"{node}/router/Reshape", [scores, t.integers(-1, self.count)])
        wide = (self.inner, self.hidden)
        sizes = dict(zip(PARTS, (wide, wide, wide[::-1]), strict=True))
        tensors = {name: self.rows(f"blk.{layer}.ffn_{name}_exps.weight", *dims) for name, dims in sizes.items()}
        packing = packing_of(self.file, list(tensors.values()))
        gates = self.weights(f"{front}.experts.gate_up_proj", [tensors["gate"], tensors["up"]], packing)
        down = self.weights(f"{front}.experts.down_proj", [tensors["down"]], packing)
        first, last = self.biases(layer)
        limit = {"swiglu_limit": self.mixture.limit} if self.mixture.limit else {}
        return t.node(
            "QMoE",
            f"{node}/QMoE",
            [x, scores, *gates, first, *down, *([last] if last else [])],
            domain=MICROSOFT,
            k=self.used,
            activation_type="swiglu",
            activation_alpha=self.mixture.alpha,
            activation_beta=self.mixture.beta,
            swiglu_fusion=1,
            normalize_routing_weights=1,
            expert_weight_bits=packing.bits,
            block_size=packing.block,
            **limit,
        )

    def rows(self, name: str, rows: int, columns: int) -> GgufTensor:
        """A tensor of all experts, their rows one after another."""
        return replace(self.t.tensor(name, self.count, rows, columns), dims=(self.count * rows, columns))

    def weights(self, name: str, tensors: list[GgufTensor], packing: Packing) -> list[str]:
        """The quants and the scales of tensors whose rows alternate."""
        if len({each.shard for each in tensors}) > 1:
            raise UnsupportedModelError(
                f"{self.file.name}: tensors {' and '.join(each.name for each in tensors)} are in different shards; "
                "merge the shards with llama-gguf-split --merge"
            )
        return self.t.alternating(name, tensors, packing, self.count)

    def biases(self, layer: int) -> tuple[str, str]:
        """The names of the biases of the two products; "" without biases. Biases of gate and up alternate, too."""
        t, front = self.t, f"model.layers.{layer}.moe.experts"
        if not t.has(f"blk.{layer}.ffn_down_exps.bias"):
            return "", ""
        sizes = dict(zip(PARTS, (self.inner, self.inner, self.hidden), strict=True))
        tensors = {name: t.tensor(f"blk.{layer}.ffn_{name}_exps.bias", self.count, n) for name, n in sizes.items()}
        held = [
            t.weight(f"{front}.{name}_proj.bias", [self.count, n, *([1] if name != "down" else [])], tensors[name])
            for name, n in sizes.items()
        ]
        node = f"/model/layers.{layer}/moe/experts/gate_up_proj"
        both = t.node("Concat", f"{node}/Concat", held[:2], axis=-1)
        return t.node("Reshape", f"{node}/Reshape", [both, t.integers(self.count, 2 * self.inner)]), held[2]


def packing_of(file: GgufFile, tensors: list[GgufTensor]) -> Packing:
    """The packing that holds the values of all these tensors."""
    found = []
    for each in tensors:
        packing = PACKED.get(each.type)
        if packing is None or packing.shift is not None:
            known = ", ".join(kind.name for kind, held in PACKED.items() if held.shift is None)
            raise UnsupportedModelError(
                f"{file.name}: tensor {each.name} is of type {each.type.name}; experts may be of {known}: convert the "
                "file with llama-quantize to Q4_0 or Q8_0"
            )
        found.append(packing)
    return Packing(max(each.bits for each in found), min(each.block for each in found))
