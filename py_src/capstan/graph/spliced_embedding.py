"""Turns a decoder that takes embeddings into a decoder that takes ids, and features of pictures at some of its
positions.

The embedding graph of a vision model gives the embeddings of ids, and features in place of placeholder ids. Its part
that embeds ids is put before the decoder. The caller gives the positions of features, so that a prompt may run in
parts, and a placeholder that the model picks is an ordinary token:

    Gather(features, places), embeddings of ids -> Where(places < 0) -> decoder

The embedding graph of a text model is put before the decoder as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..errors import UnsupportedModelError
from ..model_files.genai_config import FEATURES, PLACES, EmbeddingNames
from .carried import TensorInfo, tensor_info
from .node_writer import NodeWriter, new_node, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .total_length import ancestry
from .wiring import (
    Wiring,
    attribute,
    captured_names,
    changing,
    copied,
    copy_of,
    delete,
    int64_tensor,
    integers,
    prune,
    value_info,
)

__all__ = [
    "Placing",
    "embedding_before",
    "placeholder",
    "spliced_embedding",
    "with_places",
    "without_mask",
    "without_places",
]

PREFIX = "embedding/"
PLACERS = {"Where": (1, 2), "ScatterND": (0,), "ScatterElements": (0,)}
"""The operations that put features in place of embeddings, and their inputs that may be the embeddings."""
STEADY = set("Add And Cast Constant Equal Gather Identity Less Mul Not Reshape Squeeze Unsqueeze Where".split())  # noqa: SIM905
"""Operations that mean the same in every version of the operator set from LEAST_OPSET on."""
LEAST_OPSET = 13
LOOKUPS = ("Gather", "GatherBlockQuantized")
BY_ELEMENT = {"And", "Cast", "Equal", "Less", "Not", "Or", "Where"}
"""Operations that compute each element from those at the same place."""


def spliced_embedding(decoder: ModelProto, embedding: ModelProto, names: EmbeddingNames) -> ModelProto:
    """The decoder after the embedding graph. Raises UnsupportedModelError for graphs that do not fit together, and for
    an unknown form of embedding graph.
    """
    source, made = copied(embedding), copied(decoder)
    target = input_of(made, names.target, "the decoder")
    features = input_of(source, names.features, names.filename) if names.features else target
    input_of(source, names.input_ids, names.filename)
    hidden = features.dims[-1] if features.dims else None
    if not isinstance(hidden, int) or target.dims[-1:] != (hidden,):
        raise UnsupportedModelError(
            f"{names.filename}: {names.features} is {list(features.dims)}, but the decoder's {names.target} is "
            f"{list(target.dims)}; their last sizes must be equal: export both again"
        )
    element = element_type(made, names.target)
    kind = element_type(source, names.features) if names.features else element
    texts = text_embeddings(source, names) if names.features else names.embeddings
    del source.graph.output[:]
    source.graph.output.add().name = texts
    prune(source.graph)
    take_opsets(made, source, names.filename)
    delete(source.graph.input, lambda value: value.name != names.input_ids)
    rename(source, {names.input_ids})
    put_before(made, source, {names.target})
    placing = Placing(PREFIX + texts, names.target, kind, element, hidden)
    with changing(made):
        return with_places(made, placing)


def embedding_before(decoder: ModelProto, embedding: ModelProto, filename: str) -> ModelProto:
    """The decoder after an embedding graph of text, each of whose outputs is an input of the decoder of the same name.
    Raises UnsupportedModelError for graphs that do not fit together.
    """
    source, made = copied(embedding), copied(decoder)
    targets = {value.name for value in source.graph.output}
    for value in source.graph.output:
        wanted, found = input_of(made, value.name, "the decoder"), tensor_info(value)
        if (found.dtype, found.dims[2:]) != (wanted.dtype, wanted.dims[2:]):
            raise UnsupportedModelError(
                f"{filename}: {value.name} is {found.dtype} {list(found.dims)}, but the decoder's is {wanted.dtype} "
                f"{list(wanted.dims)}; export both again"
            )
    ids_by_table(source)
    take_opsets(made, source, filename)
    rename(source, {*targets, *(value.name for value in source.graph.input)})
    put_before(made, source, targets)
    cast_once(made, targets)
    return made


def ids_by_table(source: ModelProto) -> None:
    """Let lookups by ids that are computed from tokens take these ids from a table for all tokens, in place, so that
    onnxruntime computes them once for a session. The ids differ from the tokens where tokens have no rows of their own.
    """
    graph, wiring = source.graph, Wiring(source.graph)
    names = {value.name for value in graph.input}
    lookups = [node for node in graph.node if node.op_type in LOOKUPS]
    tables = [wiring.constants[node.input[0]] for node in lookups if node.input[0] in wiring.constants]
    for lookup in lookups:
        above = {node.output[0] for node in ancestry(wiring, lookup.input[1]) if isinstance(node, NodeProto)}
        nodes = [node for node in graph.node if node.output[0] in above]
        read = {name for node in nodes for name in node.input} - above
        numbers = [wiring.constants.get(name) for name in read - names]
        alike = all(node.op_type in BY_ELEMENT for node in nodes) and len(read & names) == 1
        if not nodes or not alike or any(each is None or any(size != 1 for size in each.dims) for each in numbers):
            continue
        [tokens] = read & names
        writer = NodeWriter(graph, f"{lookup.name or lookup.output[0]}/ids")
        limits = [writer.ints([number], scalar=True) for number in (0, max(each.dims[0] for each in tables), 1)]
        of_all = {tokens: writer.add("Range", limits)}
        for node in nodes:
            of_all[node.output[0]] = writer.add(node.op_type, [of_all.get(name, name) for name in node.input])
            writer.made[-1].attribute.extend(node.attribute)
        lookup.input[1], place = (
            writer.add("Gather", [of_all[lookup.input[1]], tokens], axis=0),
            place_of(graph, lookup),
        )
        writer.insert(place)
    prune(graph)


def cast_once(model: ModelProto, names: Collection[str]) -> None:
    """Cast values to float16 that are cast to float32, under these names, and then to float16, in place."""
    wiring = Wiring(model.graph)
    for name in names:
        wide = wiring.producer.get(name)
        if wide is None or wide.op_type != "Cast" or attribute(wide, "to", 0) != TensorProto.FLOAT:
            continue
        for node in wiring.consumers.get(name, ()):
            if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT16:
                node.input[0] = wide.input[0]
    prune(model.graph)


def put_before(made: ModelProto, source: ModelProto, targets: Collection[str]) -> None:
    """Put the inputs and nodes of a graph before those of another graph, whose inputs `targets` are not fed then."""
    graph = made.graph
    others = [value for value in graph.input if value.name not in targets]
    nodes = list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend([*source.graph.input, *others])
    graph.initializer.extend(source.graph.initializer)
    graph.node.extend(source.graph.node)
    graph.node.extend(nodes)
    made.ir_version = max(made.ir_version, source.ir_version)


def without_mask(model: ModelProto, mask: str, pixels: str) -> ModelProto:
    """A vision graph of pixels [pictures, tiles, channels, height, width] in which the mask of pixels, formerly an
    input, is a constant: all pixels count.
    """
    made = copied(model)
    delete(made.graph.input, lambda value: value.name == mask)
    shape, kept, sizes, there = (PREFIX + name for name in ("shape", "kept", "sizes", "there"))
    made.graph.initializer.append(int64_tensor(kept, [0, 1, 3, 4]))
    made.graph.initializer.append(TensorProto(name=there, data_type=TensorProto.BOOL, dims=[1], raw_data=b"\1"))
    nodes = [
        new_node("Shape", [pixels], [shape]),
        new_node("Gather", [shape, kept], [sizes], axis=0),
        new_node("Expand", [there, sizes], [mask]),
    ]
    for node in reversed(nodes):
        made.graph.node.insert(0, node)
    return made


@dataclass(frozen=True)
class Placing:
    """The tensors of the placing of features among embeddings."""

    texts: str
    """The embeddings of ids."""
    target: str
    """The embeddings with features in some places."""
    features: int
    """The TensorProto.DataType of features."""
    embeddings: int
    """The TensorProto.DataType of embeddings."""
    hidden: int

    def inputs(self) -> tuple[TensorInfo, TensorInfo]:
        """The additional inputs of graphs with places."""
        features = value_info(FEATURES, self.features, ["feature_rows", self.hidden])
        return tensor_info(features), TensorInfo(PLACES, "int32", ("batch_size", "sequence_length"))


def with_places(model: ModelProto, placing: Placing) -> ModelProto:
    """The graph with the inputs FEATURES and PLACES; it reads `target` or, after `without_places`, `texts`."""
    made = copy_of(model)
    graph = made.graph
    for node in graph.node:
        node.input[:] = [placing.target if name == placing.texts else name for name in node.input]
    graph.input.append(value_info(FEATURES, placing.features, ["feature_rows", placing.hidden]))
    graph.input.append(value_info(PLACES, TensorProto.INT32, ["batch_size", "sequence_length"]))
    zero, last, placed, pictures, free, wide = (
        PREFIX + name for name in ("zero", "last", "placed", "pictures", "free", "wide")
    )
    graph.initializer.append(int32_zero(zero))
    graph.initializer.append(int64_tensor(last, [-1]))
    nodes = [
        new_node("Gather", [FEATURES, PLACES], [placed], axis=0),
        new_node("Cast", [placed], [pictures], to=placing.embeddings),
        new_node("Less", [PLACES, zero], [free]),
        new_node("Unsqueeze", [free, last], [wide]),
        new_node("Where", [wide, placing.texts, pictures], [placing.target]),
    ]
    place = 1 + max(number for number, node in enumerate(graph.node) if placing.texts in node.output)
    for node in reversed(nodes):
        graph.node.insert(place, node)
    return made


def without_places(model: ModelProto) -> tuple[ModelProto, Placing | None]:
    """The graph without the inputs FEATURES and PLACES, for runs over only ids, and the placing that restores them;
    None for a graph without them.
    """
    described = {value.name: value.type.tensor_type for value in model.graph.input}
    if FEATURES not in described or PLACES not in described:
        return model, None
    made = copy_of(model)
    wiring = Wiring(made.graph)
    [less] = [node for node in wiring.consumers[PLACES] if node.op_type == "Less"]
    [unsqueeze] = wiring.consumers[less.output[0]]
    [where] = wiring.consumers[unsqueeze.output[0]]
    [gather] = wiring.consumers[FEATURES]
    [cast] = wiring.consumers[gather.output[0]]
    kind = described[FEATURES]
    placing = Placing(where.input[1], where.output[0], kind.elem_type, cast.attribute[0].i, kind.shape.dim[1].dim_value)
    for node in made.graph.node:
        node.input[:] = [placing.texts if name == placing.target else name for name in node.input]
    delete(made.graph.input, lambda value: value.name in (FEATURES, PLACES))
    prune(made.graph)
    return made, placing


def placeholder(embedding: ModelProto, names: EmbeddingNames) -> int:
    """The id that the embedding graph replaces by features. Raises UnsupportedModelError."""
    wiring = Wiring(embedding.graph)
    found: set[int] = set()
    for node in embedding.graph.node:
        if node.op_type == "Equal" and names.input_ids in map(wiring.original, node.input):
            found.update(*(integers(wiring.constants.get(wiring.original(name))) or () for name in node.input))
    if len(found) != 1:
        shown = f"is compared with {', '.join(map(str, sorted(found)))}" if found else "is compared with no id"
        raise UnsupportedModelError(
            f"{names.filename}: {names.input_ids} {shown}; exactly one placeholder is supported"
        )
    return found.pop()


def text_embeddings(embedding: ModelProto, names: EmbeddingNames) -> str:
    """The tensor with the embeddings of ids, before features replace some of them."""
    wiring = Wiring(embedding.graph)
    changed = {names.features}
    for node in embedding.graph.node:
        if changed.intersection([*node.input, *captured_names(node)]):
            changed.update(node.output)
    placer = wiring.maker(names.embeddings)
    places = PLACERS.get(placer.op_type, ()) if placer is not None else ()
    texts = [placer.input[place] for place in places if placer is not None and placer.input[place] not in changed]
    if names.embeddings not in changed or len(texts) != 1:
        shown = "missing" if placer is None else f"made by {placer.op_type}"
        raise UnsupportedModelError(
            f"{names.filename}: the output {names.embeddings} is {shown}; it must come from one of "
            f"{', '.join(PLACERS)} that puts {names.features} in place of embeddings"
        )
    return texts[0]


def rename(model: ModelProto, kept: Collection[str]) -> None:
    """Put PREFIX before the names of all tensors and nodes except those `kept`."""

    def name(old: str) -> str:
        return old if not old or old in kept else PREFIX + old

    for node in model.graph.node:
        node.name = PREFIX + (node.name or node.output[0])
        node.input[:], node.output[:] = map(name, list(node.input)), map(name, list(node.output))
    for tensor in model.graph.initializer:
        tensor.name = name(tensor.name)


def take_opsets(target: ModelProto, source: ModelProto, filename: str) -> None:
    """Import the operator sets of another model, whose nodes join this one. Raises UnsupportedModelError if their
    meaning would change.
    """
    versions = {item.domain: item.version for item in target.opset_import}
    if any(list(captured_names(node)) for node in source.graph.node):
        raise UnsupportedModelError(f"{filename}: embeddings of ids after a node with a subgraph are not supported")
    for item in source.opset_import:
        if item.domain not in versions:
            target.opset_import.add().CopyFrom(item)
        elif item.version != versions[item.domain]:
            kinds = {node.op_type for node in source.graph.node if node.domain == item.domain}
            if kinds - STEADY or min(item.version, versions[item.domain]) < LEAST_OPSET:
                raise UnsupportedModelError(
                    f"{filename}: its operators have version {item.version}, the decoder's have "
                    f"{versions[item.domain]} ({', '.join(sorted(kinds))}); export both with one version"
                )


def int32_zero(name: str) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.INT32, raw_data=bytes(4))


def input_of(model: ModelProto, name: str, what: str) -> TensorInfo:
    found = next((value for value in model.graph.input if value.name == name), None)
    if found is None:
        raise UnsupportedModelError(f"{what} has no input {name}, which genai_config.json names; export it again")
    return tensor_info(found)


def element_type(model: ModelProto, name: str) -> int:
    """The TensorProto.DataType of an input."""
    return next(value.type.tensor_type.elem_type for value in model.graph.input if value.name == name)
