"""Copies of tests/fixtures/long_rope/nano-phi3 with rotary tables of other forms and lengths."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from capstan.graph.wiring import int64_tensor

__all__ = ["LONG_ROPE", "ORIGINAL", "changed_at", "halved", "joined", "one_kind"]

LONG_ROPE = Path(__file__).parent / "fixtures" / "long_rope" / "nano-phi3"
ORIGINAL = 64
"""Tokens of the longest sequence that is rotated by its short factors."""
SHORT = (1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8)
LONG = (1.0, 1.4, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0)
"""Its factors, as make_fixtures.py has them."""
THETA, HEAD = 10000.0, 16
OPTIONS = {"provider_options": [{"webgpu": {"multiRotaryCacheConcatOffset": str(ORIGINAL)}}]}


def choice_of(model: ModelProto) -> Any:
    """The If that chooses the tables."""
    return next(node for node in model.graph.node if node.op_type == "If")


def branches(model: ModelProto) -> dict[str, list[TensorProto]]:
    """The tables of each branch, cosines first: those of `then_branch` are the long ones."""
    return {item.name: [node.attribute[0].t for node in item.g.node] for item in choice_of(model).attribute}


def copied(folder: Path, change: Callable[[ModelProto, dict[str, Any]], bytes]) -> Path:
    """A copy whose graph and configuration are changed; what `change` returns is added to the data file."""
    shutil.copytree(LONG_ROPE, folder, dirs_exist_ok=True)
    model = graph.parse((LONG_ROPE / "model.onnx").read_bytes())
    config = json.loads((LONG_ROPE / "genai_config.json").read_text())
    with (folder / "model.onnx.data").open("ab") as data:
        data.write(change(model, config))
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def joined(folder: Path, *, external: bool = True) -> Path:
    """With the long rows behind the short ones, as the builder writes for enable_webgpu_graph: in the data file, or in
    the graph's own."""

    def change(model: ModelProto, config: dict[str, Any]) -> bytes:
        found, added = branches(model), b""
        names = list(choice_of(model).output)
        model.graph.node.remove(choice_of(model))
        start = (LONG_ROPE / "model.onnx.data").stat().st_size
        for name, short, long in zip(names, found["else_branch"], found["then_branch"], strict=True):
            both = model.graph.initializer.add(name=name, data_type=long.data_type)
            both.dims.extend([short.dims[0] + long.dims[0], long.dims[1]])
            rows = short.raw_data + long.raw_data
            if not external:
                both.raw_data = rows
                continue
            both.data_location = TensorProto.EXTERNAL
            told = {"location": "model.onnx.data", "offset": str(start + len(added)), "length": str(len(rows))}
            for key, value in told.items():
                both.external_data.add(key=key, value=value)
            added += rows
        config["model"]["decoder"]["session_options"] |= OPTIONS
        return added

    return copied(folder, change)


def one_kind(folder: Path) -> Path:
    """With the short tables alone, and a configuration that says that there are others from ORIGINAL on."""

    def change(model: ModelProto, config: dict[str, Any]) -> bytes:
        tables, names = branches(model)["else_branch"], list(choice_of(model).output)
        for name, table in zip(names, tables, strict=True):
            tensor = model.graph.initializer.add()
            tensor.CopyFrom(table)
            tensor.name = name
        model.graph.node.remove(choice_of(model))
        config["model"]["decoder"]["session_options"] |= OPTIONS
        return b""

    return copied(folder, change)


def halved(folder: Path) -> Path:
    """With float16 in the place of float32 everywhere."""

    def change(model: ModelProto, config: dict[str, Any]) -> bytes:
        data, added = (LONG_ROPE / "model.onnx.data").read_bytes(), b""
        for tensor in model.graph.initializer:
            told = {item.key: item for item in tensor.external_data}
            start, size = int(told["offset"].value), int(told["length"].value)
            half = np.frombuffer(data[start : start + size], np.float32).astype(np.float16).tobytes()
            told["offset"].value, told["length"].value = str(len(data) + len(added)), str(len(half))
            tensor.data_type = TensorProto.FLOAT16
            added += half
        for table in (table for tables in branches(model).values() for table in tables):
            table.raw_data = np.frombuffer(table.raw_data, np.float32).astype(np.float16).tobytes()
            table.data_type = TensorProto.FLOAT16
        values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
        values += [output for item in choice_of(model).attribute for output in item.g.output]
        for value in values:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        return added

    return copied(folder, change)


def changed_at(folder: Path, original: int, context: int) -> Path:
    """With another original length: at 4096 the native package computes caches again, too."""

    def change(model: ModelProto, config: dict[str, Any]) -> bytes:
        greater = next(node for node in model.graph.node if node.op_type == "Greater")
        bound = greater.input[1] = "original_length"
        model.graph.initializer.append(int64_tensor(bound, [original], scalar=True))
        for branch, tables in branches(model).items():
            rows, factors = (context, LONG) if branch == "then_branch" else (original, SHORT)
            angles = np.outer(np.arange(rows), 1 / (np.array(factors) * THETA ** (np.arange(0, HEAD, 2) / HEAD)))
            for table, values in zip(tables, (np.cos(angles), np.sin(angles)), strict=True):
                scale = float(np.frombuffer(tables[0].raw_data, np.float32)[0])
                made = (scale * values).astype(np.float32)
                known = np.frombuffer(table.raw_data, np.float32).reshape(table.dims)
                least = min(len(known), rows)
                assert np.allclose(made[:least], known[:least], atol=1e-4), branch
                table.raw_data = made.tobytes()
                table.dims[0] = rows
        for item in choice_of(model).attribute:
            for output in item.g.output:
                output.type.tensor_type.shape.dim[0].dim_value = context if item.name == "then_branch" else original
        config["model"]["context_length"] = config["search"]["max_length"] = context
        return b""

    return copied(folder, change)
