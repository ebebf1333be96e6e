"""What a session over a decoder's graph needs: its inputs, outputs, cache pairs and element types."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from .capture import LeftOut, Uncapturable, left_out, uncapturable
from .model_file import require_decoder
from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from .weights import DTYPES
from .wiring import Wiring

if TYPE_CHECKING:
    from ..config import DecoderConfig

__all__ = ["CachePair", "GraphDescription", "StateTensor", "TensorInfo", "describe"]

FLOATS = ("float32", "float16")

GROWING = ("Concat", "MultiHeadAttention", "Attention")
"""Operators that append to a cache, and do not write into it."""


@dataclass(frozen=True)
class TensorInfo:
    """A graph input or output; `dims` holds sizes and the names of free dimensions ("?" if unnamed)."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class CachePair:
    """One layer's key or value cache, [batch, heads, length, head size]: the input that reads it and the output."""

    layer: int
    kind: str
    past: str
    present: str


@dataclass(frozen=True)
class StateTensor:
    """A state that each run overwrites as a whole, of one size at every position: that of a convolution, or a recurrent
    one. Nothing of an earlier position is left in it, so that it is rewound by a snapshot, unlike a cache."""

    layer: int
    kind: str
    """'conv' or 'recurrent'."""
    past: str
    present: str
    dtype: str
    sizes: tuple[int, ...]
    """Without the batch."""

    def dims(self, rows: int) -> tuple[int, ...]:
        return (rows, *self.sizes)


@dataclass(frozen=True)
class GraphDescription:
    """What `describe` finds. `inputs` are the run-time inputs without the weights that became inputs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    cache: tuple[CachePair, ...]
    num_layers: int
    num_kv_heads: int
    head_size: int
    cache_dtype: str
    vocab_size: int
    input_ids: str
    logits: str
    logits_dtype: str
    last_token_only: bool
    mask: str
    mask_dtype: str
    position_ids: str | None
    needs_f16: bool
    uncapturable: tuple[Uncapturable, ...]
    left_out: tuple[LeftOut, ...]
    """What a captured run leaves out of attention."""
    max_positions: int = 0
    """Positions of the longest sequence, where that is less than the model's context length; else 0."""
    growing: str = ""
    """Why the caches are longer after each run, as [batch, heads, positions so far, head size]; empty if they have one
    size."""
    states: tuple[StateTensor, ...] = ()

    @property
    def has_position_ids(self) -> bool:
        return self.position_ids is not None

    @property
    def capturable(self) -> bool:
        return not self.uncapturable and not self.growing

    def context_within(self, context_length: int) -> int:
        """Positions of the longest sequence, of `context_length` that the configuration says."""
        return min(context_length, self.max_positions or context_length)

    def left_out_within(self, capacity: int) -> list[LeftOut]:
        """What a captured run over up to `capacity` positions leaves out of attention."""
        return [within for found in self.left_out if (within := found.within(capacity))]

    def obstacle(self, capacity: int, *, put_back: bool = False) -> str | None:
        """What keeps runs over sequences of up to `capacity` positions from being captured; with `put_back` kernels of
        ours are to compute what onnxruntime-web leaves out."""
        if self.growing:
            return self.growing
        if self.uncapturable:
            return str(self.uncapturable[0])
        found = [] if put_back else self.left_out_within(capacity)
        if not found:
            return None
        if any(each.softcap for each in found):
            return str(found[0])
        return f"{found[0]}, and max_length is {capacity}; ask for at most {min(each.window for each in found)}"


def describe(
    model: ModelProto,
    decoder: DecoderConfig,
    vocab_size: int | None = None,
    weights: Collection[str] = (),
    short_rope_to: int = 0,
    unrecognised: str = "",
) -> GraphDescription:
    """Check a graph against its configuration and describe it; run it before `weights_to_inputs`, or after it with the
    names of the weights. `short_rope_to` is what `short_rope` told, `unrecognised` what `group_query_attention` did.

    Raises UnsupportedModelError, naming the input, output or dtype: no token ids, a state that Capstan does not know,
    an input that it does not feed, caches that are neither float32 nor float16, sizes that differ from the
    configuration.
    """
    graph = model.graph
    names = decoder.inputs
    require_decoder(model, names.input_ids)
    pairs, states = cache_pairs(decoder, graph), state_tensors(decoder, graph)
    carried: list[CachePair | StateTensor] = [*pairs, *states]
    pasts = {each.past for each in carried}
    known = {names.input_ids, names.attention_mask, names.position_ids, *pasts}
    read = {source for node in graph.node for source in node.input}
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = [tensor_info(value) for value in graph.input if value.name not in initialized]
    outputs = [tensor_info(value) for value in graph.output]
    reject_state(graph, decoder, {each.present for each in carried})
    runtime = tuple(info for info in inputs if info.name in known)
    found = {info.name: info for info in [*runtime, *outputs]}
    for pair in pairs:
        for name in (pair.past, pair.present):
            if name not in found:
                raise UnsupportedModelError(
                    f"model.onnx has no {'input' if name == pair.past else 'output'} {name}; "
                    f"genai_config.json declares {decoder.num_hidden_layers} layers of it"
                )
    growing = growing_caches(graph, pairs)
    if names.attention_mask not in found:
        raise UnsupportedModelError(
            f"model.onnx has no input {names.attention_mask}; export a decoder with an attention mask"
        )
    logits = found.get(decoder.outputs.logits)
    if logits is None:
        raise UnsupportedModelError(f"model.onnx has no output {decoder.outputs.logits}; export it with its lm_head")
    fed = {*known, *weights}
    strangers = [info for info in inputs if info.name not in fed and info.name in read]
    if strangers:
        first = strangers[0]
        shape = ", ".join(map(str, first.dims))
        raise UnsupportedModelError(
            f"model.onnx has an input {first.name} [{shape}] that Capstan does not know how to feed"
        )
    if logits.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"output {logits.name} is {logits.dtype}, expected float32 or float16; export with -p int4 or fp16"
        )
    cache_dtype, heads, head_size = cache_shape(found, pairs, decoder)
    last = logits.dims[-1] if logits.dims else None
    vocabulary = last if isinstance(last, int) else vocab_size
    if vocabulary is None or (vocab_size is not None and vocabulary != vocab_size):
        raise UnsupportedModelError(
            f"output {logits.name} has {last} columns, genai_config.json model.vocab_size is {vocab_size}"
        )
    mask = found[names.attention_mask]
    return GraphDescription(
        inputs=runtime,
        outputs=tuple(outputs),
        cache=pairs,
        num_layers=decoder.num_hidden_layers,
        num_kv_heads=heads,
        head_size=head_size,
        cache_dtype=cache_dtype,
        vocab_size=vocabulary,
        input_ids=names.input_ids,
        logits=logits.name,
        logits_dtype=logits.dtype,
        last_token_only=len(logits.dims) == 3 and logits.dims[1] == 1,
        mask=mask.name,
        mask_dtype=mask.dtype,
        position_ids=names.position_ids if names.position_ids in found else None,
        needs_f16=needs_f16(graph),
        uncapturable=tuple(uncapturable(model, mask.name)),
        left_out=tuple(left_out(model)),
        max_positions=min(filter(None, (short_rope_to, decoder.long_rope_from)), default=0),
        growing=growing and (unrecognised or growing),
        states=states,
    )


def cache_pairs(decoder: DecoderConfig, graph: GraphProto) -> tuple[CachePair, ...]:
    """Layer by layer, the key pair, then the value pair; none of layers that have a state and no cache."""
    kinds = (
        ("key", decoder.inputs.past_key_names, decoder.outputs.present_key_names),
        ("value", decoder.inputs.past_value_names, decoder.outputs.present_value_names),
    )
    return tuple(
        CachePair(layer, kind, past.replace("%d", str(layer)), present.replace("%d", str(layer)))
        for layer in attention_layers(decoder, graph)
        for kind, past, present in kinds
    )


def attention_layers(decoder: DecoderConfig, graph: GraphProto) -> list[int]:
    """The layers that must have caches: all but those with a state alone."""
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
        for layer in range(decoder.num_hidden_layers)
        if layer not in with_state or any(name.replace("%d", str(layer)) in names for name in caches)
    ]


def state_kinds(decoder: DecoderConfig) -> tuple[tuple[str, str, str], ...]:
    """Of each kind of state its name, and those of its inputs and outputs."""
    inputs, outputs = decoder.inputs, decoder.outputs
    return (
        ("conv", inputs.past_conv_names, outputs.present_conv_names),
        ("recurrent", inputs.past_recurrent_names, outputs.present_recurrent_names),
    )


def state_tensors(decoder: DecoderConfig, graph: GraphProto) -> tuple[StateTensor, ...]:
    """The states of the layers that have any. Raises UnsupportedModelError for one that is not read and written, not of
    floats, or of no fixed size."""
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
                raise UnsupportedModelError(f"state {past} is [{shape}], expected fixed sizes behind the batch")
            found.append(StateTensor(layer, kind, past, present, read.dtype, sizes))
    return tuple(found)


def growing_caches(graph: GraphProto, pairs: tuple[CachePair, ...]) -> str:
    """The first node that appends to its cache, so that it is longer after each run; empty if all write into a cache of
    one size. Raises UnsupportedModelError where only some append."""
    wiring = Wiring(graph)
    made = [(pair, wiring.maker(pair.present)) for pair in pairs]
    grown = [(pair, node) for pair, node in made if node is not None and node.op_type in GROWING]
    if not grown:
        return ""
    pair, node = grown[0]
    told = (
        f"node {node.name or pair.present} ({node.op_type}): {pair.present} is longer than {pair.past} after each run"
    )
    if len(grown) != len(pairs):
        raise UnsupportedModelError(
            f"{told}, and other caches have one size; take an export with GroupQueryAttention, as onnxruntime-genai's "
            "model builder writes it"
        )
    return told


def reject_state(graph: GraphProto, decoder: DecoderConfig, presents: Collection[str]) -> None:
    """Raise for state that is neither a key/value cache nor one of `presents`: nothing would feed it back."""
    for value in graph.output:
        if value.name in presents or value.name == decoder.outputs.logits:
            continue
        lowered = value.name.lower()
        if any(word in lowered for word in ("conv", "recurrent", "state", "ssm")) and "hidden_states" not in lowered:
            raise UnsupportedModelError(
                f"output {value.name} is a state whose input is not known; genai_config.json names them in "
                "past_conv_names and present_conv_names, or past_recurrent_names and present_recurrent_names"
            )
        if lowered.startswith("present"):
            raise UnsupportedModelError(
                f"output {value.name} is not among the {decoder.num_hidden_layers} layers of genai_config.json; "
                "Capstan runs decoders with one key and one value cache per layer"
            )


def cache_shape(
    found: dict[str, TensorInfo], pairs: tuple[CachePair, ...], decoder: DecoderConfig
) -> tuple[str, int, int]:
    """The caches' element type, heads and head size; they must agree with the configuration and with each other."""
    first = found[pairs[0].past]
    for pair in pairs:
        for name in (pair.past, pair.present):
            info = found[name]
            if info.dtype not in FLOATS or info.dtype != first.dtype:
                expected = first.dtype if first.dtype in FLOATS else "float32 or float16"
                raise UnsupportedModelError(
                    f"cache {name} is {info.dtype}, expected {expected}; export without a quantized cache"
                )
            if len(info.dims) != 4:
                raise UnsupportedModelError(
                    f"cache {name} has {len(info.dims)} dimensions, expected 4: batch, heads, length, head size"
                )
            for place, wanted, field in (
                (1, decoder.num_key_value_heads, "num_key_value_heads"),
                (3, decoder.head_size, "head_size"),
            ):
                size = info.dims[place]
                if isinstance(size, int) and size != wanted:
                    raise UnsupportedModelError(
                        f"cache {name} has {size} at dimension {place}, but model.decoder.{field} is {wanted}"
                    )
    return first.dtype, decoder.num_key_value_heads, decoder.head_size


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


def needs_f16(graph: GraphProto) -> bool:
    """Whether any tensor is float16, so that the adapter must have shader-f16."""
    half = TensorProto.FLOAT16
    if any(tensor.data_type == half for tensor in graph.initializer):
        return True
    if any(value.type.tensor_type.elem_type == half for value in [*graph.input, *graph.output, *graph.value_info]):
        return True
    return any(casts_to_half(node) for node in graph.node)


def casts_to_half(node: NodeProto) -> bool:
    return any(
        (item.name == "to" and node.op_type == "Cast" and item.i == TensorProto.FLOAT16)
        or (item.name == "value" and item.t.data_type == TensorProto.FLOAT16)
        for item in node.attribute
    )
