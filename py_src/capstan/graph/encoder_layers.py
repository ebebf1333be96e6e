"""Recognises the layers of an encoder as exporters write them: norm, attention of every position over all positions,
norm and feed-forward.

    x -> LayerNormalization -> q, k, v -> Softmax(q k) v -> out -> + x -> LayerNormalization -> up -> GELU -> down -> +

The matrix products are MatMul nodes with weights [k, n] or MatMulNBits nodes, each with a bias. The activation is
recognised by its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UnsupportedModelError
from .onnx_pb2 import ModelProto, NodeProto, ValueInfoProto
from .plain_attention import floats
from .wiring import SAME_VALUES, Wiring, attribute, captured_names, integers, value_info

__all__ = [
    "EncoderLayer",
    "EncoderLayers",
    "LayerNorm",
    "LayerProduct",
    "after_layers",
    "before_layers",
    "encoder_layers",
]


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNormalization of rows, its weights by name."""

    gamma: str
    beta: str
    epsilon: float


@dataclass(frozen=True)
class LayerProduct:
    """Describes a matrix product W x + bias, with weights by name: dense weights [k, n], or integers of `bits` [n, k]
    with scales.
    """

    weights: str
    n: int
    k: int
    bias: str = ""
    scales: str = ""
    zeros: str = ""
    bits: int = 4
    block: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.weights, self.bias, self.scales, self.zeros)))


@dataclass(frozen=True)
class EncoderLayer:
    """A layer of an encoder."""

    before: LayerNorm
    """The norm before attention."""
    q: LayerProduct
    k: LayerProduct
    v: LayerProduct
    head: int
    """Elements of a head."""
    scale: float
    """The factor of the products of q and k."""
    out: LayerProduct
    between: LayerNorm
    """The norm before the feed-forward layer."""
    up: LayerProduct
    down: LayerProduct
    activation: str
    """A name in ACTIVATIONS."""

    @property
    def products(self) -> tuple[LayerProduct, ...]:
        return (self.q, self.k, self.v, self.out, self.up, self.down)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all weights."""
        norms = (self.before.gamma, self.before.beta, self.between.gamma, self.between.beta)
        return (*norms, *(name for product in self.products for name in product.names))

    @property
    def packed(self) -> tuple[str, ...]:
        """The matrix products with integer weights."""
        return tuple(name for product in self.products if product.scales for name in (product.weights, product.zeros))


@dataclass(frozen=True)
class EncoderLayers:
    """The layers of an encoder, one after another, from the tensor `enter` to `leave`."""

    enter: str
    leave: str
    layers: tuple[EncoderLayer, ...]


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x / (1 + math.exp(-(1.5957691216057308 * x + 0.07135481627260025 * x**3))),
    "gelu by erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}
POINTS = (-5.0, -2.5, -2.0, -1.0, -0.5, 0.25, 1.0, 2.0, 2.5, 5.0)
"""The points at which an activation's values are compared."""
ALIKE = 2e-3
"""The allowed difference, since constants are rounded to float16."""
BINARY: dict[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Pow": lambda a, b: float(a**b),
}
UNARY: dict[str, Callable[[float], float]] = {
    "Tanh": math.tanh,
    "Erf": math.erf,
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "FastGelu": ACTIVATIONS["gelu"],
    "Cast": float,
    "Identity": float,
}
PRODUCTS = ("MatMul", "MatMulNBits")
HEADS_FIRST = (0, 2, 1, 3)


@dataclass(frozen=True)
class Path:
    """The path of a tensor through nodes that move and scale its elements, to the first other node."""

    end: str
    node: NodeProto
    perm: tuple[int, ...]
    scale: float
    size: int
    """The last size of the last Reshape, 0 without one."""


class LayerReader:
    """Reads layers from a graph. Its methods raise UnsupportedModelError for nodes that they do not recognise."""

    def __init__(self, model: ModelProto) -> None:
        self.wiring = Wiring(model.graph)
        self.dims: dict[str, list[int]] = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
        for value in model.graph.input:
            self.dims[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that read the elements of a tensor."""
        if name in self.wiring.outputs:
            raise refused(f"{name} is also an output of the graph")
        return [node for node in self.wiring.consumers.get(name, []) if node.op_type != "Shape"]

    def only(self, name: str, *kinds: str) -> NodeProto:
        """The only node that reads a tensor; it must be of one of these kinds."""
        found = self.readers(name)
        if len(found) != 1 or (kinds and found[0].op_type not in kinds):
            shown = ", ".join(node.op_type for node in found)
            raise refused(f"{name} is read by {shown or 'none'} instead of one {' or '.join(kinds) or 'node'}")
        return found[0]

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        values = floats(self.wiring.constants.get(name))
        return values[0] if values is not None and len(values) == 1 else None

    def path(self, name: str) -> Path:
        perm: tuple[int, ...] = (0, 1, 2, 3)
        scale, size = 1.0, 0
        while True:
            node = self.only(name)
            numbers = [(place, self.number(each)) for place, each in enumerate(node.input)]
            constant = next(((place, number) for place, number in numbers if number is not None), None)
            if node.op_type == "Reshape":
                size = self.last_size(node.input[1])
            elif node.op_type == "Transpose":
                own = next((list(item.ints) for item in node.attribute if item.name == "perm"), [])
                if len(own) != len(perm):
                    raise refused(f"{node.name or node.output[0]} transposes {len(own)} dimensions")
                perm = tuple(perm[place] for place in own)
            elif node.op_type in ("Mul", "Div") and constant is not None and (node.op_type, constant[0]) != ("Div", 0):
                scale = scale * constant[1] if node.op_type == "Mul" else scale / constant[1]
            elif node.op_type not in SAME_VALUES:
                return Path(name, node, perm, scale, size)
            name = node.output[0]

    def last_size(self, shape: str) -> int:
        maker = self.wiring.producer.get(shape)
        last = maker.input[-1] if maker is not None and maker.op_type == "Concat" else shape
        values = integers(self.wiring.constants.get(last))
        return values[-1] if values else 0

    def norm(self, node: NodeProto) -> LayerNorm:
        epsilon = next((item.f for item in node.attribute if item.name == "epsilon"), 1e-5)
        if attribute(node, "axis", -1) not in (-1, 2) or len(node.input) != 3 or not node.input[2]:
            raise refused(f"{node.name or node.output[0]} is not a LayerNorm of rows with a bias")
        return LayerNorm(node.input[1], node.input[2], epsilon)

    def product(self, node: NodeProto) -> tuple[LayerProduct, str]:
        """A matrix product, and the tensor that it makes with its bias."""
        dims = self.dims.get(node.input[1], [])
        if node.op_type == "MatMul" and len(dims) == 2:
            found = LayerProduct(node.input[1], dims[1], dims[0])
        elif node.op_type == "MatMulNBits" and not any(node.input[4:]):
            n, k, block, bits = (attribute(node, name, 4) for name in ("N", "K", "block_size", "bits"))
            zeros = node.input[3] if len(node.input) > 3 else ""
            found = LayerProduct(node.input[1], n, k, "", node.input[2], zeros, bits, block)
        else:
            raise refused(f"{node.name or node.output[0]} is not a product by a matrix of weights")
        made = node.output[0]
        readers = self.readers(made)
        if len(readers) == 1 and readers[0].op_type == "Add":
            for bias in readers[0].input:
                if self.dims.get(bias) == [found.n]:
                    by = (found.scales, found.zeros, found.bits, found.block)
                    return LayerProduct(found.weights, found.n, found.k, bias, *by), readers[0].output[0]
        return found, made

    def layer(self, norm: NodeProto) -> tuple[EncoderLayer, str]:
        """The layer that begins with a norm, and the tensor that it makes."""
        enter = norm.input[0]
        products = self.readers(norm.output[0])
        if len(products) != 3:
            raise refused(f"{norm.output[0]} is read by {len(products)} nodes instead of q, k and v")
        found = [(product, self.path(made)) for product, made in map(self.product, products)]
        keys = [each for each in found if each[1].perm == (0, 2, 3, 1)]
        if len(keys) != 1:
            raise refused(f"{norm.output[0]} does not have exactly one product whose result is transposed like keys")
        [(k, key)] = keys
        scores = key.node
        queries = [each for each in found if each[1].node is scores and each[1].end == scores.input[0]]
        values = [each for each in found if each not in keys and each not in queries]
        if scores.op_type != "MatMul" or len(queries) != 1 or len(values) != 1:
            raise refused(f"{norm.output[0]} has no queries that are multiplied by keys")
        [(q, query)], [(v, value)] = queries, values
        scaled = self.path(scores.output[0])
        weighted = self.weights(scaled)
        if weighted is not value.node or value.end != weighted.input[1] or {value.perm, query.perm} != {HEADS_FIRST}:
            raise refused(f"{scores.output[0]}: its softmax does not weigh the values of the same layer")
        joined = self.path(weighted.output[0])
        out, attended = self.product(joined.node)
        if joined.end != joined.node.input[0] or joined.perm != HEADS_FIRST or not key.size == query.size == value.size:
            raise refused(f"{weighted.output[0]}: heads are not joined in the way in which they were split")
        middle = self.sum(attended, enter)
        norms = [node for node in self.readers(middle) if node.op_type == "LayerNormalization"]
        if len(norms) != 1:
            raise refused(f"{middle} does not have exactly one norm")
        up, raised = self.product(self.only(norms[0].output[0], *PRODUCTS))
        activation, last = self.activation(raised)
        down, made = self.product(last)
        scale = query.scale * key.scale * scaled.scale
        if (scaled.perm, value.scale, joined.scale) != ((0, 1, 2, 3), 1.0, 1.0) or not (q.n == k.n == v.n == out.k):
            raise refused(f"{norm.output[0]}: attention has several widths, or scales its values")
        parts = (self.norm(norm), q, k, v, query.size, scale, out, self.norm(norms[0]), up, down, activation)
        return EncoderLayer(*parts), self.sum(made, middle)

    def weights(self, scaled: Path) -> NodeProto:
        """The node that reads the softmax of scores."""
        node = scaled.node
        if node.op_type == "Add":
            mask = next((name for name in node.input if name != scaled.end), "")
            self.require_same(mask)
            node = self.only(node.output[0])
        if node.op_type != "Softmax" or attribute(node, "axis", -1) not in (-1, 3):
            raise refused(f"{scaled.end} has no softmax over keys")
        found = self.path(node.output[0])
        if (found.perm, found.scale, found.size) != ((0, 1, 2, 3), 1.0, 0):
            raise refused(f"{node.output[0]} is changed before it weighs values")
        return found.node

    def require_same(self, mask: str) -> None:
        """Raise UnsupportedModelError for a mask that depends on pixel values; it may depend on sizes, and on the
        choice of tiles.
        """
        waiting, met = [mask], {mask}
        while waiting:
            name = waiting.pop()
            node = self.wiring.producer.get(name)
            if node is None and name in self.wiring.inputs:
                raise refused(f"the mask {mask} depends on {name}")
            more = set(node.input) - met if node is not None and node.op_type not in ("NonZero", "Shape") else set()
            met |= more
            waiting += more

    def sum(self, made: str, other: str) -> str:
        node = self.only(made, "Add")
        if set(node.input) != {made, other}:
            raise refused(f"{made} is not added to {other}")
        return node.output[0]

    def activation(self, name: str) -> tuple[str, NodeProto]:
        """The activation of a tensor by its name in ACTIVATIONS, and the product that reads its results."""
        nodes, last, ends = list[NodeProto](), name, list[NodeProto]()
        known, waiting = {name}, [name]
        while waiting:
            for node in self.readers(waiting.pop()):
                free = {each for each in node.input if each and self.number(each) is None}
                if node.op_type in PRODUCTS:
                    ends.append(node)
                    last = node.input[0]
                elif free <= known and node.output[0] not in known and (node.op_type in {**BINARY, **UNARY, "Gelu": 0}):
                    nodes.append(node)
                    known.add(node.output[0])
                    waiting.append(node.output[0])
        if len(ends) != 1 or not nodes:
            raise refused(f"{name} has no activation before a product")
        off = {kind: max(abs(f(x) - self.value(last, name, x)) for x in POINTS) for kind, f in ACTIVATIONS.items()}
        best = min(off, key=lambda kind: off[kind])
        if not off[best] <= ALIKE:
            raise refused(f"the activation of {name} is none of {', '.join(ACTIVATIONS)}")
        return best, ends[0]

    def value(self, name: str, free: str, x: float) -> float:
        """An element of a tensor if the element of `free` is x."""
        if name == free:
            return x
        constant = self.number(name)
        node = self.wiring.producer.get(name)
        if constant is not None or node is None:
            return math.nan if constant is None else constant
        given = [self.value(each, free, x) for each in node.input if each]
        if node.op_type == "Gelu":
            by = any(item.s == b"tanh" for item in node.attribute if item.name == "approximate")
            return ACTIVATIONS["gelu" if by else "gelu by erf"](given[0])
        if len(given) == 2 and node.op_type in BINARY:
            return BINARY[node.op_type](*given)
        return UNARY[node.op_type](given[0]) if len(given) == 1 and node.op_type in UNARY else math.nan


def refused(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(why)


def encoder_layers(model: ModelProto) -> EncoderLayers:
    """The first layer of a graph and all layers after it. Raises UnsupportedModelError, with the reason, if there is
    none.
    """
    reader = LayerReader(model)
    norms = {node.input[0]: node for node in model.graph.node if node.op_type == "LayerNormalization"}
    why = ""
    for enter, norm in norms.items():
        try:
            layer, leave = reader.layer(norm)
        except UnsupportedModelError as error:
            why = why or str(error)
            continue
        layers = [layer]
        while leave in norms:
            try:
                layer, after = reader.layer(norms[leave])
            except UnsupportedModelError:
                break
            layers.append(layer)
            leave = after
        return EncoderLayers(enter, leave, tuple(layers))
    raise refused(f"no layer of an encoder was recognised: {why or 'the graph has no LayerNormalization'}")


Sizes = Mapping[str, Sequence[int]]
"""Dimensions of inputs, by name. If all are known, onnxruntime computes only once what depends only on sizes."""


def before_layers(model: ModelProto, found: EncoderLayers, sizes: Sizes) -> ModelProto:
    """The graph up to the tensor that enters the layers."""
    return part_of(model, [ValueInfoProto(name=found.enter)], sized(model, sizes))


def after_layers(model: ModelProto, found: EncoderLayers, sizes: Sizes, kind: int, rows: int) -> ModelProto:
    """The graph after the tensor that leaves the layers, [1, rows, width] of type `kind`. Raises UnsupportedModelError
    if it needs the layers' weights.
    """
    left = value_info(found.leave, kind, [1, rows, found.layers[-1].down.n])
    made = part_of(model, model.graph.output, [left, *sized(model, sizes)])
    inner = {name for layer in found.layers for name in layer.names}
    kept = inner & {name for node in made.graph.node for name in node.input}
    if kept:
        raise refused(f"{min(kept)} is also read after the layers")
    return made


def sized(model: ModelProto, sizes: Sizes) -> list[ValueInfoProto]:
    """The graph's inputs, with the dimensions in `sizes` where given."""
    return [
        value_info(value.name, value.type.tensor_type.elem_type, sizes[value.name]) if value.name in sizes else value
        for value in model.graph.input
    ]


def part_of(model: ModelProto, outputs: Iterable[ValueInfoProto], given: Sequence[ValueInfoProto]) -> ModelProto:
    """A model of the nodes that make some outputs from given tensors; its inputs are the given tensors that it
    reads.
    """
    made = ModelProto(ir_version=model.ir_version)
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    made.graph.name = "part"
    made.graph.output.extend(outputs)
    wanted, known = {value.name for value in made.graph.output}, {value.name for value in given}
    nodes = []
    for node in reversed(model.graph.node[:]):
        if (wanted - known).intersection(node.output):
            nodes.append(node)
            wanted.update(node.input, captured_names(node))
    made.graph.node.extend(reversed(nodes))
    made.graph.input.extend(value for value in given if value.name in wanted)
    made.graph.initializer.extend(tensor for tensor in model.graph.initializer[:] if tensor.name in wanted)
    return made
