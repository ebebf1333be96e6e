"""Prompts of several rows are run together where the decoder does so; each row gets what it gets alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from capstan import Generator, GeneratorParams, Model
from capstan.device.prefix_cache import PrefixCache
from capstan.device.row_interface import RowPrompts
from capstan.device.separate_rows import SeparateRows
from capstan.generation.row_pool import RowPool
from tests.unit.paper_model import PaperDecoder, PaperModel, run_of, take

LONGEST = 8


class PackingRows(SeparateRows[PaperDecoder]):
    """Rows that run prompts of up to LONGEST tokens together."""

    def __init__(self, decoders: Sequence[PaperDecoder]) -> None:
        super().__init__(decoders)
        self.together: list[tuple[int, ...]] = []
        self.gate: asyncio.Event | None = None
        """Packed prompts are done once it is set."""

    async def prefill_together(self, prompts: RowPrompts) -> Collection[int]:
        assert all(ids for ids, _ in prompts.values()), "a prompt of nothing"
        chosen = [row for row, (ids, _) in prompts.items() if len(ids) <= LONGEST]
        if len(chosen) < 2:
            return ()
        self.together.append(tuple(chosen))
        if self.gate is not None:
            await self.gate.wait()
        for row in chosen:
            await self.row(row).prefill(*prompts[row])
        return chosen


class PackingModel(PaperModel):
    def __init__(self, **decoder: Any) -> None:
        super().__init__(**decoder)
        self.made: list[PackingRows] = []

    async def row_decoder(self, rows: int, *given: Any, **named: Any) -> Any:
        found = await super().row_decoder(rows, *given, **named)
        if isinstance(found, SeparateRows):
            self.made.append(PackingRows(found.decoders))
            return self.made[-1]
        return found

    @property
    def together(self) -> list[tuple[int, ...]]:
        return [rows for made in self.made for rows in made.together]

    def prompts(self, row: int) -> list[list[int]]:
        """The token runs of a row of the first decoder."""
        return [ids for ids, _ in self.made[0].decoders[row].prefills]


def generator_of(model: PackingModel, **search: Any) -> Generator:
    params = GeneratorParams(cast(Model, model))
    params.set_search_options(**search)
    return Generator(cast(Model, model), params)


def count_from(start: int, length: int) -> list[int]:
    return [start + i for i in range(length)]


def test_short_prompts_are_run_together_and_long_ones_alone() -> None:
    model, prompts = PackingModel(), [count_from(5 + 20 * row, 12) for row in range(4)]
    prompts[1][3:] = prompts[3][2:] = [0] * 9
    prompts[3][2:] = [0] * 10
    generator = generator_of(model, batch_size=4)
    generator.append_tokens(prompts)
    asyncio.run(take(generator, 5))
    assert model.together == [(1, 3)]
    assert [model.prompts(row) for row in range(4)] == [[prompts[0]], [prompts[1][:3]], [prompts[2]], [prompts[3][:2]]]
    for row, length in enumerate((12, 3, 12, 2)):
        assert generator.get_sequence(row) == [*prompts[row], *run_of(prompts[row][:length], 5)]


def test_rows_that_begin_anew_are_run_together_again() -> None:
    model, prompts = PackingModel(), [[20, 21, 22, 23], [30, 31, 32, 33]]
    generator = generator_of(model, batch_size=2)
    generator.append_tokens([[5, 6, 7], [8, 9, 10]])
    asyncio.run(take(generator, 3))
    generator.rewind_to(0)
    generator.append_tokens(prompts)
    asyncio.run(take(generator, 3))
    assert model.together == [(0, 1), (0, 1)]
    assert [generator.get_sequence(row) for row in range(2)] == [[*ids, *run_of(ids, 3)] for ids in prompts]


def test_lost_logits_are_computed_together_behind_what_was_run() -> None:
    model, prompts = PackingModel(), [[5, 6, 7], [8, 9, 10]]
    generator = generator_of(model, batch_size=2)
    generator.append_tokens(prompts)
    asyncio.run(take(generator, 3))
    generator.get_logits()
    asyncio.run(take(generator, 3))
    assert model.together == [(0, 1), (0, 1)]
    for row, prompt in enumerate(prompts):
        assert model.prompts(row) == [prompt, [run_of(prompt, 3)[-1]]]
        assert generator.get_sequence(row) == [*prompt, *run_of(prompt, 6)]


def test_rows_of_one_prompt_run_it_once() -> None:
    model = PackingModel()
    generator = generator_of(model, batch_size=2, num_return_sequences=2, do_sample=True)
    generator.append_tokens([[5, 6, 7], [8, 9, 10]])
    asyncio.run(take(generator, 2))
    assert model.together == [(0, 2)]
    assert sum(len(decoder.prefills) for decoder in model.decoders) == 2
    assert [generator.get_sequence(row) for row in range(4)] == [
        [*prompt, *run_of(prompt, 2)] for prompt in ([5, 6, 7], [8, 9, 10]) for _ in range(2)
    ]


def test_with_a_chunk_size_each_row_is_run_by_itself() -> None:
    model = PackingModel()
    generator = generator_of(model, batch_size=2, chunk_size=2)
    generator.append_tokens([[5, 6, 7], [8, 9, 10]])
    asyncio.run(take(generator, 2))
    assert model.together == []
    assert [model.prompts(row) for row in range(2)] == [[[5, 6], [7]], [[8, 9], [10]]]


def test_a_row_that_begins_as_another_one_takes_its_start_over() -> None:
    model, shared = PackingModel(), count_from(1, 17)
    model.prefixes = PrefixCache(1 << 20)
    prompts = [[*shared, 20, 21], [*shared, 30, 31], [*count_from(50, 4), *[0] * 15], [*count_from(60, 2), *[0] * 17]]
    generator = generator_of(model, batch_size=4)
    generator.append_tokens(prompts)
    asyncio.run(take(generator, 2))
    assert model.together == [(2, 3)], "the first is long, the second comes after it"
    assert [model.prompts(row) for row in (0, 1)] == [[prompts[0]], [[30, 31]]]
    for row, length in enumerate((19, 19, 4, 2)):
        assert generator.get_sequence(row) == [*prompts[row], *run_of(prompts[row][:length], 2)]


def test_rows_that_begin_alike_share_what_is_left() -> None:
    model, shared = PackingModel(), count_from(1, 17)
    model.prefixes = PrefixCache(1 << 20)
    prompts = [[*shared, 20 + 10 * row, 5] for row in range(4)]
    generator = generator_of(model, batch_size=4)
    generator.append_tokens(prompts)
    asyncio.run(take(generator, 2))
    assert model.together == [(1, 2, 3)]
    assert [model.prompts(row) for row in range(4)] == [[prompts[0]], *([prompt[17:]] for prompt in prompts[1:])]
    assert [generator.get_sequence(row) for row in range(4)] == [[*ids, *run_of(ids, 2)] for ids in prompts]


async def test_a_cancelled_wait_loses_no_row() -> None:
    model, prompts = PackingModel(), [[5, 6, 7], [8, 9, 10]]
    generator = generator_of(model, batch_size=2)
    generator.append_tokens([[1], [2]])

    await take(generator, 2)
    [made] = model.made
    made.gate = asyncio.Event()
    generator.rewind_to(0)
    generator.append_tokens(prompts)
    waiting = asyncio.ensure_future(take(generator, 2))
    await asyncio.sleep(0.01)
    assert len(made.together) == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    made.gate.set()
    await take(generator, 3)
    assert model.together == [(0, 1)] * 3
    assert [generator.get_sequence(row) for row in range(2)] == [[*ids, *run_of(ids, 3)] for ids in prompts]


async def test_rows_that_change_meanwhile_are_run_as_they_are_then() -> None:
    model, prompts = PackingModel(), [[20, 21, 22], [30, 31, 32]]
    generator = generator_of(model, batch_size=2)
    generator.append_tokens([[1], [2]])

    await take(generator, 1)
    [made] = model.made
    made.gate = asyncio.Event()
    generator.rewind_to(0)
    generator.append_tokens([[5, 6], [7, 8]])
    waiting = asyncio.ensure_future(take(generator, 2))
    await asyncio.sleep(0.01)
    generator.rewind_to(0)
    generator.append_tokens(prompts)
    made.gate.set()
    await waiting
    assert [generator.get_sequence(row) for row in range(2)] == [[*ids, *run_of(ids, 2)] for ids in prompts]


class TestPools:
    def pool(self, model: PackingModel) -> RowPool:
        params = GeneratorParams(cast(Model, model))
        params.set_search_options(do_sample=False)
        return RowPool(cast(Model, model), params)

    def test_those_that_are_admitted_at_once_are_run_together_beside_one_that_goes_on(self) -> None:
        model = PackingModel()
        pool = self.pool(model)
        sequences = [pool.join() for _ in range(4)]
        prompts = [[5, 6], [7], [8, 9, 10], [11, 12]]

        def step(count: int) -> None:
            for sequence in (each for _ in range(count) for each in sequences if each.token_count()):
                sequence.generate_next_token()

        for sequence, prompt in zip(sequences[:2], prompts, strict=False):
            sequence.append_tokens(prompt)
        step(3)
        for sequence, prompt in zip(sequences[2:], prompts[2:], strict=True):
            sequence.append_tokens(prompt)
        step(3)
        assert model.made[0].together == [(0, 1)]
        # Two have moved to more rows and get the logits of their last token again.
        assert model.made[1].together == [(0, 1, 2, 3)]
        for sequence, prompt, count in zip(sequences, prompts, (6, 6, 3, 3), strict=True):
            assert sequence.get_sequence() == [*prompt, *run_of(prompt, count)]
        for sequence in sequences[2:]:
            sequence.append_tokens([40])
        kept = sequences[0].get_sequence()
        step(2)
        assert model.made[1].together[1:] == [(2, 3)], "the others take a step"
        assert sequences[0].get_sequence() == [*kept, *run_of(kept, 2)]

    async def test_one_that_changes_meanwhile_stays_out_and_the_other_goes_on(self) -> None:
        model = PackingModel()
        pool = self.pool(model)
        first, second = pool.join(), pool.join()

        first.append_tokens([5])
        second.append_tokens([6])
        for sequence in (first, second):
            await pool.bring(sequence._member)
            sequence.generate_next_token()
        [made] = model.made
        made.gate = asyncio.Event()
        first.append_tokens([20, 21])
        second.append_tokens([30, 31])
        asking = asyncio.ensure_future(pool.bring(second._member))
        await asyncio.sleep(0.01)
        assert len(made.together) == 2
        first.rewind_to(0)
        first.append_tokens([40, 41])
        made.gate.set()
        await asking
        await pool.bring(first._member)
        for sequence in (first, second):
            sequence.generate_next_token()
        assert first.get_sequence() == [40, 41, *run_of([40, 41], 1)]
        given = [6, *run_of([6], 1), 30, 31]
        assert second.get_sequence() == [*given, *run_of(given, 1)]
