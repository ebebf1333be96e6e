"""Sequences of a pool come and go, share steps, and get the tokens that each would get alone."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from capstan import ClosedError, GeneratorParams, Model, OptionError, OutOfMemoryError, PromptError
from capstan.device.prefix_cache import PrefixCache
from capstan.device.separate_rows import SeparateRows
from capstan.errors import DeviceLostError
from capstan.generation.row_pool import PooledSequence, RowPool, poolable
from capstan.stages.speculation_options import Speculation
from tests import oracle
from tests.unit.paper_model import CONTEXT, EOS, PaperDecoder, PaperModel, run_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
STATEFUL = FIXTURES / "families" / "lfm2"


class Watched(PaperModel):
    """Notes which rows are asked for together."""

    def __init__(self, **decoder: Any) -> None:
        super().__init__(**decoder)
        self.made: list[PaperDecoder | SeparateRows[PaperDecoder]] = []
        self.together: list[tuple[int, ...]] = []
        """The rows of each burst, and of each step without a pick."""

    async def row_decoder(
        self, rows: int, max_length: int, pools: Any = None, lora: Any = None, unrecorded: bool = False
    ) -> PaperDecoder | SeparateRows[PaperDecoder]:
        made = await super().row_decoder(rows, max_length, pools, lora)
        submit, run_picked = made.submit, made.run_picked

        def noted(picks: int, sample_first: bool, rows: Sequence[int]) -> Any:
            self.together.append(tuple(rows))
            return submit(picks, sample_first, rows)

        async def ran(rows: Sequence[int]) -> None:
            self.together.append(tuple(rows))
            await run_picked(rows)

        cast(Any, made).submit, cast(Any, made).run_picked = noted, ran
        self.made.append(made)
        return made


def pool_of(model: Any, **search: Any) -> RowPool:
    params = GeneratorParams(cast(Model, model))
    params.set_search_options(**{"do_sample": False, **search})
    return RowPool(cast(Model, model), params)


def begun(pool: RowPool, prompt: Sequence[int]) -> PooledSequence:
    sequence = pool.join()
    sequence.append_tokens(prompt)
    return sequence


def taken(sequence: PooledSequence, count: int) -> list[int]:
    found = []
    for _ in range(count):
        sequence.generate_next_token()
        found += sequence.get_next_tokens()
    return found


class TestOnPaper:
    def test_those_that_begin_together_share_every_step(self) -> None:
        model = Watched()
        pool = pool_of(model)
        prompts = [[5, 6], [7], [8, 9, 10]]
        sequences = [begun(pool, prompt) for prompt in prompts]
        for _ in range(12):
            for sequence in sequences:
                sequence.generate_next_token()
        for sequence, prompt in zip(sequences, prompts, strict=True):
            assert sequence.get_sequence() == [*prompt, *run_of(prompt, 12)]
        assert set(model.together) == {(0, 1, 2)}
        assert [made.rows for made in model.made] == [4]
        assert [len(decoder.prefills) for decoder in model.decoders] == [1, 1, 1, 0]

    def test_one_that_joins_is_a_row_of_the_steps_from_then_on_and_one_that_leaves_makes_room(self) -> None:
        model = Watched()
        pool = pool_of(model)
        first, second = begun(pool, [5, 6]), begun(pool, [7])
        assert (taken(first, 4), taken(second, 2)) == (run_of([5, 6], 4), run_of([7], 2))
        second.close()
        third = begun(pool, [8, 9])
        model.together.clear()
        assert taken(third, 3) == run_of([8, 9], 3)
        assert taken(first, 6) == run_of([5, 6], 10)[4:]
        assert taken(third, 3) == run_of([8, 9], 6)[3:]
        assert [made.rows for made in model.made] == [2], "the row that was left is used again"
        assert model.together[0] == (0,), "a step of the one that goes on, then the prompt"
        assert set(model.together[1:]) == {(0, 1)}

    def test_more_sequences_than_rows_move_to_more_rows_and_keep_what_was_run(self) -> None:
        model = Watched()
        pool = pool_of(model)
        sequences: list[PooledSequence] = []
        prompts = [[number, 20, 21, 22] for number in range(5)]
        for prompt in prompts:
            sequences.append(begun(pool, prompt))
            for sequence in sequences:
                sequence.generate_next_token()
        for _ in range(3):
            for sequence in sequences:
                sequence.generate_next_token()
        for number, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
            assert sequence.get_sequence() == [*prompt, *run_of(prompt, 8 - number)]
        assert [made.rows for made in model.made] == [1, 2, 4, 8]
        assert all(decoder.closed == 1 for decoder in model.decoders[:7])
        # The last token of each was picked and not run; the one before it is run again for its logits.
        assert all(len(ids) <= 2 for decoder in model.decoders[3:5] for ids, _ in decoder.prefills)
        for sequence in sequences[1:]:
            sequence.close()
        assert taken(sequences[0], 2) == run_of(prompts[0], 10)[8:]
        assert [made.rows for made in model.made] == [1, 2, 4, 8, 1], "one alone does not pay for eight rows"
        sequences[0].close()
        assert all(decoder.closed == 1 for decoder in model.decoders)

    def test_a_turn_that_is_over_costs_no_steps_until_tokens_are_appended(self) -> None:
        model = Watched()
        pool = pool_of(model)
        first, second = begun(pool, [5, 6]), begun(pool, [7])
        taken(first, 3)
        taken(second, 1)
        first.park()
        model.together.clear()
        assert taken(second, 20) == run_of([7], 21)[1:]
        assert set(model.together) == {(1,)}
        assert taken(first, 2) == run_of([5, 6], 5)[3:]
        first.rewind_to(5)
        first.append_tokens([11, 12])
        sequence = [5, 6, *run_of([5, 6], 3), 11, 12]
        assert taken(first, 5) == run_of(sequence, 5)
        assert model.decoders[0].prefills[-1] == (sequence[4:], 4), "what was run stays"
        assert taken(second, 2) == run_of([7], 23)[21:]
        first.rewind_to(2)
        assert taken(first, 3) == run_of([5, 6], 3)

    def test_a_burst_takes_no_row_past_its_end(self) -> None:
        pool = pool_of(Watched())
        prompt = list(range(10, 40))
        long, short = begun(pool, prompt), begun(pool, [7])
        room = CONTEXT - len(prompt)
        assert taken(short, 8) == run_of([7], 8)
        assert taken(long, room) == run_of(prompt, room)
        assert long.finish_reason == "length"
        assert taken(short, 40) == run_of([7], 48)[8:]

    def test_ends_and_limits_are_those_of_each(self) -> None:
        model = Watched(ends={1: 4})
        pool = pool_of(model, max_length=12)
        first, second = begun(pool, [5, 6]), begun(pool, [7])
        assert taken(second, 4) == [*run_of([7], 3), EOS]
        assert (second.finish_reason, second.get_sequence()) == ("stop", [7, *run_of([7], 3)])
        assert taken(first, 10) == run_of([5, 6], 10)
        assert (first.finish_reason, first.token_count()) == ("length", 12)
        for sequence in (first, second):
            with pytest.raises(OptionError, match="generation is done"):
                sequence.generate_next_token()
        with pytest.raises(PromptError, match="would have 13 tokens; max_length is 12"):
            first.append_tokens([1])
        with pytest.raises(OptionError, match=r"rewind_to\(13\): the sequence has 12 tokens"):
            first.rewind_to(13)
        with pytest.raises(PromptError, match="the sequence is empty"):
            pool.join().generate_next_token()
        second.close()
        second.close()
        for use in (second.generate_next_token, lambda: second.append_tokens([1])):
            with pytest.raises(ClosedError):
                use()

    def test_where_there_is_no_memory_for_one_more_the_others_go_on(self) -> None:
        model = Watched(room=3)
        pool = pool_of(model)
        first = begun(pool, [5, 6])
        assert taken(first, 2) == run_of([5, 6], 2)
        second = begun(pool, [7])
        assert taken(second, 2) == run_of([7], 2)
        third = begun(pool, [8])
        with pytest.raises(OutOfMemoryError, match="4 rows of 64 positions"):
            third.generate_next_token()
        asked = len(model.decoders)
        assert taken(first, 30) == run_of([5, 6], 32)[2:]
        assert taken(second, 30) == run_of([7], 32)[2:]
        assert len(model.decoders) == asked, "memory is not asked for again"
        second.close()
        model.options["room"] = 7
        assert taken(third, 2) == run_of([8], 2)

    def test_after_a_fault_the_tokens_are_computed_anew(self) -> None:
        model = Watched()
        pool = pool_of(model)
        first, second = begun(pool, [5, 6]), begun(pool, [7])
        taken(first, 1)
        taken(second, 1)
        model.decoders[1].fault = DeviceLostError("lost")
        with pytest.raises(DeviceLostError):
            taken(first, 30)
        model.decoders[1].fault = None
        count = first.token_count()
        assert taken(first, 5) == run_of([5, 6], 50)[count - 2 : count + 3]
        assert taken(second, 3) == run_of([7], 4)[1:]

    async def test_tasks_that_wait_at_the_same_time_take_turns(self) -> None:
        model = Watched()
        pool = pool_of(model)
        sequences = [begun(pool, [number]) for number in range(3)]
        members = [sequence._member for sequence in sequences]
        for _ in range(10):
            await asyncio.gather(*(pool.bring(member) for member in members))
            for sequence in sequences:
                sequence.generate_next_token()
        for number, sequence in enumerate(sequences):
            assert sequence.get_sequence() == [number, *run_of([number], 10)]

    def test_a_sequence_that_changes_while_its_prompt_is_run_goes_on_as_it_was_changed(self) -> None:
        async def run(turns: int) -> bool:
            model = Watched()
            model.prefixes = PrefixCache(1 << 20)
            pool = pool_of(model, chunk_size=2)
            first = begun(pool, [1])
            await pool.bring(first._member)
            [decoder] = model.decoders
            decoder.gate = asyncio.Event()
            first.append_tokens(range(20, 40))
            asking = asyncio.ensure_future(pool.bring(first._member))
            for _ in range(turns):
                await asyncio.sleep(0)
            prefilled = len(decoder.prefills) == 2
            first.rewind_to(0)
            first.append_tokens([30, 31, 32])
            decoder.gate.set()
            await asking
            first.generate_next_token()
            assert first.get_next_tokens() == run_of([30, 31, 32], 1)
            assert len(decoder.prefills) <= 4, "what is void is not run to its end"
            return prefilled

        turns = itertools.takewhile(lambda turns: not asyncio.run(run(turns)), itertools.count())
        assert len(list(turns)) > 1

    def test_a_sequence_that_is_dropped_leaves(self) -> None:
        model = Watched()
        pool = pool_of(model)
        begun(pool, [5, 6]).generate_next_token()
        gc.collect()
        assert [decoder.closed for decoder in model.decoders] == [1]

    def test_prompts_that_begin_alike_are_run_once(self) -> None:
        model = Watched()
        model.prefixes = PrefixCache(1 << 20)
        pool = pool_of(model)
        start = list(range(20, 40))
        first, second = begun(pool, [*start, 1]), begun(pool, [*start, 2])
        assert (taken(first, 2), taken(second, 2)) == (run_of([*start, 1], 2), run_of([*start, 2], 2))
        assert model.decoders[1].prefills == [([2], 20)]
        first.close()
        second.close()
        third = begun(pool, [*start, 2, 3])
        assert taken(third, 2) == run_of([*start, 2, 3], 2)
        assert len(model.decoders[2].prefills[0][0]) <= 2

    def test_a_drawn_seed_is_another_when_one_joins(self) -> None:
        model = Watched()
        pool = pool_of(model, do_sample=True)
        first = begun(pool, [5, 6])
        taken(first, 2)
        second = begun(pool, [5, 6])
        taken(second, 2)
        seeds = [options.seed for options in model.decoders[-1].searches]
        assert len(set(seeds)) == len(seeds) > 1


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({}, True),
        ({"do_sample": True}, True),
        ({"do_sample": True, "random_seed": 3}, False),
        ({"random_seed": 3}, True),
        ({"max_time": 0.5}, False),
        ({"num_beams": 2}, False),
        ({"batch_size": 2}, False),
        ({"repetition_penalty": 1.5, "min_length": 4}, True),
    ],
)
def test_what_may_be_pooled(options: dict[str, Any], may: bool) -> None:
    model = cast(Model, PaperModel())
    params = GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, **options})
    assert poolable(model, params) == may


def test_what_follows_a_grammar_a_processor_or_drafts_is_not_pooled() -> None:
    model = cast(Model, PaperModel())
    params = GeneratorParams(model, logits_processor=lambda _tokens, _logits: None)
    assert not poolable(model, params)
    params = GeneratorParams(model)
    params.set_guidance("regex", "a+")
    assert not poolable(model, params)
    params = GeneratorParams(model)
    params.set_speculation(Speculation())
    assert not poolable(model, params)


@pytest.mark.parametrize("folder", [LLAMA, STATEFUL], ids=lambda folder: folder.name)
@pytest.mark.parametrize(
    "options", [{}, {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}], ids=["plain", "rules"]
)
def test_ids_are_the_oracles(folder: Path, options: dict[str, Any]) -> None:
    source = random.Random(5)
    prompts = [[source.randrange(3, 250) for _ in range(length)] for length in (6, 3, 9, 5)]
    wanted = [oracle.greedy(folder, prompt, 10, **options) for prompt in prompts]
    model = Model(str(folder), device="reference")
    model.search = model.search.replace(max_length=40)
    pool = pool_of(model, **options)
    sequences = []
    for prompt in prompts:
        # One joins as the others are at work.
        sequences.append(begun(pool, prompt))
        for sequence in sequences:
            if sequence.finish_reason is None:
                sequence.generate_next_token()
    for sequence, prompt, ids in zip(sequences, prompts, wanted, strict=True):
        while sequence.finish_reason is None and sequence.token_count() < len(prompt) + 10:
            sequence.generate_next_token()
        assert sequence.get_sequence()[len(prompt) :] == [
            token for token in ids if token not in model.config.eos_token_ids
        ]
