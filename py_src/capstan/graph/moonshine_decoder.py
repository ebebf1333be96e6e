"""Turns Moonshine's encoder and merged decoder, as Optimum exports them, into a pair of graphs for sounds of any
length.

The decoder reads keys and values of one size, that of the longest sound; zeros follow those of a shorter sound. A key
has more elements than a head: one of them is a large negative number after the sound and zero within it. Each query has
a 1 at this element, so that attention gives no weight to positions after the sound.
"""

from __future__ import annotations

from ..errors import UnsupportedModelError
from .attention_writer import ROTATED, tidy
from .merged_decoder import HIDDEN, SpeechSizes, apart, encoder_of, finished
from .node_writer import NodeWriter
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .wiring import Wiring, copied, delete, value_info

__all__ = ["moonshine_graphs"]

MASK = "attention_mask"
AFTER = -3e4
"""The number in keys after a sound; float16 can represent it."""


def moonshine_graphs(encoder: ModelProto, merged: ModelProto, sizes: SpeechSizes) -> tuple[ModelProto, ModelProto]:
    """The encoder with keys and values of its output as outputs, and the decoder that reads them. Raises
    UnsupportedModelError."""
    others = [value.name for value in encoder.graph.input][1:]
    if others:
        raise UnsupportedModelError(
            f"{sizes.encoder} has an input {others[0]} besides the samples; use an export of Transformers.js' "
            "scripts, whose encoder takes one whole sound"
        )
    maker, decoder = apart(encoder, merged, sizes)
    made = encoder_of(copied(encoder), maker, sizes)
    frames_padded(made, sizes)
    return finished(made, sizes.encoder), decoder_of(decoder, sizes)


def wider(head_size: int) -> int:
    """The number of elements of a key: more than a head by at least one."""
    return -(-(head_size + 1) // ROTATED) * ROTATED


def frames_padded(model: ModelProto, sizes: SpeechSizes) -> None:
    """Give the encoder's outputs the size of the longest sound, in place."""
    graph = model.graph
    described = {value.name: value.type.tensor_type for value in graph.output}
    keys = {key for key, _ in sizes.caches("present", "encoder")}
    writer = NodeWriter(graph, "/capstan/frames")
    first, *_ = described
    count = writer.add("Gather", [writer.add("Shape", [short(first)]), writer.ints([2])], axis=0)
    after = writer.add("Sub", [writer.ints([sizes.frames]), count])
    for node in graph.node:
        node.output[:] = [short(name) if name in described else name for name in node.output]
    kind, size = described[first].elem_type, described[first].shape.dim[3].dim_value
    width = wider(size)
    places = writer.ints(range(sizes.frames), "places")
    late = writer.add("Cast", [writer.add("GreaterOrEqual", [places, count])], to=kind)
    column = writer.add("Unsqueeze", [late, writer.ints([1])])
    extra = [AFTER if place == size else 0.0 for place in range(width)]
    marks = writer.add("Mul", [column, writer.numbers(kind, extra, "after")])
    zero = writer.numbers(kind, [0.0], "zero", dims=())
    for name, about in described.items():
        more = width - size if name in keys else 0
        pads = writer.add("Concat", [writer.ints([0] * 6), after, writer.ints([more])], axis=0)
        made = writer.add("Pad", [short(name), pads, zero], outputs=[] if more else [name])
        if more:
            writer.add("Add", [made, marks], outputs=[name])
            about.shape.dim[3].dim_value = width
    graph.node.extend(writer.made)
    tidy(model)


def short(name: str) -> str:
    """The encoder's output without the positions after the sound."""
    return f"{name}/heard"


def decoder_of(made: ModelProto, sizes: SpeechSizes) -> ModelProto:
    """The branch that reads caches, as a decoder."""
    graph, wiring = made.graph, Wiring(made.graph)
    described = {value.name: value.type.tensor_type for value in graph.input}
    writer = NodeWriter(graph, "/capstan/cross")
    for key, value in sizes.caches("past_key_values", "encoder"):
        product = product_of(wiring, key)
        if product is None:
            raise UnsupportedModelError(
                f"{sizes.decoder} has no product of queries that reads {key}; use an export of Optimum"
            )
        size = described[key].shape.dim[3].dim_value
        one = writer.numbers(described[key].elem_type, [1.0], "one", dims=())
        pads = writer.ints([0] * 7 + [wider(size) - size])
        product.input[0] = writer.add("Pad", [product.input[0], pads, one])
        described[key].shape.dim[3].dim_value = wider(size)
        for name in (key, value):
            described[name].shape.dim[2].Clear()
            described[name].shape.dim[2].dim_value = sizes.frames
    graph.node.extend(writer.made)
    delete(graph.input, lambda value: value.name == HIDDEN)
    # Decoders on WebGPU have a mask. This one is not read: lengths come from the caches.
    graph.input.append(value_info(MASK, TensorProto.INT64, ["batch_size", "total_sequence_length"]))
    return finished(made, sizes.decoder)


def product_of(wiring: Wiring, key: str) -> NodeProto | None:
    """The product of queries and the keys of an encoder's output, which are transposed and scaled."""
    names = [key]
    for name in names:
        for node in wiring.consumers.get(name, []):
            if node.op_type == "MatMul" and node.input[1] == name:
                return node
            if node.op_type in ("Transpose", "Mul", "Identity"):
                names += node.output
    return None
