"""Measures where there is nothing to measure, and what they do around the steps they play."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from capstan import CapstanError, DeviceUnavailableError, Generator, Model, OptionError, measure
from capstan.device.webgpu.rehearsal import KEPT, Rehearsal

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
FEATURES = ["core-features-and-limits", "timestamp-query"]


class PaperStage:
    """The engine and the buffers of a rehearsal: a log of what is done with them, in order."""

    def __init__(self, features: list[str] = FEATURES, play: Callable[[], Awaitable[float]] | None = None) -> None:
        self.log: list[str] = []
        self.features = features
        self.play = play
        self.device = self
        self.capacity = self.end = 256
        self.spans = {name: SimpleNamespace(name=name, length=16) for name in KEPT if name != "positions"}
        self.states: list[Any] = []

    def adapter(self) -> dict[str, Any]:
        return {"features": self.features}

    def allocate(self, length: int, *, category: str, owner: str) -> Any:
        copy = SimpleNamespace(name="copy", length=length)
        self.log.append("allocate")
        return SimpleNamespace(span=lambda: copy, close=lambda: self.log.append("free"))

    def copy_tensors(self, pairs: list[tuple[Any, Any]]) -> None:
        [way] = {(source.name == "copy", target.name == "copy") for source, target in pairs}
        self.log.append("keep" if way[1] else "put back")

    async def step_time(self, tape: int, sampler: int, steps: int, length: int) -> float:
        self.log.append(f"{steps} steps at {length}")
        found = await self.play() if self.play else 1.5
        self.log.append("done")
        return found


def rehearsal(stage: PaperStage) -> Rehearsal:
    return Rehearsal(cast(Any, stage), cast(Any, stage), tape=1, sampler=2, length=20, cursor=3, in_flight=2)


def test_a_device_without_a_tape_is_refused() -> None:
    async def attempt() -> None:
        async with Generator(await Model.load(str(NANO), device="reference")) as generator:
            generator.append_tokens([5, 6, 7])
            await generator.generate_next_token_async()
            await measure.gpu_step_time(generator)

    with pytest.raises(OptionError, match=r"run with capture 'off' \(the reference.*only steps of a tape can be timed"):
        asyncio.run(attempt())


@pytest.mark.parametrize("what", [lambda r: r.step_time(4, 2), lambda r: r.operation_times(2)])
def test_an_adapter_without_timestamps_is_named_and_nothing_is_touched(
    what: Callable[[Rehearsal], Awaitable[object]],
) -> None:
    async def attempt() -> object:
        return await what(rehearsal(stage))

    stage = PaperStage(["shader-f16"])
    with pytest.raises(DeviceUnavailableError, match="timestamp-query, which this adapter lacks"):
        asyncio.run(attempt())
    assert stage.log == []


def test_each_round_starts_from_the_state_that_was_there() -> None:
    stage = PaperStage()
    assert asyncio.run(rehearsal(stage).step_time(4, rounds=2)) == [1.5, 1.5]
    round_ = ["4 steps at 20", "done", "put back"]
    assert stage.log == ["allocate"] * 5 + ["keep", *round_, *round_] + ["free"] * 5


def test_the_state_is_put_back_after_a_failure() -> None:
    async def fail() -> float:
        raise CapstanError("lost")

    stage = PaperStage(play=fail)
    with pytest.raises(CapstanError, match="lost"):
        asyncio.run(rehearsal(stage).step_time(4, rounds=2))
    assert stage.log == ["allocate"] * 5 + ["keep", "4 steps at 20", "put back"] + ["free"] * 5


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_measure_waits_for_the_steps_that_are_under_way(times: int) -> None:
    async def attempt() -> None:
        gate = asyncio.Event()

        async def play() -> float:
            await gate.wait()
            return 1.0

        stage.play = play
        measuring = asyncio.ensure_future(rehearsal(stage).step_time(4, rounds=2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(times):
            measuring.cancel()
            await asyncio.sleep(0)
        assert stage.log[-1] == "4 steps at 20", "nothing is put back under steps that still run"
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await measuring

    stage = PaperStage()
    asyncio.run(attempt())
    assert stage.log[-8:] == ["4 steps at 20", "done", "put back"] + ["free"] * 5


class ForcedStage(PaperStage):
    """A model whose logits tell how many steps were played, and a sampler that picks the largest logit."""

    def __init__(self, never: int | None = None) -> None:
        super().__init__()
        self.values = array("f", [0.0] * 4)
        self.steps = 0
        self.never = never

    def set_input(self, token: int, position: int) -> None:
        self.log.append(f"{token} at {position}")

    def play_once(self, tape: int, length: int) -> None:
        self.steps += 1
        self.log.append(f"step at {length}")
        self.values = array("f", [float(self.steps)] * 4)

    async def logits(self) -> memoryview[float]:
        return memoryview(self.values)

    def set_logits(self, values: memoryview[float]) -> None:
        self.values = array("f", values)

    async def burst(self, tape: int, sampler: int, picks: int, first: bool, length: int, cursor: int) -> list[float]:
        assert (picks, first) == (1, True), "a pick from the logits that are there, without a step"
        allowed = [token for token in range(4) if token != self.never]
        picked = max(allowed, key=lambda token: self.values[token])
        self.log.append(f"{picked} into {cursor}")
        return [0.0, 0.0, 0.0, 0.0, float(picked)]


def test_forced_tokens_are_stepped_over_one_by_one_and_their_logits_seen_before_they_are_picked() -> None:
    """They follow the sequence: tokens that were computed ahead of it (the stage is at 20) are not part of it."""
    stage, seen = ForcedStage(), []
    asyncio.run(
        rehearsal(stage).forced(
            [5, 6, 7], [2, 0, 3], stage.logits, stage.set_logits, lambda found: seen.append(list(found))
        )
    )
    assert seen == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    steps = ["7 at 2", "step at 3", "2 into 0", "step at 4", "0 into 1", "step at 5", "3 into 2"]
    assert stage.log == ["allocate"] * 5 + ["keep", *steps, "put back"] + ["free"] * 5


def test_a_token_that_the_search_never_picks_cannot_be_forced() -> None:
    stage = ForcedStage(never=2)
    with pytest.raises(OptionError, match="token 2 cannot be forced: the search picks 0 instead"):
        asyncio.run(rehearsal(stage).forced([1], [2], stage.logits, stage.set_logits, lambda _: None))
    assert stage.log[-6:] == ["put back"] + ["free"] * 5


def test_the_time_of_a_step_is_read_again_while_the_gpu_raises_its_clock() -> None:
    """The clock rises from 1.12 ms a step. No further reading is asked for after one that does not fall."""
    readings = iter([1.12, 0.9, 0.7, 0.6, 0.6, 0.1])

    class Stepping:
        room, buffers = 1000, SimpleNamespace(end=2000, capacity=2000)

        async def step_time(self, steps: int, rounds: int) -> list[float]:
            return [next(readings)] * rounds

    class Lender(Generator):
        def __init__(self) -> None: ...

        async def aside(self, action: Callable[[Any], Awaitable[Any]]) -> Any:
            return await action(SimpleNamespace(capture="tape", rehearsal=Stepping))

    assert asyncio.run(measure.gpu_step_time(Lender())) == 0.6
