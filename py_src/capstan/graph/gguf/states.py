"""Writes the layers of a GGUF file's graph that carry a state in place of key/value caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...model_files.gguf.gguf_file import GgufFile
from ..onnx_pb2 import TensorProto
from .gguf_tensors import Rows, TensorWriter

__all__ = ["Convolutions", "DeltaNets"]

MICROSOFT = "com.microsoft"
TURNED = (0, 2, 1)
"""The axes of [batch, positions, channels] with channels before positions."""


@dataclass
class Convolutions:
    """Gated convolutions over the present position and those in the state, as in LFM2."""

    t: TensorWriter
    file: GgufFile
    hidden: int
    epsilon: float
    before: int = field(init=False)
    """The number of positions that a convolution reads before the present one."""

    def __post_init__(self) -> None:
        self.before = self.file.integer(self.file.key("shortconv.l_cache"), least=2) - 1

    @property
    def states(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of each kind of state, without the batch."""
        return {"conv": (self.hidden, self.before)}

    def write(self, layer: int, x: str) -> str:
        """Write the layer's nodes; returns its result."""
        t, hidden = self.t, self.hidden
        front, node, tensors = f"model.layers.{layer}.conv", f"/model/layers.{layer}/conv", f"blk.{layer}.shortconv"
        made = t.product(
            f"{front}.in_proj.MatMul", x, [Rows(t.tensor(f"{tensors}.in_proj.weight", 3 * hidden, hidden))]
        )
        turned = t.node("Transpose", f"{node}/Transpose_1", [made], perm=TURNED)
        parts = [f"{node}/Split/output_{place}" for place in range(3)]
        t.node("Split", f"{node}/Split", [turned, t.integers(hidden, hidden, hidden)], *parts, axis=1)
        gated = t.node("Mul", f"{node}/Mul_1", [parts[0], parts[2]])
        kernel = t.tensor(f"{tensors}.conv.weight", hidden, self.before + 1)
        weight = t.weight(f"{front}.conv.weight", [hidden, 1, self.before + 1], kernel)
        made = convolved(t, node, layer, gated, weight, "none")
        turned = t.node(
            "Transpose", f"{node}/Transpose_2", [t.node("Mul", f"{node}/Mul_2", [parts[1], made])], perm=TURNED
        )
        return t.product(
            f"{front}.out_proj.MatMul", turned, [Rows(t.tensor(f"{tensors}.out_proj.weight", hidden, hidden))]
        )


@dataclass
class DeltaNets:
    """Gated delta nets after a convolution, as in Qwen3.5. Head i of the values uses head i modulo (number of key
    heads) of the keys, which is the order in files.
    """

    t: TensorWriter
    file: GgufFile
    hidden: int
    epsilon: float
    kernel: int = field(init=False)
    size: int = field(init=False)
    key_heads: int = field(init=False)
    value_heads: int = field(init=False)

    def __post_init__(self) -> None:
        key, integer = self.file.key, self.file.integer
        self.kernel = integer(key("ssm.conv_kernel"), least=2)
        self.size = integer(key("ssm.state_size"))
        self.key_heads = integer(key("ssm.group_count"))
        self.value_heads = integer(key("ssm.time_step_rank"))
        if self.value_heads % self.key_heads:
            raise self.file.error(key("ssm.time_step_rank"), f"a multiple of ssm.group_count ({self.key_heads})")
        inner = self.value_heads * self.size
        integer(key("ssm.inner_size"), least=inner, most=inner)

    @property
    def widths(self) -> tuple[int, int, int]:
        """The channels of q, k and v."""
        keys = self.key_heads * self.size
        return keys, keys, self.value_heads * self.size

    @property
    def states(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of each kind of state, without the batch."""
        return {
            "conv": (sum(self.widths), self.kernel - 1),
            "recurrent": (self.value_heads, self.size, self.size),
        }

    def write(self, layer: int, x: str) -> str:
        """Write the layer's nodes; returns its result."""
        t, hidden, heads = self.t, self.hidden, self.value_heads
        front, node = f"model.layers.{layer}.linear_attn", f"/model/layers.{layer}/linear_attn"
        widths, tensors = self.widths, f"blk.{layer}"
        products = {"qkv": ("attn_qkv", sum(widths)), "z": ("attn_gate", widths[2])}
        products |= {"b": ("ssm_beta", heads), "a": ("ssm_alpha", heads)}
        qkv, z, b, a = (
            t.product(f"{front}.{name}_proj.MatMul", x, [Rows(t.tensor(f"{tensors}.{tensor}.weight", rows, hidden))])
            for name, (tensor, rows) in products.items()
        )
        turned = t.node("Transpose", f"{node}/qkv_proj/Transpose", [qkv], perm=TURNED)
        kernel = t.tensor(f"{tensors}.ssm_conv1d.weight", sum(widths), self.kernel)
        weight = t.weight(f"{front}.conv1d.weight", [sum(widths), 1, self.kernel], kernel)
        made = convolved(t, node, layer, turned, weight, "silu")
        made = t.node("Transpose", f"{node}/conv_out/Transpose", [made], perm=TURNED)
        parts = [f"{node}/split_qkv/Split/output_{place}" for place in range(3)]
        t.node("Split", f"{node}/split_qkv/Split", [made, t.integers(*widths)], *parts, axis=-1)
        scale = t.numbers(self.size**-0.5, 1)
        queries = t.node("Mul", f"{node}/q_scaled/Mul", [self.unit(f"{node}/q_l2norm", parts[0]), scale])
        keys = self.unit(f"{node}/k_l2norm", parts[1])
        decay, beta = self.gates(layer, a, b)
        made = t.node(
            "LinearAttention",
            f"{node}/LinearAttention",
            [queries, keys, parts[2], f"past.{layer}.recurrent", decay, beta],
            f"{node}/LinearAttention/output_0",
            f"present.{layer}.recurrent",
            domain=MICROSOFT,
            q_num_heads=heads,
            kv_num_heads=heads,
            update_rule="gated_delta",
            scale=1.0,
            state_window=0,
        )
        made = self.normed(layer, made, z)
        output = t.tensor(f"{tensors}.ssm_out.weight", hidden, widths[2])
        return t.product(f"{front}.out_proj.MatMul", made, [Rows(output)])

    def unit(self, node: str, x: str) -> str:
        """The heads of q or k as vectors of length 1, repeated for each head of values."""
        t, keys = self.t, self.key_heads * self.size
        heads = t.node("Reshape", f"{node}/Reshape_1", [x, t.integers(0, 0, self.key_heads, self.size)])
        scale = t.numbers(self.size**-0.5, self.size)
        kind = "SimplifiedLayerNormalization"
        epsilon = self.epsilon / self.size
        normed = t.node(kind, f"{node}/{kind}", [heads, scale], epsilon=epsilon, axis=-1, stash_type=1)
        whole = t.node("Reshape", f"{node}/Reshape_2", [normed, t.integers(0, 0, keys)])
        times = self.value_heads // self.key_heads
        return whole if times == 1 else t.node("Concat", f"{node}/Concat", [whole] * times, axis=-1)

    def gates(self, layer: int, a: str, b: str) -> tuple[str, str]:
        """The logarithm of the decay, computed in float32, and the share of new values that is written."""
        t, node, front = self.t, f"/model/layers.{layer}/linear_attn", f"model.layers.{layer}.linear_attn"
        half = t.element != TensorProto.FLOAT
        bias = t.floats(f"{front}.dt_bias", t.tensor(f"blk.{layer}.ssm_dt.bias", self.value_heads))
        decay = t.floats(f"{front}.neg_exp_A", t.tensor(f"blk.{layer}.ssm_a", self.value_heads))
        wide = t.node("Cast", f"{node}/a/Cast", [a], to=TensorProto.FLOAT) if half else a
        soft = t.node("Softplus", f"{node}/Softplus", [t.node("Add", f"{node}/a/Add", [wide, bias])])
        made = t.node("Mul", f"{node}/decay/Mul", [soft, decay])
        if half:
            made = t.node("Cast", f"{node}/decay/Cast", [made], to=t.element)
        return made, t.node("Sigmoid", f"{node}/beta/Sigmoid", [b])

    def normed(self, layer: int, x: str, z: str) -> str:
        """The norm of each head, gated."""
        t, node, front = self.t, f"/model/layers.{layer}/linear_attn/norm", f"model.layers.{layer}.linear_attn.norm"
        weight = t.vector(f"{front}.weight", [Rows(t.tensor(f"blk.{layer}.ssm_norm.weight", self.size))])
        heads = t.node("Reshape", f"{node}/Reshape_1", [x, t.integers(0, -1, self.size)])
        kind = "SimplifiedLayerNormalization"
        made = t.node(kind, f"{node}/{kind}", [heads, weight], epsilon=self.epsilon, axis=-1, stash_type=1)
        whole = t.node("Reshape", f"{node}/Reshape_2", [made, t.integers(0, -1, self.widths[2])])
        gate = t.node("Mul", f"{node}/gate/Mul", [z, t.node("Sigmoid", f"{node}/gate/Sigmoid", [z])])
        return t.node("Mul", f"{node}/Mul", [whole, gate])


def convolved(t: TensorWriter, node: str, layer: int, x: str, weight: str, activation: str) -> str:
    """A convolution of each channel of x [batch, channels, positions]; the positions of x follow those in the state."""
    return t.node(
        "CausalConvWithState",
        f"{node}/CausalConvWithState",
        [x, weight, "", f"past.{layer}.conv"],
        f"{node}/CausalConvWithState/output_0",
        f"present.{layer}.conv",
        domain=MICROSOFT,
        ndim=1,
        activation=activation,
        state_window=0,
    )
