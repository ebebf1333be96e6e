"""Graphs in float16, as Transformers.js' scripts make them: inputs and outputs stay float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

__all__ = ["in_half"]


def in_half(model: ModelProto) -> ModelProto:
    """The same in float16, casts behind its inputs and before its outputs, its branches changed in the same way."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    top = made.graph
    float_inputs, float_outputs = ([each.name for each in part if is_float(each)] for part in (top.input, top.output))
    inputs = {name: f"{name}_fp16" for name in float_inputs}
    names = {**inputs, **{name: f"{name}_fp16" for name in float_outputs}}
    for graph in graphs(top):
        del graph.value_info[:]
        for tensor in graph.initializer:
            halve(tensor)
        for value in graph.output if graph is not top else ():
            if is_float(value):
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        for node in graph.node:
            renamed = names if graph is top else inputs
            node.input[:] = [renamed.get(name, name) for name in node.input]
            if graph is top:
                node.output[:] = [names.get(name, name) for name in node.output]
            for item in node.attribute:
                if item.type == AttributeProto.TENSOR:
                    halve(item.t)
    nodes = list(top.node)
    del top.node[:]
    casts = [helper.make_node("Cast", [name], [names[name]], to=TensorProto.FLOAT16) for name in float_inputs]
    back = [helper.make_node("Cast", [names[name]], [name], to=TensorProto.FLOAT) for name in float_outputs]
    top.node.extend([*casts, *nodes, *back])
    return made


def is_float(value: Any) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT)


def halve(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those in its nodes."""
    yield graph
    for node in graph.node:
        for item in node.attribute:
            if item.type == AttributeProto.GRAPH:
                yield from graphs(item.g)
