"""Sequences that begin alike share key/value rows: what is run, what is kept, and that the tokens are the same."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from capstan import FallbackWarning, Generator, GeneratorParams, Model, OptionError, OutOfMemoryError, fallback
from capstan.device.prefix_cache import Content, Prefix, PrefixCache, common
from tests import oracle
from tests.unit.paper_model import VOCAB, PaperModel, run_of, take

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
STATEFUL = FIXTURES / "families" / "lfm2"
LIMIT = 1 << 20
START = list(range(20, 40))
"""Twenty tokens, the common start of prompts."""


def paper(limit: int = LIMIT, **options: Any) -> PaperModel:
    model = PaperModel(**options)
    model.prefixes = PrefixCache(limit)
    return model


def generator_of(model: Any, **search: Any) -> Generator:
    params = GeneratorParams(cast(Model, model))
    params.set_search_options(**search)
    return Generator(cast(Model, model), params)


async def answered(model: PaperModel, prompt: Sequence[int], count: int = 3, **search: Any) -> Generator:
    """A generator that took some tokens, which are those of the paper model."""
    generator = generator_of(model, **search)
    generator.append_tokens(prompt)
    assert await take(generator, count) == run_of(prompt, count)
    return generator


def prefills(model: PaperModel) -> list[list[tuple[int, int]]]:
    """The prompt runs of each decoder: the number of tokens, and of the tokens before them."""
    return [[(len(ids), past) for ids, past in decoder.prefills] for decoder in model.decoders]


class TestWhatIsRun:
    async def test_a_generator_runs_what_an_open_one_has_not_run(self) -> None:
        model = paper()
        first = await answered(model, [*START, 1, 2])
        second = await answered(model, [*START, 3, 4, 5])
        assert (first.reused_tokens, second.reused_tokens) == (0, 20)
        # The first generator continues undisturbed.
        assert await take(first, 2) == run_of([*START, 1, 2], 5)[3:]
        model = model
        assert prefills(model) == [[(22, 0)], [(3, 20)]]
        assert model.copies.used == 0, "nothing is kept while both are open"

    async def test_a_chat_that_is_sent_as_a_whole_each_turn_runs_what_is_new(self) -> None:
        model, chat = paper(), list(START)
        for turn in range(4):
            chat += [turn, turn + 50]
            async with await answered(model, chat) as generator:
                chat = generator.get_sequence()
        assert prefills(model) == [[(22, 0)], [(3, 24)], [(3, 29)], [(3, 34)]]

    async def test_one_token_is_run_of_a_prompt_that_is_known_as_a_whole(self) -> None:
        model = paper()
        for _ in range(2):
            await (await answered(model, START)).aclose()
        assert prefills(model) == [[(20, 0)], [(1, 19)]]

    async def test_the_longest_start_is_taken(self) -> None:
        model = paper()
        await (await answered(model, START)).aclose()
        open_ = await answered(model, [*START, *range(40, 48)])
        await answered(model, [*START, *range(40, 48), 1, 2])
        await open_.aclose()
        assert prefills(model)[2] == [(2, 28)]

    async def test_prompts_that_have_little_in_common_are_run_as_a_whole(self) -> None:
        model = paper()
        open_ = [await answered(model, START)]
        open_.append(await answered(model, [*START[:15], *START]))
        model = model
        assert prefills(model) == [[(20, 0)], [(35, 0)]]
        assert (model.prefixes.stats().hits, model.prefixes.stats().misses) == (0, 2)

    def test_rows_of_a_batch_run_their_common_start_once(self) -> None:
        model = paper()
        generator = generator_of(model, batch_size=3)
        prompts = [[*START, 1], [*START, 2], [*START, 3]]
        generator.append_tokens(prompts)
        asyncio.run(take(generator, 3))
        assert [generator.get_sequence(row) for row in range(3)] == [[*ids, *run_of(ids, 3)] for ids in prompts]
        assert prefills(model) == [[(21, 0)], [(1, 20)], [(1, 20)]]

    async def test_a_sequence_that_was_rewound_and_goes_on_elsewhere_takes_over_too(self) -> None:
        model = paper()
        await (await answered(model, START)).aclose()
        generator = await answered(model, [1, 2, 3])
        generator.rewind_to(0)
        generator.append_tokens([*START, 9])
        assert await take(generator, 3) == run_of([*START, 9], 3)
        assert prefills(model)[1] == [(3, 0), (1, 20)]

    async def test_a_token_that_was_picked_and_not_run_is_not_taken_over(self) -> None:
        model = paper()
        first = await answered(model, START)
        second = await answered(model, [*first.get_sequence(), 1])
        assert second.reused_tokens == first.token_count() - 1

    async def test_what_a_closed_generator_had_is_not_taken_from_it(self) -> None:
        model = paper(limit=5)
        first = await answered(model, START)
        await first.aclose()
        await answered(model, START)
        assert prefills(model) == [[(20, 0)], [(20, 0)]]

    async def test_rows_that_an_open_generator_gave_up_are_not_taken(self) -> None:
        model = paper()
        first = await answered(model, START)
        first.rewind_to(3)
        await answered(model, [*START, 1])
        assert prefills(model)[1] == [(21, 0)]

    def test_a_sequence_that_changes_while_the_copy_is_waited_for_goes_on_as_it_was_changed(self) -> None:
        async def run(turns: int) -> bool:
            model = paper()
            await (await answered(model, START)).aclose()
            generator = generator_of(model)
            generator.append_tokens([*START, 1])
            asking = asyncio.ensure_future(generator.generate_next_token_async())
            for _ in range(turns):
                await asyncio.sleep(0)
            generator.rewind_to(0)
            generator.append_tokens([*START[:18], 2])
            asked = asking.done()
            assert await asking == run_of([*START, 1] if asked else [*START[:18], 2], 1)[0]
            if not asked:
                assert prefills(model)[1] == [(1, 18)]
            return asked

        turns = itertools.takewhile(lambda turns: not asyncio.run(run(turns)), itertools.count(1))
        assert list(turns), "it was changed on the way"

    async def test_what_depends_on_more_than_tokens_is_not_shared(self) -> None:
        model = paper()
        await (await answered(model, START)).aclose()
        other = generator_of(model)
        other._loop.adapted = "an adapter"
        other.append_tokens([*START, 1])
        await take(other, 1)
        assert prefills(model)[1] == [(21, 0)]

    async def test_nothing_is_shared_unless_it_was_asked_for(self) -> None:
        model = PaperModel()
        await (await answered(model, START)).aclose()
        open_ = [await answered(model, START) for _ in range(2)]
        assert [each.reused_tokens for each in open_] == [0, 0]
        model = model
        assert prefills(model) == [[(20, 0)]] * 3
        stats = model.prefixes.stats()
        assert (stats.hits, stats.misses, stats.kept, model.copies.used) == (0, 0, 0, 0)


class TestWhatIsKept:
    async def test_the_sequences_that_were_not_used_for_the_longest_time_make_room(self) -> None:
        model = paper(limit=70)
        prompts = [[first, *START] for first in range(4)]
        for prompt in prompts[:3]:
            await (await answered(model, prompt, 3)).aclose()
        # Each kept 21 and 2 positions.
        assert (model.prefixes.stats().kept, model.prefixes.stats().bytes, model.copies.used) == (3, 69, 69)
        open_ = await answered(model, [*prompts[0], 1])
        await (await answered(model, prompts[3], 3)).aclose()
        assert model.prefixes.stats().evicted == 1
        assert model.copies.used == 69
        others = [await answered(model, [*prompt, 1]) for prompt in prompts]
        assert [other.reused_tokens for other in others] == [21, 0, 21, 21]
        assert open_.reused_tokens == 21

    async def test_a_longer_sequence_takes_the_place_of_its_start_and_a_shorter_one_is_not_kept_beside_it(self) -> None:
        model = paper()
        for prompt in (START, [*START, *run_of(START, 3), 1, 2], START):
            await (await answered(model, prompt, 3)).aclose()
        stats = model.prefixes.stats()
        assert (stats.kept, stats.bytes, stats.evicted) == (1, 27, 0)
        assert model.copies.used == 27

    async def test_a_sequence_that_is_larger_than_the_limit_is_not_kept_and_nothing_is_freed_for_it(self) -> None:
        model = paper(limit=30)
        await (await answered(model, START)).aclose()
        await (await answered(model, [1, *START, *START])).aclose()
        assert (model.prefixes.stats().kept, model.prefixes.stats().evicted) == (1, 0)

    def test_where_there_is_no_memory_older_copies_make_room_and_then_none_is_kept(self) -> None:
        async def run() -> None:
            model = paper()
            model.copies.positions = 45
            for first in range(3):
                await (await answered(model, [first, *START], 3)).aclose()
            assert (model.prefixes.stats().kept, model.prefixes.stats().evicted) == (1, 2)
            model.copies.positions = 10
            with pytest.warns(FallbackWarning, match="rows of a closed sequence in the prefix cache: no room for 23"):
                await (await answered(model, [7, *START], 3)).aclose()
            assert (model.prefixes.stats().kept, model.copies.used) == (0, 0)
            assert all(decoder.closed == 1 for decoder in model.decoders)

        fallback.counted.clear()
        asyncio.run(run())

    def test_copies_are_freed_by_clear_and_nothing_is_kept_after_close(self) -> None:
        async def run(turns: int) -> bool:
            model = paper()
            first, second = await answered(model, START), await answered(model, [1, *START])
            await first.aclose()
            assert model.prefixes.clear()
            assert not model.prefixes.clear()
            assert model.copies.used == 0
            closing = asyncio.ensure_future(second.aclose())
            for _ in range(turns):
                await asyncio.sleep(0)
            closed = closing.done()
            model.prefixes.close()
            await closing
            assert (model.prefixes.stats().kept, model.copies.used) == (0, 0)
            return closed

        turns = itertools.takewhile(lambda turns: not asyncio.run(run(turns)), itertools.count())
        assert len(list(turns)) > 2

    async def test_several_sequences_of_a_prompt_keep_the_first(self) -> None:
        model = paper()
        generator = generator_of(model, do_sample=True, num_return_sequences=3)
        generator.append_tokens(START)
        await take(generator, 1)
        # Each row picks another token.
        await generator.set_logits_async(array("f", [float(i % VOCAB == i // VOCAB) for i in range(3 * VOCAB)]))
        await take(generator, 2)
        assert len({tuple(generator.get_sequence(row)) for row in range(3)}) == 3
        await generator.aclose()
        assert model.prefixes.stats().kept == 1


def prompt_of(seed: int, length: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 250) for _ in range(length)]


def greedy(model: Model, prompt: Sequence[int], length: int, count: int = 8) -> tuple[list[int], int]:
    """The ids picked by a generator whose sequences have at most `length` tokens, and how many of the prompt were
    taken over."""
    with generator_of(model, max_length=length, do_sample=False) as generator:
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
        return generator.get_sequence()[len(prompt) :], generator.reused_tokens


class TestOnTheReferenceDevice:
    def test_ids_are_the_oracles_whatever_the_capacities(self) -> None:
        model = Model(str(LLAMA), device="reference", prefix_cache=LIMIT)
        start = prompt_of(1, 40)
        assert greedy(model, start, 60) == (oracle.greedy(LLAMA, start, 8), 0)
        for tail, length in (([5, 6], 60), ([7], 500), ([8, 9, 10], 60)):
            ids, reused = greedy(model, [*start, *tail], length)
            assert ids == oracle.greedy(LLAMA, [*start, *tail], 8)
            # A tail may begin with the first token of an answer.
            assert reused in (40, 41)
        with generator_of(model, max_length=300) as open_:
            open_.append_tokens([*start, *start])
            open_.generate_next_token()
            assert greedy(model, [*start, *start, 1], 100) == (oracle.greedy(LLAMA, [*start, *start, 1], 8), 80)
        model.close()
        assert model.prefixes.stats().kept == 0

    def test_beams_and_rows_take_over_too(self) -> None:
        start = prompt_of(2, 30)
        prompts = [[*start, 4], [*start, 5]]
        searches: list[dict[str, Any]] = [{"num_beams": 3}, {}]
        for search in searches:
            wanted = oracle.rows(LLAMA, prompts, max_length=44, **search).sequences
            model = Model(str(LLAMA), device="reference", prefix_cache=LIMIT)
            with generator_of(model, batch_size=2, max_length=44, do_sample=False, **search) as generator:
                generator.append_tokens(prompts)
                while not generator.is_done():
                    generator.generate_next_token()
                assert [generator.get_sequence(row) for row in range(2)] == wanted
                assert generator.reused_tokens == 30

    def test_models_with_states_run_the_whole_prompt_and_say_so(self) -> None:
        fallback.counted.clear()
        model = Model(str(STATEFUL), device="reference", prefix_cache=LIMIT)
        prompt = prompt_of(3, 30)
        with pytest.warns(FallbackWarning, match="a prefix cache: the model has states that each run overwrites"):
            assert greedy(model, prompt, 50) == (oracle.greedy(STATEFUL, prompt, 8), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert greedy(model, [*prompt, 5], 50) == (oracle.greedy(STATEFUL, [*prompt, 5], 8), 0)
        assert sum(fallback.fallbacks().values()) == 2
        assert model.prefixes.stats().kept == 0

    def test_a_generator_that_is_dropped_leaves_its_rows(self) -> None:
        model = Model(str(LLAMA), device="reference", prefix_cache=LIMIT)
        prompt = prompt_of(4, 30)

        def dropped() -> None:
            generator = generator_of(model, max_length=50)
            generator.append_tokens(prompt)
            generator.generate_next_token()

        dropped()
        gc.collect()
        assert greedy(model, [*prompt, 3], 50)[1] == 30


class TestMemory:
    def test_where_there_is_no_memory_for_a_sequence_the_copies_make_room(self, monkeypatch: Any) -> None:
        model = Model(str(LLAMA), device="reference", prefix_cache=LIMIT)
        prompt = prompt_of(5, 30)
        greedy(model, prompt, 50)
        loaded = model._open()
        decoder = loaded.decoder

        async def short(capacity: int, pools: Any = None) -> Any:
            if model.prefixes.stats().kept:
                raise oom()
            return await decoder(capacity, pools)

        monkeypatch.setattr(loaded, "decoder", short)
        assert greedy(model, prompt, 50) == (oracle.greedy(LLAMA, prompt, 8), 0)
        monkeypatch.setattr(loaded, "decoder", always_short)
        with pytest.raises(type(oom()), match="no room"):
            greedy(model, prompt, 50)
        assert model.prefixes.stats().kept == 0

    def test_trim_frees_the_copies(self) -> None:
        model = Model(str(LLAMA), device="reference", prefix_cache=LIMIT)
        greedy(model, prompt_of(6, 30), 50)
        assert model.prefixes.stats().kept == 1
        asyncio.run(model.trim())
        assert model.prefixes.stats().kept == 0

    @pytest.mark.parametrize("limit", [-1, 1.5, "64", True, None])
    def test_limits_that_are_no_number_of_bytes_are_refused(self, limit: Any) -> None:
        with pytest.raises(OptionError, match="prefix_cache is .*(must be an integer from 0|; give an integer)"):
            Model(str(LLAMA), device="reference", prefix_cache=limit)
        with pytest.raises(OptionError, match="prefix_cache is"):
            asyncio.run(Model.load(str(LLAMA), device="reference", prefix_cache=limit))


class TestContents:
    """Prompts whose tokens 20 to 29 are placeholders of a picture: their ids are the same whatever it shows."""

    PICTURE = (20, 30)
    PROMPT = (*START, *[9] * 10, *range(40, 60))

    async def described(self, model: PaperModel, digest: str, prompt: Sequence[int] = PROMPT) -> Generator:
        generator = generator_of(model)
        generator.append_tokens(prompt)
        generator._loop.rows[0].contents = (Content(*self.PICTURE, digest),)
        await take(generator, 1)
        return generator

    @pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
    async def test_two_pictures_never_share_rows_and_one_shares_its_own(self, closed: bool) -> None:
        model = paper()
        first = await self.described(model, "a cat")
        if closed:
            await first.aclose()
        other, same = await self.described(model, "a dog"), await self.described(model, "a cat")
        assert (first.reused_tokens, other.reused_tokens, same.reused_tokens) == (0, 20, 49)

    async def test_a_picture_that_is_not_there_as_a_whole_is_run_again(self) -> None:
        model = paper()
        first = await self.described(model, "a cat")
        shorter = await self.described(model, "a cat", self.PROMPT[:27])
        plain = generator_of(model)
        plain.append_tokens(self.PROMPT)
        await take(plain, 1)
        assert (first.reused_tokens, shorter.reused_tokens, plain.reused_tokens) == (0, 20, 20)

    async def test_a_picture_goes_with_its_tokens(self) -> None:
        model = paper()
        first = await self.described(model, "a cat")
        found = []
        for length in (40, 25):
            first.rewind_to(length)
            found.append(len(first._loop.rows[0].contents))
        assert found == [1, 0]


def oom() -> Exception:
    return OutOfMemoryError("no room")


async def always_short(capacity: int, pools: Any = None) -> Any:
    raise oom()


@pytest.mark.parametrize(("one", "other", "length"), [("", "a", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("b", "a", 0)])
def test_common_starts(one: str, other: str, length: int) -> None:
    first, second = (Prefix(array("q", list(text.encode()))) for text in (one, other))
    assert common(first, second) == common(second, first) == length
