"""Finds the nodes that onnxruntime-web's graph capture cannot record.

A captured step is a list of GPU commands with fixed sizes, replayed without onnxruntime. A node whose result is
computed on the CPU from run-time data, or whose path differs from run to run, is frozen at its first value. Shapes of
the step's own tensors are constant (one token, a mask of max_length) and may be computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import UnsupportedModelError
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .soft_caps import element_of
from .total_length import SEQLENS_K, TOTAL_LENGTH, ancestry
from .wiring import Wiring, attribute, copy_of, fresh_name

__all__ = ["LeftOut", "Uncapturable", "attention_window", "left_out", "smooth_softmax_as_sinks", "uncapturable"]

PAST_KEY, HEAD_SINK = 3, 11
"""Inputs of GroupQueryAttention."""
SIZES: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2}
"""Bytes of an element of attention's types."""
CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}

# Operators with a kernel in onnxruntime-web 1.30.0's WebGPU provider, com.microsoft's included.
WEBGPU_KERNELS = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
    Constant Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand
    Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual
    GridSample HardSigmoid HardSwish Identity InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log
    MatMul Max MaxPool Min Mod Mul Neg Not Or Pad Pow PRelu Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
    RMSNormalization RotaryEmbedding Round ScatterElements ScatterND Shape Sigmoid Sign SimplifiedLayerNormalization Sin
    Sinh Slice Softmax Softplus Split Sqrt Squeeze Sub Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze
    Where Xor Attention BiasAdd BiasGelu BiasSplitGelu CausalConvWithState FastGelu FusedConv GatherBlockQuantized
    GroupQueryAttention LinearAttention MatMulNBits MatMulNBitsMlp MatMulNBitsQkv MultiHeadAttention QMoE QuickGelu
    SkipLayerNormalization SkipSimplifiedLayerNormalization
"""
ON_WEBGPU = set(WEBGPU_KERNELS.split())

# Operators that onnxruntime runs on the CPU as part of computing shapes.
SHAPE_OPS = {"Shape", "Size", "ConstantOfShape"}


@dataclass(frozen=True)
class Uncapturable:
    """A node that prevents the capture of the decode step."""

    node: str
    op_type: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} ({self.op_type}): {self.reason}"


def uncapturable(model: ModelProto, mask: str = "attention_mask") -> list[Uncapturable]:
    """The nodes that prevent the capture of the graph, in graph order; empty if no such node is known.

    Run it after `total_length_on_gpu`. It knows the causes that occur in decoders; the capture run may find others.
    """
    graph = model.graph
    wiring = Wiring(graph)
    found: list[Uncapturable] = []
    for node in graph.node:
        name = node.name or "/".join(node.output)
        if node.op_type in CONTROL_FLOW:
            found.append(
                Uncapturable(name, node.op_type, "chooses its path from run to run, which a captured step cannot")
            )
        elif node.op_type in SHAPE_OPS:
            if node.input and node.input[0] == mask and feeds_attention(wiring, node):
                reason = f"takes the length from the size of {mask}, which is static in a captured step"
                found.append(Uncapturable(name, node.op_type, reason))
        elif node.op_type not in ON_WEBGPU and node.op_type != "Constant":
            found.append(
                Uncapturable(name, node.op_type, "has no WebGPU kernel in onnxruntime-web, so it would run on the CPU")
            )
    return found


@dataclass(frozen=True)
class LeftOut:
    """A window or soft cap of one attention that onnxruntime-web silently ignores in a captured run.

    onnxruntime-web compares a window with the host's total length, which in a captured step is on the GPU, so that
    attention is over all positions. It does not implement soft caps.
    """

    key: str
    """The name of the input that reads its cache of keys."""
    window: int = 0
    """The number of attended positions, including the new one; 0 means all."""
    softcap: float = 0.0
    """0 if scores have no cap."""
    slides: bool = False
    """Whether its caches hold only the positions from the sequence's base on."""
    layers: int = 1
    """The number of attentions over that cache; some layers read the cache of an earlier layer."""

    def __str__(self) -> str:
        asked = [f"looks back {self.window} positions"] if self.window else []
        asked += [f"has a soft cap of {self.softcap:g}"] if self.softcap else []
        what = " and ".join(asked)
        return f"attention over {self.key} {what}, which onnxruntime-web ignores in a captured run"

    def within(self, capacity: int) -> LeftOut | None:
        """The ignored window or soft cap in sequences of up to `capacity` positions, which may all fit the window; None
        if nothing is ignored in these.
        """
        window = self.window if self.window < capacity else 0
        return replace(self, window=window) if window or self.softcap else None


def left_out(model: ModelProto) -> list[LeftOut]:
    """The attentions of which a captured run ignores a part, in graph order, one for each cache. Raises
    UnsupportedModelError if layers attend to one cache differently.
    """
    found: dict[str, LeftOut] = {}
    written: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "GroupQueryAttention":
            continue
        window = max(attribute(node, "local_window_size", -1), 0)
        softcap = next((item.f for item in node.attribute if item.name == "softcap"), 0.0)
        # The reference device may run attention that has no cache.
        past = node.input[PAST_KEY] if len(node.input) > PAST_KEY else node.output[0]
        key = written.get(past, past)
        written |= dict.fromkeys(node.output[1:2], key)
        first = found.setdefault(key, LeftOut(key, window, softcap, layers=0))
        if (first.window, first.softcap) != (window, softcap):
            raise UnsupportedModelError(
                f"attention {node.name} over {key} looks back {window} positions with a soft cap of {softcap:g}, an "
                f"earlier one {first.window} with {first.softcap:g}: use another export of the model"
            )
        found[key] = replace(first, layers=first.layers + 1)
    return [each for each in found.values() if each.window or each.softcap]


def smooth_softmax_as_sinks(model: ModelProto) -> ModelProto:
    """Replace smooth_softmax by sinks of 0 in every GroupQueryAttention. smooth_softmax adds a score of 0 to each
    softmax, and onnxruntime-web captures only sinks.
    """
    result = copy_of(model)
    zeros: dict[tuple[int, int], str] = {}
    for node in [node for node in result.graph.node if attribute(node, "smooth_softmax", 0) == 1]:
        element = element_of(result, node.input[PAST_KEY] if len(node.input) > PAST_KEY else "")
        if node.op_type != "GroupQueryAttention" or element not in SIZES:
            continue
        for item in [item for item in node.attribute if item.name == "smooth_softmax"]:
            node.attribute.remove(item)
        node.input.extend([""] * (HEAD_SINK + 1 - len(node.input)))
        if node.input[HEAD_SINK]:
            continue  # A node's own sinks replace that score.
        heads = attribute(node, "num_heads", 0)
        if (heads, element) not in zeros:
            name = zeros[heads, element] = fresh_name(result.graph, "no_sinks")
            data = bytes(SIZES[element] * heads)
            result.graph.initializer.append(TensorProto(name=name, dims=[heads], raw_data=data))
            result.graph.initializer[-1].data_type = element
        node.input[HEAD_SINK] = zeros[heads, element]
    return result


def attention_window(model: ModelProto, *, longest: bool = False) -> int:
    """The shortest or the longest window of the graph's attentions, in positions including the new one; 0 if all attend
    to all positions.
    """
    return (max if longest else min)((found.window for found in left_out(model) if found.window), default=0)


def feeds_attention(wiring: Wiring, shape: NodeProto) -> bool:
    """Whether a Shape node's value becomes a length of GroupQueryAttention."""
    lengths = (
        node.input[place]
        for nodes in wiring.consumers.values()
        for node in nodes
        if node.op_type == "GroupQueryAttention"
        for place in (SEQLENS_K, TOTAL_LENGTH)
        if place < len(node.input) and node.input[place]
    )
    return any(shape.output[0] in item.output for item in above(wiring, set(lengths)))


def above(wiring: Wiring, names: Iterable[str]) -> Iterable[NodeProto]:
    for name in names:
        yield from (item for item in ancestry(wiring, name) if isinstance(item, NodeProto))
