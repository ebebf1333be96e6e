"""Generators whose device is lost: they go on, on another one, with the tokens of an undisturbed run."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, cast

import pytest

from capstan import DeviceLostError, Generator, GeneratorParams, Model, OptionError
from capstan.errors import DeviceUnavailableError, ModelFileError
from capstan.loading.opening import opened_again
from capstan.memory import Pools
from tests.unit.paper_model import PROMPT, VOCAB, PaperModel, made, run_of, take

LOST = DeviceLostError("the WebGPU device was lost (unknown: gone); load the model again")


def lose(paper: PaperModel) -> None:
    """The device of all decoders is lost."""
    for decoder in paper.decoders:
        decoder.fault = LOST


@pytest.mark.parametrize("run_ahead", [1, 4])
@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
async def test_a_lost_device_changes_no_token(after: int, run_ahead: int) -> None:
    generator, paper = made(run_ahead=run_ahead)
    generator.append_tokens(PROMPT)
    await generator.prepare_async()
    ids = await take(generator, after)
    lose(paper)
    ids += await take(generator, 24 - after)
    assert ids == run_of(PROMPT, 24)
    assert generator.get_sequence() == [*PROMPT, *ids]
    assert paper.recoveries == 1
    await generator.aclose()
    assert [decoder.closed for decoder in paper.decoders] == [0, 1], "the lost one went with its device"


async def test_what_was_run_is_run_again_as_it_was() -> None:
    """Prompts as prompts and picked tokens as steps: float16 caches then come out the same, to the bit."""

    generator, paper = made(run_ahead=1)
    generator.append_tokens(PROMPT)
    first = await take(generator, 3)
    generator.append_tokens([11, 12])
    second = await take(generator, 2)
    generator.rewind_to(len(PROMPT) + 7)
    third = await take(generator, 3)
    before = paper.decoders[0]
    assert before.prefills == [(PROMPT, 0), ([first[2], 11, 12], 5), ([second[1]], 9)]
    lose(paper)
    fourth = await take(generator, 6)
    assert second == run_of([*PROMPT, *first, 11, 12], 2)
    assert [*third, *fourth] == run_of([*PROMPT, *first, 11, 12, *second], 9)
    # The third picked token was run with the two that were appended behind it, the last one of the second again
    # after the rewind.
    after = paper.decoders[1]
    assert after.prefills == before.prefills
    picked = [*first[:2], second[0], *third, *fourth]
    assert len(after.stepped) >= 6
    assert after.stepped == picked[: len(after.stepped)]


async def test_several_generators_of_one_model_share_its_recovery() -> None:
    paper = PaperModel()
    model = cast(Model, paper)
    generators = [Generator(model, GeneratorParams(model)) for _ in range(3)]
    for number, generator in enumerate(generators):
        generator.append_tokens([*PROMPT, number])
    for generator in generators:
        await take(generator, 3)
    lose(paper)
    found = await asyncio.gather(*(take(generator, 4) for generator in generators))
    for number, ids in enumerate(found):
        assert ids == run_of([*PROMPT, number], 7)[3:]
    assert paper.recoveries == 1


async def test_a_batch_goes_on() -> None:
    generator, paper = made(batch_size=2)
    generator.append_tokens([PROMPT, [8, 9, 10]])
    rows: list[list[int]] = []
    for step in range(6):
        if step == 3:
            lose(paper)
        await generator.generate_next_token_async()
        rows.append(generator.get_next_tokens())
    assert [list(row) for row in zip(*rows, strict=True)] == [run_of(PROMPT, 6), run_of([8, 9, 10], 6)]


async def test_the_budget_is_kept_and_can_be_none() -> None:
    paper = PaperModel()
    model = cast(Model, paper)
    generator = Generator(model, GeneratorParams(model, recoveries=2))
    generator.append_tokens(PROMPT)
    ids = await take(generator, 2)
    for _ in range(2):
        lose(paper)
        ids += await take(generator, 2)
    lose(paper)
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="was lost"):
            await take(generator, 2)
    assert ids == run_of(PROMPT, 6)
    refusing = Generator(model, GeneratorParams(model, recoveries=0))
    refusing.append_tokens(PROMPT)
    await take(refusing, 1)
    lose(paper)
    with pytest.raises(DeviceLostError, match="was lost"):
        await take(refusing, 4)
    assert paper.recoveries == 2


@pytest.mark.parametrize("bad", [-1, True, 1.5, None, "3"])
def test_a_budget_is_a_number(bad: Any) -> None:
    model = cast(Model, PaperModel())
    with pytest.raises(OptionError, match=r"recoveries is (-1; it must be at least 0$|.* an integer)"):
        GeneratorParams(model, recoveries=bad)


def only(*tokens: int) -> array[float]:
    """Logits of rows of which one token each is picked."""
    return array("f", [float(token == number) for token in tokens for number in range(VOCAB)])


@pytest.mark.parametrize("rows", [1, 2])
async def test_logits_of_the_caller_are_there_after_a_loss(rows: int) -> None:
    generator, paper = made(run_ahead=4, batch_size=rows)
    generator.append_tokens([PROMPT] * rows if rows > 1 else PROMPT)
    given = [11, 13][:rows]
    logits = only(*given)
    await generator.set_logits_async(logits)
    # They are the generator's by now.
    logits[:] = array("f", bytes(len(logits) * 4))
    lose(paper)
    assert memoryview(await generator.get_logits_async()).tobytes() == only(*given).tobytes()
    await generator.generate_next_token_async()
    assert generator.get_next_tokens() == given
    lose(paper)
    for number in range(3):
        await generator.generate_next_token_async()
        assert generator.get_next_tokens() == [run_of([*PROMPT, token], 3)[number] for token in given]
    assert paper.recoveries == 2


@pytest.mark.parametrize("change", ["append", "rewind"])
async def test_logits_of_the_caller_are_of_no_other_sequence(change: str) -> None:
    generator, paper = made(run_ahead=1)
    generator.append_tokens([*PROMPT, 7])
    await generator.set_logits_async(only(11))
    tokens = [*PROMPT, 7]
    if change == "append":
        tokens += [8]
        generator.append_tokens([8])
    else:
        # As long as before.
        tokens[-1] = 9
        generator.rewind_to(len(PROMPT))
        generator.append_tokens([9])
    lose(paper)
    assert await take(generator, 3) == run_of(tokens, 3)


async def test_a_cancelled_wait_keeps_the_logits_of_the_caller() -> None:
    generator, paper = made(run_ahead=1)
    generator.append_tokens(PROMPT)
    await generator.set_logits_async(only(11))
    gate = paper.decoders[0].gate = asyncio.Event()
    waiting = asyncio.ensure_future(generator.generate_next_token_async())
    for _ in range(5):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await take(generator, 2) == [11, *run_of([*PROMPT, 11], 1)]


async def test_pools_of_the_caller_are_not_lost_in_silence() -> None:
    paper = PaperModel()
    generator = Generator(cast(Model, paper), pools=Pools())
    generator.append_tokens(PROMPT)
    await take(generator, 1)
    lose(paper)
    with pytest.raises(DeviceLostError):
        await take(generator, 2)
    assert paper.recoveries == 0


@pytest.mark.parametrize("tries", [0, 1, 3])
def test_a_device_that_comes_late_is_waited_for(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("capstan.loading.opening.PAUSES", (0.0, 0.001, 0.001, 0.001))
        failures: list[Exception] = [DeviceUnavailableError("no adapter"), LOST, DeviceUnavailableError("none yet")]
        asked = 0

        async def open_model() -> Any:
            nonlocal asked
            asked += 1
            if asked <= tries:
                raise failures[asked - 1]
            return "a model"

        found: Any = await opened_again(open_model, LOST)
        assert found == "a model"
        assert asked == tries + 1

    asyncio.run(run())


def test_no_device_at_all_is_told_with_the_remedy_and_other_errors_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capstan.loading.opening.PAUSES", (0.0, 0.001))

    async def none() -> Any:
        raise DeviceUnavailableError("no adapter here")

    async def missing() -> Any:
        raise ModelFileError("model.onnx is missing")

    with pytest.raises(DeviceLostError, match=r"gone.*no adapter here.*reload the page.*device='wasm'"):
        asyncio.run(opened_again(none, LOST))
    with pytest.raises(ModelFileError, match="missing"):
        asyncio.run(opened_again(missing, LOST))
