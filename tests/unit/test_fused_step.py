"""The device's form of a fused step: bindings in the order of the WGSL, counts, scratch and tables."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from capstan.tape import FusedStep, MatVec, Recorded, WorkgroupLimits, fused_step
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.attention_plan import plan_attention
from capstan.tape.ops.gemv import Factor
from capstan.tape.ops.matmul import MatMul, Quantize
from capstan.tape.ops.norm import CenteredNorm, RmsNorm
from capstan.tape.placement import Place, Placement
from capstan.tape.step_graph import Node
from tests.unit.shader_declarations import declared_bindings

STATE = (77, 512, 32)
CAPACITY = 300
WEIGHTS, SCALES, GAMMA, UP, UP_SCALES = 21, 22, 23, 24, 25
ZEROS, UP_ZEROS = 26, 27
BETA, INNER, EXPONENT, FACTOR = 41, 42, 43, 44
COS, SIN, KEY, VALUE = 31, 32, 33, 34
LIMITS = {
    "every adapter": WorkgroupLimits(),
    "software": WorkgroupLimits(software=True),
    "subgroups": WorkgroupLimits(32, 1024, 32768),
    "small subgroups": WorkgroupLimits(8),
}
GIVEN = {1: Place("recorded", 11), 2: Place("scratch", 0), 3: Place("recorded", 13), 4: Place("scratch", 1)}
"""The place of each value."""


def emitted(*nodes: Node, limits: WorkgroupLimits = LIMITS["every adapter"], **options: Any) -> FusedStep:
    given: dict[str, Any] = {"played": {}, "tables": (), "places": GIVEN} | options
    placement = Placement(nodes, given["places"], (256, 512), {})
    return fused_step(placement, given["played"], given["tables"], STATE, limits, CAPACITY)


def node(what: Any, reads: tuple[int, ...], writes: tuple[int, ...]) -> Node:
    return Node(what, reads, writes, 0, frozenset({0}))


def matvec(*, norm: bool = False, residual: bool = False, gated: bool = False, element: str = "f32") -> Node:
    what = MatVec(
        WEIGHTS,
        SCALES,
        96,
        64,
        32,
        element,
        norm=RmsNorm(GAMMA, 0.5) if norm else None,
        residual=residual,
        up=(UP, UP_SCALES) if gated else None,
    )
    return node(what, (1, 2) if residual else (1,), (3,))


@pytest.mark.parametrize(("buffers", "kernels"), [(9, 1), (8, 2)])
def test_a_gated_product_that_binds_too_many_buffers_is_two(buffers: int, kernels: int) -> None:
    what = MatVec(WEIGHTS, SCALES, 96, 64, 32, "f32", RmsNorm(GAMMA, 0.5), up=(UP, UP_SCALES, UP_ZEROS), zeros=ZEROS)
    made = emitted(node(what, (1,), (3,)), limits=WorkgroupLimits(buffers=buffers)).kernels
    assert len(made) == kernels
    assert all(len(named(kernel)) <= buffers for kernel in made)
    if kernels == 2:
        first, second = made
        weights = [("weights", UP), ("scales", UP_SCALES), ("zeros", UP_ZEROS)]
        assert [first["bindings"][name] for name, _ in weights] == [["recorded", buffer] for _, buffer in weights]
        assert first["bindings"]["y"] == second["bindings"]["up"]
        assert first["bindings"]["y"][0] == "scratch"
        assert second["bindings"]["weights"] == ["recorded", WEIGHTS]
        assert [("up" in kernel["bindings"], "weights_up" in kernel["bindings"]) for kernel in made] == [
            (False, False),
            (True, False),
        ]


SURROUNDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a LayerNorm": (
        {"norm": CenteredNorm(GAMMA, 0.5, BETA)},
        {"x": "recorded 11", "gamma": GAMMA, "beta": BETA, "y": "scratch 1"},
    ),
    "a norm behind the half of a layer": (
        {"norm": RmsNorm(GAMMA, 0.5), "inner": RmsNorm(INNER, 0.25)},
        {"x": "recorded 11", "gamma": GAMMA, "gamma_inner": INNER, "skip": "scratch 0", "y": "scratch 1"},
    ),
    "that, whose sum others read": (
        {"norm": RmsNorm(GAMMA, 0.5), "inner": RmsNorm(INNER, 0.25), "total": True},
        {
            "x": "recorded 11",
            "gamma": GAMMA,
            "gamma_inner": INNER,
            "skip": "scratch 0",
            "y": "scratch 1",
            "total": "recorded 15",
        },
    ),
    "biases of a gate": (
        {"bias": True, "up": (UP, UP_SCALES)},
        {
            "x": "recorded 11",
            "bias": "scratch 0",
            "bias_up": "recorded 13",
            "weights_up": UP,
            "scales_up": UP_SCALES,
            "y": "scratch 1",
        },
    ),
    "two residuals and a bias": (
        {"bias": True, "residual": True, "second": True},
        {"x": "recorded 11", "bias": "scratch 0", "residual": "recorded 13", "second": "recorded 16", "y": "scratch 1"},
    ),
    "a power": ({"activated": True, "power": EXPONENT}, {"x": "recorded 11", "exponent": EXPONENT, "y": "scratch 1"}),
    "a factor": ({"factor": Factor(FACTOR)}, {"x": "recorded 11", "factor": FACTOR, "y": "scratch 1"}),
    "a cap": ({"factor": Factor(FACTOR, capped=True)}, {"x": "recorded 11", "factor": FACTOR, "y": "scratch 1"}),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize(("element", "wide"), [("f32", False), ("f16", False), ("f16", True)])
@pytest.mark.parametrize("form", SURROUNDED)
def test_what_surrounds_products_binds_what_their_template_declares(
    form: str, element: str, wide: bool, limits: WorkgroupLimits
) -> None:
    given, expected = SURROUNDED[form]
    wide = wide and "norm" in given
    what = MatVec(WEIGHTS, SCALES, 96, 64, 32, element, wide=wide, **given)
    places = {**GIVEN, 5: Place("recorded", 15), 6: Place("recorded", 16)}
    reads = (1, 2, 3, 6)[: len(what.inputs)]
    writes = (4, 5) if what.total else (4,)
    [kernel] = emitted(node(what, reads, writes), limits=limits, places=places).kernels
    bound = {name: f"{kind} {number}" for name, (kind, number) in named(kernel).items()}
    shown = {name: at if isinstance(at, str) else f"recorded {at}" for name, at in expected.items()}
    assert bound == {"weights": f"recorded {WEIGHTS}", "scales": f"recorded {SCALES}", **shown}
    written = {name for name, access in declared(kernel) if access == "read_write"}
    assert written == {"y", *(["total"] if what.total else [])}
    assert what.written_bytes(1) == 64 * (2 if element == "f16" and not wide else 4)


def test_a_gated_product_behind_a_sum_that_binds_too_many_buffers_is_two() -> None:
    """The sum is written by the first of them; the biases are each half's own."""
    norms: dict[str, Any] = {"norm": RmsNorm(GAMMA, 0.5), "inner": RmsNorm(INNER, 0.25)}
    what = MatVec(WEIGHTS, SCALES, 96, 64, 32, "f32", up=(UP, UP_SCALES), total=True, bias=True, **norms)
    places = {**GIVEN, 5: Place("recorded", 15), 6: Place("recorded", 16)}
    step = emitted(node(what, (1, 2, 3, 6), (4, 5)), limits=WorkgroupLimits(buffers=9), places=places)
    first, second = (named(kernel) for kernel in step.kernels)
    assert (first["total"], "total" in second) == (["recorded", 15], False)
    assert (first["bias"], second["bias"]) == (["recorded", 13], ["scratch", 0])
    assert first["y"] == second["up"]


def attention(head: int = 16, layer: int = 0, element: str = "f32") -> Node:
    caches = (KEY + 10 * layer, VALUE + 10 * layer)
    what = Attention(4, 2, head, CAPACITY, 0.25, COS, SIN, *caches, element)
    return node(what, (2, 8, 9), (4, 18, 19))


def declared(kernel: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, access) of the bindings that the kernel's template declares for its constants."""
    return declared_bindings(kernel)


def named(kernel: dict[str, Any]) -> dict[str, Any]:
    """Bindings by name, which are those that the template declares."""
    bindings: dict[str, Any] = kernel["bindings"]
    assert bindings.keys() == {name for name, _ in declared(kernel)}
    return bindings


@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize("gated", [False, True])
def test_products_of_many_rows_bind_what_their_templates_declare(gated: bool, element: str) -> None:
    made = MatMul(WEIGHTS, SCALES, 100, 96, 64, 32, element, up=(UP, UP_SCALES) if gated else None)
    step = emitted(node(Quantize(100, 64, 32, element), (1,), (2, 4)), node(made, (2, 4), (3,)))
    quantize, kernel = step.kernels
    words, factors = ["scratch", 0], ["scratch", 1]
    assert named(quantize) == {"x": ["recorded", 11], "words": words, "factors": factors}
    expected = {"x": words, "x_scales": factors, "weights": ["recorded", WEIGHTS], "scales": ["recorded", SCALES]}
    expected |= {"weights_up": ["recorded", UP], "scales_up": ["recorded", UP_SCALES]} if gated else {}
    assert named(kernel) == {**expected, "y": ["recorded", 13]}
    assert [each["shader"] for each in step.kernels] == ["quantize_rows", "matmul_q4"]
    assert {each["half"] for each in step.kernels} == {element == "f16"}
    assert [kernel["constants"][name] for name in ("M", "N", "K", "BLOCK")] == [100, 96, 64, 32]
    assert [quantize["constants"][name] for name in ("M", "K", "GROUPED")] == [100, 64, False]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_attention_binds_what_its_templates_declare(element: str, limits: WorkgroupLimits) -> None:
    step = emitted(attention(element=element), limits=limits)
    attend, join = step.kernels
    state = ["span", *STATE]
    partials = ["scratch", 2]
    assert named(attend) == {
        "qkv": ["scratch", 0],
        "state": state,
        "cos_cache": ["recorded", COS],
        "sin_cache": ["recorded", SIN],
        "key_cache": ["recorded", KEY],
        "value_cache": ["recorded", VALUE],
        "partials": partials,
        "y": ["scratch", 1],
    }
    written = [name for name, access in declared(attend) if access == "read_write"]
    assert written == ["key_cache", "value_cache", "partials", "y"]
    assert named(join) == {"partials": partials, "state": state, "y": ["scratch", 1]}
    assert [name for name, access in declared(join) if access == "read_write"] == ["y"]
    assert attend["floats"] == ["SCALE"]
    assert join["floats"] == []
    assert {kernel["half"] for kernel in step.kernels} == {element == "f16"}


def test_products_are_dispatched_by_their_workgroups() -> None:
    step = emitted(matvec(), matvec(norm=True))
    assert [op[:2] for op in step.played] == [["kernel", 0], ["kernel", 1]]
    for _, index, x, y, z in step.played:
        constants = step.kernels[index]["constants"]
        rows = constants["WORKGROUP"] // constants["SPAN"] * constants["ROWS"]
        assert (y, z) == (1, 1)
        assert x * rows >= 96 > (x - 1) * rows


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_tables_have_the_counts_of_every_length(limits: WorkgroupLimits) -> None:
    made = attention()
    assert isinstance(made.what, Attention)
    step = emitted(made, limits=limits)
    attend, join, _ = plan_attention(made.what, limits.lanes)
    assert step.played == [["kernel table", 0, 0], ["kernel table", 1, 1]]
    for table, plan in zip(step.tables, (attend, join), strict=True):
        assert len(table) == 12 * (CAPACITY + 1)
        assert callable(plan.counts)
        rows = [struct.unpack_from("<3I", table, 12 * length) for length in range(CAPACITY + 1)]
        assert rows == [(0, 0, 0), *(plan.counts(length) for length in range(1, CAPACITY + 1))]


def test_layers_of_one_shape_share_tables_and_partials() -> None:
    step = emitted(attention(), matvec(), attention(layer=1), attention(layer=2))
    assert [op[1:] for op in step.played if op[0] == "kernel table"] == [[0, 0], [1, 1], [3, 0], [4, 1], [5, 0], [6, 1]]
    assert len(step.tables) == 2
    assert len(step.scratch) == 3
    assert [named(kernel)["key_cache"] for kernel in step.kernels if kernel["shader"] == "attention"] == [
        ["recorded", KEY + 10 * layer] for layer in range(3)
    ]


def test_layers_of_another_shape_have_their_own() -> None:
    step = emitted(attention(head=16), attention(head=32), attention(head=16, layer=1))
    partials = [named(kernel)["partials"] for kernel in step.kernels]
    assert partials == [["scratch", n] for n in (2, 2, 3, 3, 2, 2)]
    sizes = [
        4 * kernel["constants"]["MAX_SPLITS"] * (4 + head) * 4
        for kernel, head in zip(step.kernels, (16,), strict=False)
    ]
    assert step.scratch[:3] == [256, 512, *sizes]
    assert step.scratch[3] == sizes[0] * 36 // 20


def test_recorded_operations_are_played_as_given_and_in_order() -> None:
    given = {4: ["copy", 1, 0, 2, 0, 4], 7: ["table", 1, [100], 0]}
    nodes = (node(Recorded(4), (), ()), matvec(), node(Recorded(7), (), ()))
    table = bytes(12 * (CAPACITY + 1))
    step = emitted(*nodes, attention(), played=given, tables=[table])
    assert [op[0] for op in step.played] == ["copy", "kernel", "table", "kernel table", "kernel table"]
    assert [step.played[0], step.played[2]] == [given[4], given[7]]
    assert step.tables[0] == table
    assert [op[2] for op in step.played[3:]] == [1, 2], "tables of recorded operations keep their numbers"


def test_the_spec_is_what_the_page_is_given() -> None:
    step = emitted(matvec())
    assert step.spec("decoder 3") == {"kernels": step.kernels, "scratch": [256, 512], "owner": "decoder 3"}
