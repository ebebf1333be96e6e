"""Decoders with inputs for LoRA adapters, as Olive's extract-adapters pass writes them, and adapter files for them.

    python -m tests.lora_models            # writes tests/fixtures/nano-lora again

nano-lora is nano-apart (int4 weights) with adapters on all seven products of a layer, whose defaults have the rank 0;
`first.onnx_adapter` has the rank 4, `second.onnx_adapter` the rank 8, `queries.onnx_adapter` the rank 4 on the products
of queries alone. Files are written by onnxruntime.AdapterFormat.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

__all__ = ["ADAPTERS", "DEFAULTS", "LORA", "Defaults", "Shapes", "add_inputs", "write_adapter"]

FIXTURES = Path(__file__).parent / "fixtures"
LORA = FIXTURES / "nano-lora"
PRODUCTS = ("qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = "lora_r"
SCALE = 2.0
ADAPTERS = {"first": (4, 1), "second": (8, 2), "queries": (4, 3)}
"""Rank and seed by name."""

Shapes = dict[str, tuple[int | None, int | None]]
"""Shapes of the inputs by name; None stands for the rank."""


def add_inputs(source: Path, out: Path, *, optional: bool = True, scaled: bool = True) -> Shapes:
    """A copy of a decoder that adds `x A B` to its products; `optional` gives A and B a default of rank 0, `scaled` a
    factor to what is added."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    model = onnx.load(str(source / "model.onnx"), load_external_data=False)
    graph = model.graph
    sizes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    shapes: Shapes = {}
    nodes: list[onnx.NodeProto] = []
    sums: dict[str, str] = {}
    for node in list(graph.node):
        node.input[:] = [sums.get(name, name) for name in node.input]
        nodes.append(node)
        if node.op_type not in ("MatMulNBits", "MatMul") or not any(name in node.name for name in PRODUCTS):
            continue
        told = {item.name: item.i for item in node.attribute}
        k, n = (told["K"], told["N"]) if node.op_type == "MatMulNBits" else sizes[node.input[1]]
        place = node.name.removesuffix("_Q4").removesuffix("/MatMul")
        factors = [place.strip("/").replace("/", ".") + f".lora_{letter}.weight" for letter in "AB"]
        shapes |= {factors[0]: (k, None), factors[1]: (None, n)}
        x = node.input[0]
        for factor, letter in zip(factors, "AB", strict=True):
            nodes.append(
                helper.make_node("MatMul", [x, factor], [f"{place}/lora_{letter}"], f"{place}/MatMul_{letter}")
            )
            x = f"{place}/lora_{letter}"
        if scaled:
            nodes.append(helper.make_node("Mul", [x, "/lora/scale"], [f"{place}/lora_scaled"], f"{place}/lora/Mul"))
            x = f"{place}/lora_scaled"
        total = f"{place}/lora_added"
        nodes.append(helper.make_node("Add", [node.output[0], x], [total], f"{place}/lora/Add"))
        sums[node.output[0]] = total
    for name, shape in shapes.items():
        dims = [RANK if size is None else size for size in shape]
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        if optional:
            empty = [size or 0 for size in shape]
            graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, empty, [0.0] * prod(empty)))
    if scaled:
        graph.initializer.append(helper.make_tensor("/lora/scale", TensorProto.FLOAT, [], [SCALE]))
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, str(out / "model.onnx"))
    return shapes


@dataclass(frozen=True)
class Defaults:
    """A decoder whose inputs for adapters have defaults with elements: `make` writes it."""

    rank: int
    zeros: bool = False
    free: bool = True
    """Whether the inputs leave the rank free."""
    external: bool = False
    """Whether they are in model.onnx.data."""
    letters: str = "lora"
    """A part of the inputs' names."""

    def make(self, out: Path, source: Path = FIXTURES / "nano-apart") -> Shapes:
        """Write the model to `out` with two adapters: `all` has every tensor, `queries` those of the queries' product,
        both of the defaults' rank."""
        shapes = add_inputs(source, out)
        model = onnx.load(str(out / "model.onnx"), load_external_data=False)
        graph = model.graph
        random = np.random.default_rng(7)
        for tensor in graph.initializer:
            if tensor.name in shapes:
                dims = [size or self.rank for size in shapes[tensor.name]]
                values = np.zeros(dims) if self.zeros else 0.5 * random.standard_normal(dims) / np.sqrt(dims[0])
                tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), tensor.name))
                if self.external:
                    append_external(tensor, out / "model.onnx.data")
        for value in graph.input:
            if value.name in shapes and not self.free:
                dims = [size or self.rank for size in shapes[value.name]]
                value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, dims))
        names = {name: name.replace("lora", self.letters) for name in shapes}
        for value in graph.input:
            value.name = names.get(value.name, value.name)
        for tensor in graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        onnx.save(model, str(out / "model.onnx"))
        shapes = {names[name]: shape for name, shape in shapes.items()}
        write_adapter(out / "all.onnx_adapter", shapes, self.rank, 1)
        write_adapter(out / "queries.onnx_adapter", shapes, self.rank, 3, lambda name: ".q_proj." in name)
        return shapes


DEFAULTS = {
    "of an odd rank": Defaults(6),
    "in the data file": Defaults(4, free=False, external=True),
    "in the data file, with a free rank": Defaults(4, external=True),
    "zeros in the data file": Defaults(4, zeros=True, free=False, external=True),
    "of fixed sizes and another name": Defaults(3, free=False, letters="delta"),
}


def append_external(tensor: TensorProto, file: Path) -> None:
    """Move a tensor's bytes to the end of the data file."""
    data, at = tensor.raw_data, file.stat().st_size
    start = at + -at % 64
    with file.open("ab") as out:
        out.write(bytes(start - at) + data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file.name), ("offset", str(start)), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)


def write_adapter(
    path: Path,
    shapes: Mapping[str, Sequence[int | None]],
    rank: int,
    seed: int,
    wanted: Callable[[str], bool] = lambda name: True,
) -> None:
    """An adapter file of random factors, large enough to change the greedy ids."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        dims = [rank if size is None else size for size in shape]
        values = (0.5 * random.standard_normal(dims) / np.sqrt(dims[0])).astype(np.float32)
        if wanted(name):
            tensors[name] = onnxruntime.OrtValue.ortvalue_from_numpy(values)
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters(tensors)
    file.export_adapter(str(path))


if __name__ == "__main__":
    shutil.rmtree(LORA, ignore_errors=True)
    made = add_inputs(FIXTURES / "nano-apart", LORA)
    for adapter, (size, start) in ADAPTERS.items():
        only = (lambda name: ".q_proj." in name) if adapter == "queries" else (lambda name: True)
        write_adapter(LORA / f"{adapter}.onnx_adapter", made, size, start, only)
    print(json.dumps({path.name: path.stat().st_size for path in sorted(LORA.iterdir())}))
