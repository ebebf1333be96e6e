"""Recognises matrix products of one row in a recorded step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod

from ..ort_kernels import Met, OrtKernel, Rules, Signature
from ..step_graph import Node, Recorded, StepGraph
from ..uniforms import Number
from .elementwise import total_of
from .gemv import MatVec, fits_matvec, unfit_matvec
from .gemv_joins import gates_joined, norms_joined, sums_joined
from .norm import RmsNorm

__all__ = ["DENSE_LINES", "RULES", "dense_shape"]


def one_row(kernel: OrtKernel) -> bool:
    return all(kernel.uniforms[name] == 1 for name in ("M", "batch_count", "dispatch_M"))


def one_dense_row(kernel: OrtKernel) -> bool:
    return dense_shape(kernel.uniforms, 1) is not None


def dense_shape(uniforms: Mapping[str, Number], rows: int) -> tuple[int, int] | None:
    """k and n if the uniforms are those of `rows` rows of k elements by a matrix [k, n]; their shapes are in vectors of
    four elements. Raises KeyError for uniforms with other fields.
    """
    k, n = uniforms["dim_inner"], uniforms["dim_b_outer"]
    if not (isinstance(k, int) and isinstance(n, int) and k % 4 == n % 4 == 0 and uniforms["dim_a_outer"] == rows):
        return None
    sizes = {name: prod(shape) for name in ("a", "output") if isinstance(shape := uniforms[f"{name}_shape"], tuple)}
    whole = sizes == {"a": rows * k // 4, "output": rows * n // 4} and uniforms["b_shape"] == (k, n // 4)
    return (k, n) if whole else None


def packed_product(met: Met, bits: int, x: int | None = None) -> list[Node] | None:
    """The product of the kernel's input, or of the value `x` from which the input was rounded."""
    kernel = met.kernel
    if misplaced_zeros(kernel, bits):
        return None
    what = replace(packed_weights(kernel, bits), rounded=x is not None)
    reads = (met.read("input_a") if x is None else x,)
    return [met.node(what, reads, met.written("output"))] if fits_matvec(what) else None


def packed_weights(kernel: OrtKernel, bits: int) -> MatVec:
    at = kernel.at
    n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
    zeros = at.get("zero_points")
    return MatVec(at["input_b"], at["scales_b"], n, k, block, kernel.element, bits=bits, zeros=zeros)


def misplaced_zeros(kernel: OrtKernel, bits: int) -> str:
    """The reason why matvec_q4.wgsl cannot read the kernel's zero points; empty if it can read them."""
    if "zero_points" not in kernel.at:
        return ""
    found = kernel.number("zero_blocks_per_col")
    expected = zero_points_of_row(kernel.number("K"), kernel.number("block_size"), bits)
    return "" if found == expected else f"a row has {found} zero points instead of {expected}"


def why_not_packed(kernel: OrtKernel, bits: int) -> str:
    return misplaced_zeros(kernel, bits) or unfit_matvec(packed_weights(kernel, bits))


def from_int8(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn products of int8 activations into products of the values before rounding; a rounding without another reader
    is dropped."""
    makers = graph.makers()

    def product(node: Node) -> Node:
        found = met.get(node.what.index) if isinstance(node.what, Recorded) else None
        bits = INT8.get(found.kernel.kind) if found else None
        if found is None or bits is None:
            return node
        maker = makers.get(found.read("input_a"))
        source = met.get(maker.what.index) if maker is not None and isinstance(maker.what, Recorded) else None
        if source is None or source.kernel.kind != TO_INT8 or source.written("scales") != found.read("scales_a"):
            return node
        if 4 * source.kernel.number("output_size") != found.kernel.number("K"):
            return node
        made = packed_product(found, bits, source.read("input_a"))
        return replace(made[0], origins=frozenset({found.index, source.index})) if made else node

    changed = replace(graph, nodes=tuple(product(node) for node in graph.nodes))
    wanted = changed.readers().keys() | set(graph.last.values())
    idle = {
        index
        for index, found in met.items()
        if found.kernel.kind == TO_INT8 and wanted.isdisjoint(found.writes.values())
    }
    kept = (node for node in changed.nodes if not (isinstance(node.what, Recorded) and node.what.index in idle))
    return replace(changed, nodes=tuple(kept))


def zero_points_of_row(k: int, block: int, bits: int) -> int:
    """Zero points of a row, padded to whole bytes, as matvec_q4.wgsl counts them."""
    blocks, in_byte = (k + block - 1) // block, 8 // bits
    return (blocks + in_byte - 1) // in_byte * in_byte


def dense_weights(kernel: OrtKernel) -> MatVec:
    return MatVec(kernel.at["b"], None, kernel.number("dim_b_outer"), kernel.number("dim_inner"), 0, kernel.element)


def dense_product(met: Met) -> list[Node] | None:
    what = dense_weights(met.kernel)
    return [met.node(what, (met.read("a"),), met.written("output"))] if fits_matvec(what) else None


def gated_weights(kernel: OrtKernel) -> MatVec:
    """The weights of the half that is activated."""
    n, k, block = (kernel.number(name) for name in ("N", "K", "block_size"))
    return MatVec(kernel.at["gate_b"], kernel.at["gate_scales_b"], n, k, block, kernel.element)


def gated_half(met: Met) -> list[Node] | None:
    kernel, at = met.kernel, met.kernel.at
    by = RmsNorm(at["norm_scale"], kernel.real("epsilon")) if "norm_scale" in at else None
    up = (at["up_b"], at["up_scales_b"])
    what = replace(gated_weights(kernel), norm=by, up=up)
    if not fits_matvec(what):
        return None
    if "skip" not in at:
        return [met.node(what, (met.read("input_a"),), met.written("output"))]
    total, value = total_of(met, "input_a", "skip", "input_skip_bias_sum", what.k)
    return [total, met.node(what, (value,), met.written("output"))]


def three_weights(kernel: OrtKernel) -> list[MatVec]:
    """The weights of q, k and v."""
    at, k, block = kernel.at, kernel.number("K"), kernel.number("block_size")
    sizes = {"q": kernel.number("Nq"), "k": kernel.number("Nkv"), "v": kernel.number("Nkv")}
    return [MatVec(at[f"{x}_b"], at[f"{x}_scales_b"], n, k, block, kernel.element) for x, n in sizes.items()]


def three_products(met: Met) -> list[Node] | None:
    products = three_weights(met.kernel)
    x = met.read("input_a")
    outputs = (f"{name}_output" for name in "qkv")
    nodes = [met.node(each, (x,), met.written(name)) for each, name in zip(products, outputs, strict=True)]
    return nodes if all(fits_matvec(each) for each in products) else None


def one_plain_row(kernel: OrtKernel) -> bool:
    return kernel.uniforms["batch_count"] == 1 and kernel.uniforms["skip_size"] == 0


def one_gated_row(kernel: OrtKernel) -> bool:
    skipped = kernel.number("K") if "skip" in kernel.at else 0
    return kernel.uniforms["batch_count"] == 1 and kernel.uniforms["skip_size"] == skipped


TO_INT8 = "to_int8"
INT8 = {f"matvec_int8_{bits}": bits for bits in (4, 8)}
"""Products of int8 by weights of `bits` bits, by the name of their kernels."""

THREE_WEIGHTS = ("q_b", "q_scales_b", "k_b", "k_scales_b", "v_b", "v_scales_b")

ZERO_POINTS = (
    "let offset = row * c_dim + col;",
    "let packed_value = zero_points[array_index];",
    "let masked_value = (packed_value >> shift_amount) & bit_mask;",
    "mm_read_zero(b_global, block_idx, uniforms.N, uniforms.zero_blocks_per_col);",
)
"""The lines by which a kernel finds the zero point of a block."""

PRODUCT_LINES = ("output[output_idx]=output_value;", "output[output_idx]=output_element_t(output_value);")
"""The lines that write a product without a bias: of onnxruntime-web 1.30, and of 1.31."""

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
"""Lines of onnxruntime-web's product by a dense matrix [k, n], for any number of rows: without bias or activation."""


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
                    *(ZERO_POINTS if zeros else ()),
                ),
                one_of=PRODUCT_LINES,
                asked=("N", "K", "block_size", *(["zero_blocks_per_col"] if zeros else [])),
                weights=("input_b", "scales_b", *zeros),
                holds=one_row,
                parts=partial(packed_product, bits=bits),
                why=partial(why_not_packed, bits=bits),
            )
            for bits in (4, 8)
            for zeros in ((), ("zero_points",))
        ),
        Signature(
            TO_INT8,
            "matvec",
            ("input_a", "output", "scales"),
            has=(
                "let max_val = subgroupMax(abs(local_a));",
                "let norm_a = local_a/scale;",
                "output[global_idx]=pack4x8snorm(vec4<f",
                "scales[workgroup_idx * 2 + local_idx / 32]=scale/127;",
            ),
            asked=("output_size",),
            holds=lambda kernel: kernel.number("output_size") > 0,
        ),
        *(
            Signature(
                kind,
                "matvec",
                ("input_a", "scales_a", "input_b", "scales_b", *zeros, "output"),
                has=(
                    f"const default_zero_point = {1 << (bits - 1)};",
                    f"const bit_mask = 0x{(1 << bits) - 1:X}u;",
                    "local_sum += dot4I8Packed(a2[3], b2[3]);",
                    "inter_results[row_offset + local_row][local_col] += SDP8AI(own_a, own_b, own_a1, own_b1, "
                    "own_scale_a * own_scale_b);",
                    *(ZERO_POINTS if zeros else ()),
                ),
                one_of=PRODUCT_LINES,
                asked=("N", "K", "block_size", *(["zero_blocks_per_col"] if zeros else [])),
                weights=("input_b", "scales_b", *zeros),
                lacks=("uniforms.weight_idx", "bias["),
                holds=one_row,
                why=partial(why_not_packed, bits=bits),
            )
            for kind, bits in INT8.items()
            for zeros in ((), ("zero_points",))
        ),
        *(
            Signature(
                "gated_mlp",
                "gated",
                (
                    "input_a",
                    *skip,
                    *scale,
                    "gate_b",
                    "gate_scales_b",
                    "up_b",
                    "up_scales_b",
                    "output",
                    *total,
                ),
                has=(
                    "const default_zero_point = output_element_t(8);",
                    "& 0x0F0F0F0Fu",
                    "inverseSqrt(" if scale else "let inv_std = 1.0;",
                    "gate_output_value * (one / (one + exp(-gate_output_value)))",
                    "activated_value * up_output_value",
                ),
                asked=("N", "K", "block_size", "epsilon"),
                weights=(*scale, "gate_b", "gate_scales_b", "up_b", "up_scales_b"),
                lacks=("bias[", "gate_bias", "up_bias", *(() if scale else ("inverseSqrt(",))),
                holds=one_gated_row,
                parts=gated_half,
                why=lambda kernel: unfit_matvec(gated_weights(kernel)),
            )
            for skip, scale, total in (
                (("skip",), ("norm_scale",), ("input_skip_bias_sum",)),
                ((), ("norm_scale",), ()),
                # With a sum and a norm the kernel binds more storage buffers than some adapters allow.
                ((), (), ()),
            )
        ),
        Signature(
            "three_products",
            "matvec",
            ("input_a", *THREE_WEIGHTS, "q_output", "k_output", "v_output"),
            has=(
                "const default_zero_point = vec4<q_output_element_t>(q_output_element_t(8));",
                "let inv_std = 1.0;",
                "unpack_nibble_values((weight[i] >> 4) & 0x0F0F0F0Fu)",
                "q_output[batch * uniforms.Nq + b_global]=q_output_value_t(q_output_value);",
                "v_output[batch * uniforms.Nkv + b_global]=v_output_value_t(v_output_value);",
            ),
            asked=("Nq", "Nkv", "K", "block_size"),
            weights=THREE_WEIGHTS,
            lacks=("bias[", "inverseSqrt("),
            holds=one_plain_row,
            parts=three_products,
            why=lambda kernel: next(filter(None, map(unfit_matvec, three_weights(kernel))), ""),
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
            why=lambda kernel: unfit_matvec(dense_weights(kernel)),
        ),
    ),
    groups={"matvec": from_int8},
    folds={"residual": sums_joined, "gated": gates_joined, "norm": norms_joined},
)
