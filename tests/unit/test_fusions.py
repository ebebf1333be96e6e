"""A fused step leaves what the recorded one leaves, whatever the passes, the decoder, and the buffers it was given."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from capstan.errors import TapeError
from capstan.graph import LeftOut
from capstan.tape import (
    PASSES,
    Copy,
    FusedStep,
    MatVec,
    Recorded,
    WorkgroupLimits,
    fuse_step,
    fused_step,
    fusions,
    why_as_recorded,
    without_clears,
)
from capstan.tape.ops import attention_plan, gemv
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.beside import Beside
from capstan.tape.placement import MisplacedError, Placement, place_values
from capstan.tape.step_graph import StepGraph
from tests.unit import step_simulator
from tests.unit.recorded_kernels import Vector
from tests.unit.small_decoders import CAPACITY, HEAD, INNER, KV_HEADS, SMALL_DECODERS, VOCABULARY, WIDTH, Small, decoder
from tests.unit.stateful_decoders import STATEFUL_DECODERS, Stateful
from tests.unit.step_simulator import Machine

STATE = (77, 0, 32)
LENGTHS = (3, 4, 150)
"""Positions of the steps played in turn: at 150 attention is split, where there are no subgroups."""

DECODERS = {**SMALL_DECODERS, **STATEFUL_DECODERS}
SUBSETS = {
    "none": (),
    "all": PASSES,
    **{f"only {name}": (name,) for name in PASSES},
    **{f"all but {name}": tuple(other for other in PASSES if other != name) for name in PASSES},
    "products and norms": ("matvec", "norm"),
    "products and residuals": ("matvec", "residual"),
}


def fused(
    step: step_simulator.Recorded, passes: Collection[str], small: Small | None = None
) -> tuple[Placement, FusedStep]:
    ops, _ = without_clears(step.ops) if "clears" in passes else (step.ops, None)
    weights = small.products(step) if small is not None else {}
    placement = fuse_step(step.recording, ops, step.lasting, passes, weights=weights)
    done = {index for node in placement.nodes for index in node.origins}
    assert done <= set(range(len(ops)))
    assert "dead" in passes or done == set(range(len(ops))), "nobody does the work of these operations"
    played = {i: op.played() for i, op in enumerate(ops)}
    return placement, fused_step(placement, played, (), STATE, WorkgroupLimits(), CAPACITY)


def play(machine: Machine, small: Small, by: FusedStep | None) -> list[dict[int, Vector]]:
    """The lasting values after each of a few steps; `by` is the fused step, None for the recorded one."""
    found = []
    for length in LENGTHS:
        machine.length = length
        machine.memory[machine.step.buffer_of[small.mask]][:length] = 1
        machine.memory[machine.step.buffer_of[small.ids]][:] = length % 7
        machine.spoil()
        if by is None:
            machine.play_recorded()
        else:
            machine.play_fused(by)
        found.append(machine.kept())
    return found


def check(small: Small, step: step_simulator.Recorded, passes: Collection[str]) -> Placement:
    placement, made = fused(step, passes, small)
    expected = play(Machine(step), small, None)
    found = play(Machine(step), small, made)
    # A state in place is not written where the recorded step put the new one; the copy of that one is the same.
    states = small.states.values() if isinstance(small, Stateful) else ()
    written = {step.buffer_of[present] for _, present in states}
    for want, got in zip(expected, found, strict=True):
        for buffer, values in want.items():
            if buffer in written:
                continue
            assert np.isfinite(values).all(), "the decoder itself is broken"
            np.testing.assert_allclose(got[buffer], values, rtol=1e-7, atol=1e-9, err_msg=f"buffer {buffer}")
    return placement


@pytest.mark.one_in(5)
@pytest.mark.parametrize("passes", SUBSETS.values(), ids=SUBSETS)
@pytest.mark.parametrize("name", DECODERS)
def test_a_fused_step_leaves_what_the_recorded_step_leaves(name: str, passes: Collection[str]) -> None:
    small = DECODERS[name]()
    check(small, small.sketch.record(), passes)


def test_attention_over_caches_of_another_layer_is_one_operation() -> None:
    """And a window that it leaves out is one of each of the layers."""
    small = SMALL_DECODERS["caches of another layer"]()
    step = small.sketch.record()
    made = [node.what for node in check(small, step, PASSES).nodes if isinstance(node.what, Attention)]
    assert [(what.shares, what.key) for what in made] == [(each, made[0].key) for each in (False, True, True)]
    assert [sorted(what.norms.gammas) for what in made if what.norms] == [
        ["k_gamma", "q_gamma", "v_gamma"],
        *[["q_gamma"]] * 2,
    ]

    def windowed(layers: int) -> list[int]:
        asked = {made[0].key: LeftOut("past_key_values.0.key", window=40, layers=layers)}
        placement = fuse_step(step.recording, step.ops, step.lasting, PASSES, left_out=asked)
        return [node.what.window for node in placement.nodes if isinstance(node.what, Attention)]

    assert windowed(3) == [40] * 3
    with pytest.raises(TapeError, match="none of our kernels computes attention over past_key_values.0.key"):
        windowed(4)


def made_of(placement: Placement) -> Counter[str]:
    """How many operations are of which kind, and what products do besides."""
    found: Counter[str] = Counter()
    for node in placement.nodes:
        match node.what:
            case MatVec() as what:
                parts = {
                    "inner": what.inner is not None,
                    "total": what.total,
                    "norm": what.norm is not None,
                    "bias": what.bias,
                    "activated": what.activated,
                    "factor": what.factor is not None,
                    "residual": what.residual,
                    "second": what.second,
                    "gated": what.up is not None,
                }
                found[" ".join(["product", *(name for name, there in parts.items() if there)])] += 1
            case what:
                found[type(what).__name__.lower()] += 1
    return found


def made_with(small: Small, **buffers: bool) -> Counter[str]:
    """The operations with all passes, which leave what the recorded step leaves."""
    return made_of(check(small, small.sketch.record(**buffers), PASSES))


def test_products_of_int8_are_those_of_what_was_brought_into_int8() -> None:
    """A step is the same as without accuracy_level 4, but notes that the recorded kernels round to int8."""
    made = []
    for small in (decoder(bias=True), decoder(bias=True, rounded=True)):
        placement = check(small, small.sketch.record(), PASSES)
        made.append(made_of(placement))
        products = [node.what for node in placement.nodes if isinstance(node.what, MatVec)]
        assert {what.rounded for what in products if what.scales is not None and what.up is None} == {small.rounded}
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("module", "limit", "value", "expected"),
    [
        (gemv, "OCTET", 2 * WIDTH, f"matmul_nbits: rows of {WIDTH} elements are not a multiple of {2 * WIDTH}"),
        (
            attention_plan,
            "LONGEST_HEAD",
            HEAD - 4,
            f"rotary: heads of {HEAD} elements are longer than {HEAD - 4}",
        ),
        (attention_plan, "LONGEST_HEAD", HEAD - 4, "attention_split: its attention has a part that none of our"),
    ],
    ids=["rows", "heads", "parts"],
)
def test_operations_that_stay_are_named_with_the_reason(
    module: Any, limit: str, value: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, value)
    step = decoder().sketch.record()
    ops, _ = without_clears(step.ops)
    placement = fuse_step(step.recording, ops, step.lasting, PASSES)
    assert expected in why_as_recorded(step.recording, ops, placement, PASSES)
    assert "norm: the pass 'norm' is off" in why_as_recorded(
        step.recording, ops, fuse_step(step.recording, ops, step.lasting, ("dead", "matvec")), ("dead", "matvec")
    )


def test_products_add_what_their_minima_add() -> None:
    """A step of affine weights is that of symmetric ones, each with its minima."""
    plain, small = decoder(packed="_zeros", layers=1), decoder(affine=True, layers=1)
    step = small.sketch.record()
    placement = check(small, step, PASSES)
    assert made_of(placement) == made_of(check(plain, plain.sketch.record(), PASSES))
    found = [node.what for node in placement.nodes if isinstance(node.what, MatVec)]
    minima = {weights: each.minima for weights, each in small.products(step).items()}
    assert [what.minima for what in found[:-1]] == [minima[what.weights] for what in found[:-1]]
    [gate] = [what for what in found if what.up is not None]
    assert gate.up is not None
    assert (gate.up[2], gate.up[3]) == (None, minima[gate.up[0] or 0])


def test_products_beside_one_another_are_one_operation() -> None:
    small = decoder(apart=True, layers=1)
    placement = check(small, small.sketch.record(), PASSES)
    kinds = made_of(placement)
    assert (kinds["beside"], kinds["recorded"]) == (1, 1)
    [what] = [node.what for node in placement.nodes if isinstance(node.what, Beside)]
    assert [(each.first, each.n, each.norm is not None) for each in what.products] == [(0, 96, True), (96, 32, True)]


@pytest.mark.parametrize("other", ["sums of something else", "minima of another product", "no minima that are known"])
def test_sums_that_are_not_those_of_the_minima_are_not_joined(other: str) -> None:
    small = decoder(affine=True, layers=1)
    calls = small.sketch.calls
    first = next(i for i, call in enumerate(calls) if "b" in call.reads)
    if other == "sums of something else":
        sums = next(call for call in calls if "_A" in call.reads)
        sums.reads["_A"] = calls[0].writes["out"]
    elif other == "minima of another product":
        calls[first].reads["b"] = small.sketch.weights(small.sketch.sizes[calls[first].reads["b"]])
    else:
        small.minima.clear()
    placement = check(small, small.sketch.record(), PASSES)
    products = [node.what for node in placement.nodes if isinstance(node.what, MatVec)]
    assert products[0].minima is None


def recorded(placement: Placement, *calls: int) -> list[bool]:
    """Which of the sketch's operations are replayed as they were recorded, of a step whose clears are dropped."""
    indices = {node.what.index for node in placement.nodes if isinstance(node.what, Recorded)}
    return [call in indices for call in calls]


@pytest.mark.parametrize("form", [{"norms": "inside"}, {"sinks": True}, {"norms": "inside", "sinks": True}], ids=str)
def test_attention_takes_in_norms_and_sinks(form: dict[str, Any]) -> None:
    small = decoder(**form)
    placement = check(small, small.sketch.record(), PASSES)
    assert made_of(placement)["attention"] == 2
    (what, *_) = [node.what for node in placement.nodes if isinstance(node.what, Attention)]
    for kernel in what.kernels([1], [2], WorkgroupLimits(32, 256, 16384, buffers=10)):
        assert len(kernel.bindings) <= 10, "storage buffers that adapters have as a rule"


class TestWhateverTheBuffers:
    @pytest.mark.one_in(5)
    @pytest.mark.parametrize("name", DECODERS)
    def test_recycled_at_random(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        misplaced: list[MisplacedError] = []

        def counted(graph: StepGraph) -> Placement:
            try:
                return place_values(graph)
            except MisplacedError as error:
                misplaced.append(error)
                raise

        monkeypatch.setattr(fusions, "place_values", counted)
        small = DECODERS[name]()
        for seed in range(12):
            rng = random.Random(seed)
            # Without the pass that changes no step.
            names = [each for each in PASSES if each != "prompts"]
            passes = names if seed % 3 == 0 else rng.sample(names, rng.randrange(2, len(names)))
            check(small, small.sketch.record(seed, clears=seed % 2 == 0), passes)
        if name != "granite" and not name.startswith("dense"):
            assert misplaced, "no buffer came back where a fold would have read and written it"
        assert all(error.origins for error in misplaced)

    def test_what_fits_nowhere_even_as_recorded_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small = decoder()
        tried: list[StepGraph] = []

        def never(graph: StepGraph) -> Placement:
            tried.append(graph)
            assert len(tried) < 10, "it goes round in circles"
            raise MisplacedError("it fits nowhere", frozenset({small.calls["qkv 1"]}))

        monkeypatch.setattr(fusions, "place_values", never)
        with pytest.raises(MisplacedError, match="it fits nowhere"):
            fused(small.sketch.record(), PASSES)
        assert Recorded(small.calls["qkv 1"]) in [node.what for node in tried[-1].nodes]

    def test_each_its_own(self) -> None:
        small = decoder()
        assert made_with(small, recycle=False)["recorded"] == 1

    def test_the_order_of_the_passes_is_theirs(self) -> None:
        step = decoder(bias=True, gated=False).sketch.record()
        assert fused(step, PASSES)[0] == fused(step, PASSES[::-1])[0] == fused(step, set(PASSES))[0]


class TestPasses:
    """The effect of each pass on a decoder of two layers: embedding, norm, two reductions of the mask, 8 operations a
    layer, head."""

    EVERYTHING = 4 + 8 * 2 + 1

    @pytest.mark.parametrize(
        ("passes", "expected"),
        [
            ((), {"recorded": EVERYTHING}),
            (("matvec",), {"product": 7, "recorded": EVERYTHING - 7}),
            (("matvec", "norm"), {"product": 6, "product norm": 1, "recorded": EVERYTHING - 8}),
            (("matvec", "residual"), {"product": 7, "recorded": EVERYTHING - 7}),
            (
                ("matvec", "residual", "norm"),
                {"product": 2, "product norm": 3, "product residual": 2, "recorded": EVERYTHING - 10},
            ),
            (
                ("matvec", "residual", "gated"),
                {"product": 5, "product residual": 2, "product norm gated": 2, "recorded": EVERYTHING - 9},
            ),
            (("gated",), {"recorded": EVERYTHING}),
            (("norm",), {"recorded": EVERYTHING}),
            (("residual",), {"recorded": EVERYTHING}),
            (("attention",), {"attention": 2, "recorded": EVERYTHING - 6}),
            (("dead",), {"recorded": EVERYTHING}),
            (("attention", "dead"), {"attention": 2, "recorded": EVERYTHING - 8}),
            (
                PASSES,
                {
                    "product norm": 3,
                    "product residual": 4,
                    "product norm gated": 2,
                    "attention": 2,
                    "recorded": 1,
                },
            ),
        ],
        ids=lambda value: "-".join(value) or "none" if isinstance(value, tuple) else "",
    )
    def test_does_what_it_says(self, passes: Sequence[str], expected: dict[str, int]) -> None:
        small = decoder()
        assert made_of(check(small, small.sketch.record(recycle=False), passes)) == expected

    def test_residual_adds_the_bias_of_q_k_and_v(self) -> None:
        small = decoder(bias=True)
        step = small.sketch.record()
        placement = check(small, step, PASSES)
        assert made_of(placement) == {
            "product norm residual": 2,
            "product norm": 1,
            "product residual": 4,
            "product norm gated": 2,
            "attention": 2,
            "recorded": 1,
        }
        [node] = [node for node in placement.nodes if small.calls["bias 1"] in node.origins]
        assert node.origins == {small.calls[name] for name in ("norm 0", "qkv 1", "bias 1")}

    def test_norm_is_computed_by_each_of_the_products_that_read_it(self) -> None:
        small = decoder(gated=False)
        assert made_with(small) == {"product norm": 7, "product residual": 4, "attention": 2, "recorded": 3}

    def test_a_norm_that_somebody_else_reads_stays_with_its_sum(self) -> None:
        small = decoder(watched=True)
        step = small.sketch.record(recycle=False)
        placement = check(small, step, PASSES)
        assert recorded(placement, small.calls["watched norm"], small.calls["down 1"]) == [True, False]
        assert made_of(placement)["product"] == 2, "the last down projection and the head stand alone"

    def test_products_with_multipliers_behind_them_stand_alone(self) -> None:
        small = decoder(multipliers=True)
        placement = check(small, small.sketch.record(recycle=False), PASSES)
        assert made_of(placement)["attention"] == 2
        assert made_of(placement)["product"] >= 4
        assert made_of(placement)["product residual"] == 0

    def test_dead_drops_what_nobody_reads(self) -> None:
        small = decoder()
        s = small.sketch
        s.unknown(lambda v: v[:WIDTH], [s.unknown(lambda v: v[:WIDTH], [small.cos], WIDTH)], WIDTH)
        count = len(s.calls)
        placement = check(small, s.record(clears=False), ("dead",))
        assert recorded(placement, count - 2, count - 1) == [False, False]
        assert len(placement.nodes) == self.EVERYTHING
        assert len(fused(s.record(), ("clears",))[0].nodes) == self.EVERYTHING + 2

    def test_clears_go_only_where_asked(self) -> None:
        step = decoder(multipliers=True).sketch.record()
        clears = len(step.ops) - len(without_clears(step.ops)[0])
        assert clears > 5
        assert len(fused(step, ())[0].nodes) == len(step.ops)
        assert len(fused(step, ("clears",))[0].nodes) == len(step.ops) - clears


def test_nothing_recognised_is_everything_recorded() -> None:
    small = Small()
    s = small.sketch
    x = small.embedded()
    for _ in range(4):
        x = s.unknown(lambda v: 2 * v[:WIDTH], [x], WIDTH)
    s.unknown(lambda v: np.resize(v, VOCABULARY), [x], VOCABULARY, into=small.logits)
    step = s.record()
    placement = check(small, step, PASSES)
    assert [node.what for node in placement.nodes] == [Recorded(i) for i in range(6)]
    assert placement.scratch == ()


class TestNeighbours:
    """Operations that join their neighbours, and those that stay recorded since the join would change the result."""

    def test_a_sum_in_the_buffer_that_its_product_reads(self) -> None:
        small = Small()
        s = small.sketch
        x = s.unknown(lambda table: table[:WIDTH], [small.table], WIDTH)
        product = small.matmul(x, WIDTH, WIDTH)
        total = small.add(product, small.cos, WIDTH)
        y = s.unknown(lambda v: v[:WIDTH] ** 2, [total], WIDTH)
        small.matmul(y, VOCABULARY, WIDTH, into=small.logits)
        step = s.record()
        assert step.buffer_of[total] == step.buffer_of[x] != step.buffer_of[product]
        placement = check(small, step, PASSES)
        assert recorded(placement, 1, 2, 4) == [True, True, False]
        assert made_with(small, recycle=False) == {"recorded": 2, "product residual": 1, "product": 1}

    @pytest.mark.parametrize("last", [False, True])
    def test_a_product_on_either_side_of_a_sum(self, last: bool) -> None:
        small = Small()
        product = small.matmul(small.cos, WIDTH, WIDTH)
        total = small.add(small.sin, product, WIDTH) if last else small.add(product, small.sin, WIDTH)
        small.matmul(total, VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small, recycle=False) == {"product residual": 1, "product": 1}

    def test_a_sum_whose_product_somebody_else_reads(self) -> None:
        small = Small()
        s = small.sketch
        x = s.unknown(lambda table: table[:WIDTH], [small.table], WIDTH)
        product = small.matmul(x, WIDTH, WIDTH)
        total = small.add(product, small.cos, WIDTH)
        s.unknown(lambda a, b: np.resize(a[:WIDTH] * b[:WIDTH], VOCABULARY), [product, total], VOCABULARY, small.logits)
        assert made_with(small, recycle=False) == {"recorded": 3, "product": 1}

    def test_a_product_added_to_itself(self) -> None:
        small = Small()
        product = small.matmul(small.embedded(), WIDTH, WIDTH)
        total = small.add(product, product, WIDTH)
        small.matmul(total, VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small) == {"recorded": 2, "product": 2}

    def test_a_product_plus_its_input_and_one_of_two_products_that_are_added(self) -> None:
        small = Small()
        x = small.add(small.matmul(small.cos, WIDTH, WIDTH), small.cos, WIDTH)
        y = small.add(small.matmul(x, WIDTH, WIDTH), small.matmul(small.sin, WIDTH, WIDTH), WIDTH)
        small.matmul(y, VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small, recycle=False) == {"product residual": 2, "product": 2}

    @pytest.mark.parametrize(
        ("sums", "made"),
        [
            (2, {"product bias residual": 1, "product": 1}),
            (3, {"product bias residual second": 1, "product": 1}),
            (4, {"product bias residual second": 1, "recorded": 1, "product": 1}),
        ],
    )
    def test_further_sums_behind_a_product(self, sums: int, made: dict[str, int]) -> None:
        small = Small()
        s = small.sketch
        total = small.matmul(small.cos, WIDTH, WIDTH)
        for _ in range(sums):
            total = small.add(total, s.weights(WIDTH), WIDTH)
        small.matmul(total, VOCABULARY, WIDTH, into=small.logits)
        assert made_of(check(small, s.record(recycle=False), PASSES)) == made

    def test_a_product_that_outlives_the_step(self) -> None:
        small = Small()
        s = small.sketch
        small.matmul(small.embedded(), VOCABULARY, WIDTH, into=small.logits)
        s.unknown(lambda v: v[:VOCABULARY], [small.add(small.logits, small.cos, VOCABULARY)], 48, s.lasting(48))
        assert made_with(small) == {"recorded": 3, "product": 1}

    def test_a_norm_that_outlives_the_step(self) -> None:
        small = Small()
        s = small.sketch
        y = small.norm(small.embedded())
        seen = s.lasting(WIDTH)
        s.calls[-1].writes["y"] = seen
        small.matmul(seen, VOCABULARY, WIDTH, into=small.logits)
        assert y not in s.calls[-1].reads.values()
        assert made_with(small) == {"recorded": 1, "normedrows": 1, "product": 1}

    @pytest.mark.parametrize("passes", [("matvec", "norm"), PASSES], ids=["without dead", "all"])
    def test_a_norm_that_nobody_reads_goes_only_where_the_dead_do(self, passes: Sequence[str]) -> None:
        small = Small()
        x = small.embedded()
        small.norm(x)
        small.matmul(x, VOCABULARY, WIDTH, into=small.logits)
        placement = check(small, small.sketch.record(clears=False), passes)
        assert recorded(placement, 0, 1, 2) == [True, "dead" not in passes, False]

    def test_a_sum_behind_the_gated_half(self) -> None:
        small = Small()
        y, _ = small.gated_mlp(small.matmul(small.cos, WIDTH, WIDTH), small.embedded())
        small.matmul(small.add(y, small.cos, 64), VOCABULARY, 64, into=small.logits)
        found = made_with(small, recycle=False)
        assert found == {"recorded": 2, "product residual": 1, "product norm gated": 1, "product": 1}

    def test_a_gated_half_without_a_sum_before_it(self) -> None:
        small = Small()
        total = small.add(small.matmul(small.cos, WIDTH, WIDTH), small.embedded(), WIDTH)
        y = small.add(small.matmul(small.gated_mlp_alone(total), WIDTH, INNER), total, WIDTH)
        small.matmul(y, VOCABULARY, WIDTH, into=small.logits)
        found = made_with(small, recycle=False)
        assert found == {"recorded": 1, "product residual": 2, "product norm gated": 1, "product": 1}

    def test_a_norm_that_its_product_is_added_to(self) -> None:
        small = Small()
        y = small.norm(small.embedded())
        small.matmul(small.add(small.matmul(y, WIDTH, WIDTH), y, WIDTH), VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small, recycle=False) == {"recorded": 2, "product residual": 1, "product": 1}

    def test_a_sum_with_what_is_made_after_the_product(self) -> None:
        small = Small()
        s = small.sketch
        product = small.matmul(small.embedded(), WIDTH, WIDTH)
        later = s.unknown(lambda v: v[:WIDTH] ** 2, [small.cos], WIDTH)
        small.matmul(small.add(product, later, WIDTH), VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small, recycle=False) == {"recorded": 2, "product residual": 1, "product": 1}

    def test_a_product_whose_weights_the_step_computes(self) -> None:
        small = Small()
        s = small.sketch
        product = small.matmul(small.embedded(), WIDTH, WIDTH)
        call = s.calls.pop()
        weights = call.reads["input_b"]
        call.reads["input_b"] = s.unknown(lambda w: w / 2, [weights], WIDTH * WIDTH)
        s.calls.append(call)
        small.matmul(product, VOCABULARY, WIDTH, into=small.logits)
        placement = check(small, s.record(), PASSES)
        assert recorded(placement, 1, 2, 3) == [True, True, False]

    def test_a_copy_that_the_next_kernel_changes_a_part_of(self) -> None:
        small = decoder(patched=True)
        step = small.sketch.record(clears=False)
        placement = check(small, step, PASSES)
        assert isinstance(step.ops[small.calls["copy"]], Copy)
        assert recorded(placement, small.calls["copy"]) == [True]

    def test_part_copies_that_make_a_vector_together(self) -> None:
        small = Small()
        s = small.sketch
        halves = [s.unknown(lambda table, i=i: table[i : i + 16], [small.table], 16) for i in range(2)]
        whole = s.tensor(WIDTH)
        for i, half in enumerate(halves):
            s.copy(half, whole, 16, to=16 * i)
        small.matmul(whole, VOCABULARY, WIDTH, into=small.logits)
        assert made_with(small) == {"recorded": 4, "product": 1}

    @staticmethod
    def between(small: Small, name: str, make: object) -> None:
        """Put the operations that `make` appends in front of the one of this name."""
        calls = small.sketch.calls
        count = len(calls)
        assert callable(make)
        make()
        added = calls[count:]
        del calls[count:]
        calls[small.calls[name] : small.calls[name]] = added

    @pytest.mark.parametrize("before", ["split 1", "join 1"])
    def test_attention_whose_cache_is_read_in_between(self, before: str) -> None:
        small = decoder()
        s = small.sketch
        seen = s.lasting(8)
        self.between(small, before, lambda: s.unknown(lambda v: v[16:24], [small.caches[2]], 8, into=seen))
        assert made_with(small, recycle=False)["attention"] == 1

    def test_attention_whose_cache_is_changed_in_between(self) -> None:
        small = decoder()
        s = small.sketch
        self.between(
            small, "split 1", lambda: s.unknown(lambda v: v[:8] * 2, [small.cos], 8, into=small.caches[2], first=16)
        )
        assert made_with(small, recycle=False)["attention"] == 1

    @pytest.mark.parametrize(
        ("made_by", "which", "size"),
        [
            ("rotary 1", "query", 8),
            ("rotary 1", "indirect_buffer", 3),
            ("split 1", "out_split_vx", 8),
            ("split 1", "metadata", 8),
        ],
    )
    def test_attention_of_which_something_is_read_elsewhere(self, made_by: str, which: str, size: int) -> None:
        small = decoder()
        s = small.sketch
        tensor = s.calls[small.calls[made_by]].writes[which]
        s.unknown(lambda v: v[:size], [tensor], size, into=s.lasting(size))
        assert made_with(small)["attention"] == 1

    def test_attention_over_a_cache_that_does_not_outlive_the_step(self) -> None:
        small = decoder()
        s = small.sketch
        cache = small.caches[3]
        copied = s.tensor(KV_HEADS * CAPACITY * HEAD)
        for name in ("rotary 1", "split 1"):
            call = s.calls[small.calls[name]]
            side = call.writes if name == "rotary 1" else call.reads
            side["present_value"] = copied
        self.between(small, "rotary 1", lambda: s.copy(cache, copied, s.sizes[copied]))
        assert made_with(small, recycle=False)["attention"] == 1
