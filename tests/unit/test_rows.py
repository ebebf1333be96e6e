"""Several rows in one generator give what the oracle's rows give, over the reference device and over paper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capstan import CapstanError, Generator, GeneratorParams, Model, OptionError, PromptError
from capstan.errors import DeviceLostError, OutOfMemoryError
from capstan.stages.sampling import sample
from tests import oracle
from tests.unit.paper_model import EOS, made, run_of, take

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PAD = 2
LEVEL = [[1, 2, 3], [4, 5, 6], [40, 41, 42]]
PADDED = [[1, 4, 3, 4, 9, 8], [5, 6, PAD, PAD, PAD, PAD], [PAD, 7, 8, PAD, PAD, PAD]]


def loaded(folder: Path, eos: Sequence[int] = ()) -> Model:
    """The model on the reference device; `eos` takes the place of its end-of-sequence ids."""
    model = Model(str(folder), device="reference")
    if eos:
        model.search = replace(model.search, eos_token_ids=tuple(eos))
    return model


def generated(model: Model, prompts: Sequence[Sequence[int]], **search: Any) -> oracle.Rows:
    """oracle.rows, by capstan."""
    params = GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, "batch_size": len(prompts), **search})
    found = oracle.Rows([], [])
    with Generator(model, params) as generator:
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
            found.picked.append(generator.get_next_tokens())
        found.sequences = [generator.get_sequence(row) for row in range(len(found.picked[0]))]
    return found


CASES: dict[str, dict[str, Any]] = {
    "to max_length": {},
    "a repetition penalty": {"repetition_penalty": 1.4},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "a chunk": {"chunk_size": 2},
}


@pytest.mark.parametrize("prompts", [LEVEL, PADDED], ids=["level", "padded"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_rows_are_the_oracles(prompts: list[list[int]], options: dict[str, Any]) -> None:
    wanted = oracle.rows(LLAMA, prompts, max_length=24, **{k: v for k, v in options.items() if k != "chunk_size"})
    assert generated(loaded(LLAMA), prompts, max_length=24, **options) == wanted


@pytest.mark.parametrize("prompts", [LEVEL, PADDED], ids=["level", "padded"])
@pytest.mark.parametrize("min_length", [0, 12])
def test_rows_that_end_early_are_padded_as_the_oracles(prompts: list[list[int]], min_length: int) -> None:
    free = oracle.rows(LLAMA, prompts, max_length=24)
    # Ends of rows at different steps: the second and the third row's, then the first one's.
    eos = [free.picked[1][1], free.picked[3][2], free.picked[9][0]]
    wanted = oracle.rows(LLAMA, prompts, eos=eos, max_length=24, min_length=min_length)
    found = generated(loaded(LLAMA, eos), prompts, max_length=24, min_length=min_length)
    assert found == wanted
    assert min_length or any(PAD in step for step in found.picked), "some row ends before others"


STATEFUL = [FIXTURES / "families" / name for name in ("lfm2", "qwen3_5_text")]


@pytest.mark.parametrize("folder", STATEFUL, ids=lambda folder: folder.name)
def test_rows_of_models_with_states_are_those_of_a_generator_each(folder: Path) -> None:
    model = loaded(folder)
    alone = [generated(model, [prompt], max_length=16).sequences[0] for prompt in LEVEL]
    assert generated(model, LEVEL, max_length=16).sequences == alone


def test_each_row_draws_its_own_numbers() -> None:
    model = loaded(LLAMA)
    options = {"do_sample": True, "temperature": 1.5, "top_k": 40, "random_seed": 11}
    found = generated(model, [[1, 2, 3], [1, 2, 3]], max_length=12, **options)
    search = model.search.replace(**options)
    for row, sequence in enumerate(found.sequences):
        for length in range(3, 12):
            logits = oracle.logits(LLAMA, sequence[:length])
            assert sample(logits.tolist(), search, length, row) == sequence[length]
    assert found.sequences[0] != found.sequences[1]


def test_several_sequences_of_a_prompt_draw_as_so_many_rows() -> None:
    model = loaded(LLAMA)
    options = {"do_sample": True, "temperature": 1.5, "random_seed": 5, "max_length": 12}
    prompts = [[1, 2, 3], [4, 5, PAD]]
    wanted = generated(model, [prompt for prompt in prompts for _ in range(3)], **options)
    assert generated(model, prompts, num_return_sequences=3, **options) == wanted
    assert len({tuple(ids) for ids in wanted.sequences}) == 6


@pytest.mark.parametrize("folder", [LLAMA, *STATEFUL], ids=lambda folder: folder.name)
def test_several_sequences_of_a_prompt_that_goes_on_are_prefilled_once(folder: Path) -> None:
    model = loaded(folder)
    options = {"do_sample": True, "temperature": 1.5, "random_seed": 5, "max_length": 12}
    wanted = generated(model, [[1, 2, 3]] * 2, **options)
    assert generated(model, [[1, 2, 3]], num_return_sequences=2, **options) == wanted


def test_a_prompt_of_several_sequences_is_run_once_and_copied() -> None:
    generator, paper = made(do_sample=True, num_return_sequences=3)
    generator.append_tokens([5, 6, 7])
    asyncio.run(take(generator, 3))
    first, *others = paper.decoders
    assert first.prefills == [([5, 6, 7], 0)]
    for decoder in others:
        assert (decoder.prefills, decoder.copied) == ([], [first])
    assert [generator.get_sequence(row) for row in range(3)] == [[5, 6, 7, *run_of([5, 6, 7], 3)]] * 3


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"num_return_sequences": 2}, r"num_return_sequences \(2\) must be in \[1, 1\]"),
        ({"num_return_sequences": 4, "num_beams": 3}, r"num_return_sequences \(4\) must be in \[1, 3\]"),
        ({"num_beams": 3, "do_sample": True}, "do_sample is True and num_beams is 3: beams are not sampled"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        made(**options)


def test_more_rows_than_there_is_memory_for_are_refused_and_none_is_kept() -> None:
    generator, paper = made(batch_size=4, decoder={"room": 2})
    generator.append_tokens([[1, 2]] * 4)
    remedy = "4 rows of 64 positions were requested; the memory holds 2 .*; lower batch_size, num_beams"
    with pytest.raises(OutOfMemoryError, match=remedy):
        generator.generate_next_token()
    assert [decoder.closed for decoder in paper.decoders] == [1, 1]
    with pytest.raises(OutOfMemoryError, match=remedy):
        generator.generate_next_token()


def test_prompts_behind_one_another_and_arrays_are_rows_too() -> None:
    np = pytest.importorskip("numpy")
    model = loaded(LLAMA)
    wanted = generated(model, LEVEL, max_length=8).sequences
    flat: Any = [id_ for row in LEVEL for id_ in row]
    params = GeneratorParams(model)
    params.set_search_options(max_length=8, batch_size=3)
    for tokens in (flat, np.array(LEVEL), np.array(flat, np.int32), [np.array(row) for row in LEVEL], tuple(LEVEL)):
        with Generator(model, params) as generator:
            generator.append_tokens(tokens)
            asyncio.run(take(generator, 5))
            assert [generator.get_sequence(row) for row in range(3)] == wanted


@pytest.mark.parametrize(
    ("tokens", "what"),
    [
        ([[1, 2, 3], [4, 5]], r"rows have from 2 to 3 tokens; pad them at the end .* pad_token_id \(0\)"),
        ([[1, 2]], "1 rows of tokens were given; batch_size is 2"),
        ([[1], [2], [3]], "3 rows of tokens were given; batch_size is 2"),
        ([1, 2, 3], "3 tokens in one list cannot be 2 rows of equal length"),
        ([], "no tokens were given"),
        ([[], []], "no tokens were given"),
        ([[1, 2], [0, 0]], r"a row has only padding \(0\)"),
        ([[1, 2], [3, 100]], "token 1 is 100; ids go from 0 to 99"),
        ([[1, 2], [3, 1.5]], "token 1 is 1.5; ids are integers"),
        ([[1, 2], "34"], "token 0 is"),
        ([[7] * 65, [7] * 65], "the sequence would have 65 tokens; max_length is 64"),
        (range(2 * 10**12), "the sequence would have 1000000000000 tokens; max_length is 64"),
        ([itertools.repeat(7), itertools.repeat(7)], "the sequence would have more than 64 tokens"),
    ],
)
def test_rows_that_are_none_are_refused(tokens: Any, what: str) -> None:
    generator, _ = made(batch_size=2)
    with pytest.raises(PromptError, match=what):
        generator.append_tokens(tokens)
    assert [generator.get_sequence(row) for row in range(2)] == [[], []]
    generator.append_tokens([[5, 6], [7, 0]])
    asyncio.run(take(generator, 2))
    assert generator.get_sequence(1) == [7, 0, *run_of([7], 2)], "the generator stays usable"


def test_one_row_may_be_given_as_a_batch_of_one_and_has_no_padding() -> None:
    generator, _ = made()
    generator.append_tokens([[5, 6, 0]])
    asyncio.run(take(generator, 2))
    assert generator.get_sequence() == [5, 6, 0, *run_of([5, 6, 0], 2)]


class TestSeveralRows:
    def test_take_tokens_once_and_are_rewound_to_their_start(self) -> None:
        generator, _ = made(batch_size=2)
        generator.append_tokens([[5, 6], [7, 0]])
        with pytest.raises(OptionError, match=r"rewind_to\(0\) and append whole prompts"):
            generator.append_tokens([[5], [7]])
        asyncio.run(take(generator, 3))
        with pytest.raises(OptionError, match="rewinds only to 0"):
            generator.rewind_to(2)
        generator.rewind_to(0)
        assert generator.token_count() == 0
        generator.append_tokens([[8, 9], [10, 11]])
        asyncio.run(take(generator, 3))
        assert [generator.get_sequence(row) for row in range(2)] == [
            [8, 9, *run_of([8, 9], 3)],
            [10, 11, *run_of([10, 11], 3)],
        ]

    @pytest.mark.parametrize("run_ahead", [1, 4, None])
    def test_that_have_ended_are_run_no_further(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead, batch_size=2, max_length=30, decoder={"ends": {0: 8}})
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])
        asyncio.run(take(generator, 26))
        first, second = generator.get_sequence(0), generator.get_sequence(1)
        assert first == [5, 6, 7, *run_of([5, 6, 7], 5), EOS, *[0] * 20]
        assert second == [8, 9, 10, *run_of([8, 9, 10], 26)]
        steps = [decoder.steps for decoder in paper.decoders]
        assert steps[0] < steps[1] / 2

    def test_are_over_when_all_are_and_the_last_end_is_not_in_the_sequences(self) -> None:
        generator, _ = made(batch_size=2, decoder={"ends": {0: 4, 1: 6}})
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])
        picks = []
        while not generator.is_done():
            asyncio.run(take(generator, 1))
            picks.append(generator.get_next_tokens())
        first, second = run_of([5, 6, 7], 1), run_of([8, 9, 10], 3)
        assert picks == [[first[0], second[0]], [EOS, second[1]], [0, second[2]], [0, EOS]]
        assert generator.finish_reason == "stop"
        assert generator.get_sequence(0) == [5, 6, 7, *first, EOS, 0]
        assert generator.get_sequence(1) == [8, 9, 10, *second]

    @pytest.mark.parametrize("fails", [0, 1])
    def test_go_on_after_a_fault_in_one_of_them(self, fails: int) -> None:
        generator, paper = made(run_ahead=3, batch_size=2, recoveries=0)
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])
        asyncio.run(take(generator, 2))
        for decoder in paper.decoders:
            decoder.gate = None
        paper.decoders[fails].fault = DeviceLostError("gone")
        with pytest.raises(CapstanError, match="gone"):
            asyncio.run(take(generator, 40))
        paper.decoders[fails].fault = None
        there = generator.token_count()
        asyncio.run(take(generator, 4))
        assert generator.token_count() == there + 4
        assert generator.get_sequence(0) == [5, 6, 7, *run_of([5, 6, 7], there + 1)]
        assert generator.get_sequence(1) == [8, 9, 10, *run_of([8, 9, 10], there + 1)]

    @pytest.mark.parametrize("waits", [0, 1])
    async def test_lose_no_token_to_a_cancelled_wait(self, waits: int) -> None:
        generator, paper = made(run_ahead=3, batch_size=2)
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])

        await take(generator, 2)
        gate = asyncio.Event()
        paper.decoders[waits].gate = gate
        waiting = asyncio.ensure_future(take(generator, 40))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        await take(generator, 5)
        picked = generator.token_count() - 3
        assert generator.get_sequence(0) == [5, 6, 7, *run_of([5, 6, 7], picked)]
        assert generator.get_sequence(1) == [8, 9, 10, *run_of([8, 9, 10], picked)]

    def test_have_logits_each_which_can_be_replaced(self) -> None:
        generator, _ = made(batch_size=2)
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])
        logits: Any = generator.get_logits()
        assert logits.shape == (2, 100)
        assert [row.index(1.0) for row in logits.tolist()] == [run_of([5, 6, 7], 1)[0], run_of([8, 9, 10], 1)[0]]
        wanted: Any = memoryview(bytearray(800)).cast("f", (2, 100))
        wanted[0, 33] = wanted[1, 44] = 1.0
        generator.set_logits(wanted)
        asyncio.run(take(generator, 1))
        assert generator.get_next_tokens() == [33, 44]
        with pytest.raises(OptionError, match="400 bytes; give 200 float32"):
            generator.set_logits(bytearray(400))

    def test_that_have_ended_stay_so_when_logits_are_asked_for(self) -> None:
        generator, _ = made(batch_size=2, decoder={"ends": {0: 4}})
        generator.append_tokens([[5, 6, 7], [8, 9, 10]])
        asyncio.run(take(generator, 3))
        logits: Any = generator.get_logits()
        assert logits.tolist()[1].index(1.0) == run_of([8, 9, 10], 4)[3]
        asyncio.run(take(generator, 3))
        assert generator.get_sequence(0) == [5, 6, 7, *run_of([5, 6, 7], 1), EOS, *[0] * 4]
        assert generator.get_sequence(1) == [8, 9, 10, *run_of([8, 9, 10], 6)]

    def test_count_padding_for_min_length_which_the_device_does_not_see(self) -> None:
        generator, paper = made(batch_size=2, min_length=10)
        generator.append_tokens([[5, 6, 7], [8, 0, 0]])
        asyncio.run(take(generator, 2))
        assert [decoder.searches[-1].min_length for decoder in paper.decoders] == [10, 8]

    def test_keep_to_the_rows_that_there_are(self) -> None:
        generator, _ = made(batch_size=2)
        for index in (2, -1):
            with pytest.raises(OptionError, match=f"sequence {index} was requested; this generator has 0 to 1"):
                generator.get_sequence(index)
