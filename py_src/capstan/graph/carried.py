"""Finds the tensors that a decoder's graph carries from run to run: key/value caches, and states that each run
overwrites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from .onnx_pb2 import GraphProto, ModelProto, ValueInfoProto
from .weight_inputs import DTYPES
from .wiring import Wiring

if TYPE_CHECKING:
    from ..model_files.genai_config import DecoderConfig

__all__ = [
    "DIMENSIONS",
    "FLOATS",
    "CachePair",
    "StateTensor",
    "TensorInfo",
    "cache_pairs",
    "caches_in_place",
    "cross_names",
    "growing_caches",
    "part_name",
    "reject_state",
    "require_caches",
    "state_tensors",
    "tensor_info",
]

FLOATS = ("float32", "float16")
HEADS, HEAD_SIZE, DIMENSIONS = 1, 3, 4
"""The indices of a cache's sizes among its dimensions, and the number of dimensions."""

GROWING = ("Concat", "MultiHeadAttention", "Attention")
"""Operators that append to a cache instead of writing into it."""


@dataclass(frozen=True)
class TensorInfo:
    """Describes a graph input or output. `dims` holds sizes and the names of free dimensions ("?" for a free dimension
    without a name).
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class CachePair:
    """Describes the key or the value cache of one layer, [batch, heads, length, head size]: the input that reads it and
    the output that writes it.
    """

    layer: int
    kind: str
    past: str
    present: str
    heads: int
    """Heads of keys and values."""
    head_size: int
    """Elements of a head of one position; for quantized caches, the elements that take the same bytes."""

    def dims(self, rows: int, length: int) -> tuple[int, ...]:
        """The shape of a cache for `rows` sequences of `length` positions."""
        return (rows, self.heads, length, self.head_size)


@dataclass(frozen=True)
class StateTensor:
    """Describes a state that each run overwrites as a whole, and that has the same size at every position: the state of
    a convolution, or a recurrent state. It keeps nothing of earlier positions. So, unlike a cache, it can only be
    rewound to a snapshot.
    """

    layer: int
    kind: str
    """'conv' or 'recurrent'."""
    past: str
    present: str
    dtype: str
    sizes: tuple[int, ...]
    """The sizes without the batch."""

    def dims(self, rows: int) -> tuple[int, ...]:
        return (rows, *self.sizes)


def cache_pairs(decoder: DecoderConfig, graph: GraphProto) -> tuple[CachePair, ...]:
    """List the cache pairs layer by layer: the key pairs of each part of the heads, then the value pairs. Layers with a
    state and no cache have no pairs. Sizes are those of the graph, or the configuration's if the graph leaves them
    open.
    """
    kinds = (
        ("key", decoder.inputs.past_key_names, decoder.outputs.present_key_names),
        ("value", decoder.inputs.past_value_names, decoder.outputs.present_value_names),
    )
    shapes = {value.name: cache_sizes(value) for value in (*graph.input, *graph.output)}
    found = []
    for layer in attention_layers(decoder, graph):
        for kind, *patterns in kinds:
            read, written = (pattern.replace("%d", str(layer)) for pattern in patterns)
            for past, present in parts_of(read, written, shapes):
                sizes = zip(shapes.get(past, (0, 0)), shapes.get(present, (0, 0)), strict=True)
                heads, head_size = (one or other for one, other in sizes)
                heads, head_size = heads or decoder.num_key_value_heads, head_size or decoder.head_size
                found.append(CachePair(layer, kind, past, present, heads, head_size))
    return tuple(found)


def part_name(name: str, part: int) -> str:
    """The name of a part of a cache's heads."""
    return f"{name}/heads_{part}"


def parts_of(past: str, present: str, shapes: Collection[str]) -> list[tuple[str, str]]:
    """The names of a cache's parts among those of a graph; a whole cache has one part, itself."""
    found: list[tuple[str, str]] = []
    while part_name(past, len(found)) in shapes:
        found.append((part_name(past, len(found)), part_name(present, len(found))))
    return found or [(past, present)]


def cache_sizes(value: ValueInfoProto) -> tuple[int, int]:
    """The number of heads and the head size of a cache; 0 for a size that the graph leaves open."""
    dims = value.type.tensor_type.shape.dim
    return (dims[HEADS].dim_value, dims[HEAD_SIZE].dim_value) if len(dims) == DIMENSIONS else (0, 0)


def attention_layers(decoder: DecoderConfig, graph: GraphProto) -> list[int]:
    """The layers that must have caches: all except those with only a state and those that read other layers' caches."""
    names = {value.name for value in (*graph.input, *graph.output)}
    stateful = {
        name.replace("%d", str(layer)): layer
        for _, *both in state_kinds(decoder)
        for name in both
        for layer in range(decoder.num_hidden_layers)
    }
    with_state = {layer for name, layer in stateful.items() if name in names}
    caches = (
        *(decoder.inputs.past_key_names, decoder.inputs.past_value_names),
        *(decoder.outputs.present_key_names, decoder.outputs.present_value_names),
    )
    return [
        layer
        for layer in range(decoder.num_hidden_layers - decoder.num_shared_layers)
        if layer not in with_state or any(name.replace("%d", str(layer)) in names for name in caches)
    ]


def state_kinds(decoder: DecoderConfig) -> tuple[tuple[str, str, str], ...]:
    """The kinds of state, each with its name and the names of its inputs and outputs."""
    inputs, outputs = decoder.inputs, decoder.outputs
    return (
        ("conv", inputs.past_conv_names, outputs.present_conv_names),
        ("recurrent", inputs.past_recurrent_names, outputs.present_recurrent_names),
    )


def state_tensors(decoder: DecoderConfig, graph: GraphProto) -> tuple[StateTensor, ...]:
    """The states of the layers that have any. Raises UnsupportedModelError for a state that is not both read and
    written, not of floats, or of no fixed size.
    """
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    found = []
    for layer in range(decoder.num_hidden_layers):
        for kind, *patterns in state_kinds(decoder):
            past, present = (pattern.replace("%d", str(layer)) for pattern in patterns)
            if past not in inputs and present not in outputs:
                continue
            if past not in inputs or present not in outputs:
                lacking = f"input {past}" if past not in inputs else f"output {present}"
                raise UnsupportedModelError(f"model.onnx has no {lacking}; a state needs an input and an output")
            read, written = tensor_info(inputs[past]), tensor_info(outputs[present])
            if read.dtype not in FLOATS or written.dtype != read.dtype:
                raise UnsupportedModelError(
                    f"state {past} is {read.dtype} and {present} {written.dtype}, expected both float32 or float16"
                )
            sizes = tuple(size for size in read.dims[1:] if isinstance(size, int))
            if len(sizes) + 1 != len(read.dims) or not sizes:
                shape = ", ".join(map(str, read.dims))
                raise UnsupportedModelError(f"state {past} is [{shape}], expected fixed sizes after the batch")
            found.append(StateTensor(layer, kind, past, present, read.dtype, sizes))
    return tuple(found)


def caches_in_place(model: ModelProto) -> frozenset[tuple[str, str]]:
    """The pairs (input, output) that GroupQueryAttention can read and write in one buffer."""
    return frozenset(
        (node.input[past], node.output[present])
        for node in model.graph.node
        if node.op_type == "GroupQueryAttention"
        for past, present in ((3, 1), (4, 2))
        if past < len(node.input) and present < len(node.output)
    )


def cross_names(patterns: Collection[str], layers: int) -> list[str]:
    """The names of the tensors that go from an encoder to a decoder, in either graph."""
    return [pattern.replace("%d", str(layer)) for pattern in patterns for layer in range(layers)]


def growing_caches(graph: GraphProto, pairs: tuple[CachePair, ...], unrecognised: str = "") -> str:
    """The first node that appends to its cache, which then grows with each run. The result is empty if all nodes write
    into caches of a fixed size. Raises UnsupportedModelError if only some nodes append, with the reason why their
    attention is not recognised.
    """
    wiring = Wiring(graph)
    made = [(pair, wiring.maker(pair.present)) for pair in pairs]
    grown = [(pair, node) for pair, node in made if node is not None and node.op_type in GROWING]
    if not grown:
        return ""
    pair, node = grown[0]
    shapes = (
        f"node {node.name or pair.present} ({node.op_type}): {pair.present} is longer than {pair.past} after each run"
    )
    if len(grown) != len(pairs):
        why = f" ({unrecognised})" if unrecognised else ""
        raise UnsupportedModelError(
            f"{shapes}, and other caches have one size{why}; use an export with GroupQueryAttention, as "
            "onnxruntime-genai's model builder writes it"
        )
    return shapes


def reject_state(graph: GraphProto, decoder: DecoderConfig, presents: Collection[str]) -> None:
    """Raise UnsupportedModelError for a state that is neither a key/value cache nor one of `presents`, because nothing
    would feed it back.
    """
    for value in graph.output:
        if value.name in presents or value.name == decoder.outputs.logits:
            continue
        lowered = value.name.lower()
        if any(word in lowered for word in ("conv", "recurrent", "state", "ssm")) and "hidden_states" not in lowered:
            raise UnsupportedModelError(
                f"output {value.name} is a state with an unknown input; name both in genai_config.json, in "
                "past_conv_names and present_conv_names, or in past_recurrent_names and present_recurrent_names"
            )
        if lowered.startswith("present"):
            raise UnsupportedModelError(
                f"output {value.name} is not among the {decoder.num_hidden_layers} layers of genai_config.json; "
                "Capstan runs decoders with one key and one value cache per layer"
            )


def require_caches(found: dict[str, TensorInfo], pairs: tuple[CachePair, ...], decoder: DecoderConfig) -> str:
    """The element type of the caches. Raises UnsupportedModelError if it is not a float type, if an output differs in
    size from its input, or if no layer has the configuration's sizes.
    """
    first = found[pairs[0].past]
    for pair in pairs:
        for name in (pair.past, pair.present):
            info = found[name]
            if info.dtype not in FLOATS or info.dtype != first.dtype:
                expected = first.dtype if first.dtype in FLOATS else "float32 or float16"
                raise UnsupportedModelError(
                    f"cache {name} is {info.dtype}, expected {expected}; export without a quantized cache"
                )
            if len(info.dims) != DIMENSIONS:
                raise UnsupportedModelError(
                    f"cache {name} has {len(info.dims)} dimensions, expected {DIMENSIONS}: "
                    "batch, heads, length, head size"
                )
            for place, wanted in ((HEADS, pair.heads), (HEAD_SIZE, pair.head_size)):
                size = info.dims[place]
                if isinstance(size, int) and size != wanted:
                    raise UnsupportedModelError(
                        f"cache {name} has {size} at dimension {place}, but {pair.past} has {wanted}"
                    )
    heads: Counter[tuple[int, str]] = Counter()
    for pair in pairs:
        heads[pair.layer, pair.kind] += pair.heads
    for place, wanted, field, sizes in (
        (HEADS, decoder.num_key_value_heads, "num_key_value_heads", list(heads.values())),
        (HEAD_SIZE, 0 if decoder.kv_cache_bits else decoder.head_size, "head_size", [pair.head_size for pair in pairs]),
    ):
        if wanted and wanted not in sizes:
            raise UnsupportedModelError(
                f"cache {pairs[0].past} has {sizes[0]} at dimension {place}, but model.decoder.{field} is {wanted}"
            )
    return first.dtype


def tensor_info(value: ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    if kind.elem_type not in DTYPES:
        raise UnsupportedModelError(
            f"{value.name} is of ONNX element type {kind.elem_type}, which WebGPU does not have; "
            "export with float32 or float16 activations"
        )
    dims = tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param or "?" for dim in kind.shape.dim
    )
    return TensorInfo(value.name, DTYPES[kind.elem_type][0], dims)
