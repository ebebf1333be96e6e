"""Caches of all positions where the export expects those of a window alone.

With `sliding_window_cache`, as the model builder's exports for the CPU have it, attention over a window may be given a
cache that is shorter than the sequence, and then indexes it from the window's start. It computes the same over a cache
of all positions without it, which is what Capstan binds.
"""

from __future__ import annotations

from .onnx_pb2 import ModelProto
from .wiring import copy_of

__all__ = ["whole_caches"]


def whole_caches(model: ModelProto) -> ModelProto:
    """The same model with attention that has all positions in its caches."""
    result = copy_of(model)
    for node in result.graph.node:
        for attribute in [item for item in node.attribute if item.name == "sliding_window_cache"]:
            node.attribute.remove(attribute)
    return result
