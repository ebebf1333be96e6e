"""A row vector times a matrix of weights, with what surrounds it in a decoder joined to it.

The kernels are matvec_q4.wgsl for weights in int4 or int8 and matvec_dense.wgsl for dense ones; gemv_int4.py and
gemv_dense.py choose their tiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, StepGraph
from ..uniforms import Number
from ..witness import Witness
from .elementwise import Add, Multiply, Silu, total_of
from .gemv_dense import column_width, tune_dense
from .gemv_int4 import tune_matvec
from .norm import Norm, RmsNorm

__all__ = ["DENSE_LINES", "RULES", "MatVec", "dense_shape", "fits_matvec"]

RUN = 32
"""Elements of a row that a thread takes at a time."""
SIXTEEN = 16
"""The one size of blocks below a run: a run has two scales."""


@dataclass(frozen=True)
class MatVec(Operation):
    """W x; reads[0] is x, reads[1] the residual if added.

    W is [n, k] in integers of `bits` with a scale, and a zero point if there are `zeros`, for each `block` of a row;
    or, without scales, [k, n] of numbers like those of x.

    With `norm`, x is normalised first. With `up`, the result is silu(W x) * (W_up x). Buffers of weights by id.
    """

    weights: int
    scales: int | None
    """None where the weights are dense."""
    n: int
    k: int
    block: int
    """Of weights in integers, else 0."""
    element: str
    norm: RmsNorm | None = None
    residual: bool = False
    up: tuple[int, ...] | None = None
    """The other half of a gated layer: weights, and scales and zero points if there are."""
    bits: int = 4
    """Of weights in integers: 4 or 8."""
    zeros: int | None = None
    """Zero points, packed as the weights are; None where each is half of the range."""

    @property
    def title(self) -> str:
        kind = "dense" if self.scales is None else f"int{self.bits}"
        return f"the {kind} product {self.k} -> {self.n}"

    @property
    def terms(self) -> int:
        return self.k

    def written_bytes(self, index: int) -> int:
        return self.n * ELEMENT_BYTES[self.element]

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        bindings: dict[str, Binding] = {"x": Value(reads[0]), "weights": Buffer(self.weights), "y": Value(writes[0])}
        if self.scales is not None:
            bindings["scales"] = Buffer(self.scales)
        if self.zeros is not None:
            bindings["zeros"] = Buffer(self.zeros)
        if self.norm is not None:
            bindings["gamma"] = Buffer(self.norm.gamma)
        if self.residual:
            bindings["residual"] = Value(reads[1])
        for name, buffer in zip(("weights_up", "scales_up", "zeros_up"), self.up or (), strict=False):
            bindings[name] = Buffer(buffer)
        return [Kernel(plan_matvec(self, limits), self.element == "f16", bindings)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        each, given = ELEMENT_BYTES[self.element], not witness.is_made(writes[0])
        constants: dict[str, int | float | bool] = {
            "N": self.n,
            "K": self.k,
            "BLOCK": self.block or gcd(self.k, 64),
            "DENSE": self.scales is None,
            "BYTES": self.bits == 8,
            "ZEROS": self.zeros is not None,
            "NORM": self.norm is not None,
            "RESIDUAL": self.residual,
            "GATED": self.up is not None,
            "GIVEN": given,
        }
        bindings = {"x": witness.keep(reads[0], self.k * each), "weights": ["recorded", self.weights]}
        if self.scales is not None:
            bindings["scales"] = ["recorded", self.scales]
        if self.zeros is not None:
            bindings["zeros"] = ["recorded", self.zeros]
        if self.norm is not None:
            constants["EPSILON"] = self.norm.epsilon
            bindings["gamma"] = ["recorded", self.norm.gamma]
        if self.residual:
            bindings["residual"] = witness.keep(reads[1], self.n * each)
        for name, buffer in zip(("weights_up", "scales_up", "zeros_up"), self.up or (), strict=False):
            bindings[name] = ["recorded", buffer]
        truth, y = witness.truths(self.n), witness.keep(writes[0], self.n * each)
        bindings |= {"truth": truth, "y": y} if given else {"truth": truth}
        witness.run("truth_gemv", constants, self.element == "f16", bindings, (-(-self.n // 64), 1, 1))
        if not given:
            witness.judge("result", self.element, y, truth)


def plan_matvec(what: MatVec, limits: WorkgroupLimits) -> KernelPlan:
    """The kernel that computes a product, and its workgroups."""
    fused: dict[str, int | float | bool] = {
        "NORM": what.norm is not None,
        "RESIDUAL": what.residual,
        "GATED": what.up is not None,
    }
    if what.norm is not None:
        fused["EPSILON"] = what.norm.epsilon
    if what.scales is None:
        dense = tune_dense(what.k, what.n, what.up is not None, what.element == "f16", limits)
        return KernelPlan("matvec_dense", {**fused, **dense.constants()}, (dense.workgroups, 1, 1))
    tuning = tune_matvec(what.k, what.n, what.up is not None, what.element == "f16", limits)
    packed = {"BYTES": what.bits == 8, "ZEROS": what.zeros is not None, "SIXTEENS": what.block == SIXTEEN}
    constants = {**fused, "BLOCK": what.block, "BIAS": False, **packed, **tuning.constants()}
    return KernelPlan("matvec_q4", constants, (tuning.workgroups, 1, 1))


def fits_matvec(what: MatVec) -> bool:
    """Whether web/src/shaders/matvec_q4.wgsl or, for dense ones, matvec_dense.wgsl covers these weights."""
    if what.scales is None:
        return what.k % 4 == 0 and what.n % column_width(what.element == "f16") == 0
    return what.k % RUN == 0 and (what.block == SIXTEEN or what.block % RUN == 0) and what.bits in (4, 8)


def gates_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let one product compute silu(W x) * (W_up x) where nobody else reads what passes between the parts."""
    readers, makers = graph.readers(), graph.makers()
    lasting = set(graph.last.values())

    def made_for(value: int, reader: Node) -> Node | None:
        """What makes a value for one reader alone."""
        return makers.get(value) if value not in lasting and readers[value] == [reader] else None

    gone: set[int] = set()
    """Values that are no longer made."""
    joined: dict[int, Node] = {}
    """What takes the place of a multiplication, by the value it makes."""
    for node in graph.nodes:
        if not isinstance(node.what, Multiply):
            continue
        for gate_value, up_value in (node.reads, node.reads[::-1]):
            silu, up = made_for(gate_value, node), made_for(up_value, node)
            if silu is None or up is None or not isinstance(silu.what, Silu):
                continue
            gate = made_for(silu.reads[0], silu)
            if gate is None or gate.reads != up.reads:
                continue
            if not (isinstance(gate.what, MatVec) and isinstance(up.what, MatVec) and _pair(gate.what, up.what)):
                continue
            if silu.what.size == node.what.size == gate.what.n:
                weights = [up.what.weights, up.what.scales, up.what.zeros]
                joined[node.writes[0]] = replace(
                    gate,
                    what=replace(gate.what, up=tuple(buffer for buffer in weights if buffer is not None)),
                    writes=node.writes,
                    position=node.position,
                    origins=gate.origins | up.origins | silu.origins | node.origins,
                )
                gone |= {*silu.writes, *silu.reads, up_value}
                break
    nodes = [joined.get(node.writes[0], node) if node.writes else node for node in graph.nodes]
    return replace(graph, nodes=tuple(node for node in nodes if gone.isdisjoint(node.writes)))


def _pair(gate: MatVec, up: MatVec) -> bool:
    """Whether two products differ in their weights alone, and do nothing besides."""
    alike = replace(gate, weights=up.weights, scales=up.scales, zeros=up.zeros) == up
    alike = alike and (gate.scales is None) == (up.scales is None) and (gate.zeros is None) == (up.zeros is None)
    return alike and gate.up is None and gate.norm is None and not gate.residual


def residuals_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let a product add the residual that its result alone is added to."""
    readers, makers = graph.readers(), graph.makers()
    lasting = set(graph.last.values())
    gone: set[int] = set()
    """Values that are no longer made."""
    joined: dict[int, Node] = {}
    """What takes the place of a sum, by the value it makes."""
    for node in graph.nodes:
        if not isinstance(node.what, Add):
            continue
        for product, other in (node.reads[::-1], node.reads):
            maker = makers.get(product)
            if maker is None or product == other or product in lasting or readers[product] != [node]:
                continue
            if isinstance(maker.what, MatVec) and not maker.what.residual and maker.what.up is None:
                joined[node.writes[0]] = replace(
                    maker,
                    what=replace(maker.what, residual=True),
                    reads=(*maker.reads, other),
                    writes=node.writes,
                    position=node.position,
                    origins=maker.origins | node.origins,
                )
                gone.add(product)
                break
    nodes = [
        joined.get(node.writes[0], node) if isinstance(node.what, Add) else node
        for node in graph.nodes
        if not (isinstance(node.what, MatVec) and node.writes[0] in gone)
    ]
    return replace(graph, nodes=tuple(nodes))


def norms_joined(graph: StepGraph, _: Mapping[int, Met]) -> StepGraph:
    """Let products normalise their input themselves, where nobody else reads the normalised vector."""
    readers = graph.readers()
    lasting = set(graph.last.values())
    folded: dict[int, Node] = {}
    """Norms that go, by the value they make."""
    for node in graph.nodes:
        if isinstance(node.what, Norm) and node.writes[0] not in lasting:
            using = readers.get(node.writes[0], [])
            if using and all(_takes_norm(reader, node.writes[0]) for reader in using):
                folded[node.writes[0]] = node
    nodes = []
    for node in graph.nodes:
        if node.writes and node.writes[0] in folded and isinstance(node.what, Norm):
            continue
        norm = folded.get(node.reads[0]) if isinstance(node.what, MatVec) else None
        if norm is not None and isinstance(node.what, MatVec) and isinstance(norm.what, Norm):
            what = replace(node.what, norm=norm.what.by)
            origins = node.origins | norm.origins
            node = replace(node, what=what, reads=(norm.reads[0], *node.reads[1:]), origins=origins)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _takes_norm(reader: Node, value: int) -> bool:
    what = reader.what
    return isinstance(what, MatVec) and what.norm is None and reader.reads[0] == value and value not in reader.reads[1:]


def one_row(kernel: OrtKernel) -> bool:
    return all(kernel.uniforms[name] == 1 for name in ("M", "batch_count", "dispatch_M"))


def one_dense_row(kernel: OrtKernel) -> bool:
    return dense_shape(kernel.uniforms, 1) is not None


def dense_shape(uniforms: Mapping[str, Number], rows: int) -> tuple[int, int] | None:
    """k and n if the uniforms tell of `rows` rows of k elements by a matrix [k, n]; their shapes are in vectors of four
    elements. Raises KeyError for uniforms with other fields."""
    k, n = uniforms["dim_inner"], uniforms["dim_b_outer"]
    if not (isinstance(k, int) and isinstance(n, int) and k % 4 == n % 4 == 0 and uniforms["dim_a_outer"] == rows):
        return None
    sizes = {name: prod(shape) for name in ("a", "output") if isinstance(shape := uniforms[f"{name}_shape"], tuple)}
    whole = sizes == {"a": rows * k // 4, "output": rows * n // 4} and uniforms["b_shape"] == (k, n // 4)
    return (k, n) if whole else None


def packed_product(met: Met, bits: int) -> list[Node] | None:
    kernel, at = met.kernel, met.kernel.at
    n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
    zeros = at.get("zero_points")
    if zeros is not None and kernel.number("zero_blocks_per_col") != zero_points_of_row(k, block, bits):
        return None
    what = MatVec(at["input_b"], at["scales_b"], n, k, block, kernel.element, bits=bits, zeros=zeros)
    return [met.node(what, (met.read("input_a"),), met.written("output"))] if fits_matvec(what) else None


def zero_points_of_row(k: int, block: int, bits: int) -> int:
    """Those of whole bytes, as matvec_q4.wgsl counts them."""
    blocks, in_byte = (k + block - 1) // block, 8 // bits
    return (blocks + in_byte - 1) // in_byte * in_byte


def dense_product(met: Met) -> list[Node] | None:
    kernel = met.kernel
    what = MatVec(kernel.at["b"], None, kernel.number("dim_b_outer"), kernel.number("dim_inner"), 0, kernel.element)
    return [met.node(what, (met.read("a"),), met.written("output"))] if fits_matvec(what) else None


def gated_half(met: Met) -> list[Node] | None:
    kernel, at = met.kernel, met.kernel.at
    n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
    by = RmsNorm(at["norm_scale"], kernel.real("epsilon"))
    up = (at["up_b"], at["up_scales_b"])
    what = MatVec(at["gate_b"], at["gate_scales_b"], n, k, block, kernel.element, norm=by, up=up)
    if not fits_matvec(what):
        return None
    total, value = total_of(met, "input_a", "skip", "input_skip_bias_sum", k)
    return [total, met.node(what, (value,), met.written("output"))]


ZERO_POINTS = (
    "let offset = row * c_dim + col;",
    "let packed_value = zero_points[array_index];",
    "let masked_value = (packed_value >> shift_amount) & bit_mask;",
    "mm_read_zero(b_global, block_idx, uniforms.N, uniforms.zero_blocks_per_col);",
)
"""How a kernel finds the zero point of a block."""

DENSE_LINES = (
    "a: array<vec4<f",
    "b: array<vec4<f",
    "output: array<vec4<f",
    "return a[i2o_a(indices_fnarg)];",
    "return b[i2o_b(indices_fnarg)];",
    "a_indices[1]=u32(row);\na_indices[2]=u32(colIn);\n        value = get_a_by_indices(a_indices);\n    }",
    "b_indices[0]=u32(row);\nb_indices[1]=u32(colIn);\n        value = get_b_by_indices(b_indices);\n    }",
    "var kStart = 0;",
    "acc[i] = BCached0 * ACached.x + acc[i];",
    "acc[i] = BCached3 * ACached.w + acc[i];",
    "mm_write(batch, globalRow + innerRow, globalCol, acc[innerRow]);",
    "var value = valueIn;\n    let coords = vec3(u32(batch), u32(row), u32(colIn));\n    \n"
    "    set_output_by_indices(coords, value);",
    "output[i2o_output(indices)]=value;",
)
"""Of onnxruntime-web's product by a dense matrix [k, n], of however many rows: without bias or activation."""


RULES = Rules(
    (
        *(
            Signature(
                "matmul_nbits",
                "matvec",
                ("input_a", "input_b", "scales_b", *zeros, "output"),
                has=(
                    f"const default_zero_point = {1 << (bits - 1)};",
                    f"const bit_mask = 0x{(1 << bits) - 1:X}u;",
                    "const b_base_offset : u32 = 0;",
                    "const b_scale_offset : u32 = 0;",
                    "output[output_idx]=output_value;",
                    *(ZERO_POINTS if zeros else ()),
                ),
                asked=("N", "K", "block_size", *(["zero_blocks_per_col"] if zeros else [])),
                weights=("input_b", "scales_b", *zeros),
                holds=one_row,
                parts=partial(packed_product, bits=bits),
            )
            for bits in (4, 8)
            for zeros in ((), ("zero_points",))
        ),
        Signature(
            "gated_mlp",
            "gated",
            (
                "input_a",
                "skip",
                "norm_scale",
                "gate_b",
                "gate_scales_b",
                "up_b",
                "up_scales_b",
                "output",
                "input_skip_bias_sum",
            ),
            has=(
                "const default_zero_point = output_element_t(8);",
                "& 0x0F0F0F0Fu",
                "inverseSqrt(",
                "gate_output_value * (one / (one + exp(-gate_output_value)))",
                "activated_value * up_output_value",
            ),
            asked=("N", "K", "block_size", "epsilon"),
            weights=("norm_scale", "gate_b", "gate_scales_b", "up_b", "up_scales_b"),
            lacks=("bias[", "gate_bias", "up_bias"),
            holds=lambda kernel: (
                kernel.uniforms["batch_count"] == 1 and kernel.uniforms["skip_size"] == kernel.uniforms["K"]
            ),
            parts=gated_half,
        ),
        Signature(
            "matmul",
            "matvec",
            ("a", "b", "output"),
            has=DENSE_LINES,
            asked=("dim_inner", "dim_b_outer"),
            weights=("b",),
            holds=one_dense_row,
            parts=dense_product,
        ),
    ),
    folds={"gated": gates_joined, "residual": residuals_joined, "norm": norms_joined},
)
