"""A generator whose decode step is recorded behind its first tokens: when that is, and what is computed again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from capstan.device.row_interface import RowDecoder
from capstan.errors import ClosedError, DeviceLostError
from capstan.generation import row_loop
from capstan.generation.generator import Generator
from tests.unit.paper_model import PaperDecoder, PaperModel, made

PROMPT = [5, 6, 7]
COUNT = 8


def late(eager: int = 1, **given: Any) -> tuple[Generator, PaperModel]:
    generator, model = made(decoder={"eager": eager, "in_flight": 4, "largest": 64}, **given)
    generator.append_tokens(PROMPT)
    return generator, model


async def tokens(generator: Generator, count: int) -> list[int]:
    return [await generator.generate_next_token_async() for _ in range(count)]


def of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def recorded_at_once() -> list[int]:
    generator, _ = made()
    generator.append_tokens(PROMPT)
    found: list[int] = of(tokens(generator, COUNT))
    return found


def only(model: PaperModel) -> PaperDecoder:
    [decoder] = model.decoders
    return decoder


@pytest.mark.parametrize("eager", [1, 3])
def test_it_is_recorded_behind_so_many_tokens_and_they_stay(eager: int) -> None:
    async def run() -> list[int]:
        generator, model = late(eager)
        found, told = [], []
        for _ in range(COUNT):
            told.append(generator.records_next)
            found += await tokens(generator, 1)
        assert told == [number == eager for number in range(COUNT)]
        assert generator.capture == "tape"
        decoder = only(model)
        assert decoder.submitted[:eager] == [(1, True), *(eager - 1) * [(1, False)]]
        # The prompt is run as a prompt once more, the picks as steps: as without a recording in between.
        assert decoder.prefills == 2 * [(PROMPT, 0)]
        assert decoder.stepped == found[:eager]
        return found

    assert of(run()) == recorded_at_once()


@pytest.mark.parametrize(("eager", "longer", "first"), [(1, 0, True), (1, -1, False), (24, 0, False)])
def test_a_long_prompt_is_computed_once_behind_the_recording(
    monkeypatch: pytest.MonkeyPatch, eager: int, longer: int, first: bool
) -> None:
    monkeypatch.setattr(row_loop, "RECORDED_FIRST", len(PROMPT) - longer)

    async def run() -> list[int]:
        generator, model = late(eager)
        found = await tokens(generator, COUNT)
        recorded = 1 if first else 2 if eager == 1 else 1
        assert only(model).prefills == recorded * [(PROMPT, 0)]
        assert (only(model).records_after is None) == (eager == 1)
        assert (only(model).stepped == []) == (first or eager > 1)
        return found

    assert of(run()) == recorded_at_once()


def test_the_recording_is_not_counted_as_steps() -> None:
    async def steps(generator: Generator) -> dict[str, int]:
        await tokens(generator, COUNT)
        await generator.aclose()
        return dict(generator.counters)

    plain, _ = made()
    plain.append_tokens(PROMPT)
    without, found = of(steps(plain)), of(steps(late(3)[0]))
    assert found["create_buffer"] == without["create_buffer"] == 0
    # Two steps before the recording.
    assert found["steps"] >= COUNT - 2


@pytest.mark.parametrize(
    ("eager", "record", "recorded"),
    [(1, None, True), (1, True, True), (1, False, False), (24, None, False), (24, True, True)],
)
def test_preparing_records_if_it_pays_or_was_asked_for(eager: int, record: bool | None, recorded: bool) -> None:
    async def run() -> list[int]:
        generator, model = late(eager)
        await generator.prepare_async(record)
        assert only(model).prefills == []
        assert (only(model).records_after is None) == (generator.capture == "tape") == recorded
        found = await tokens(generator, COUNT)
        if recorded:
            assert only(model).prefills == [(PROMPT, 0)]
        return found

    assert of(run()) == recorded_at_once()


def test_preparing_between_tokens_records_and_changes_none() -> None:
    async def run() -> list[int]:
        generator, _ = late(24)
        found = await tokens(generator, 3)
        await generator.prepare_async()
        assert generator.capture == "off", "twenty more pay for it"
        await generator.prepare_async(record=True)
        assert generator.capture == "tape"
        return found + await tokens(generator, COUNT - 3)

    assert of(run()) == recorded_at_once()


def test_a_new_prompt_gets_its_first_token_first() -> None:
    async def run() -> None:
        generator, model = late()
        await tokens(generator, 1)
        assert generator.records_next
        generator.append_tokens([9])
        assert not generator.records_next
        await tokens(generator, 1)
        assert only(model).records_after == 0
        await tokens(generator, 1)
        assert only(model).records_after is None

    of(run())


def test_a_measurement_has_it_recorded_and_changes_no_token() -> None:
    async def run() -> list[int]:
        generator, _ = late(24)
        found = await tokens(generator, 1)

        async def look(decoder: RowDecoder) -> str:
            return decoder.capture

        assert await generator.aside(look) == "tape"
        return found + await tokens(generator, COUNT - 1)

    assert of(run()) == recorded_at_once()


def test_a_cancelled_recording_loses_nothing() -> None:
    async def run() -> list[int]:
        generator, model = late()
        found = await tokens(generator, 1)
        gate = only(model).gate = asyncio.Event()
        waiting = asyncio.ensure_future(tokens(generator, 1))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        found += await tokens(generator, COUNT - 1)
        assert generator.capture == "tape"
        assert max(picks for picks, _ in only(model).submitted) > 1
        return found

    assert of(run()) == recorded_at_once()


def test_a_generator_that_is_closed_meanwhile_says_so() -> None:
    async def run() -> None:
        generator, model = late()
        await tokens(generator, 1)
        gate = only(model).gate = asyncio.Event()
        waiting = asyncio.ensure_future(tokens(generator, 1))
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(generator.aclose())
        await asyncio.sleep(0.01)
        gate.set()
        with pytest.raises(ClosedError):
            await waiting
        await closing
        assert only(model).closed == 1

    of(run())


def test_a_device_that_is_lost_meanwhile_is_replaced() -> None:
    async def run() -> list[int]:
        generator, model = late()
        found = await tokens(generator, 1)
        model.decoders[0].fault = DeviceLostError("the GPU process ended")
        found += await tokens(generator, COUNT - 1)
        assert len(model.decoders) == 2
        return found

    assert of(run()) == recorded_at_once()
