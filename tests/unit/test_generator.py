"""The generation loop over a device made of paper: what it submits, discards, counts and refuses."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Awaitable, Sequence
from collections.abc import Generator as Steps
from typing import Any, TypeVar, cast

import pytest

from capstan import (
    AsyncRequiredError,
    ClosedError,
    DeviceLostError,
    Generator,
    GeneratorParams,
    OptionError,
    PromptError,
)
from capstan.device.base import COUNTER_NAMES, Burst, Counters
from capstan.model import Model
from capstan.search import SearchOptions

T = TypeVar("T")
VOCAB = 100
CONTEXT = 64
EOS = 99


def following(sequence: Sequence[int]) -> int:
    """The paper model: the next token depends on every token before it and on their number."""
    return (7 * sum(sequence) + 3 * len(sequence) + 1) % 90


def run_of(prompt: Sequence[int], count: int) -> list[int]:
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(following(sequence))
    return sequence[len(prompt) :]


class PaperDecoder:
    """A Decoder whose KV cache is a list of tokens; it fails a test that uses what is dead."""

    def __init__(
        self, capacity: int, *, in_flight: int = 2, largest: int = 64, eos_at: int | None = None, usual: int = 1
    ) -> None:
        self.capacity = capacity
        self.capture = "tape"
        self.capture_note: str | None = None
        self.tape_passes: dict[str, str] = {}
        self.max_in_flight = in_flight
        self.max_burst = largest
        self.usual_burst = usual
        self.eos_at = eos_at
        """The position at which the model picks EOS."""
        self.cache: list[int] = []
        self.logits_of: list[int] | None = None
        self.forced: int | None = None
        self.prefills: list[tuple[list[int], int]] = []
        self.submitted: list[tuple[int, bool]] = []
        self.unread = 0
        self.steps = 0
        self.closed = 0
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None
        """Bursts are readable once it is set."""
        self.searches: list[SearchOptions] = []
        self.warmed = 0

    async def warm_up(self) -> None:
        assert self.unread == 0, "bursts are under way"
        self.warmed += 1
        self.cache, self.logits_of = [], None

    def set_search(self, options: SearchOptions) -> None:
        self.searches.append(options)

    async def prefill(self, ids: Sequence[int], past: int) -> None:
        assert ids, "a prefill of nothing"
        assert past <= len(self.cache), f"a prefill at {past} over {len(self.cache)} cached positions"
        assert past + len(ids) <= self.capacity
        assert self.unread == 0, "a prefill while bursts are under way"
        self.prefills.append((list(ids), past))
        self.cache = [*self.cache[:past], *ids]
        self.logits_of = list(self.cache)
        self.forced = None
        self.pending: int | None = None
        self.done = False

    def submit(self, picks: int, sample_first: bool) -> Awaitable[Burst]:
        assert 1 <= picks <= self.max_burst
        assert self.unread < self.max_in_flight, "more bursts than the device takes"
        self.submitted.append((picks, sample_first))
        self.unread += 1
        ids = []
        for i in range(picks):
            if i or not sample_first:
                self.steps += 1
                if not self.done:
                    assert self.pending is not None
                    self.cache.append(self.pending)
                    assert len(self.cache) <= self.capacity, "a step past the cache's end"
            ids.append(self.pick())
        return PaperBurst(self, ids, self.fault)

    def pick(self) -> int:
        if self.done:
            return 0
        token = following(self.cache) if self.forced is None else self.forced
        self.forced = None
        if len(self.cache) == self.eos_at:
            token = EOS
        self.done = token == EOS
        self.pending = token
        return token

    async def logits(self) -> memoryview[float]:
        scores = array("f", [0.0] * VOCAB)
        scores[following(self.cache) if self.forced is None else self.forced] = 1.0
        return memoryview(scores)

    def set_logits(self, values: memoryview[float]) -> None:
        self.forced = max(range(VOCAB), key=values.__getitem__)

    def counters(self) -> Counters:
        submits = len(self.submitted)
        picks = sum(picks for picks, _ in self.submitted)
        # Prefills make buffers and submits, which are no part of decode steps.
        made = len(self.prefills)
        return {
            "steps": self.steps,
            "submits": submits + 5 * made,
            "readbacks": submits,
            "readback_bytes": 4 * picks,
            "create_buffer": 3 * made,
        }

    async def close(self) -> None:
        assert self.unread == 0, "closed while bursts are under way"
        self.closed += 1


class PaperBurst:
    """What `submit` returns: unlike a coroutine it may be dropped unread."""

    def __init__(self, decoder: PaperDecoder, ids: Sequence[int], fault: Exception | None) -> None:
        self.decoder, self.ids, self.fault = decoder, ids, fault

    def __await__(self) -> Steps[Any, Any, Burst]:
        self.decoder.unread -= 1
        if self.decoder.gate is not None:
            yield from self.decoder.gate.wait().__await__()
        if self.fault is not None:
            raise self.fault
        return Burst(tuple(self.ids), 0.0, 1.0, 0.1, 1.0)


class PaperHost:
    """A clock that ticks a millisecond at each look."""

    def __init__(self, *, can_wait: bool = True) -> None:
        self.waits = can_wait
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def can_wait(self) -> bool:
        return self.waits

    def wait(self, awaitable: Awaitable[T]) -> T:
        async def result() -> T:
            return await awaitable

        return asyncio.run(result())


class PaperConfig:
    vocab_size = VOCAB
    context_length = CONTEXT


class PaperModel:
    """As much of capstan.Model as a Generator uses."""

    def __init__(self, host: PaperHost | None = None, **decoder: Any) -> None:
        self.host = host or PaperHost()
        self.config = PaperConfig()
        self.search = SearchOptions(eos_token_ids=(EOS,), context_length=CONTEXT)
        self.options = decoder
        self.decoders: list[PaperDecoder] = []

    async def decoder(self, max_length: int, pools: object = None) -> PaperDecoder:
        self.decoders.append(PaperDecoder(max_length, **self.options))
        return self.decoders[-1]


def made(
    *, run_ahead: int | None = None, host: PaperHost | None = None, decoder: dict[str, Any] | None = None, **search: Any
) -> tuple[Generator, PaperModel]:
    paper = PaperModel(host, **(decoder or {}))
    model = cast(Model, paper)
    params = GeneratorParams(model, run_ahead=run_ahead)
    params.set_search_options(**search)
    return Generator(model, params), paper


async def take(generator: Generator, count: int) -> list[int]:
    return [await generator.generate_next_token_async() for _ in range(count)]


def best(logits: memoryview[float]) -> int:
    return list(logits).index(1.0)


PROMPT = [5, 6, 7]
every_run_ahead = pytest.mark.parametrize("run_ahead", [1, 3, 8, 64, None])


class TestRunningAhead:
    @every_run_ahead
    def test_tokens_are_the_models_up_to_max_length(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead, max_length=30)
        generator.append_tokens(PROMPT)

        async def run() -> list[int]:
            return [token async for token in generator]

        assert asyncio.run(run()) == run_of(PROMPT, 27)
        assert generator.finish_reason == "length"
        assert generator.is_done()
        assert sum(picks for picks, _ in paper.decoders[0].submitted) == 27, "nothing is picked past max_length"

    def test_the_first_burst_is_one_pick_and_further_ones_are_k(self) -> None:
        generator, paper = made(run_ahead=4, max_length=20)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 17))
        assert paper.decoders[0].submitted == [(1, True), (4, False), (4, False), (4, False), (4, False)]

    def test_bursts_under_way_are_as_many_as_the_device_takes(self) -> None:
        generator, paper = made(run_ahead=4, decoder={"in_flight": 3})
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 1))
        decoder = paper.decoders[0]
        assert len(decoder.submitted) == 1, "nothing is behind the first pick, which would come later"
        asyncio.run(take(generator, 1))
        assert len(decoder.submitted) == 4, "the burst that was read, and three under way"

    @pytest.mark.parametrize(
        ("prepares", "prompt_first", "warmed"), [(0, False, 0), (1, False, 1), (2, False, 1), (1, True, 0)]
    )
    def test_preparing_without_a_prompt_warms_up_once(self, prepares: int, prompt_first: bool, warmed: int) -> None:
        generator, paper = made()

        async def run() -> None:
            if prompt_first:
                generator.append_tokens(PROMPT)
            for _ in range(prepares):
                await generator.prepare_async()
            if not prompt_first:
                generator.append_tokens(PROMPT)
            await take(generator, 3)
            await generator.prepare_async()

        asyncio.run(run())
        assert paper.decoders[0].warmed == warmed
        assert paper.decoders[0].prefills == [(PROMPT, 0)]

    @pytest.mark.parametrize("taken", [0, 1, 4])
    @pytest.mark.parametrize("run_ahead", [1, 3, 8, None])
    def test_a_cancelled_wait_loses_no_token(self, run_ahead: int | None, taken: int) -> None:
        generator, paper = made(run_ahead=run_ahead)
        generator.append_tokens(PROMPT)

        async def run() -> list[int]:
            await generator.prepare_async()
            decoder = paper.decoders[0]
            await take(generator, taken)
            decoder.gate = asyncio.Event()
            waiting = asyncio.ensure_future(take(generator, 50))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            ids = generator.get_sequence()[len(PROMPT) :]
            decoder.gate.set()
            return ids + await take(generator, 12)

        found = asyncio.run(run())
        assert found == run_of(PROMPT, len(found))
        assert generator.get_sequence() == PROMPT + found

    def test_a_long_run_ahead_is_cut_to_what_the_device_takes(self) -> None:
        generator, paper = made(run_ahead=64, decoder={"largest": 1, "in_flight": 1})
        generator.append_tokens(PROMPT)
        assert asyncio.run(take(generator, 6)) == run_of(PROMPT, 6)
        assert {picks for picks, _ in paper.decoders[0].submitted} == {1}

    @every_run_ahead
    def test_appending_discards_what_ran_ahead(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead)
        generator.append_tokens(PROMPT)
        first = asyncio.run(take(generator, 5))
        generator.append_tokens([40, 41])
        second = asyncio.run(take(generator, 5))
        assert second == run_of([*PROMPT, *first, 40, 41], 5)
        # The last token was picked but its cache entry cannot be known to be right.
        assert paper.decoders[0].prefills == [(PROMPT, 0), ([first[-1], 40, 41], 7)]

    @pytest.mark.parametrize("text", ["def f():", "12"])
    def test_text_is_no_list_of_tokens(self, text: str) -> None:
        generator, _ = made()
        with pytest.raises(PromptError, match=r"append its ids, tokenizer.encode\(text\)"):
            generator.append_tokens(text)  # type: ignore[arg-type]
        assert generator.get_sequence() == []

    def test_two_appends_are_one_prefill(self) -> None:
        generator, paper = made()
        generator.append_tokens(PROMPT[:1])
        generator.append_tokens(PROMPT[1:])
        assert paper.decoders == [], "appending waits for nothing"
        assert asyncio.run(take(generator, 1)) == run_of(PROMPT, 1)
        assert paper.decoders[0].prefills == [(PROMPT, 0)]


class TestRewinding:
    @every_run_ahead
    @pytest.mark.parametrize("kept", [1, 2, 3, 4, 8, 13])
    def test_goes_on_like_a_fresh_run(self, kept: int, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 10))
        whole = generator.get_sequence()
        generator.rewind_to(kept)
        assert generator.get_sequence() == whole[:kept]
        assert asyncio.run(take(generator, 6)) == run_of(whole[:kept], 6)
        assert paper.decoders[0].prefills[1] == ([whole[kept - 1]], kept - 1)

    def test_to_nothing_needs_new_tokens(self) -> None:
        generator, _ = made()
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 4))
        generator.rewind_to(0)
        with pytest.raises(PromptError, match="the sequence is empty"):
            asyncio.run(take(generator, 1))
        generator.append_tokens([9, 8])
        assert asyncio.run(take(generator, 3)) == run_of([9, 8], 3)

    @pytest.mark.parametrize("length", [-1, 8])
    def test_outside_the_sequence_is_refused(self, length: int) -> None:
        generator, _ = made()
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 4))
        with pytest.raises(OptionError, match=rf"rewind_to\({length}\): the sequence has 7 tokens"):
            generator.rewind_to(length)

    def test_makes_a_done_generator_go_on(self) -> None:
        generator, _ = made(max_length=8)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 5))
        assert generator.is_done()
        generator.rewind_to(5)
        assert not generator.is_done()
        assert asyncio.run(take(generator, 3)) == run_of(PROMPT, 5)[2:]


class TestEndOfSequence:
    @every_run_ahead
    @pytest.mark.parametrize("at", [3, 4, 7, 8])
    def test_ends_the_run_and_is_no_part_of_the_sequence(self, at: int, run_ahead: int | None) -> None:
        generator, _ = made(run_ahead=run_ahead, decoder={"eos_at": at})
        generator.append_tokens(PROMPT)

        async def run() -> list[int]:
            return [token async for token in generator]

        wanted = run_of(PROMPT, at - 3)
        assert asyncio.run(run()) == [*wanted, EOS]
        assert generator.get_next_tokens() == [EOS]
        assert generator.get_sequence() == [*PROMPT, *wanted]
        assert generator.finish_reason == "eos"
        with pytest.raises(OptionError, match=r"generation is done \(eos\)"):
            asyncio.run(take(generator, 1))

    @every_run_ahead
    def test_appending_after_it_goes_on_without_it(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead, decoder={"eos_at": 8})
        generator.append_tokens(PROMPT)
        first = asyncio.run(take(generator, 6))
        paper.decoders[0].eos_at = None
        generator.append_tokens([50])
        assert not generator.is_done()
        assert asyncio.run(take(generator, 5)) == run_of([*PROMPT, *first[:-1], 50], 5)

    def test_is_not_done_before_it_was_read(self) -> None:
        generator, _ = made(run_ahead=8, decoder={"eos_at": 6})
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 2))
        assert not generator.is_done()
        assert generator.finish_reason is None
        asyncio.run(take(generator, 2))
        assert generator.is_done()

    def test_stops_submitting(self) -> None:
        generator, paper = made(run_ahead=2, decoder={"eos_at": 4})
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 2))
        assert len(paper.decoders[0].submitted) <= 3

    def test_the_tokens_after_it_in_a_burst_are_dropped_by_a_rewind_too(self) -> None:
        generator, paper = made(run_ahead=8, decoder={"eos_at": 6})
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 2))
        paper.decoders[0].eos_at = None
        generator.rewind_to(4)
        assert asyncio.run(take(generator, 6)) == run_of(PROMPT, 7)[1:]


class TestLogits:
    def test_are_those_of_the_next_pick_and_reading_them_changes_nothing(self) -> None:
        generator, _ = made(run_ahead=8)
        generator.append_tokens(PROMPT)
        wanted = run_of(PROMPT, 9)

        async def run() -> None:
            assert best(await generator.get_logits_async()) == wanted[0]
            assert await take(generator, 4) == wanted[:4]
            assert best(await generator.get_logits_async()) == wanted[4]
            assert best(await generator.get_logits_async()) == wanted[4]
            assert await take(generator, 5) == wanted[4:]

        asyncio.run(run())

    def test_can_be_replaced(self) -> None:
        generator, _ = made(run_ahead=8)
        generator.append_tokens(PROMPT)

        async def run() -> list[int]:
            first = await take(generator, 3)
            values = array("f", [0.0] * VOCAB)
            values[77] = 2.0
            await generator.set_logits_async(values)
            return [*first, *await take(generator, 4)]

        first = run_of(PROMPT, 3)
        assert asyncio.run(run()) == [*first, 77, *run_of([*PROMPT, *first, 77], 3)]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (array("f", [0.0] * 99), "format 'f' and 396 bytes; 100 float32"),
            (array("d", [0.0] * 50), "format 'd' and 400 bytes"),
            (bytes(400), "format 'B' and 400 bytes"),
        ],
    )
    def test_of_the_wrong_size_or_type_are_refused(self, values: Any, message: str) -> None:
        generator, paper = made()
        generator.append_tokens(PROMPT)
        with pytest.raises(OptionError, match=message):
            asyncio.run(generator.set_logits_async(values))
        assert paper.decoders == [], "nothing was computed for them"

    def test_need_tokens(self) -> None:
        generator, _ = made()
        with pytest.raises(PromptError, match="the sequence is empty"):
            asyncio.run(generator.get_logits_async())


class TestTokens:
    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            ([], "no tokens were given"),
            ([1, 100], "token 1 is 100; ids go from 0 to 99"),
            ([-1], "token 0 is -1; ids go from 0 to 99"),
            ([1] * 65, "the sequence would have 65 tokens, max_length is 64"),
        ],
        ids=["none", "too_large", "negative", "too_many"],
    )
    def test_that_do_not_fit_are_refused_and_leave_the_generator_as_it_was(
        self, tokens: list[int], message: str
    ) -> None:
        generator, _ = made()
        with pytest.raises(PromptError, match=message):
            generator.append_tokens(tokens)
        assert generator.token_count() == 0
        generator.append_tokens(PROMPT)
        assert asyncio.run(take(generator, 2)) == run_of(PROMPT, 2)

    def test_up_to_max_length_may_be_appended_and_then_it_is_done(self) -> None:
        generator, _ = made(max_length=4)
        generator.append_tokens([1, 2, 3, 4])
        assert generator.finish_reason == "length"
        with pytest.raises(OptionError, match=r"generation is done \(length\)"):
            asyncio.run(take(generator, 1))
        with pytest.raises(PromptError, match="would have 5 tokens, max_length is 4"):
            generator.append_tokens([5])

    def test_an_empty_generator_generates_nothing(self) -> None:
        generator, paper = made()
        with pytest.raises(PromptError, match="the sequence is empty; append_tokens first"):
            asyncio.run(take(generator, 1))
        assert paper.decoders == []

    def test_sequences_are_copies_and_there_is_one(self) -> None:
        generator, _ = made()
        generator.append_tokens(PROMPT)
        generator.get_sequence().append(1)
        assert generator.get_sequence(0) == PROMPT
        with pytest.raises(OptionError, match="sequence 1 was asked for; a generator has one row, 0"):
            generator.get_sequence(1)


class TestOptions:
    def test_a_max_length_beyond_the_context_is_refused(self) -> None:
        with pytest.raises(OptionError, match=r"max_length .*65.*context_length .*64"):
            made(max_length=65)

    def test_several_rows_are_refused(self) -> None:
        with pytest.raises(OptionError, match="batch_size is 2; generators have one row"):
            made(batch_size=2)

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(OptionError, match="temprature"):
            made(temprature=1.0)

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

    def test_are_zero_before_anything_ran(self) -> None:
        generator, _ = made()
        assert generator.counters == dict.fromkeys((*COUNTER_NAMES, "python_crossings"), 0)

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
        # Two more bursts are waited for.
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
    def test_gives_the_decoder_back_once(self) -> None:
        generator, paper = made(run_ahead=4)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 3))
        generator.close()
        generator.close()
        assert paper.decoders[0].closed == 1

    def test_before_anything_ran_is_harmless(self) -> None:
        generator, paper = made()
        with generator:
            pass
        assert paper.decoders == []

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
        assert [picks for picks, _ in paper.decoders[0].submitted][:3] == [1, 4, 8]

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
        generator, paper = made(run_ahead=2)
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
