"""Converts model.onnx from bytes to a `ModelProto` and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from google.protobuf.message import DecodeError

from ..errors import CapstanError, ModelFileError, UnsupportedModelError
from .onnx_pb2 import GraphProto, ModelProto

__all__ = ["GGUF", "PARTS", "contradictions", "parse", "refuse_pointer", "require_no_circle", "serialize"]

PARTS = "capstan.parts"
"""The external_data key of a weight that a graph pass made from parts of the file; the value is their fields, as
JSON.
"""
GGUF = ".gguf"
"""The ending of files whose graph Capstan writes (graph/gguf), with weights that are parts of the file."""
LFS_POINTER = b"version https://git-lfs"


def parse(data: bytes | bytearray | memoryview, name: str = "model.onnx") -> ModelProto:
    """Parse the bytes of an ONNX file; error messages call it `name`.

    Raises ModelFileError if the bytes are not an ONNX model.
    """
    content = bytes(data)
    refuse_pointer(content[: len(LFS_POINTER)], len(content), name)
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ModelFileError(
            f"{name}: its {len(content)} bytes are not an ONNX model ({error}); copy or export the file again"
        ) from error
    require_texts(model.graph, name)
    made = name.endswith(GGUF)
    if not made and any(item.key == PARTS for tensor in model.graph.initializer for item in tensor.external_data):
        raise ModelFileError(f"{name}: external data with {PARTS!r}, a key that no file has; export the model again")
    if not model.graph.node or not model.graph.output:
        raise ModelFileError(
            f"{name}: its {len(content)} bytes have no nodes or no outputs, expected an ONNX graph; copy or export "
            "it again"
        )
    require_no_circle(model.graph, name)
    return model


def require_no_circle(graph: GraphProto, name: str) -> None:
    """Raise ModelFileError for a node that reads its own output, directly or through others: passes that walk up the
    graph would not end.
    """
    makers = {output: number for number, node in enumerate(graph.node) for output in node.output if output}
    reads = {number: {makers[each] for each in node.input if each in makers} for number, node in enumerate(graph.node)}
    if all(made < number for number, before in reads.items() for made in before):
        return
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        shown = f"{node.name[:100]!r} ({node.op_type[:100]!r})"
        raise ModelFileError(f"{name}: the node {shown} reads its own output; export the model again") from None


def require_texts(graph: GraphProto, name: str) -> None:
    """Raise ModelFileError for a name in the graph that is not UTF-8; protobuf returns such a name as bytes, or
    fails.
    """
    for text in names_of(graph):
        if not isinstance(text, str):
            raise ModelFileError(f"{name}: the graph has the name {text!r}, which is not UTF-8; export the model again")


def names_of(graph: GraphProto) -> Iterator[object]:
    """The names of values, dimensions, tensors, nodes and attributes, including those of subgraphs."""
    for value in chain(graph.input, graph.output, graph.value_info):
        yield value.name
        for dim in value.type.tensor_type.shape.dim:
            yield dim.dim_param
    for tensor in graph.initializer:
        yield tensor.name
        for item in tensor.external_data:
            yield from (item.key, item.value)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain)
        yield from chain(node.input, node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from names_of(attribute.g)


@contextmanager
def contradictions(name: str = "model.onnx") -> Iterator[None]:
    """Raise ModelFileError if a node has fewer inputs or attributes than its operator requires. No exporter writes such
    graphs, so there is no check beforehand; the error comes from the code that needs the missing part.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CapstanError):
            raise
        raise ModelFileError(
            f"{name}: the graph contradicts itself ({type(error).__name__}: {error}); export the model again"
        ) from error


def refuse_pointer(start: bytes, size: int, name: str) -> None:
    """Raise ModelFileError if a file of `size` bytes begins like a Git LFS pointer."""
    if start.startswith(LFS_POINTER):
        raise ModelFileError(f"{name} is a Git LFS pointer of {size} bytes, not the model; run `git lfs pull`")


def serialize(model: ModelProto) -> bytes:
    """The bytes that onnxruntime reads; equal models give equal bytes."""
    return model.SerializeToString(deterministic=True)


def require_decoder(model: ModelProto, input_ids: str = "input_ids", name: str = "model.onnx") -> None:
    """Raise UnsupportedModelError unless the graph takes token ids."""
    inputs = [value.name for value in model.graph.input]
    if input_ids not in inputs:
        shown = ", ".join(inputs[:6]) or "none"
        raise UnsupportedModelError(
            f"{name} has no input {input_ids} (its inputs: {shown}); Capstan runs decoders that take token ids, "
            "as written by onnxruntime-genai's model builder"
        )
