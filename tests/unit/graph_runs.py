"""Graphs run by onnxruntime on CPython: once, a prompt in two runs, and a decoder step by step."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto
from tests.weight_bytes import bytes_of

__all__ = ["NUMPY", "PROMPT", "Runner", "logits_of", "operators", "outputs", "session_of", "weights_of"]

PROMPT = [(31 * i + 7) % 253 for i in range(12)]
CAPACITY = 32
NUMPY = {"float32": np.float32, "float16": np.float16, "uint8": np.uint8, "int64": np.int64}


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def weights_of(entries: Iterable[graph.WeightEntry], data: bytes) -> dict[str, Any]:
    """The tensors of a data file."""
    return {each.name: np.frombuffer(bytes_of(each, data), NUMPY[each.dtype]).reshape(each.dims) for each in entries}


def session_of(model: ModelProto | str, *, as_it_is: bool = False) -> Any:
    """A session of a graph or of a file; with `as_it_is` onnxruntime rewrites no node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if as_it_is:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = model if isinstance(model, str) else graph.serialize(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def outputs(model: ModelProto, feeds: Mapping[str, Any], data: bytes = b"", *, as_it_is: bool = False) -> list[Any]:
    """All outputs of a model whose weights are in one data file, for those of the feeds that it reads."""
    fed, manifest = graph.weights_to_inputs(model)
    session, given = session_of(fed, as_it_is=as_it_is), {**weights_of(manifest, data), **feeds}
    found: list[Any] = session.run(None, {value.name: given[value.name] for value in session.get_inputs()})
    return found


class Runner:
    """A decoder whose caches, by past and present names, grow or are of one size; `feeds` goes into each run."""

    def __init__(
        self, model: ModelProto, caches: Mapping[str, str], shape: tuple[int, int], capacity: int, **feeds: Any
    ) -> None:
        self.session, self.presents = session_of(model), caches
        types = {value.name: value.type for value in self.session.get_inputs()}
        self.inputs, self.names = [*types], [value.name for value in self.session.get_outputs()]
        self.capacity, self.length, self.feeds = capacity, 0, feeds
        self.ids_type = np.int32 if types["input_ids"] == "tensor(int32)" else np.int64
        floats = np.float16 if types[next(iter(caches))] == "tensor(float16)" else np.float32
        self.caches = {name: np.zeros((1, shape[0], capacity, shape[1]), floats) for name in caches}

    def run(self, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The logits of all positions."""
        end = self.length + len(ids)
        given = {
            "input_ids": np.array([ids], self.ids_type),
            "attention_mask": (np.arange(self.capacity or end) < end).astype(np.int64)[None],
            "position_ids": np.arange(self.length, end)[None],
            **self.caches,
            **self.feeds,
        }
        made = self.session.run(None, {name: given[name] for name in self.inputs})
        found = dict(zip(self.names, made, strict=True))
        self.length, self.caches = end, {past: found[present] for past, present in self.presents.items()}
        logits: np.ndarray[Any, np.dtype[np.float32]] = found["logits"][0]
        return logits


def logits_of(model: ModelProto, folder: Path, work: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after all but the last token of PROMPT, and after that one: [2, vocab]."""
    shutil.copyfile(folder / "model.onnx.data", work / "model.onnx.data")
    (work / "changed.onnx").write_bytes(graph.serialize(model))
    session = session_of(str(work / "changed.onnx"))
    heads = {value.name: value.shape for value in session.get_outputs()}
    states: dict[str, Any] = {}
    found = []
    for past, ids in ((0, PROMPT[:-1]), (len(PROMPT) - 1, PROMPT[-1:])):
        end = past + len(ids)
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, end), np.int64), **states}
        for value in session.get_inputs():
            if value.name == "position_ids":
                axes = (3, 1, 1) if len(value.shape) == 3 else (1, 1)
                feeds[value.name] = np.tile(np.arange(past, end), axes)
            elif value.name.startswith("past") and not past:
                free = (1, 0, CAPACITY, head_size(model))
                shape = [size if isinstance(size, int) else free[place] for place, size in enumerate(value.shape)]
                feeds[value.name] = np.zeros(shape, np.float32)
        results = dict(zip(heads, session.run(None, feeds), strict=True))
        found.append(results.pop("logits")[0, -1])
        states = {
            name.replace("present.", "past_key_values." if name.endswith(("key", "value")) else "past."): value
            for name, value in results.items()
        }
    return np.stack(found)


def head_size(model: ModelProto) -> int:
    """Elements of each head, from the scale of attention, which is one over the root of it."""
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    return round(next(item.f for item in node.attribute if item.name == "scale") ** -2)
