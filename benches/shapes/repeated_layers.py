"""A decoder with more layers, by repeating one in the middle: the builder then takes as long as for the layers it made.

The result has the names, the order and the data file that onnxruntime-genai's builder gives a model of so many layers.
The rows of a copy's weights are turned, each time by another number, so that no two layers have the same bytes; only
norms, whose weights are all one, stay equal.
"""

from __future__ import annotations

import json
import mmap
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

__all__ = ["CONFIG", "repeat_layers", "repeated", "turned"]

CONFIG = "genai_config.json"
LAYER = re.compile(r"(\blayers\.|\bpast_key_values\.|\bpresent\.)(\d+)(?=[./])")
"""The number of a layer in a name."""
PIECE = 64 << 20

Named = TypeVar("Named", NodeProto, TensorProto, ValueInfoProto)
Turn = Callable[[int, int], int]
"""The rows by which the weights of a copy are turned, from the copy's number, 0 for the layer itself, and the rows."""


def repeat_layers(source: Path, out: Path, layers: int, repeat: int = 1, turn: Turn | None = None) -> None:
    """Write the model folder `source` to `out` with so many layers, of which layer `repeat` is all that are new."""
    config = json.loads((source / CONFIG).read_text())
    decoder = config["model"]["decoder"]
    had, decoder["num_hidden_layers"] = decoder["num_hidden_layers"], layers
    name = decoder["filename"]
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(f"{name}*", CONFIG), dirs_exist_ok=True)
    made = repeated(onnx.load(source / name, load_external_data=False), had, layers, repeat)
    with (out / f"{name}.data").open("wb") as file:
        write_data(made, source, file, range(repeat, repeat + layers - had + 1), turn or turned(layers))
    (out / name).write_bytes(made.SerializeToString())
    (out / CONFIG).write_text(json.dumps(config, indent=4))


def turned(layers: int) -> Turn:
    """Each copy by another part of the rows."""
    return lambda copy, rows: copy * rows // layers


def repeated(model: ModelProto, had: int, layers: int, repeat: int = 1) -> ModelProto:
    """The graph with `layers` layers, made of one with `had`. Each copy's weights name the bytes of what it repeats."""
    if not 0 < repeat < had <= layers:
        raise ValueError(f"layer {repeat} of {had} cannot be repeated until there are {layers}")
    more = layers - had
    made = ModelProto()
    made.CopyFrom(model)
    nodes = list(model.graph.node)
    own = [node for node in nodes if layer_of(node) == repeat]
    attention = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    kinds = {tuple(sorted(item.SerializeToString() for item in node.attribute)) for node in attention}
    if len(attention) != had or len(kinds) != 1:
        raise ValueError(f"{len(attention)} of {had} layers have attention, of {len(kinds)} kinds: build every layer")
    behind = max(place for place, node in enumerate(nodes) if layer_of(node) == repeat) + 1
    chain = [
        *(moved(node, repeat, more) for node in nodes[:behind]),
        *(shifted(node, by) for by in range(1, more + 1) for node in own),
        *(moved(node, repeat, more) for node in nodes[behind:]),
    ]
    replace(made.graph.node, chain)
    for field in ("initializer", "input", "output", "value_info"):
        replace(getattr(made.graph, field), with_copies(getattr(model.graph, field), repeat, more))
    return made


def with_copies(values: Iterable[Named], repeat: int, more: int) -> Iterator[Named]:
    """Values, and behind each run of the repeated layer's so many copies of the run."""
    for layer, run in groupby(values, layer_of):
        found = list(run)
        yield from (moved(value, repeat, more) for value in found)
        if layer == repeat:
            yield from (shifted(value, by) for by in range(1, more + 1) for value in found)


def moved(value: Named, repeat: int, more: int) -> Named:
    """A node or value of the source under its new name. A node behind the layers belongs to none, and takes the last
    one's output."""
    layer = layer_of(value)
    if layer is None:
        return shifted(value, more, above=repeat)
    return shifted(value, more if layer > repeat else 0)


def shifted(value: Named, by: int, above: int = -1) -> Named:
    """A copy in whose names the layers above `above` have other numbers."""
    made = type(value)()
    made.CopyFrom(value)
    made.name = renamed(made.name, by, above)
    if isinstance(made, NodeProto):
        for names in (made.input, made.output):
            replace(names, [renamed(name, by, above) for name in names])
    return made


def renamed(name: str, by: int, above: int) -> str:
    def number(found: re.Match[str]) -> str:
        layer = int(found[2])
        return f"{found[1]}{layer + by if layer > above else layer}"

    return LAYER.sub(number, name)


def layer_of(value: NodeProto | TensorProto | ValueInfoProto) -> int | None:
    """The layer that it belongs to by its name; None if to none."""
    found = LAYER.search(value.name)
    return int(found[2]) if found else None


def replace(field: Any, values: Iterable[Any]) -> None:
    """Give a repeated field other elements."""
    found = list(values)
    del field[:]
    field.extend(found)


def write_data(model: ModelProto, source: Path, out: BinaryIO, copies: Sequence[int], turn: Turn) -> None:
    """Write the bytes of all weights in their order, those of layers in `copies` turned, and their new places into the
    model."""
    products = {name: node for node in model.graph.node if node.op_type == "MatMulNBits" for name in node.input[1:]}
    with ExitStack() as stack:
        maps: dict[str, memoryview] = {}
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place["location"] not in maps:
                file = stack.enter_context((source / place["location"]).open("rb"))
                # Released by the last reference to it.
                maps[place["location"]] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            start, length = int(place["offset"]), int(place["length"])
            data = maps[place["location"]][start : start + length]
            layer = layer_of(tensor)
            at = 0
            if layer is not None and layer in copies:
                # Weights, scales and zero points of a product have as many rows, whatever their dimensions.
                rows = rows_of(products[tensor.name]) if tensor.name in products else tensor.dims[0]
                at = turn(layer - copies[0], rows) % rows * (length // rows)
            del tensor.external_data[:]
            for key, value in (("location", Path(out.name).name), ("offset", out.tell()), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            for part in (data[at:], data[:at]):
                for begin in range(0, len(part), PIECE):
                    out.write(part[begin : begin + PIECE])


def rows_of(product: NodeProto) -> int:
    """The rows of a quantized product's weights."""
    return next(int(attribute.i) for attribute in product.attribute if attribute.name == "N")
