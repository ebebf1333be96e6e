"""Replaces matrix products by MatMulNBits nodes if a DequantizeLinear node would convert their weights to floats in
every run.

    DequantizeLinear(W, scales[, zero points]) [-> Transpose] -> MatMul | Gemm      becomes      MatMulNBits [-> Add]

Both compute x (q - zero) * scale, with a scale for each block of the K elements of a sum. MatMulNBits holds rows of W,
unsigned: weights that are [K, N] in the file are transposed while loading, and signed ones are shifted by half of their
range together with their zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ModelFileError
from .node_writer import new_node, place_of
from .onnx_pb2 import ModelProto, NodeProto, TensorProto
from .parts import Part, Turn
from .weight_inputs import DTYPES, WeightEntry, entry_of, made_of
from .wiring import Wiring, attribute, copy_of, fresh_name, prune

__all__ = ["quantized_products"]

PACKED = (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8)
SIGNED = (TensorProto.INT4, TensorProto.INT8)
LEAST_BLOCK = 16
"""The smallest block of MatMulNBits; blocks are powers of two."""


class NotOneProductError(Exception):
    """Raised for a matrix product that stays unchanged; the message is the reason."""


@dataclass(frozen=True)
class Found:
    """Describes a matrix product with quantized weights."""

    dequantize: NodeProto
    product: NodeProto
    by_rows: bool
    """Whether the file has W as [N, K]."""
    bias: str


def quantized_products(model: ModelProto, accuracy_level: int = 0) -> tuple[ModelProto, str]:
    """The model with MatMulNBits nodes where the computation is the same, and the reason why some products stay
    unchanged (else empty).

    `accuracy_level` is set on the nodes: 4 allows activations in int8.
    """
    result = copy_of(model)
    graph = result.graph
    wiring = Wiring(graph)
    left: list[str] = []
    rewritten = False
    for product in [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]:
        try:
            found = product_of(wiring, product)
            if found is not None:
                Rewriter(result, wiring, found).rewrite(accuracy_level)
                rewritten = True
        except NotOneProductError as reason:
            left.append(f"node {product.name or product.output[0]}: {reason}")
    if rewritten:
        prune(graph)
        if "com.microsoft" not in {item.domain for item in result.opset_import}:
            result.opset_import.add(domain="com.microsoft", version=1)
    return result, f"{left[0]} ({len(left)} such)" if left else ""


def product_of(wiring: Wiring, product: NodeProto) -> Found | None:
    """The product's quantized weight matrix, or None if its weights are not quantized."""
    source = wiring.producer.get(product.input[1])
    turned = False
    if source is not None and source.op_type == "Transpose":
        order = next((list(item.ints) for item in source.attribute if item.name == "perm"), [1, 0])
        below = wiring.producer.get(source.input[0])
        if order == [1, 0] and below is not None and below.op_type == "DequantizeLinear":
            turned, source = True, below
    if source is None or source.op_type != "DequantizeLinear" or source.input[0] not in wiring.constants:
        return None
    bias = ""
    if product.op_type == "Gemm":
        factors = [item.f for item in product.attribute if item.name in ("alpha", "beta")]
        if attribute(product, "transA", 0) or any(factor != 1 for factor in factors):
            raise NotOneProductError("it has factors or a transposed input")
        turned ^= bool(attribute(product, "transB", 0))
        bias = product.input[2] if len(product.input) > 2 else ""
    return Found(source, product, turned, bias)


class Rewriter:
    """Puts a MatMulNBits node in the place of one matrix product. Raises NotOneProductError."""

    def __init__(self, model: ModelProto, wiring: Wiring, found: Found) -> None:
        self.graph, self.wiring, self.found = model.graph, wiring, found
        node = found.dequantize
        self.weights = self.tensor(node.input[0], "weights")
        self.scales = self.tensor(node.input[1], "scales")
        zeros = node.input[2] if len(node.input) > 2 else ""
        self.zeros = self.tensor(zeros, "zero points") if zeros else None
        if self.weights.onnx_type not in PACKED or len(self.weights.dims) != 2:
            raise NotOneProductError(f"its weights are {DTYPES[self.weights.onnx_type][0]} {shape(self.weights)}")
        self.bits = DTYPES[self.weights.onnx_type][1]
        self.k, self.n = self.weights.dims[::-1] if found.by_rows else self.weights.dims
        self.block = attribute(node, "block_size", 0)
        self.require_blocks()

    def tensor(self, name: str, what: str) -> WeightEntry:
        found = self.wiring.constants.get(name)
        if found is None:
            raise NotOneProductError(f"its {what} are computed")
        if found.data_location != TensorProto.EXTERNAL:
            raise NotOneProductError(f"its {what} are inside model.onnx, not in a data file")
        try:
            return entry_of(found)
        except ModelFileError as error:
            raise NotOneProductError(str(error)) from error

    def require_blocks(self) -> None:
        """Raise unless each block of K elements has a scale and, if there are zero points, a zero point of the weights'
        type.
        """
        rows = self.found.by_rows
        axis = attribute(self.found.dequantize, "axis", 1) % 2
        if self.block < LEAST_BLOCK or self.block & (self.block - 1) or axis != rows or self.k % self.block:
            raise NotOneProductError(
                f"MatMulNBits does not support its blocks of {self.block} along axis {axis} of {shape(self.weights)}"
            )
        blocks = self.k // self.block
        dims = (self.n, blocks) if rows else (blocks, self.n)
        for entry in filter(None, (self.scales, self.zeros)):
            if entry.dims != dims:
                raise NotOneProductError(f"{entry.name} is {shape(entry)} instead of a number for each block")
        if self.zeros is not None and self.zeros.onnx_type != self.weights.onnx_type:
            raise NotOneProductError(f"{self.zeros.name} is {self.zeros.dtype} for weights of {self.weights.dtype}")
        made = attribute(self.found.dequantize, "output_dtype", 0)
        if made not in (0, self.scales.onnx_type):
            raise NotOneProductError(f"its {self.scales.dtype} scales give floats of another type")
        if rows and self.zeros is not None and blocks * self.bits % 8:
            raise NotOneProductError(
                f"{self.zeros.name} has rows of {blocks} half bytes, some of which start within a byte"
            )

    def rewrite(self, accuracy_level: int) -> None:
        product = self.found.product
        blocks = self.k // self.block
        zero_bytes = (blocks * self.bits + 7) // 8
        flipped = self.weights.onnx_type in SIGNED
        inputs = [product.input[0]]
        inputs.append(self.made(self.weights, (self.n, blocks, self.block * self.bits // 8), self.bits, flipped))
        if self.found.by_rows:
            inputs.append(self.scales.name)
        else:
            inputs.append(self.made(self.scales, (self.n, blocks), DTYPES[self.scales.onnx_type][1], False))
        if self.zeros is not None:
            inputs.append(self.made(self.zeros, (self.n, zero_bytes), self.bits, flipped))
        elif not flipped:
            # Without zero points MatMulNBits uses half of the range as zero, DequantizeLinear uses 0.
            name = fresh_name(self.graph, f"{self.weights.name}_zeros")
            tensor = TensorProto(name=name, data_type=TensorProto.UINT8, raw_data=bytes(self.n * zero_bytes))
            tensor.dims.extend((self.n, zero_bytes))
            self.graph.initializer.add().CopyFrom(tensor)
            inputs.append(name)
        result = product.output[0]
        made = fresh_name(self.graph, f"{result}_product") if self.found.bias else result
        nodes = [
            new_node(
                "MatMulNBits",
                inputs,
                [made],
                name=product.name,
                domain="com.microsoft",
                K=self.k,
                N=self.n,
                bits=self.bits,
                block_size=self.block,
                accuracy_level=accuracy_level,
            )
        ]
        if self.found.bias:
            name = fresh_name(self.graph, f"{product.name}_bias")
            nodes.append(new_node("Add", [made, self.found.bias], [result], name=name))
        place = place_of(self.graph, product)
        del self.graph.node[place]
        for each in reversed(nodes):
            self.graph.node.insert(place, each)

    def made(self, entry: WeightEntry, dims: Sequence[int], bits: int, flipped: bool) -> str:
        """An initializer with these rows of W, its scales or its zero points."""
        tensors = {tensor.name for tensor in self.graph.initializer}
        name = f"{entry.name}_rows"
        if name not in tensors:  # Several products share a tensor of weights.
            rows, columns = (entry.dims[0] * entry.dims[1], 1) if self.found.by_rows else entry.dims
            turn = None if self.found.by_rows and not flipped else Turn(rows, columns, bits, flipped)
            kind = TensorProto.UINT8 if entry.onnx_type in PACKED else entry.onnx_type
            part = Part(entry.offset, entry.length, turn)
            self.graph.initializer.add().CopyFrom(made_of(name, kind, dims, entry.location, [part]))
        return name


def shape(entry: WeightEntry) -> str:
    return "x".join(map(str, entry.dims))
