"""A kernel that is wrong is found out and left out, the others stay; what was found out holds for later loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from capstan import DeviceLostError, FallbackWarning, OutOfMemoryError
from capstan.device.webgpu.tapes.verdicts import Verdicts
from capstan.host.notes import Notes
from capstan.tape import PASSES
from tests.paper_weights import PaperBacking
from tests.unit import step_simulator
from tests.unit.recorder_stage import Engine, Tape, kernels, record
from tests.unit.small_decoders import HEAD, decoder

pytestmark = pytest.mark.usefixtures("no_fallbacks")


def test_an_operation_whose_kernel_leaves_its_result_unwritten_stays_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def does_nothing(*_: Any) -> None:
        """As a kernel whose workgroups are too few."""

    monkeypatch.setitem(step_simulator.OURS, "attention", does_nothing)
    with pytest.warns(FallbackWarning, match="a fused decode kernel: .* of attention of 4 heads .* finite in only one"):
        outcome = record(passes=[name for name in PASSES if name != "direct"])
    assert kernels(outcome) == {"matvec_q4": 9}
    assert outcome.step.passes["left out"].count("attention of 4 heads") == 2, "one for each layer"
    assert sum(op[0] == "indirect" for op in outcome.tape.played) == 2


Kernel = Callable[[dict[str, Any], dict[str, Any], tuple[int, int, int]], None]


def wrong_scale(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        scales = at["scales"].copy()
        scales[5], scales[6] = scales[6], scales[5]
        kernel(at | {"scales": scales}, c, counts)

    return run


def lost_block(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        if "x" in at and "gamma" not in at:
            at = at | {"x": at["x"].copy()}
            at["x"][c["K"] - 32 :] = 0
        kernel(at, c, counts)

    return run


def lost_residual(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        kernel({name: buffer for name, buffer in at.items() if name != "residual"}, c, counts)

    return run


def wrong_epsilon(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        kernel(at, c | ({"EPSILON": 1e-3} if "gamma" in at else {}), counts)

    return run


def swapped_heads(kernel: Kernel) -> Kernel:
    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        qkv = at["qkv"].copy()
        qkv[:HEAD], qkv[HEAD : 2 * HEAD] = at["qkv"][HEAD : 2 * HEAD], at["qkv"][:HEAD]
        kernel(at | {"qkv": qkv}, c, counts)

    return run


def stale_row(kernel: Kernel) -> Kernel:
    """The new key does not get into the cache."""

    def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        before = at["key_cache"].copy()
        kernel(at, c, counts)
        at["key_cache"][:] = before

    return run


def mask_off_by(error: int) -> Callable[[Kernel], Kernel]:
    """Attention over `error` more positions than the sequence has; the rest of the step is right."""

    def mutated(kernel: Kernel) -> Kernel:
        def run(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
            length = int(at["state"][0])
            if length + error > c["CAPACITY"]:
                kernel(at, c, counts)
                return
            caches = {name: at[name].copy() for name in ("key_cache", "value_cache")}
            kernel(at, c, counts)
            width, kv_width = c["HEADS"] * c["HEAD"], c["KV_HEADS"] * c["HEAD"]
            qkv = at["qkv"].copy()
            if error < 0:
                # The newest position counts for nothing: its value is that of the one before.
                rows = caches["value_cache"].reshape(-1, c["CAPACITY"], c["HEAD"])[:, length - 2]
                qkv[width + kv_width : width + 2 * kv_width] = rows.reshape(-1)
            else:
                qkv[width + kv_width : width + 2 * kv_width] += 1e-3
            result = dict(at, qkv=qkv, **caches)
            kernel(result, c, counts)

        return run

    return mutated


MUTATIONS: dict[str, tuple[str, Callable[[Kernel], Kernel]]] = {
    "wrong scale": ("matvec_q4", wrong_scale),
    "lost block": ("matvec_q4", lost_block),
    "lost residual": ("matvec_q4", lost_residual),
    "wrong epsilon": ("matvec_q4", wrong_epsilon),
    "swapped heads": ("attention", swapped_heads),
    "stale row": ("attention", stale_row),
    "newest position lost": ("attention", mask_off_by(-1)),
    "newest value off": ("attention", mask_off_by(1)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_kernel_that_computes_something_else_is_found_out_and_the_others_stay(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shader, change = MUTATIONS[mutation]
    right = kernels(record())
    monkeypatch.setitem(step_simulator.OURS, shader, change(cast(Any, step_simulator.OURS[shader])))
    with pytest.warns(FallbackWarning, match="a fused decode kernel: .* units of rounding"):
        outcome = record()
    assert outcome.step.passes["left out"]
    found = kernels(outcome)
    assert found[shader] < right[shader]
    other = "attention" if shader == "matvec_q4" else "matvec_q4"
    assert found[other] == right[other]


def test_a_product_that_joins_splits_wrongly_joins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    right = record()
    kernel = step_simulator.OURS["matvec_q4"]

    def lost_split(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        if "partials" in at:
            at = at | {"partials": at["partials"] * 0.9}
        kernel(at, c, counts)

    assert any("attended" in kernel["bindings"] for kernel in right.tape.fused["kernels"])
    monkeypatch.setitem(step_simulator.OURS, "matvec_q4", cast(Any, lost_split))
    with pytest.warns(FallbackWarning, match="a fused decode kernel: result of attention"):
        outcome = record()
    assert not any("attended" in kernel["bindings"] for kernel in outcome.tape.fused["kernels"])
    assert kernels(outcome)["matvec_q4"] == kernels(right)["matvec_q4"]


def test_a_kernel_that_is_wrong_in_one_layer_is_used_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other it may only not have shown it."""
    small = decoder()
    kernel = cast(Kernel, step_simulator.OURS["attention"])
    engines: list[Engine] = []

    def wrong_at_first(at: dict[str, Any], c: dict[str, Any], counts: tuple[int, int, int]) -> None:
        [engine] = engines
        first = engine.machine.memory[engine.step.buffer_of[small.caches[0]]]
        (swapped_heads(kernel) if at["key_cache"] is first else kernel)(at, c, counts)

    monkeypatch.setitem(step_simulator.OURS, "attention", cast(Any, wrong_at_first))
    with pytest.warns(FallbackWarning, match="a fused decode kernel: result of attention"):
        outcome = record(small, prepare=engines.append)
    assert kernels(outcome)["attention"] == 0
    engines.clear()
    assert kernels(outcome)["matvec_q4"] == kernels(record(prepare=engines.append))["matvec_q4"]


def test_a_recorded_operation_that_is_not_what_it_looks_like_stays_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a kernel of another version whose text has every line of a product's."""
    small = decoder()
    call = small.sketch.calls[small.calls["out 0"]]
    compute = call.kernel.compute

    def shifted(at: Mapping[str, Any], uniforms: Mapping[str, Any]) -> None:
        compute(at, uniforms)
        at["output"][:] += 0.01

    call.kernel = replace(call.kernel, lines=(*call.kernel.lines, "// and more"), compute=shifted)
    with pytest.warns(FallbackWarning, match="64 -> 32 .* by the recorded kernel: .* units of rounding"):
        outcome = record(small)
    # With it goes the gated layer behind it, whose residual finds no product to join.
    assert kernels(outcome)["matvec_q4"] == kernels(record())["matvec_q4"] - 2


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_make_no_kernel_wrong(number: float) -> None:
    """Their effect is the same in the recorded kernel, in ours and in the truth."""
    small = decoder()
    scales = small.sketch.calls[small.calls["qkv 0"]].reads["scales_b"]
    small.sketch.given[scales][3] = number
    outcome = record(small)
    assert kernels(outcome) == kernels(record())
    assert "left out" not in outcome.step.passes


def test_without_memory_for_the_truth_the_recorded_kernels_are_replayed() -> None:
    def prepare(engine: Engine) -> None:
        def lacks(tape: int) -> None:
            if tape and engine.tapes[tape].ours:
                raise OutOfMemoryError("there is no memory for the scratch of a tape's kernels")

        engine.no_room = lacks

    with pytest.warns(FallbackWarning, match="fused decode kernels: there is no memory"):
        outcome = record(prepare=prepare)
    assert outcome.step.passes["fused"].startswith("not used: there is no memory")
    assert (outcome.step.capture, outcome.tape.ours) == ("tape", False)


class TestVerdicts:
    """The verdict of one load holds for the next."""

    @staticmethod
    def kept(backing: PaperBacking, facts: str = "adapter, browser and versions") -> Verdicts:
        return Verdicts(Notes(backing), "models/small", facts)

    def test_a_step_that_was_found_right_is_neither_compared_nor_warned_of_again(self) -> None:
        backing = PaperBacking()
        first, second = record(verdicts=self.kept(backing)), record(verdicts=self.kept(backing))
        assert (second.engine.witnessed, second.engine.played_at) == ([], [])
        assert second.step.passes == first.step.passes
        assert second.tape.played == first.tape.played

    def test_what_was_left_out_is_left_out_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backing = PaperBacking()
        monkeypatch.setitem(step_simulator.OURS, "attention", lambda *_: None)
        with pytest.warns(FallbackWarning):
            first = record(verdicts=self.kept(backing))
        second = record(verdicts=self.kept(backing))
        assert (second.engine.witnessed, second.engine.played_at) == ([], [])
        assert second.step.passes == first.step.passes
        assert kernels(second) == kernels(first)

    @pytest.mark.parametrize("passes", [("clears",), ("clears", "direct"), ()])
    def test_so_is_a_step_of_recorded_kernels(self, passes: Sequence[str]) -> None:
        backing = PaperBacking()
        first = record(verdicts=self.kept(backing), passes=passes)
        second = record(verdicts=self.kept(backing), passes=passes)
        assert second.engine.played_at == []
        assert (second.step.passes, second.tape.played) == (first.step.passes, first.tape.played)
        assert second.tape.tables == first.tape.tables

    def test_another_adapter_browser_or_version_is_compared_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))
        assert record(verdicts=self.kept(backing, "another adapter")).engine.witnessed

    def test_another_step_is_compared_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))
        assert record(decoder(multipliers=True), verdicts=self.kept(backing)).engine.witnessed
        assert record(verdicts=self.kept(backing), passes=("clears", "matvec", "norm")).engine.witnessed

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"form": "best", "left": {}, "passes": {}, "direct": false}'])
    def test_a_damaged_verdict_is_none(self, text: str) -> None:
        class Damaged(Notes):
            async def read(self, name: str, key: str) -> str | None:
                return text

        outcome = record(verdicts=Verdicts(Damaged(PaperBacking()), "models/small", ""))
        assert outcome.engine.witnessed
        assert outcome.tape.ours

    def test_a_kernel_that_no_longer_compiles_is_found_out_anew(self) -> None:
        backing = PaperBacking()
        record(verdicts=self.kept(backing))

        def prepare(engine: Engine) -> None:
            engine.refuses = "kernel matvec_q4 does not compile on this adapter: line 3: no"

        with pytest.warns(FallbackWarning, match="does not compile"):
            outcome = record(verdicts=self.kept(backing), prepare=prepare)
        assert not outcome.tape.ours

    def test_what_came_of_a_lack_of_memory_is_not_kept(self) -> None:
        backing = PaperBacking()

        def prepare(engine: Engine) -> None:
            def lacks(tape: int) -> None:
                if tape and engine.tapes[tape].ours:
                    raise OutOfMemoryError("there is no memory for the scratch of a tape's kernels")

            engine.no_room = lacks

        verdicts = self.kept(backing)
        with pytest.warns(FallbackWarning, match="there is no memory"):
            lacking = record(verdicts=verdicts, prepare=prepare)
        assert (lacking.tape.ours, lacking.step.lasting) == (False, False)
        for later in (verdicts, self.kept(backing)):
            outcome = record(verdicts=later)
            assert (outcome.tape.ours, outcome.step.lasting) == (True, True)

    def test_nothing_is_kept_of_a_check_that_broke_off(self) -> None:
        backing = PaperBacking()

        def losing(engine: Engine) -> None:
            def spoil(_tape: Tape, _length: int) -> float:
                raise DeviceLostError("the test says so")

            engine.spoils = spoil

        with pytest.raises(DeviceLostError):
            record(prepare=losing, verdicts=self.kept(backing))
        assert backing.files == {}
