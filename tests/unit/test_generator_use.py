"""How a generator is used and ends, over a device made of paper: options, counters, waiting, tasks, closing."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import pytest

from capstan import (
    AsyncRequiredError,
    ClosedError,
    DeviceLostError,
    Generator,
    GeneratorParams,
    OptionError,
)
from capstan.model import Model
from capstan.stages.search import SearchOptions
from tests.unit.paper_model import CONTEXT, PROMPT, PaperHost, PaperModel, best, made, run_of, take


class TestOptions:
    def test_a_max_length_beyond_the_context_is_refused(self) -> None:
        with pytest.raises(OptionError, match=r"max_length .*65.*context_length .*64"):
            made(max_length=65)

    def test_options_that_know_no_context_are_held_to_the_models(self) -> None:
        model = cast(Model, PaperModel())
        params = GeneratorParams(model)
        params.search = SearchOptions(max_length=CONTEXT + 1)
        with pytest.raises(OptionError, match=r"max_length \(65\) cannot be greater than model context_length \(64\)"):
            Generator(model, params)
        for max_length, expected in ((CONTEXT, CONTEXT), (CONTEXT - 1, CONTEXT - 1), (0, CONTEXT)):
            params.search = SearchOptions(max_length=max_length)
            assert Generator(model, params).max_length == expected

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(OptionError, match="temprature"):
            made(temprature=1.0)

    def test_an_attribute_that_nothing_reads_is_refused(self) -> None:
        params = GeneratorParams(cast(Model, PaperModel()))
        with pytest.raises(AttributeError, match="recoveries"):
            params.recoveries = 0  # type: ignore[attr-defined]

    def test_a_run_ahead_out_of_range_is_refused(self) -> None:
        with pytest.raises(OptionError, match="run_ahead is 65"):
            made(run_ahead=65)

    def test_the_decoder_gets_the_options(self) -> None:
        generator, paper = made(do_sample=True, temperature=0.5, random_seed=3)
        asyncio.run(generator.prepare_async())
        assert paper.decoders[0].searches[0].temperature == 0.5
        assert paper.decoders[0].searches[0].seed == 3

    def test_changing_the_parameters_later_changes_no_generator(self) -> None:
        paper = PaperModel()
        params = GeneratorParams(cast(Model, paper))
        generator = Generator(cast(Model, paper), params)
        params.set_search_options(max_length=10)
        assert generator.max_length == CONTEXT


class TestCounters:
    def test_prefills_are_left_out(self) -> None:
        generator, _ = made(run_ahead=3)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 7))
        generator.rewind_to(5)
        asyncio.run(take(generator, 4))
        counters = generator.counters
        assert counters["create_buffer"] == 0
        # (1 + 3 + 3) are read after one more burst of 3; after the rewind (1 + 3) likewise.
        assert counters["python_crossings"] == 3 + 2
        assert counters["readback_bytes"] == 4 * ((1 + 3 + 3 + 3) + (1 + 3 + 3))
        assert counters["submits"] == counters["readbacks"] == 4 + 3
        assert counters["steps"] == 9 + 6

    def test_stay_after_closing(self) -> None:
        generator, _ = made(run_ahead=3)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 4))
        before = generator.counters
        generator.close()
        assert generator.counters == before


class TestTiming:
    def test_is_the_hosts_clock_at_each_token(self) -> None:
        generator, paper = made(run_ahead=3)
        timing = generator.timing
        assert (timing.time_to_first_token, timing.tokens_per_second) == (None, None)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 1))
        # Looks at the clock: the question, the wait for the first burst, its token.
        assert (timing.started, timing.first_token) == (1.0, 3.0)
        assert timing.time_to_first_token == 2.0
        assert timing.tokens_per_second is None, "one token has no rate"
        asyncio.run(take(generator, 4))
        assert timing.tokens == 5
        assert timing.last_token == paper.host.time
        # The generator waits for two more bursts.
        assert timing.tokens_per_second == pytest.approx(1000.0 * 4 / 6)


class TestWaiting:
    def test_blocking_calls_wait_where_they_can(self) -> None:
        generator, _ = made()
        generator.append_tokens(PROMPT)
        found = []
        for _ in range(5):
            generator.generate_next_token()
            found += generator.get_next_tokens()
        assert found == run_of(PROMPT, 5)
        assert best(generator.get_logits()) == run_of(PROMPT, 6)[-1]

    @pytest.mark.parametrize(
        ("call", "twin"),
        [
            ("generate_next_token", "await generate_next_token_async()"),
            ("get_logits", "await get_logits_async()"),
            ("prepare", "await prepare_async()"),
            ("close", "await aclose()"),
        ],
    )
    def test_where_they_cannot_they_name_the_async_twin(self, call: str, twin: str) -> None:
        generator, _ = made(host=PaperHost(can_wait=False))
        generator.append_tokens(PROMPT)
        message = re.escape(f"{call}() would have to wait here; use `{twin}`")
        with pytest.raises(AsyncRequiredError, match=message):
            getattr(generator, call)()

    def test_a_token_at_hand_needs_no_waiting(self) -> None:
        host = PaperHost()
        generator, _ = made(run_ahead=3, host=host)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 2))
        host.waits = False
        found = []
        for _ in range(2):
            generator.generate_next_token()
            found += generator.get_next_tokens()
        assert found == run_of(PROMPT, 4)[2:]
        with pytest.raises(AsyncRequiredError):
            generator.generate_next_token()


class TestClosing:
    def test_makes_every_call_fail(self) -> None:
        generator, _ = made()
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 1))
        generator.close()
        calls = [
            lambda: generator.append_tokens([1]),
            lambda: generator.rewind_to(1),
            generator.generate_next_token,
            generator.get_logits,
            generator.prepare,
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="this generator was closed"):
                call()

    def test_a_decoder_keeps_the_burst_that_suited_it_for_the_next_one(self) -> None:
        generator, paper = made(max_length=60)

        async def run(generator: Generator) -> None:
            async with generator:
                generator.append_tokens(PROMPT)
                await take(generator, 50)

        asyncio.run(run(generator))
        used = paper.decoders[0]
        assert used.usual_burst > 1
        again, paper = made(max_length=60, decoder={"usual": 8})
        asyncio.run(run(again))
        # The first burst is one pick, for an early first token; the second a short one, for the GPU to begin.
        assert [picks for picks, _ in paper.decoders[0].submitted][:3] == [1, 3, 4]

    def test_an_async_block_closes_also_after_an_error(self) -> None:
        generator, paper = made()

        async def run() -> None:
            async with generator:
                generator.append_tokens(PROMPT)
                await take(generator, 2)
                raise KeyError

        with pytest.raises(KeyError):
            asyncio.run(run())
        assert paper.decoders[0].closed == 1

    def test_after_the_device_was_lost_gives_the_decoder_back_and_raises_nothing_new(self) -> None:
        generator, paper = made(run_ahead=2, recoveries=0)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 1))
        decoder = paper.decoders[0]
        decoder.fault = DeviceLostError("the WebGPU device was lost; load the model again")
        # One good burst is under way; the next one fails.
        with pytest.raises(DeviceLostError):
            asyncio.run(take(generator, 10))
        generator.close()
        assert decoder.closed == 1
        assert decoder.unread == 0


class TestSeveralTasks:
    async def test_preparing_and_generating_at_once_make_one_decoder(self) -> None:
        generator, paper = made()
        generator.append_tokens(PROMPT)

        preparing = asyncio.ensure_future(generator.prepare_async())
        paper.gate = asyncio.Event()
        tokens = asyncio.ensure_future(take(generator, 5))
        await asyncio.sleep(0)
        paper.gate.set()
        await preparing
        assert (await tokens) == run_of(PROMPT, 5)
        assert len(paper.decoders) == 1

    @pytest.mark.parametrize("prompt", [[], PROMPT], ids=["warming up", "with a prompt"])
    async def test_closing_while_a_decoder_is_made_gives_it_back(self, prompt: list[int]) -> None:
        generator, paper = made()

        paper.gate = asyncio.Event()
        if prompt:
            generator.append_tokens(prompt)
        using = asyncio.ensure_future(take(generator, 1) if prompt else generator.prepare_async())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(generator.aclose())
        await asyncio.sleep(0)
        paper.gate.set()
        await closing
        (found,) = await asyncio.gather(using, return_exceptions=True)
        assert isinstance(found, ClosedError) if prompt else found is None
        assert [decoder.closed for decoder in paper.decoders] == [1]
        assert paper.decoders[0].prefills == [], "nothing is computed that nobody wants"

    @pytest.mark.parametrize("taken", [0, 4])
    async def test_closing_waits_for_what_the_decoder_does(self, taken: int) -> None:
        generator, paper = made(run_ahead=2)
        generator.append_tokens(PROMPT)

        await generator.prepare_async()
        await take(generator, taken)
        decoder = paper.decoders[0]
        decoder.gate = asyncio.Event()
        using = asyncio.ensure_future(take(generator, 30))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(generator.aclose())
        for _ in range(3):
            await asyncio.sleep(0)
        assert decoder.closed == 0, "the next generator would meet this one's commands"
        decoder.gate.set()
        await closing
        assert decoder.closed == 1
        with pytest.raises(ClosedError):
            await using

    async def test_a_cancelled_close_gives_the_decoder_back_all_the_same(self) -> None:
        generator, paper = made(run_ahead=2)
        generator.append_tokens(PROMPT)

        await take(generator, 2)
        decoder = paper.decoders[0]
        decoder.gate = asyncio.Event()
        closing = asyncio.ensure_future(generator.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        decoder.gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (paper.decoders[0].closed, paper.decoders[0].unread) == (1, 0)

    @pytest.mark.parametrize("taken", [0, 1, 4], ids=["prompt", "first burst", "further bursts"])
    @pytest.mark.parametrize("change", ["append", "rewind", "both"])
    async def test_a_sequence_changed_meanwhile_goes_on_as_it_was_changed(self, change: str, taken: int) -> None:
        generator, paper = made(run_ahead=2)
        generator.append_tokens(PROMPT)

        await generator.prepare_async()
        await take(generator, taken)
        decoder = paper.decoders[0]
        decoder.gate = asyncio.Event()
        waiting = asyncio.ensure_future(take(generator, 6))
        for _ in range(3):
            await asyncio.sleep(0)
        if change != "append":
            generator.rewind_to(2)
        if change != "rewind":
            generator.append_tokens([40, 41])
        changed = generator.get_sequence()
        decoder.gate.set()
        await waiting
        further = generator.get_sequence()[len(changed) :]
        assert generator.get_sequence() == changed + run_of(changed, len(further))
        assert len(further) >= 2

    async def test_a_second_task_that_finds_the_sequence_done_is_told(self) -> None:
        generator, _ = made(max_length=4)
        generator.append_tokens(PROMPT)

        both = (generator.generate_next_token_async() for _ in range(2))
        found = list(await asyncio.gather(*both, return_exceptions=True))
        assert found[0] == run_of(PROMPT, 1)[0]
        assert isinstance(found[1], OptionError)
