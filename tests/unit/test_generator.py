"""The generation loop over a device made of paper: the steps that it submits, discards and refuses."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from capstan import ArgumentTypeError, LogitsError, OptionError, PromptError, Tokenizer
from tests.unit.paper_model import EOS, PROMPT, VOCAB, best, made, run_of, take

every_run_ahead = pytest.mark.parametrize("run_ahead", [1, 3, 8, 64, None])


class TestRunningAhead:
    @every_run_ahead
    async def test_tokens_are_the_models_up_to_max_length(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead, max_length=30)
        generator.append_tokens(PROMPT)

        assert [token async for token in generator] == run_of(PROMPT, 27)
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
        ("run_ahead", "usual", "after_first", "wanted"),
        [
            (None, 16, 4, [1, 3, 4, 6]),
            (None, 16, 2, [1, 2, 3, 4]),
            (None, 2, 4, [1, 2, 2, 2]),
            (None, 16, 0, [1]),
            (None, 1, 4, [1]),
            (3, 1, 4, [1, 3, 3, 3]),
            (8, 1, 4, [1]),
        ],
        ids=["usual", "the device takes fewer", "short bursts", "none", "unknown pace", "fixed", "fixed and long"],
    )
    def test_a_short_burst_is_right_behind_the_first_pick(
        self, run_ahead: int | None, usual: int, after_first: int, wanted: list[int]
    ) -> None:
        options = {"in_flight": 3, "usual": usual, "after_first": after_first}
        generator, paper = made(run_ahead=run_ahead, decoder=options, max_length=len(PROMPT) + 16)
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 1))
        decoder = paper.decoders[0]
        assert decoder.submitted == [(picks, picks == 1 and at == 0) for at, picks in enumerate(wanted[:2])]
        asyncio.run(take(generator, 1))
        if len(wanted) > 1:
            assert [picks for picks, _ in decoder.submitted] == wanted

    @pytest.mark.parametrize(
        ("prepares", "prompt_first", "warmed"), [(0, False, 0), (1, False, 1), (2, False, 1), (1, True, 0)]
    )
    async def test_preparing_without_a_prompt_warms_up_once(
        self, prepares: int, prompt_first: bool, warmed: int
    ) -> None:
        generator, paper = made()

        if prompt_first:
            generator.append_tokens(PROMPT)
        for _ in range(prepares):
            await generator.prepare_async()
        if not prompt_first:
            generator.append_tokens(PROMPT)
        await take(generator, 3)
        await generator.prepare_async()
        assert paper.decoders[0].warmed == warmed
        assert paper.decoders[0].prefills == [(PROMPT, 0)]

    @pytest.mark.parametrize("taken", [0, 1, 4])
    @pytest.mark.parametrize("run_ahead", [1, 3, 8, None])
    async def test_a_cancelled_wait_loses_no_token(self, run_ahead: int | None, taken: int) -> None:
        generator, paper = made(run_ahead=run_ahead)
        generator.append_tokens(PROMPT)

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
        found = ids + await take(generator, 12)
        assert found == run_of(PROMPT, len(found))
        assert generator.get_sequence() == PROMPT + found

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
        with pytest.raises(ArgumentTypeError, match="tokens is '.*', of type str; give a list"):
            generator.append_tokens(text)
        assert generator.get_sequence() == []

    def test_two_appends_are_one_prefill(self) -> None:
        generator, paper = made()
        generator.append_tokens(PROMPT[:1])
        generator.append_tokens(PROMPT[1:])
        assert paper.decoders == [], "appending waits for nothing"
        assert asyncio.run(take(generator, 1)) == run_of(PROMPT, 1)
        assert paper.decoders[0].prefills == [(PROMPT, 0)]

    @pytest.mark.parametrize(
        ("chunk_size", "runs"),
        [
            (2, [([5, 6], 0), ([7, 8], 2), ([9], 4)]),
            (4, [([5, 6, 7, 8], 0), ([9], 4)]),
            (5, [([5, 6, 7, 8, 9], 0)]),
            (6, [([5, 6, 7, 8, 9], 0)]),
            (None, [([5, 6, 7, 8, 9], 0)]),
        ],
    )
    def test_no_run_takes_more_of_a_prompt_than_chunk_size(self, chunk_size: int | None, runs: list[Any]) -> None:
        generator, paper = made(chunk_size=chunk_size)
        generator.append_tokens([5, 6, 7, 8, 9])
        assert asyncio.run(take(generator, 3)) == run_of([5, 6, 7, 8, 9], 3)
        assert paper.decoders[0].prefills == runs

    @pytest.mark.parametrize("change", ["append", "rewind", "cancel"])
    def test_a_prompt_that_is_changed_between_two_runs_goes_on_as_it_is(self, change: str) -> None:
        generator, paper = made(chunk_size=2)
        prompt = [5, 6, 7, 8, 9]
        generator.append_tokens(prompt)

        async def run() -> list[int]:
            await generator.prepare_async()
            decoder = paper.decoders[0]
            decoder.gate = asyncio.Event()
            waiting = asyncio.ensure_future(take(generator, 4))
            for _ in range(20):
                await asyncio.sleep(0)
            assert decoder.prefills == [([5, 6], 0)]
            if change == "append":
                generator.append_tokens([1, 2])
            elif change == "rewind":
                generator.rewind_to(1)
            else:
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            decoder.gate.set()
            return await (take(generator, 4) if change == "cancel" else waiting)

        kept = {"append": [*prompt, 1, 2], "rewind": [5], "cancel": prompt}[change]
        assert asyncio.run(run()) == run_of(kept, 4)
        assert generator.get_sequence() == [*kept, *run_of(kept, 4)]


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
        assert generator.finish_reason == "stop"
        assert generator.hit_eos
        with pytest.raises(OptionError, match=r"generation is done \(stop\)"):
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
        # Steps past the end may have written other rows for the token before it.
        assert paper.decoders[0].prefills[-1] == ([first[-2], 50], len(PROMPT) + len(first) - 2)

    def test_the_tokens_after_it_in_a_burst_are_dropped_by_a_rewind_too(self) -> None:
        generator, paper = made(run_ahead=8, decoder={"eos_at": 6})
        generator.append_tokens(PROMPT)
        asyncio.run(take(generator, 2))
        paper.decoders[0].eos_at = None
        generator.rewind_to(4)
        assert asyncio.run(take(generator, 6)) == run_of(PROMPT, 7)[1:]


class TestLogits:
    async def test_are_those_of_the_next_pick_and_reading_them_changes_nothing(self) -> None:
        generator, _ = made(run_ahead=8)
        generator.append_tokens(PROMPT)
        wanted = run_of(PROMPT, 9)

        assert best(await generator.get_logits_async()) == wanted[0]
        assert await take(generator, 4) == wanted[:4]
        assert best(await generator.get_logits_async()) == wanted[4]
        assert best(await generator.get_logits_async()) == wanted[4]
        assert await take(generator, 5) == wanted[4:]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (array("f", [0.0] * 99), "format 'f' and 396 bytes; give 100 float32"),
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


class TestTokens:
    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            ([], "no tokens were given"),
            ([1, 100], "token 1 is 100; ids go from 0 to 99"),
            ([-1], "token 0 is -1; ids go from 0 to 99"),
            ([1, 1.5], "token 1 is 1.5; ids are integers from 0 to 99"),
            (["5"], "token 0 is '5'; ids are integers from 0 to 99"),
            ([1] * 65, "the sequence would have 65 tokens; max_length is 64"),
            (range(10**12), "the sequence would have 1000000000000 tokens; max_length is 64"),
            (itertools.repeat(1), "the sequence would have more than 64 tokens; max_length is 64"),
        ],
        ids=["none", "too_large", "negative", "no_integer", "text", "too_many", "no_end_of_them", "no_end"],
    )
    def test_that_do_not_fit_are_refused_and_leave_the_generator_as_it_was(
        self, tokens: list[Any], message: str
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
        with pytest.raises(PromptError, match="would have 5 tokens; max_length is 4"):
            generator.append_tokens([5])


class Letters:
    """Its tokens are the letters from the space on; 0 is a special one without text."""

    __class__ = Tokenizer  # type: ignore[assignment]  # what `isinstance` asks

    def encode(self, text: str) -> list[int]:
        return [0] if text == "<special>" else [ord(letter) - 32 for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token + 32) for token in ids if token)

    def special_tokens_in(self, text: str) -> list[int]:
        return [0] if "<special>" in text else []


class TestEnding:
    @every_run_ahead
    def test_a_stop_string_ends_the_sequence_with_the_token_that_completes_it(self, run_ahead: int | None) -> None:
        prompt = [9, 9, 1]
        wanted = run_of(prompt, 9)
        assert Letters().decode(wanted) == "UcyuUcyuU"
        generator, paper = made(run_ahead=run_ahead, tokenizer=Letters(), stop_strings=["#never#", "yuUc"])
        generator.append_tokens(prompt)

        async def run() -> list[int]:
            return [token async for token in generator]

        assert asyncio.run(take(generator, 5)) == wanted[:5]
        assert generator.text() == "Uc", "what may begin a stop string is held back"
        assert asyncio.run(run()) == wanted[5:6]
        assert (str(generator.finish_reason), generator.text()) == ("stop", "Uc")
        assert generator.get_sequence() == prompt + wanted[:6]
        with pytest.raises(OptionError, match=r"generation is done \(stop\)"):
            asyncio.run(take(generator, 1))
        generator.rewind_to(len(prompt) + 5)
        assert (generator.finish_reason, generator.text()) == (None, "Uc")
        assert asyncio.run(run()) == wanted[5:6], "the text is followed from where the sequence was cut"
        generator.append_tokens([1, 2])
        assert generator.text() == ""
        assert asyncio.run(take(generator, 3)) == run_of([*prompt, *wanted[:6], 1, 2], 3)
        assert sum(decoder.closed for decoder in paper.decoders) == 0

    async def test_a_row_that_a_stop_string_ends_has_padding_while_others_go_on(self) -> None:
        prompts = [[5, 6, 7], [9, 9, 1]]
        texts = [Letters().decode(run_of(prompt, 8)) for prompt in prompts]
        generator, _ = made(tokenizer=Letters(), stop_strings=[texts[1][1:3]], batch_size=2, max_length=11, run_ahead=4)
        generator.append_tokens(prompts)

        while not generator.is_done():
            await generator.generate_next_token_async()
        assert texts[1][1:3] not in texts[0]
        assert generator.get_sequence(0) == prompts[0] + run_of(prompts[0], 8)
        assert generator.get_sequence(1) == prompts[1] + run_of(prompts[1], 3) + [0] * 5
        assert (generator.text(0), generator.text(1)) == (texts[0], texts[1][:1])
        assert generator.finish_reason == "length"

    @pytest.mark.parametrize(
        ("search", "message"),
        [
            ({"stop_strings": [""]}, "stop_strings has ''; each must be a string of at least one character"),
            ({"stop_strings": [5]}, "stop_strings has 5; each must be a string"),
            ({"stop_strings": "x"}, "stop_strings is 'x'; it must be a list of strings"),
            (
                {"stop_strings": ["<special>"]},
                r"'<special>' with the special tokens \[0\].* give their ids as stop_token_ids",
            ),
            ({"stop_strings": ["x"], "num_beams": 2}, "num_beams is 2: beams are not checked for stop strings"),
        ],
    )
    def test_stop_strings_that_cannot_occur_are_refused(self, search: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            made(tokenizer=Letters(), **search)

    def test_without_stop_strings_there_is_no_text(self) -> None:
        generator, _ = made()
        with pytest.raises(OptionError, match=r"text\(0\) needs stop_strings, and a row from 0 to 0"):
            generator.text()

    @every_run_ahead
    async def test_a_stop_token_ends_the_sequence_as_an_end_of_sequence_does(self, run_ahead: int | None) -> None:
        wanted = run_of(PROMPT, 6)
        generator, _ = made(run_ahead=run_ahead, stop_token_ids=[wanted[5], 98])
        generator.append_tokens(PROMPT)

        assert [token async for token in generator] == wanted[: wanted.index(wanted[5]) + 1]
        assert (generator.finish_reason, generator.is_done()) == ("stop", True)
        assert not generator.hit_eos
        assert generator.get_sequence() == PROMPT + wanted[: wanted.index(wanted[5])]
        generator.append_tokens([3])
        assert generator.finish_reason is None

    @pytest.mark.parametrize("run_ahead", [1, 8])
    def test_the_first_token_after_max_time_is_the_last(self, run_ahead: int) -> None:
        generator, paper = made(run_ahead=run_ahead, max_time=2.0)
        generator.append_tokens(PROMPT)

        def at(seconds: float, count: int) -> list[int]:
            paper.host.time = 1000.0 * seconds
            return asyncio.run(take(generator, count))

        assert at(100.0, 2) + at(101.9, 2) == run_of(PROMPT, 4)
        assert generator.finish_reason is None, "two seconds are not over"
        at(102.1, 1)
        assert (str(generator.finish_reason), generator.token_count()) == ("time", len(PROMPT) + 5)
        with pytest.raises(OptionError, match=r"generation is done \(time\)"):
            at(102.1, 1)
        generator.rewind_to(5)
        assert len(at(200.0, 3)) == 3, "the time begins again with the first token that is asked for"
        assert generator.finish_reason is None

    def test_ids_that_the_vocabulary_lacks_are_refused_before_anything_is_changed(self) -> None:
        with pytest.raises(
            OptionError, match=f"stop_token_ids has {VOCAB}; ids of this model go from 0 to {VOCAB - 1}"
        ):
            made(stop_token_ids=[VOCAB])


class TestLogitsWithoutANumber:
    @pytest.mark.parametrize("run_ahead", [1, 3, 16])
    async def test_raise_once_the_tokens_before_them_are_read_until_the_sequence_changes(self, run_ahead: int) -> None:
        generator, paper = made(run_ahead=run_ahead, max_length=len(PROMPT) + 12)
        generator.append_tokens(PROMPT)

        await generator.prepare_async()
        [decoder] = paper.decoders
        decoder.barren_at = len(PROMPT) + 4
        assert await take(generator, 4) == run_of(PROMPT, 4)
        for _ in range(2):
            with pytest.raises(LogitsError, match=f"after {len(PROMPT) + 4} tokens are all NaN or -inf"):
                await take(generator, 1)
        assert list(generator.get_sequence()) == [*PROMPT, *run_of(PROMPT, 4)]
        generator.rewind_to(len(PROMPT) + 2)
        decoder.barren_at = None
        assert await take(generator, 3) == run_of(PROMPT, 5)[2:]
