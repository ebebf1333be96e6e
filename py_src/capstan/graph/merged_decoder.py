"""Turns an encoder and a merged decoder, as Optimum exports them, into the pair of graphs that the model builder
writes.

    encoder_model:         features -> last_hidden_state
    decoder_model_merged:  If(use_cache_branch, the decoder over caches, the decoder that makes them)

The branch that reads caches becomes the decoder. The other branch makes keys and values from the encoder's output, and
this part of it moves to the end of the encoder. Attention, norms and activations become one operator each. Positions
become rows of a table, taken from the length of the caches on; `speech_decoder` expects a graph like this.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedModelError
from .attention_writer import tidy
from .model_file import require_no_circle
from .node_writer import NodeWriter, new_node, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto, ValueInfoProto
from .whole_attention import whole_attention
from .whole_layers import whole_layers
from .wiring import Wiring, attribute, copied, delete, value_info

__all__ = ["HIDDEN", "LOGITS", "SpeechSizes", "apart", "encoder_of", "finished", "speech_graphs"]

FLAG, IDS, HIDDEN, LOGITS = "use_cache_branch", "input_ids", "encoder_hidden_states", "logits"
WITH_CACHES, WITHOUT = "then_branch", "else_branch"
BESIDE = "cross/"
"""The prefix of names that come from the decoder's file into the encoder's graph."""
LEAST_OPSET = 13
STEADY = set(
    "Add Cast Concat Constant Conv ConvInteger DequantizeLinear Div DynamicQuantizeLinear Erf Gather Gelu Identity "  # noqa: SIM905
    "LayerNormalization MatMul MatMulInteger MatMulNBits Mul MultiHeadAttention Pow ReduceMean Reshape Shape Slice "
    "Sqrt Sub Tanh Transpose".split()
)
"""Operators whose meaning in operator sets from 11 on is the same as in LEAST_OPSET."""


@dataclass(frozen=True)
class SpeechSizes:
    """The sizes of a speech model from config.json, and the files of its graphs, for messages."""

    encoder: str
    decoder: str
    features: tuple[int | str, ...]
    """The encoder's input, without the batch."""
    frames: int
    """Positions of the encoder's output; the largest number, if sounds differ in length."""
    layers: int
    """Layers of the decoder."""
    heads: int
    encoder_heads: int

    def caches(self, front: str, source: str) -> list[tuple[str, str]]:
        """The names of keys and values of each layer: `front` is "past_key_values" or "present", `source` "decoder" or
        "encoder"."""
        return [(f"{front}.{layer}.{source}.key", f"{front}.{layer}.{source}.value") for layer in range(self.layers)]


def speech_graphs(encoder: ModelProto, merged: ModelProto, sizes: SpeechSizes) -> tuple[ModelProto, ModelProto]:
    """The encoder with keys and values of its output as outputs, and the decoder that reads them. Raises
    UnsupportedModelError for other graphs, and for graphs of two different models.
    """
    maker, decoder = apart(encoder, merged, sizes)
    made = copied(encoder)
    whole_layers(made)
    whole_attention(made, sizes.encoder_heads, (), (), sizes.encoder)
    return encoder_of(made, maker, sizes), decoder_of(decoder, sizes)


def apart(encoder: ModelProto, merged: ModelProto, sizes: SpeechSizes) -> tuple[ModelProto, ModelProto]:
    """The branches of a merged decoder that make caches and that read them. Raises UnsupportedModelError."""
    require_pair(encoder, merged, sizes)
    maker, decoder = (alone(merged, branch, sizes) for branch in (WITHOUT, WITH_CACHES))
    written = {name for pair in sizes.caches("present", "decoder") for name in pair}
    delete(decoder.graph.output, lambda value: value.name not in (LOGITS, *written))
    return maker, decoder


def require_pair(encoder: ModelProto, merged: ModelProto, sizes: SpeechSizes) -> None:
    names = {value.name: value for value in merged.graph.input}
    needed = [IDS, HIDDEN, *(name for pair in sizes.caches("past_key_values", "decoder") for name in pair)]
    missing = [name for name in needed if name not in names]
    if missing:
        raise UnsupportedModelError(
            f"{sizes.decoder} has no input {missing[0]}, but config.json has {sizes.layers} layers; use files of one "
            "model"
        )
    made, read = (value.type.tensor_type.shape.dim[-1].dim_value for value in (encoder.graph.output[0], names[HIDDEN]))
    if made and read and made != read:
        raise UnsupportedModelError(
            f"{sizes.encoder} makes rows of {made} numbers, but {sizes.decoder} reads rows of {read}; use files of "
            "one model"
        )


def alone(merged: ModelProto, branch: str, sizes: SpeechSizes) -> ModelProto:
    """A merged decoder with one of its branches in the place of the If."""
    chosen = next((node for node in merged.graph.node if node.op_type == "If" and list(node.input) == [FLAG]), None)
    if chosen is None:
        raise UnsupportedModelError(
            f"{sizes.decoder} has no If node over {FLAG}; use an export of Optimum or of Transformers.js' scripts"
        )
    inner = next(item.g for item in chosen.attribute if item.name == branch)
    names = {value.name: name for value, name in zip(inner.output, chosen.output, strict=True)}
    made = copied(merged)
    graph = made.graph
    del graph.value_info[:]
    delete(graph.node, lambda node: node.output[0] == chosen.output[0])
    graph.node.extend(renamed(node, names) for node in inner.node)
    graph.initializer.extend(inner.initializer)
    delete(graph.input, lambda value: value.name == FLAG)
    require_no_circle(graph, sizes.decoder)
    in_half(made)
    tidy(made)
    return made


def renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    """The node with other names of tensors."""
    made = NodeProto()
    made.CopyFrom(node)
    made.input[:], made.output[:] = ([names.get(name, name) for name in part] for part in (node.input, node.output))
    return made


def in_half(model: ModelProto) -> None:
    """Remove the casts of inputs and outputs, in place: the graph takes and gives the float16 values inside the
    casts.
    """
    graph, names = model.graph, dict[str, str]()
    described = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    for node in graph.node:
        if node.op_type != "Cast":
            continue
        source, target = node.input[0], node.output[0]
        if source in described and attribute(node, "to", 0) == TensorProto.FLOAT16:
            described[source].elem_type = TensorProto.FLOAT16
            names[target] = source
        elif target in described and attribute(node, "to", 0) == TensorProto.FLOAT and source not in described:
            described[target].elem_type = TensorProto.FLOAT16
            names[source] = target
    around = {*names, *names.values()}
    delete(graph.node, lambda node: node.op_type == "Cast" and around.issuperset([*node.input, *node.output]))
    for node in graph.node:
        node.CopyFrom(renamed(node, names))


def decoder_of(made: ModelProto, sizes: SpeechSizes) -> ModelProto:
    """The branch that reads caches, as a decoder."""
    graph = made.graph
    caches, crosses = sizes.caches("past_key_values", "decoder"), sizes.caches("past_key_values", "encoder")
    shaped = {node.output[0]: IDS for node in graph.node if node.op_type == "Reshape" and node.input[0] == IDS}
    for node in graph.node:
        node.input[:] = [shaped.get(name, name) for name in node.input]
    whole_layers(made)
    whole_attention(made, sizes.heads, caches, crosses, sizes.decoder)
    positions_from_caches(made, caches[0][0], sizes)
    delete(graph.input, lambda value: value.name == HIDDEN)
    for value in graph.input:
        if any(value.name in pair for pair in crosses):
            dim = value.type.tensor_type.shape.dim[2]
            dim.Clear()
            dim.dim_value = sizes.frames
    return finished(made, sizes.decoder)


def positions_from_caches(model: ModelProto, past: str, sizes: SpeechSizes) -> None:
    """Let the rows that are taken from the table of positions begin at the length of a cache, in place. Raises
    UnsupportedModelError."""
    graph, wiring = model.graph, Wiring(model.graph)
    tables = [
        node
        for node in graph.node
        if node.op_type in ("Slice", "Gather") and node.input[0] in wiring.constants and of_lengths(wiring, node)
    ]
    if len(tables) != 1:
        raise UnsupportedModelError(f"{sizes.decoder} has {len(tables)} tables of positions; exactly one is supported")
    [table] = tables
    writer = NodeWriter(graph, "/capstan/positions")
    before, added = (
        writer.add("Gather", [writer.add("Shape", [name]), writer.ints([axis])], axis=0)
        for name, axis in ((past, 2), (IDS, 1))
    )
    after = writer.add("Add", [before, added])
    axes = writer.ints([0])
    writer.add("Slice", [table.input[0], before, after, axes], outputs=list(table.output))
    place = place_of(graph, table)
    del graph.node[place]
    writer.insert(place)


def of_lengths(wiring: Wiring, node: NodeProto) -> bool:
    """Whether the rows that a node takes from a table depend only on the lengths of inputs."""
    shapes = [item for name in node.input[1:] for item in ancestry_of_lengths(wiring, name)]
    return bool(shapes) and all(shapes) and len(wiring.constants[node.input[0]].dims) == 2


def ancestry_of_lengths(wiring: Wiring, name: str) -> list[bool]:
    """For each path from a tensor up to an input: whether there is a Shape on it."""
    found, pending, seen = list[bool](), [name], {name}
    while pending:
        current = pending.pop()
        node = wiring.producer.get(current)
        if node is None:
            if current in wiring.inputs:
                found.append(False)
        elif node.op_type == "Shape":
            found.append(True)
        else:
            pending += [source for source in node.input if source and source not in seen]
            seen.update(node.input)
    return found


def encoder_of(made: ModelProto, maker: ModelProto, sizes: SpeechSizes) -> ModelProto:
    """The encoder, changed in place, with keys and values of its output as outputs, which `maker` makes."""
    graph = made.graph
    [features, *_], [hidden, *_] = graph.input, graph.output
    crosses = cross_outputs(maker, sizes)
    [source] = [value for value in maker.graph.input if value.name == HIDDEN]
    names = {name: BESIDE + name for node in maker.graph.node for name in (*node.input, *node.output) if name}
    names |= {BESIDE + value.name: value.name for value in crosses}
    kinds = [value.type.tensor_type.elem_type for value in (hidden, source)]
    if kinds[0] == kinds[1]:
        names[HIDDEN] = hidden.name
    else:
        graph.node.append(new_node("Cast", [hidden.name], [names[HIDDEN]], to=kinds[1]))
    graph.node.extend(renamed(node, names) for node in maker.graph.node)
    for tensor in maker.graph.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    feature_kind = features.type.tensor_type.elem_type
    del graph.output[:], graph.value_info[:], graph.input[1:]
    graph.input[0].CopyFrom(value_info(features.name, feature_kind, ["batch_size", *sizes.features]))
    graph.output.extend(crosses)
    versions = {item.domain: item.version for item in made.opset_import}
    for item in maker.opset_import:
        if item.domain not in versions:
            made.opset_import.add().CopyFrom(item)
    return finished(made, sizes.encoder)


def cross_outputs(maker: ModelProto, sizes: SpeechSizes) -> list[ValueInfoProto]:
    """Reduce a branch to the keys and values of the encoder's output, in place; returns these outputs. Raises
    UnsupportedModelError if they are made from anything else.
    """
    graph, wiring = maker.graph, Wiring(maker.graph)
    described = {value.name: value.type.tensor_type for value in graph.output}
    writer, outputs = NodeWriter(graph, "/capstan/cross"), list[ValueInfoProto]()
    for name in [name for pair in sizes.caches("present", "encoder") for name in pair]:
        transpose = wiring.maker(name)
        reshape = wiring.maker(transpose.input[0]) if transpose is not None else None
        kinds = [node.op_type for node in (transpose, reshape) if node is not None]
        if reshape is None or kinds != ["Transpose", "Reshape"] or name not in described:
            raise UnsupportedModelError(f"{sizes.decoder}: {name} is not a product whose heads are separated")
        size = described[name].shape.dim[3].dim_value
        shape = writer.ints([0, 0, sizes.heads, size])
        apart = writer.add("Reshape", [reshape.input[0], shape])
        writer.add("Transpose", [apart], outputs=[BESIDE + name], perm=[0, 2, 1, 3])
        outputs.append(value_info(name, described[name].elem_type, ["batch_size", sizes.heads, sizes.frames, size]))
    graph.node.extend(writer.made)
    for node in writer.made:
        node.name = BESIDE + node.name
    del graph.output[:]
    graph.output.extend(outputs)
    for value in graph.output:
        value.name = BESIDE + value.name
    tidy(maker)
    read = {name for node in graph.node for name in node.input} & {value.name for value in graph.input}
    if read != {HIDDEN}:
        raise UnsupportedModelError(
            f"{sizes.decoder}: keys and values of the encoder's output are made from {', '.join(sorted(read))}; only "
            f"{HIDDEN} is supported"
        )
    return outputs


def finished(model: ModelProto, filename: str) -> ModelProto:
    """The model without unread nodes, with an operator set of at least LEAST_OPSET. Raises UnsupportedModelError."""
    tidy(model)
    for item in model.opset_import:
        if item.domain in ("", "ai.onnx") and item.version < LEAST_OPSET:
            others = {node.op_type for node in model.graph.node} - STEADY
            if others:
                raise UnsupportedModelError(
                    f"{filename}: its operator set is {item.version}, in which {', '.join(sorted(others))} may have "
                    f"another meaning than in {LEAST_OPSET}; export it again"
                )
            item.version = LEAST_OPSET
    return model
