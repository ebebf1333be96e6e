"""Makes ONNX models of a single node, for a device's allocator session and for probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .model_file import serialize
from .node_writer import add_attribute
from .onnx_pb2 import ModelProto, TensorProto
from .wiring import value_info

__all__ = ["add_model", "attention_model", "cast_model"]

OPSET = 17
IR_VERSION = 8
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}

Tensor = tuple[str, str, tuple[int, ...]]
"""Name, dtype and dims."""


def add_model(dtype: str, count: int) -> bytes:
    """A model that computes c = a + b, each [count]."""
    dims = (count,)
    return one_node("Add", [("a", dtype, dims), ("b", dtype, dims)], [("c", dtype, dims)])


def cast_model(source: str, target: str, count: int) -> bytes:
    """A model that casts a to b of another element type, each [count]."""
    to = {"to": int(TYPES[target])}
    return one_node("Cast", [("a", source, (count,))], [("b", target, (count,))], attributes=to)


def attention_model(capacity: int, length: int, head_size: int) -> bytes:
    """One GroupQueryAttention step of one head at position `length - 1`, over caches [1, 1, capacity, head_size].

    Inputs query, key, value [1, 1, head_size], past_key, past_value; outputs output, present_key, present_value.
    """
    row, cache = (1, 1, head_size), (1, 1, capacity, head_size)
    inputs: list[Tensor] = [(name, "float32", row) for name in ("query", "key", "value")]
    inputs += [(name, "float32", cache) for name in ("past_key", "past_value")]
    outputs: list[Tensor] = [("output", "float32", row)]
    outputs += [(name, "float32", cache) for name in ("present_key", "present_value")]
    return one_node(
        "GroupQueryAttention",
        inputs,
        outputs,
        domain="com.microsoft",
        attributes={"num_heads": 1, "kv_num_heads": 1},
        constants=[("last_position", (1,), [length - 1]), ("total_length", (), [length])],
    )


def one_node(
    op: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    domain: str = "",
    attributes: Mapping[str, int] | None = None,
    constants: Sequence[tuple[str, tuple[int, ...], list[int]]] = (),
) -> bytes:
    """A serialized model of one node; `constants` are int32 initializers that follow the node's inputs: name, dims,
    values.
    """
    model = ModelProto(ir_version=IR_VERSION)
    model.opset_import.add(domain="", version=OPSET)
    if domain:
        model.opset_import.add(domain=domain, version=1)
    graph = model.graph
    graph.name = op
    node = graph.node.add(op_type=op, name=op, domain=domain)
    for values, declared, used in ((inputs, graph.input, node.input), (outputs, graph.output, node.output)):
        for name, dtype, dims in values:
            declared.append(value_info(name, TYPES[dtype], dims))
            used.append(name)
    for name, dims, numbers in constants:
        graph.initializer.add(name=name, data_type=TensorProto.INT32, dims=dims, int32_data=numbers)
        node.input.append(name)
    for name, number in (attributes or {}).items():
        add_attribute(node, name, number)
    return serialize(model)
