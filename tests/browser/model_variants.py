"""Copies of a fixture with something wrong in them, mounted under /models/ of the test site."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capstan import graph
from capstan.graph.onnx_pb2 import AttributeProto, ModelProto, TensorProto
from capstan.graph.wiring import int64_tensor
from capstan_host.site_server import SiteServer

__all__ = [
    "LLAMA",
    "OUTLIERS",
    "Variants",
    "add_node",
    "adding_to_logits",
    "declaring_one",
    "keeping_logits",
    "looking_back",
    "norms_in_attention",
    "quantized_embedding",
    "rename_output",
    "soft_capped",
    "telling_hidden_states",
    "through_float16",
    "through_hardmax",
    "with_cached_windows",
    "with_outliers",
    "with_scalar_input",
    "with_sinks",
]

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"


OUTLIERS = (7, 41)
"""Channels of the residual stream that are hundreds of times the others, in `with_outliers`."""


class Variants:
    """Makes and mounts folders; `name` is also the folder's name under /models/."""

    def __init__(self, site: SiteServer, place: Path) -> None:
        self.site = site
        self.place = place

    def folder(self, name: str, source: Path = LLAMA) -> Path:
        """A mounted copy of nano-llama, or of another fixture, to be changed."""
        folder = self.place / name
        shutil.copytree(source, folder)
        self.site.models[name] = folder
        return folder

    def config(self, name: str, **changes: Any) -> str:
        """A copy with other fields in genai_config.json, by their dotted path with "__" for dots; None deletes one."""
        path = self.folder(name) / "genai_config.json"
        tree = json.loads(path.read_text())
        for dotted, value in changes.items():
            *parents, last = dotted.split("__")
            section = tree
            for parent in parents:
                section = section[parent]
            if value is None:
                del section[last]
            else:
                section[last] = value
        path.write_text(json.dumps(tree))
        return name

    def text(self, name: str, file: str, content: str) -> str:
        """A copy with another text in one of its files."""
        (self.folder(name) / file).write_text(content)
        return name

    def without(self, name: str, file: str) -> str:
        """A copy that lacks a file."""
        (self.folder(name) / file).unlink()
        return name

    def cut(self, name: str, file: str, size: int) -> str:
        """A copy with only the first bytes of a file (from the end, if negative)."""
        path = self.folder(name) / file
        path.write_bytes(path.read_bytes()[:size])
        return name

    def graph(self, name: str, change: Callable[[ModelProto], None], source: Path = LLAMA) -> str:
        """A copy with another graph over the same weights."""
        path = self.folder(name, source) / "model.onnx"
        model = ModelProto()
        model.CopyFrom(graph.parse(path.read_bytes()))
        change(model)
        path.write_bytes(graph.serialize(model))
        return name

    def unmount(self) -> None:
        for folder in self.place.iterdir():
            self.site.models.pop(folder.name, None)


def add_node(model: ModelProto, kind: str, inputs: list[str], output: str, **integers: int) -> None:
    """Append a node of the standard operator set, named /added/KIND, with a number if there is one of that name."""
    name, others = f"/added/{kind}", sum(node.op_type == kind for node in model.graph.node)
    taken = {node.name for node in model.graph.node}
    node = model.graph.node.add()
    node.op_type, node.name = kind, f"{name}_{others}" if name in taken else name
    node.input.extend(inputs)
    node.output.append(output)
    for name, value in integers.items():
        attribute = node.attribute.add()
        attribute.name, attribute.i, attribute.type = name, value, AttributeProto.INT


def rename_output(model: ModelProto, old: str, new: str) -> None:
    """Give a node's output another name, so that nodes can be put between it and the graph's output."""
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == old:
                node.output[place] = new


def looking_back(positions: int) -> Callable[[ModelProto], None]:
    """The same with attention that sees no more than the last `positions`."""

    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "local_window_size":
                    attribute.i = positions

    return change


def with_cached_windows(variants: Variants, name: str, positions: int) -> str:
    """A copy whose attention looks back so far, as the model builder exports it for the CPU: natively its caches have
    the window's positions alone."""

    def change(model: ModelProto) -> None:
        looking_back(positions)(model)
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.attribute.add(name="sliding_window_cache", type=AttributeProto.INT, i=1)

    path = variants.place / variants.graph(name, change) / "genai_config.json"
    tree = json.loads(path.read_text())
    layers = list(range(tree["model"]["decoder"]["num_hidden_layers"]))
    window = {"window_size": positions, "layers": layers, "cache_slack": 4}
    tree["model"]["decoder"]["sliding_window"] = window | {"slide_key_value_cache": False, "slide_inputs": False}
    path.write_text(json.dumps(tree))
    return name


def soft_capped(value: float, *, smooth: bool = False) -> Callable[[ModelProto], None]:
    """The same with a soft cap on attention's scores; if `smooth`, with one more score of 0 in each softmax too."""

    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                for attribute in [item for item in node.attribute if item.name == "softcap"]:
                    node.attribute.remove(attribute)
                node.attribute.add(name="softcap", type=AttributeProto.FLOAT, f=value)
                if smooth:
                    node.attribute.add(name="smooth_softmax", type=AttributeProto.INT, i=1)

    return change


def with_sinks(model: ModelProto) -> None:
    """The same with a sink for each head of attention: one more score in its softmax, of no position."""
    values = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    model.graph.initializer.add(name="sinks", data_type=TensorProto.FLOAT, raw_data=values.tobytes()).dims.append(4)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend([""] * (11 - len(node.input)))
            del node.input[11:]
            node.input.append("sinks")


def norms_in_attention(model: ModelProto) -> None:
    """nano-qwen3 with the norms of q and k inside attention, which is the model builder's default."""
    producer = {name: node for node in model.graph.node for name in node.output}
    for node in [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]:
        node.input.extend([""] * (14 - len(node.input)))
        for place in (0, 1):
            back = producer[node.input[place]]
            norm = producer[back.input[0]]
            there = producer[norm.input[0]]
            assert norm.op_type == "SimplifiedLayerNormalization"
            node.input[place] = there.input[0]
            node.input.append(norm.input[1])
            epsilon = next(item.f for item in norm.attribute if item.name == "epsilon")
            for step in (there, norm, back):
                model.graph.node.remove(step)
        node.attribute.add(name="qk_norm_epsilon", type=AttributeProto.FLOAT, f=epsilon)


def quantized_embedding(model: ModelProto) -> None:
    """A fixture whose embedding is the weights of its last product, as the model builder writes tied int4 models."""
    [gather] = [node for node in model.graph.node if node.name == "/model/embed_tokens/Gather"]
    [product] = [node for node in model.graph.node if node.output[0] == "logits"]
    [weight] = [tensor for tensor in model.graph.initializer if tensor.name == product.input[1]]
    rows, blocks, size = weight.dims
    [scales] = [tensor for tensor in model.graph.initializer if tensor.name == product.input[2]]
    scales.dims[:] = [rows, blocks]
    model.graph.initializer.append(int64_tensor("table_shape", [rows, blocks * size]))
    place = list(model.graph.node).index(gather)
    model.graph.node.insert(place, type(gather)(op_type="Reshape", name="/table", output=["table"]))
    model.graph.node[place].input.extend([product.input[1], "table_shape"])
    gather.op_type, gather.domain = "GatherBlockQuantized", "com.microsoft"
    gather.input[:] = ["table", gather.input[1], product.input[2]]
    for name, value in (("bits", 4), ("block_size", 2 * size), ("gather_axis", 0), ("quantize_axis", 1)):
        gather.attribute.add(name=name, type=AttributeProto.INT, i=value)


def scalar_input(model: ModelProto, name: str) -> None:
    value = model.graph.input.add(name=name)
    value.type.tensor_type.elem_type = TensorProto.INT64
    value.type.tensor_type.shape.SetInParent()


def with_scalar_input(model: ModelProto) -> None:
    """The same with an int64 [] that multiplies the logits."""
    rename_output(model, "logits", "logits_before")
    scalar_input(model, "factor")
    add_node(model, "Cast", ["factor"], "factor_float", to=TensorProto.FLOAT)
    add_node(model, "Mul", ["logits_before", "factor_float"], "logits")


def adding_to_logits(model: ModelProto) -> None:
    """The same order of the logits, to all of which `num_logits_to_keep` is added."""
    rename_output(model, "logits", "few")
    scalar_input(model, "num_logits_to_keep")
    add_node(model, "Cast", ["num_logits_to_keep"], "number", to=TensorProto.FLOAT)
    add_node(model, "Add", ["number", "few"], "logits")


def declaring_one(model: ModelProto) -> None:
    """The same with an output that is declared to have one position, and has all."""
    adding_to_logits(model)
    [value] = [value for value in model.graph.input if value.name == "num_logits_to_keep"]
    model.graph.input.remove(value)
    model.graph.initializer.append(int64_tensor(value.name, [0], scalar=True))
    for value in model.graph.output:
        if value.name == "logits":
            value.type.tensor_type.shape.dim[1].Clear()
            value.type.tensor_type.shape.dim[1].dim_value = 1


def telling_hidden_states(model: ModelProto) -> None:
    """The same with one more output, that of the last norm."""
    [head] = [node for node in model.graph.node if "logits" in node.output]
    add_node(model, "Identity", [head.input[0]], "hidden_states")
    value = model.graph.output.add(name="hidden_states")
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    for size in ("batch_size", "sequence_length", "hidden_size"):
        value.type.tensor_type.shape.dim.add().dim_param = size


def keeping_logits(model: ModelProto) -> None:
    """The same logits, of the last `num_logits_to_keep` positions."""
    [head] = [node for node in model.graph.node if "logits" in node.output]
    scalar_input(model, "num_logits_to_keep")
    for name, number in (("back", 0), ("axis", 1), ("end", 2**63 - 1)):
        model.graph.initializer.append(int64_tensor(f"/added/{name}", [number]))
    add_node(model, "Unsqueeze", ["num_logits_to_keep", "/added/back"], "kept")
    add_node(model, "Neg", ["kept"], "first_kept")
    add_node(model, "Slice", [head.input[0], "first_kept", "/added/end", "/added/axis"], "hidden_kept")
    head.input[0] = "hidden_kept"
    last = type(head)()
    last.CopyFrom(head)
    model.graph.node.remove(head)
    model.graph.node.add().CopyFrom(last)


def through_hardmax(model: ModelProto) -> None:
    """The same logits by way of a node without a WebGPU kernel: the head takes x + (Hardmax(x) - Hardmax(x))."""
    [head] = [node for node in model.graph.node if "logits" in node.output]
    hidden, head.input[0] = head.input[0], "hidden_after"
    add_node(model, "Hardmax", [hidden], "hardmax")
    add_node(model, "Sub", ["hardmax", "hardmax"], "nothing")
    add_node(model, "Add", [hidden, "nothing"], "hidden_after")
    # A graph is in topological order: the head comes last.
    last = type(head)()
    last.CopyFrom(head)
    model.graph.node.remove(head)
    model.graph.node.add().CopyFrom(last)


def through_float16(model: ModelProto) -> None:
    """The logits by way of float16."""
    rename_output(model, "logits", "logits_before")
    add_node(model, "Cast", ["logits_before"], "logits_half", to=TensorProto.FLOAT16)
    add_node(model, "Cast", ["logits_half"], "logits", to=TensorProto.FLOAT)


def with_outliers(variants: Variants, name: str) -> str:
    """A copy whose activations are like those of trained models: two channels of the residual stream are hundreds of
    times the median, and the norms' weights bring the others back. Queries are short, so that attention is spread."""
    folder = variants.folder(name)
    path = folder / "model.onnx.data"
    data = bytearray(path.read_bytes())
    for tensor in graph.parse((folder / "model.onnx").read_bytes()).graph.initializer:
        location = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_type != TensorProto.FLOAT or "offset" not in location:
            continue
        count = math.prod(tensor.dims)
        values = np.frombuffer(data, np.float32, count, int(location["offset"])).reshape(tuple(tensor.dims)).copy()
        if tensor.name.startswith("model.embed_tokens"):
            values[:, OUTLIERS] *= 400
        elif "layernorm" in tensor.name:
            kept = values[list(OUTLIERS)]
            values *= 30
            values[list(OUTLIERS)] = kept
        elif "qkv_proj" in tensor.name:
            values[:64] *= 0.3
        elif "down_proj" in tensor.name:
            values[OUTLIERS[1]] *= 50
        else:
            continue
        at = int(location["offset"])
        data[at : at + 4 * count] = values.tobytes()
    path.write_bytes(data)
    return name
