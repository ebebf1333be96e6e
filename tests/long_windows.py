"""Copies of fixtures with attention over windows, for sequences many times longer than window and prompt run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from capstan import graph

__all__ = ["CONTEXT", "FIXTURES", "PROMPT", "WINDOW", "longer"]

FIXTURES = Path(__file__).parent / "fixtures"
CONTEXT = 1536
WINDOW = 24
"""Positions that their attention looks back."""
PROMPT = [(29 * i + i * i % 17 + 3) % 509 for i in range(CONTEXT)]


def longer(source: Path, folder: Path) -> Path:
    """A copy with rotary tables for CONTEXT positions."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    model = graph.parse((source / "model.onnx").read_bytes())
    data = bytearray((source / "model.onnx.data").read_bytes())
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in [name for name in tensors if name.startswith("cos_cache")]:
        pair = [tensors[each] for each in (name, name.replace("cos", "sin"))]
        told = [{item.key: item for item in tensor.external_data} for tensor in pair]
        cos, sin = (
            np.frombuffer(bytes(data), np.float32, tensor.dims[0] * tensor.dims[1], int(each["offset"].value))
            for tensor, each in zip(pair, told, strict=True)
        )
        width = pair[0].dims[1]
        angles = np.outer(np.arange(CONTEXT), np.arctan2(sin[width : 2 * width], cos[width : 2 * width]))
        for tensor, each, values in zip(pair, told, (np.cos(angles), np.sin(angles)), strict=True):
            rows = values.astype(np.float32).tobytes()
            each["offset"].value, each["length"].value = str(len(data)), str(len(rows))
            tensor.dims[0] = CONTEXT
            data += rows
    for value in model.graph.value_info:
        if value.name in tensors and value.name.startswith(("cos_cache", "sin_cache")):
            value.type.tensor_type.shape.dim[0].dim_value = CONTEXT
    (folder / "model.onnx").write_bytes(graph.serialize(model))
    (folder / "model.onnx.data").write_bytes(bytes(data))
    config = json.loads((source / "genai_config.json").read_text())
    config["model"]["context_length"] = config["search"]["max_length"] = CONTEXT
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder
