"""Drafts of a small model, verified by a larger one: its tokens are those without drafts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from capstan import FallbackWarning, Generator, GeneratorParams, Model, OptionError
from capstan.generation.speculation import ModelWorth, SpeculationStats
from capstan.stages.speculation_options import Speculation
from tests import oracle
from tests.unit import paper_model
from tests.unit.test_speculation import FIXTURES, PROMPT, SEARCHES, Edit, edited, generated, made

ALWAYS = Speculation(max_draft_tokens=4, always=True)
LENGTH = 120


def loaded(model: str, draft: str | Path) -> Model:
    return Model(str(FIXTURES / model), draft_model=str(FIXTURES / draft))


@pytest.fixture(scope="module")
def float_by_int4() -> Model:
    """A model of float32, and the same with weights of 4 bits, which picks other tokens now and then."""
    return loaded("nano-float", "nano-llama")


@pytest.fixture(scope="module")
def equals() -> Model:
    return loaded("nano-llama", "nano-shape")


def accepted(tokens: Sequence[int], start: int, draft: Model) -> list[int]:
    """The number of drafts that each step accepts when a sequence continues from `start`, by the draft model's own
    greedy sequences.
    """
    found = []
    with made(draft, None, do_sample=False, max_length=LENGTH + 8) as generator:
        while start + 4 < len(tokens):
            generator.rewind_to(0)
            generator.append_tokens(tokens[:start])
            drafts = generated(generator, 4)
            equal = takewhile(lambda pair: pair[0] == pair[1], zip(drafts, tokens[start:], strict=False))
            found.append(sum(1 for _ in equal))
            start += found[-1] + 1
    return found


class TestTokens:
    @pytest.mark.parametrize("search", SEARCHES)
    def test_they_are_those_without_drafts(self, search: str, float_by_int4: Model) -> None:
        found = []
        for options in (None, ALWAYS):
            with made(float_by_int4, options, **SEARCHES[search]) as generator:
                generator.append_tokens(PROMPT)
                found.append(generated(generator))
                assert len(generator.get_sequence()) == 150
                stats = generator.speculation
        assert found[0] == found[1]
        assert stats is not None
        assert stats.accepted, "where nothing is accepted this shows little"
        assert stats.full < stats.rounds, "where nothing is refused this shows little"
        assert stats.proposed == 4 * stats.rounds

    def test_they_are_onnxruntimes(self, float_by_int4: Model) -> None:
        expected = oracle.greedy(FIXTURES / "nano-float", PROMPT, LENGTH - len(PROMPT))
        with made(float_by_int4, ALWAYS, do_sample=False, max_length=LENGTH) as generator:
            generator.append_tokens(PROMPT)
            assert generated(generator) == expected
            stats = generator.speculation
        assert stats is not None
        counts = accepted([*PROMPT, *expected], len(PROMPT) + 1, Model(str(FIXTURES / "nano-llama")))
        assert stats.accepted_by_step[:5] == [counts.count(number) for number in range(5)]

    def test_a_model_of_equal_weights_is_always_right(self, equals: Model) -> None:
        with made(equals, ALWAYS, do_sample=False, max_length=LENGTH) as generator:
            generator.append_tokens(PROMPT)
            generated(generator)
            stats = generator.speculation
            assert stats is not None
            assert stats.acceptance == 1.0
            assert generator.counters["steps"] == stats.rounds + stats.plain - 1

    def test_rewinding_and_appending_change_nothing(self, float_by_int4: Model) -> None:
        found = []
        for options in (None, ALWAYS):
            with made(float_by_int4, options, **SEARCHES["greedy"]) as generator:
                edits: list[Edit] = [(31, 20, [41]), (17, 3, [42, 43]), (40, 45, []), (9, 1, []), (3, 0, PROMPT)]
                steps = edited(generator, PROMPT, edits)
                found.append([*steps, generated(generator, 30), generator.get_sequence()])
        assert found[0] == found[1]

    def test_a_saved_sequence_continues(self, float_by_int4: Model) -> None:
        search = SEARCHES["greedy"]
        with made(float_by_int4, None, **search) as plain:
            plain.append_tokens(PROMPT)
            expected = generated(plain)
        with made(float_by_int4, ALWAYS, **search) as one, made(float_by_int4, ALWAYS, **search) as other:
            one.append_tokens(PROMPT)
            begun = generated(one, 40)
            other.restore_state(one.save_state())
            assert [*begun, *generated(other)] == expected
            assert [*begun, *generated(one)] == expected
            assert other.speculation is not None
            assert other.speculation.accepted

    def test_drafts_end_with_the_draft_models_context(self, tmp_path: Path) -> None:
        folder = tmp_path / "draft"
        shutil.copytree(FIXTURES / "nano-llama", folder)
        tree = json.loads((folder / "genai_config.json").read_text())
        tree["model"]["context_length"] = tree["search"]["max_length"] = 40
        (folder / "genai_config.json").write_text(json.dumps(tree))
        expected = oracle.greedy(FIXTURES / "nano-float", PROMPT, 80)
        with made(loaded("nano-float", folder), ALWAYS, do_sample=False, max_length=85) as generator:
            generator.append_tokens(PROMPT)
            assert generated(generator) == expected
            assert generator.speculation is not None
            assert 0 < generator.speculation.emitted <= 40 - len(PROMPT)


class TestChoice:
    def test_a_model_with_a_draft_model_uses_it(self, equals: Model) -> None:
        params = GeneratorParams(equals)
        assert params.speculation == Speculation()
        with Generator(equals, params) as generator:
            assert generator.speculation is not None

    def test_an_ngram_size_chooses_the_search_of_the_sequence(self, equals: Model) -> None:
        with made(equals, Speculation(2, 4, always=True), **SEARCHES["greedy"]) as generator:
            generator.append_tokens(PROMPT)
            generated(generator)
            assert generator.speculation is not None
            assert generator.speculation.misses

    def test_grammars_processors_and_rows_take_plain_steps_and_say_so(self, equals: Model) -> None:
        params = GeneratorParams(equals)
        params.set_guidance("regex", "[a-z]+")
        with pytest.warns(FallbackWarning, match="a grammar looks at each token"):
            Generator(equals, params).close()
        rows = GeneratorParams(equals)
        rows.set_search_options(batch_size=2)
        with pytest.warns(FallbackWarning, match="2 rows or beams were requested"):
            Generator(equals, rows).close()
        rows.set_speculation(Speculation())
        with pytest.raises(OptionError, match="2 rows were requested; speculation is for one sequence"):
            Generator(equals, rows)

    @pytest.mark.parametrize(
        ("draft", "said"),
        [
            ("nano-qwen2", r"vocabularies differ: id 0 is '<\|endoftext\|>' in the draft model and '<s>' in the model"),
            ("families/lfm2", "it has states that each run overwrites"),
            ("vision/nano-gemma3-vl", "it is a model that sees"),
            ("nano-llama", r"it is the same file, model\.onnx, whose drafts cost as much as its tokens; give"),
        ],
    )
    def test_other_models_are_refused_by_name(self, draft: str, said: str) -> None:
        with pytest.raises(OptionError, match=said) as refused:
            loaded("nano-llama", draft)
        assert draft in str(refused.value)

    def test_the_memory_counts_it(self, equals: Model) -> None:
        alone, draft = (Model(str(FIXTURES / name)) for name in ("nano-llama", "nano-shape"))
        wanted = [model.query_memory_requirements(1, 64).total.bytes for model in (alone, draft)]
        assert equals.query_memory_requirements(1, 64).total.bytes == sum(wanted)

    def test_it_is_closed_with_its_model(self) -> None:
        model = loaded("nano-llama", "nano-shape")
        draft = model.draft_model
        assert draft is not None
        model.close()
        assert not draft.healthy()


class TestWorth:
    def test_it_tries_drafts_when_the_time_of_a_step_is_known(self) -> None:
        stats = SpeculationStats()
        worth = ModelWorth(stats, always=False)
        worth.passed(100)
        assert not worth.on
        worth.took(10.0, drafted=False)
        worth.passed(1)
        assert worth.on
        assert stats.switched_on == 1

    @pytest.mark.parametrize(("tokens", "pays"), [(1, False), (2, False), (3, True)])
    def test_it_stays_on_while_steps_give_more_than_they_take(self, tokens: int, pays: bool) -> None:
        worth = ModelWorth(SpeculationStats(), always=False)
        worth.took(10.0, drafted=False)
        worth.passed(8)
        worth.took(25.0, drafted=True)
        for number in range(8):
            assert worth.on, f"{number} steps are no trial"
            worth.gave(tokens)
        assert worth.on == pays

    def test_pauses_between_trials_grow(self) -> None:
        stats = SpeculationStats()
        worth = ModelWorth(stats, always=False)
        worth.took(10.0, drafted=False)
        worth.took(25.0, drafted=True)
        pauses = []
        for _ in range(8):
            pause = 0
            while not worth.on:
                worth.passed(1)
                pause += 1
            pauses.append(pause)
            while worth.on:
                worth.gave(1)
        assert pauses == [8, 128, 256, 512, 1024, 1024, 1024, 1024]
        assert stats.switched_off == 8


class TestRunningAhead:
    """Over devices made of paper that step the draft model by themselves, with several bursts under way."""

    @pytest.mark.parametrize("length", [20, 23, 61, 62, 63, 64])
    @pytest.mark.parametrize("strays", [0, 3, 1])
    async def test_tokens_are_the_models_up_to_max_length(self, length: int, strays: int) -> None:
        draft = paper_model.PaperModel(strays=strays)
        generator, paper = paper_model.made(
            speculation=ALWAYS, max_length=length, draft_model=draft, decoder={"in_flight": 3}
        )
        generator.append_tokens(paper_model.PROMPT)

        assert [token async for token in generator] == paper_model.run_of(paper_model.PROMPT, length - 3)
        assert paper.decoders[0].drafted
        assert draft.decoders[0].prefills == [(paper_model.PROMPT, 0)], "the draft model follows on the device"
        await generator.aclose()
        assert draft.decoders[0].closed

    async def test_the_draft_model_catches_up_after_changes(self) -> None:
        draft = paper_model.PaperModel(strays=5)
        generator, _ = paper_model.made(speculation=ALWAYS, max_length=60, draft_model=draft, decoder={"in_flight": 3})
        generator.append_tokens(paper_model.PROMPT)
        found = await paper_model.take(generator, 14)
        generator.rewind_to(9)
        generator.append_tokens([8, 8])
        again = await paper_model.take(generator, 20)
        sequence = [*paper_model.PROMPT, *found[:6], 8, 8]
        assert again == paper_model.run_of(sequence, 20)

    @pytest.mark.parametrize("at", [5, 9, 10, 13])
    async def test_an_end_of_sequence_within_a_burst_ends_there(self, at: int) -> None:
        generator, _ = paper_model.made(
            speculation=ALWAYS,
            max_length=60,
            draft_model=paper_model.PaperModel(),
            decoder={"in_flight": 3, "eos_at": at},
        )
        generator.append_tokens(paper_model.PROMPT)
        expected = paper_model.run_of(paper_model.PROMPT, at - 3)
        assert [token async for token in generator] == [*expected, paper_model.EOS]
        generator.append_tokens([9])
        after = paper_model.run_of([*paper_model.PROMPT, *expected, 9], 1)
        assert [await generator.generate_next_token_async()] == after
