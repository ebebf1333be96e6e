"""A fused tape is used only after it did what an eager step does; else the recorded kernels are, and it is told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from capstan import DeviceLostError, FallbackWarning
from capstan.device.webgpu.gpu_engine import NOT_FUSED
from capstan.errors import OutOfMemoryError
from capstan.fallback import fallbacks
from capstan.tape import PASSES, Clear
from tests.unit import step_simulator
from tests.unit.recorder_stage import CAPTURED, OWNER, SHORT, Engine, Tape, clears, record
from tests.unit.small_decoders import CAPACITY, HEAD, VOCABULARY, WIDTH, decoder

pytestmark = pytest.mark.usefixtures("no_fallbacks")


def test_a_fused_tape_that_does_what_an_eager_step_does_is_used() -> None:
    outcome = record()
    count = len(outcome.engine.step.ops) - clears(outcome)
    assert (outcome.step.capture, outcome.step.note) == ("tape", None)
    assert outcome.step.passes == {
        "fused": f"{count} operations became 12, 1 of them as recorded",
        "as recorded": "recorded: none of our kernels computes it",
        "direct": "no indirect dispatches",
        "clears": f"{clears(outcome)} dropped",
    }
    assert clears(outcome) > 0
    assert fallbacks() == {}
    assert outcome.tape.ours
    assert outcome.tape.fused["owner"] == OWNER
    assert outcome.engine.retired == [CAPTURED]


@pytest.mark.parametrize("norms", ["inside", "apart", "all"])
def test_attention_with_norms_of_q_and_k_is_held_to_a_truth_with_norms(norms: str) -> None:
    outcome = record(decoder(norms=norms))
    assert outcome.step.passes["fused"].endswith(" operations became 12, 1 of them as recorded")
    assert outcome.step.passes["direct"] == "no indirect dispatches"
    assert "left out" not in outcome.step.passes


WINDOW = 24


def test_a_window_that_the_recorded_kernels_leave_out_is_computed_by_ours() -> None:
    outcome = record(window=WINDOW)
    assert (outcome.step.capture, outcome.step.note) == ("tape", None)
    assert outcome.step.passes["fused"].endswith(" operations became 12, 1 of them as recorded")
    assert "left out" not in outcome.step.passes, "what the recorded kernels compute was taken for wrong"
    assert fallbacks() == {}
    attentions = [each for each in outcome.tape.fused["kernels"] if each["shader"] == "attention"]
    assert [each["constants"]["WINDOW"] for each in attentions] == [WINDOW] * len(attentions)
    assert attentions


def test_a_window_that_our_kernel_loses_is_found_out_and_nothing_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = step_simulator.OURS["attention"]
    monkeypatch.setitem(
        step_simulator.OURS, "attention", lambda at, c, counts: attention(at, c | {"WINDOW": CAPACITY}, (99, 99, 1))
    )
    with pytest.warns(FallbackWarning, match="onnxruntime-web runs each step"):
        outcome = record(window=WINDOW)
    assert outcome.step.capture == "off"
    assert outcome.step.note is not None
    assert outcome.step.note.startswith("the tape cannot be used: result of attention of 4 heads at ")
    assert outcome.step.note.endswith(
        "attention over past 0 looks back 24 positions, which onnxruntime-web ignores in a captured run"
    )
    assert outcome.engine.tapes == {}
    assert [name for name in fallbacks() if name.startswith("a replayed decode step: the tape cannot be used")]


@pytest.mark.parametrize("passes", [[], [name for name in PASSES if name != "attention"]], ids=["none", "others"])
def test_a_window_that_no_kernel_of_ours_is_asked_for_keeps_a_step_from_being_replayed(passes: list[str]) -> None:
    with pytest.warns(FallbackWarning, match="none of our kernels computes attention over past 0; "):
        outcome = record(window=WINDOW, passes=passes)
    assert (outcome.step.capture, outcome.engine.tapes) == ("off", {})


def test_a_window_that_ends_past_the_long_length_is_outgrown_in_the_check() -> None:
    engine = record(window=CAPACITY - 41).engine
    assert {length for _, length in engine.witnessed} == {SHORT, CAPACITY}


def test_it_is_checked_at_a_short_and_a_long_length() -> None:
    engine = record().engine
    assert engine.witnessed == [(ours, length) for length in (SHORT, CAPACITY) for ours in (False, True)]
    assert engine.played_at == [(True, SHORT), (True, CAPACITY)]


def test_the_prompt_before_the_steps_is_prefilled_once() -> None:
    """Prompts are slow where there is no GPU, and no step changes what they leave."""
    assert record().engine.probed == [40]


def test_a_wrong_step_may_have_changed_the_prompt_before_it() -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, length: 1.0 if tape.ours else 0.0

    with pytest.warns(FallbackWarning, match="differs from an eager one"):
        outcome = record(prepare=prepare)
    assert outcome.engine.probed == [40, 40]


def test_the_caches_are_as_a_prompt_leaves_them_when_an_operation_is_held_to_the_truth() -> None:
    engine = Engine(decoder(), decoder().sketch.record())
    seen: list[tuple[int, bool, bool]] = []

    def prepare(engine: Engine) -> None:
        def look(tape: int) -> None:
            if tape:
                rows = engine.machine.memory[engine.step.buffer_of[engine.small.caches[0]]].reshape(-1, CAPACITY, HEAD)
                last = engine.positions()
                repeated = bool((rows[:, 40 : min(80, last)] == rows[:, : min(40, last - 40)]).all())
                seen.append((last, repeated, bool((rows[:, last:] > 1e9).all())))

        engine.no_room = look

    record(prepare=prepare)
    assert seen == [(last, True, True) for last in (SHORT - 1, SHORT - 1, CAPACITY - 1, CAPACITY - 1)], engine


def test_what_it_meets_of_the_recorded_buffers_is_full_of_nan_before_the_check() -> None:
    small = decoder(multipliers=True)
    outcome = record(small, passes=[name for name in PASSES if name != "clears"])
    engine = outcome.engine
    private = engine.step.recording.private() - engine.step.lasting
    met = {buffer for op in outcome.tape.played if op[0] == "dispatch" for buffer in engine.bound(op[2])}
    assert len(met & private) > 1
    assert met & private <= engine.poisoned[outcome.step.tape] <= private


@pytest.mark.parametrize("length", [SHORT, CAPACITY], ids=["short", "long"])
@pytest.mark.parametrize("damage", [1.0, math.nan, math.inf])
def test_a_fused_tape_that_fails_its_check_steps_down_to_the_recorded_kernels(damage: float, length: int) -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, at: damage if tape.ours and at == length else 0.0

    with pytest.warns(
        FallbackWarning, match="fused decode kernels: a replayed step differs from an eager one in logits"
    ):
        outcome = record(prepare=prepare, passes=[name for name in PASSES if name != "direct"])
    assert (outcome.step.capture, outcome.step.note) == ("tape", None)
    reason = outcome.step.passes["fused"].removeprefix("not used: ")
    assert reason.startswith("a replayed step differs from an eager one in logits by ")
    assert fallbacks() == {f"fused decode kernels: {reason}": 1}
    assert list(outcome.tape.played) == [op.played() for op in outcome.engine.step.ops if not isinstance(op, Clear)]
    assert outcome.step.passes["clears"] == f"{clears(outcome)} dropped"
    assert outcome.tape.fused["scratch"] == [], "scratch is freed with the tape that failed"
    assert any(tape.ours for tape in outcome.engine.made)


def test_differences_within_the_tolerance_are_let_pass() -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, _: 1e-4 if tape.ours else 0.0

    assert record(prepare=prepare).tape.ours


def test_a_kernel_that_does_not_compile_steps_down_to_the_recorded_kernels() -> None:
    def prepare(engine: Engine) -> None:
        engine.refuses = "kernel matvec_q4 does not compile on this adapter: line 3: no"

    with pytest.warns(FallbackWarning, match="kernel matvec_q4 does not compile .* own kernels are replayed"):
        outcome = record(prepare=prepare)
    assert outcome.step.passes["fused"] == "not used: kernel matvec_q4 does not compile on this adapter: line 3: no"
    assert list(fallbacks().values()) == [1]
    assert not outcome.tape.ours
    assert not any(tape.ours for tape in outcome.engine.made)


def test_a_lack_of_memory_for_fused_kernels_says_nothing_of_later_loads() -> None:
    def prepare(engine: Engine) -> None:
        make_tape = engine.make_tape

        async def without_memory(recording: int, played: Any, written: Any, fused: Any = NOT_FUSED) -> int:
            if fused["kernels"]:
                raise OutOfMemoryError("no memory for scratch")
            return await make_tape(recording, played, written, fused)

        engine.make_tape = without_memory  # type: ignore[method-assign]

    with pytest.warns(FallbackWarning, match="no memory for scratch"):
        outcome = record(prepare=prepare)
    assert (outcome.step.capture, outcome.step.lasting) == ("tape", False)
    assert record().step.lasting


@pytest.mark.parametrize(
    "passes", [(), ("clears",), ("direct",), ("clears", "direct"), ("norm",), ("clears", "residual")]
)
def test_a_step_with_nothing_to_fuse_is_no_step_down(passes: Sequence[str]) -> None:
    outcome = record(passes=passes)
    assert fallbacks() == {}
    assert outcome.step.capture == "tape"
    assert outcome.step.passes["fused"] == "not used: the passes find no operation to join in the step"
    assert outcome.step.passes["clears"] == f"{clears(outcome) if 'clears' in passes else 0} dropped"
    assert sum(op[0] == "clear" for op in outcome.tape.played) == (0 if "clears" in passes else clears(outcome))
    kinds = {op[0] for op in outcome.tape.played} - {"clear", "dispatch"}
    assert kinds == {"table" if "direct" in passes else "indirect"}


@pytest.mark.parametrize("passes", [PASSES, ("clears", "direct")], ids=["fused", "recorded"])
def test_a_device_that_is_lost_on_the_way_leaves_no_tape(passes: Sequence[str]) -> None:
    lost: list[Engine] = []
    plays = len(record(passes=passes).engine.played_at)

    def losing(number: int) -> Callable[[Engine], None]:
        def prepare(engine: Engine) -> None:
            def spoil(_tape: Tape, _length: int) -> float:
                if len(engine.played_at) == number:
                    raise DeviceLostError("the test says so")
                return 0.0

            engine.spoils = spoil
            lost.append(engine)

        return prepare

    for number in range(1, plays + 1):
        with pytest.raises(DeviceLostError):
            record(passes=passes, prepare=losing(number))
        assert (lost[-1].tapes, lost[-1].dropped) == ({}, [7]), f"in replay {number}"
    assert plays >= 2


class TestIndirectDispatches:
    PASSES = tuple(name for name in PASSES if name != "attention")

    def test_get_their_counts_from_tables_beside_fused_kernels(self) -> None:
        outcome = record(passes=self.PASSES)
        assert outcome.step.passes["direct"] == "2 made direct"
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["table"] * 2
        assert outcome.tape.ours
        assert len(outcome.tape.tables) == 1

    def test_stay_if_not_asked_for(self) -> None:
        outcome = record(passes=[name for name in self.PASSES if name != "direct"])
        assert outcome.step.passes["direct"] == "2 indirect dispatches kept: not requested"
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["indirect"] * 2

    def test_stay_where_their_counts_cannot_be_learned_and_fused_kernels_too(self) -> None:
        outcome = record(passes=self.PASSES, mask_dtype="int32")
        assert outcome.step.passes["direct"].startswith("2 indirect dispatches kept: the mask is int32")
        assert outcome.step.passes["fused"].endswith("recorded")
        assert outcome.tape.ours
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["indirect"] * 2
        assert fallbacks() == {}

    def test_stay_where_the_step_gets_other_counts_than_the_table_has(self) -> None:
        def prepare(engine: Engine) -> None:
            counts = engine.counts_of_step

            async def other(tape: int, length: int) -> bytes:
                found = bytearray(await counts(tape, length))
                found[-12] += length == CAPACITY
                return bytes(found)

            engine.counts_of_step = other  # type: ignore[method-assign]

        outcome = record(passes=self.PASSES, prepare=prepare)
        told = (
            rf"2 indirect dispatches kept: indirect dispatch \d+ has .* workgroups at length {CAPACITY}; its table has "
        )
        assert re.match(told, outcome.step.passes["direct"])
        assert [op[0] for op in outcome.tape.played if op[0] in ("table", "indirect")] == ["indirect"] * 2

    def test_tapes_made_to_learn_counts_are_closed(self) -> None:
        outcome = record(passes=self.PASSES)
        assert len(outcome.engine.made) > 1
        assert len(outcome.engine.tapes) == 1


def test_a_clear_that_matters_is_found_out_and_kept() -> None:
    small = decoder()
    s = small.sketch
    # Adds to what is in its buffer, which the clear had made zero.
    used = s.unknown(lambda v: v[:WIDTH], [small.cos], WIDTH)
    s.unknown(lambda v: np.resize(v, WIDTH), [used], WIDTH, into=s.lasting(WIDTH))
    total = s.tensor(WIDTH)
    s.unknown(lambda v: v[:WIDTH], [small.sin], WIDTH, into=total)
    add = s.calls[-1].kernel

    def accumulate(at: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        at["out"][:WIDTH] += at["in0"][:WIDTH]

    s.calls[-1].kernel = type(add)(add.reads, add.writes, (), ("// adds",), accumulate)
    s.unknown(lambda t, v: v[:VOCABULARY] * 2 + t[0], [total, small.logits], VOCABULARY, into=s.lasting(VOCABULARY))
    s.unknown(lambda t: np.resize(t[:WIDTH], VOCABULARY), [total], VOCABULARY, into=small.logits)
    with pytest.warns(FallbackWarning, match="elements finite in only one"):
        outcome = record(small)
    assert outcome.step.capture == "tape"
    assert outcome.step.passes["clears"].startswith("kept: a replayed step differs from an eager one in logits")
    assert sum(op[0] == "clear" for op in outcome.tape.played) == clears(outcome)


def test_a_step_that_no_tape_repeats_is_left_to_orts_capture() -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, _: 1.0 if tape.played else 0.0

    with pytest.warns(FallbackWarning):
        outcome = record(prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("ort", 0)
    assert outcome.step.note is not None
    assert outcome.step.note.startswith("the tape cannot be used: a replayed step differs from an eager one in logits")
    assert outcome.engine.tapes == {}, "no tape is left open"


@pytest.mark.parametrize("passes", [("clears",), ("clears", "direct")])
def test_recorded_kernels_that_fail_at_a_long_length_only_are_not_used(passes: Sequence[str]) -> None:
    def prepare(engine: Engine) -> None:
        engine.spoils = lambda tape, at: 1.0 if tape.played and at == CAPACITY else 0.0

    outcome = record(passes=passes, prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("ort", 0)
    assert outcome.engine.tapes == {}


def test_orts_capture_is_compared_at_a_long_length_too() -> None:
    def prepare(engine: Engine) -> None:
        long = CAPACITY - 1
        engine.spoils = lambda tape, at: 1.0 if tape.played or engine.positions() == long else 0.0

    with pytest.warns(FallbackWarning):
        outcome = record(prepare=prepare)
    assert (outcome.step.capture, outcome.step.tape) == ("off", 0)
    assert outcome.step.note is not None
    assert outcome.step.note.count("a replayed step differs from an eager one in logits") == 2
    assert outcome.engine.retired == [CAPTURED]


def test_copies_that_the_next_kernel_changes_a_part_of_are_played() -> None:
    outcome = record(decoder(patched=True))
    assert outcome.tape.ours
    assert sum(op[0] == "copy" for op in outcome.tape.played) == 1
