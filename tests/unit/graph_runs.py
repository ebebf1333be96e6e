"""A decoder's graph, changed or not, run by onnxruntime on CPython: a prompt in two runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto

__all__ = ["PROMPT", "logits_of"]

PROMPT = [(31 * i + 7) % 253 for i in range(12)]
CAPACITY = 32


def logits_of(model: ModelProto, folder: Path, work: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after all but the last token of PROMPT, and after that one: [2, vocab]."""
    shutil.copyfile(folder / "model.onnx.data", work / "model.onnx.data")
    (work / "changed.onnx").write_bytes(graph.serialize(model))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(str(work / "changed.onnx"), options, providers=["CPUExecutionProvider"])
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
