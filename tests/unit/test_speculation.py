"""Drafting and verifying tokens, by capstan.Generator over the reference device: drafts never change the tokens."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capstan import FallbackWarning, Generator, GeneratorParams, Model, OptionError
from capstan.generation.speculation import NgramIndex, SpeculationStats, Worth
from capstan.stages.speculation_options import Speculation
from tests.unit import paper_model
from tests.unit.test_generator import Letters

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
FEW = dict.fromkeys(range(40, 46), 60.0)
"""A bias that leaves six tokens, so that runs of them come again and drafts are right now and then."""
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "logit_bias": FEW},
    "drawn": {"do_sample": True, "temperature": 0.01, "random_seed": 3, "logit_bias": FEW},
    "cut": {"do_sample": True, "temperature": 0.05, "top_k": 4, "top_p": 0.9, "random_seed": 5, "logit_bias": FEW},
    "penalties": {"do_sample": False, "frequency_penalty": 0.01, "repetition_penalty": 1.0001, "logit_bias": FEW},
    "n-grams": {"do_sample": False, "no_repeat_ngram_size": 6, "logit_bias": FEW},
    "min_length": {"do_sample": False, "min_length": 120, "logit_bias": FEW},
}
OPTIONS = {
    "short": Speculation(2, 4, chained=False, always=True),
    "chained": Speculation(2, 8, always=True),
    "long": Speculation(4, 16, always=True),
    "one": Speculation(3, 1, always=True),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(LLAMA))


def made(model: Model, speculation: Speculation | None, **search: Any) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(**{"max_length": 150} | search)
    params.set_speculation(speculation)
    return Generator(model, params)


def generated(generator: Generator, count: int = 1000) -> list[int]:
    """The tokens of `count` calls, or of all calls to the end."""
    found = []
    for _ in range(count):
        if generator.is_done():
            break
        generator.generate_next_token()
        found += generator.get_next_tokens()
    return found


Edit = tuple[int, int, Sequence[int]]


def edited(generator: Generator, prompt: Sequence[int], edits: Sequence[Edit]) -> list[list[int]]:
    """Generate tokens between edits of a sequence; returns them by edit. An edit has the number of tokens that are
    generated before it, the length that is kept, and the tokens that are appended.
    """
    found = []
    generator.append_tokens(prompt)
    for count, kept, more in edits:
        found.append(generated(generator, count))
        generator.rewind_to(kept)
        if more:
            generator.append_tokens(more)
    return found


class TestNgramIndex:
    @pytest.mark.parametrize("size", [2, 3, 5])
    @pytest.mark.parametrize("most", [1, 4, 16])
    def test_drafts_are_what_followed_the_latest_earlier_place(self, size: int, most: int) -> None:
        """By a search through the text of the sequence."""
        draw = random.Random(size)
        index = NgramIndex(Speculation(size, most, chained=False))
        text = ""
        for _ in range(400):
            text += draw.choice("abc")
            index.push(ord(text[-1]))
            at = text.rfind(text[-size:], 0, len(text) - 1) if len(text) > size else -1
            wanted = text[at + size :][:most] if at >= 0 else ""
            assert "".join(map(chr, index.drafts())) == wanted

    def test_chained_drafts_go_on_behind_the_end(self) -> None:
        for chained, wanted in ((False, [3, 1, 2]), (True, [3, 1, 2, 3, 1, 2, 3])):
            index = NgramIndex(Speculation(2, 7, chained=chained))
            index.follow([9, 1, 2, 3, 1, 2])
            assert index.drafts() == wanted

    @pytest.mark.parametrize("kept", [0, 3, 7, 12])
    def test_it_follows_a_sequence_that_was_cut_and_goes_on_otherwise(self, kept: int) -> None:
        first, index = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2, 5], NgramIndex(Speculation(2, 3))
        index.follow(first)
        second = [*first[:kept], 2, 3, 7, 2, 3]
        index.follow(second)
        fresh = NgramIndex(Speculation(2, 3))
        fresh.follow(second)
        assert index.drafts() == fresh.drafts() == [7, 2, 3]


class TestSpeculating:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("searching", "drafting"),
        [*((name, "chained") for name in SEARCHES), *(("greedy", name) for name in ("short", "long", "one"))],
    )
    def test_the_tokens_are_those_of_steps_of_one(self, model: Model, searching: str, drafting: str) -> None:
        search, options = SEARCHES[searching], OPTIONS[drafting]
        with made(model, None, **search) as plain, made(model, options, **search) as drafted:
            for generator in (plain, drafted):
                generator.append_tokens(PROMPT)
            assert generated(drafted) == generated(plain)
            assert drafted.finish_reason == "length"
            assert len(drafted.get_sequence()) == 150
            stats = drafted.speculation
        assert stats is not None
        assert stats.rounds
        assert stats.emitted == stats.accepted + stats.rounds
        assert 0 <= stats.accepted <= stats.evaluated <= stats.proposed
        assert sum(stats.accepted_by_step) == stats.rounds
        if searching != "cut":
            assert stats.accepted, "where nothing is accepted this shows little"

    @pytest.mark.parametrize("name", ["nano-gemma2", "nano-qwen3", "nano-float", "nano-blocks"])
    def test_other_graphs_give_the_same_tokens(self, name: str) -> None:
        other = Model(str(FIXTURES / name))
        found = []
        for options in (None, OPTIONS["chained"]):
            with made(other, options, do_sample=False, logit_bias=FEW, max_length=120) as generator:
                generator.append_tokens(PROMPT)
                found.append(generated(generator))
        assert found[0] == found[1]

    def test_rewinding_and_appending_in_the_middle_of_drafts_change_nothing(self, model: Model) -> None:
        found = []
        for options in (None, OPTIONS["chained"]):
            with made(model, options, **SEARCHES["penalties"]) as generator:
                edits: list[Edit] = [(31, 20, [41]), (17, 3, [42, 43]), (40, 45, []), (9, 0, [40, 41, 40, 41])]
                steps: list[Any] = [*edited(generator, PROMPT, edits)]
                steps += [generated(generator, 30), generator.get_logits().tolist(), generated(generator, 9)]
                found.append([*steps, generator.get_sequence()])
        assert found[0][-1] == found[1][-1]
        assert found[0][:-3] == found[1][:-3]
        assert found[1][-3] == pytest.approx(found[0][-3], abs=1e-4)

    @pytest.mark.parametrize("end", FEW)
    def test_an_end_of_sequence_among_drafts_ends_there(self, end: int, tmp_path: Path, model: Model) -> None:
        search = SEARCHES["greedy"] | {"max_length": 160}
        with made(model, None, **search) as generator:
            generator.append_tokens(PROMPT)
            generated(generator, 100)
            prompt = generator.get_sequence()
        folder = tmp_path / "model"
        shutil.copytree(LLAMA, folder)
        tree = json.loads((folder / "genai_config.json").read_text())
        tree["model"]["eos_token_id"] = [end]
        (folder / "genai_config.json").write_text(json.dumps(tree))
        found = []
        for options in (None, OPTIONS["chained"]):
            with made(Model(str(folder)), options, **search) as generator:
                generator.append_tokens(prompt)
                ended = generated(generator)
                generator.append_tokens([11, 12])
                found.append([ended, generated(generator, 12), generator.get_sequence()])
        assert found[0] == found[1]
        assert found[0][0][-1] == end

    @pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
    def test_a_model_with_states_gives_the_same_tokens(self, family: str) -> None:
        other = Model(str(FIXTURES / "families" / family))
        search = {"do_sample": True, "temperature": 0.5, "random_seed": 4, "max_length": 110, "logit_bias": FEW}
        found = []
        for options in (None, OPTIONS["short"]):
            with made(other, options, **search) as generator:
                generator.append_tokens(PROMPT)
                found.append(generated(generator))
                stats = generator.speculation
        assert found[0] == found[1]
        assert stats is not None
        assert stats.rounds > stats.full

    def test_together_with_a_processor_it_steps_down(self, model: Model) -> None:
        params = GeneratorParams(model, logits_processor=lambda _tokens, _logits: None)
        params.set_speculation(Speculation())
        with pytest.warns(FallbackWarning, match="a logits processor looks at each token"):
            generator = Generator(model, params)
        assert generator.speculation is None


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"ngram_size": 1}, "ngram_size is 1; it must be from 2 to 16"),
            ({"ngram_size": 17}, "ngram_size is 17"),
            ({"ngram_size": 2.5}, "ngram_size is 2.5; it must be an integer"),
            ({"max_draft_tokens": 0}, "max_draft_tokens is 0; it must be from 1 to 16"),
            ({"max_draft_tokens": 17}, "max_draft_tokens is 17"),
            ({"chained": 1}, "chained is 1; it must be True or False"),
        ],
    )
    def test_values_out_of_range_are_refused(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(OptionError, match=said):
            Speculation(**options)

    @pytest.mark.parametrize(
        ("search", "said"),
        [
            ({"num_beams": 2}, "num_beams is 2; beams are not drafted"),
            ({"batch_size": 2}, "2 rows were requested; speculation is for one sequence"),
            ({"num_return_sequences": 3, "do_sample": True}, "3 rows were requested"),
        ],
    )
    def test_several_sequences_are_refused(self, model: Model, search: dict[str, Any], said: str) -> None:
        with pytest.raises(OptionError, match=said):
            made(model, Speculation(), **search)


class TestWorth:
    def given(self, worth: Worth, tokens: Sequence[int]) -> list[bool]:
        found = []
        for count in tokens:
            worth.gave(count)
            found.append(worth.on)
        return found

    def test_it_begins_off_and_is_on_while_steps_give_more_than_they_take(self) -> None:
        stats = SpeculationStats()
        worth = Worth(stats, always=False)
        worth.took(10.0, drafted=False)
        assert not worth.on
        assert self.given(worth, [1] * 20)[-1] is False
        assert self.given(worth, [5] * 20)[-1] is True
        worth.took(15.0, drafted=True)
        assert worth.on
        assert stats.switched_on == 1
        assert self.given(worth, [1] * 20)[-1] is False
        assert stats.switched_off == 1

    def test_a_step_that_takes_too_long_switches_it_off_however_much_it_gives(self) -> None:
        worth = Worth(SpeculationStats(), always=False)
        worth.took(10.0, drafted=False)
        self.given(worth, [5] * 20)
        worth.took(60.0, drafted=True)
        assert not worth.on
        assert self.given(worth, [5] * 20) == [False] * 20, "what it takes is known from then on"

    def test_between_its_two_limits_it_stays_as_it_is(self) -> None:
        stats = SpeculationStats()
        worth = Worth(stats, always=False)
        worth.took(10.0, drafted=False)
        self.given(worth, [5] * 20)
        worth.took(20.0, drafted=True)
        assert self.given(worth, [2] * 12) == [True] * 12
        assert stats.switched_off == 0
        self.given(worth, [1] * 30)
        assert self.given(worth, [2] * 30) == [False] * 30

    def test_always_is_always(self) -> None:
        worth = Worth(SpeculationStats(), always=True)
        worth.took(1.0, drafted=False)
        worth.took(99.0, drafted=True)
        assert self.given(worth, [1] * 20) == [True] * 20


class TestRunningAhead:
    """Bursts of drafted steps, of which several are under way, over a device made of paper."""

    @pytest.mark.parametrize("length", [20, 23, 61, 62, 63, 64])
    @pytest.mark.parametrize("most", [1, 4, 15])
    async def test_tokens_are_the_models_up_to_max_length(self, length: int, most: int) -> None:
        options = Speculation(2, most, always=True)
        generator, paper = paper_model.made(speculation=options, max_length=length, decoder={"in_flight": 3})
        generator.append_tokens(paper_model.PROMPT)

        assert [token async for token in generator] == paper_model.run_of(paper_model.PROMPT, length - 3)
        assert generator.finish_reason == "length"
        assert paper.decoders[0].drafted

    @pytest.mark.parametrize("at", [5, 9, 10, 11, 12, 13])
    def test_an_end_of_sequence_within_a_burst_ends_there(self, at: int) -> None:
        options = Speculation(2, 4, always=True)
        generator, _ = paper_model.made(speculation=options, max_length=60, decoder={"in_flight": 3, "eos_at": at})
        generator.append_tokens(paper_model.PROMPT)

        async def run() -> list[int]:
            found = [token async for token in generator]
            stats = generator.speculation
            assert stats is not None
            assert stats.emitted + stats.plain == len(found), "what is behind the end is no token"
            generator.append_tokens([9])
            return [*found, await generator.generate_next_token_async()]

        expected = paper_model.run_of(paper_model.PROMPT, at - 3)
        after = paper_model.run_of([*paper_model.PROMPT, *expected, 9], 1)
        assert asyncio.run(run()) == [*expected, paper_model.EOS, *after]
        assert generator.finish_reason is None

    def test_a_stop_string_within_an_accepted_run_ends_there(self) -> None:
        tokens = paper_model.run_of(paper_model.PROMPT, 40)
        text = Letters().decode(tokens)
        assert text.index(text[2:9]) == 2
        found = []
        for speculation in (None, Speculation(2, 4, always=True)):
            generator, _ = paper_model.made(
                speculation=speculation, max_length=60, tokenizer=Letters(), stop_strings=[text[2:9]]
            )
            generator.append_tokens(paper_model.PROMPT)

            async def run(generator: Generator = generator) -> list[int]:
                return [token async for token in generator]

            found.append((asyncio.run(run()), generator.finish_reason, generator.text()))
        assert found[0] == found[1] == (tokens[:9], "stop", text[:2])

    async def test_drafting_ends_where_drafts_are_refused(self) -> None:
        generator, paper = paper_model.made(speculation=Speculation(2, 4), max_length=60, decoder={"right": 0})
        generator.append_tokens(paper_model.PROMPT)

        assert [token async for token in generator] == paper_model.run_of(paper_model.PROMPT, 57)
        stats = generator.speculation
        assert stats is not None
        assert stats.switched_on
        assert stats.switched_off
        assert paper.decoders[0].drafted < stats.plain

    async def test_a_cancelled_wait_loses_no_token(self) -> None:
        generator, paper = paper_model.made(speculation=Speculation(2, 4, always=True), max_length=60)
        generator.append_tokens(paper_model.PROMPT)

        found = await paper_model.take(generator, 4)
        paper.decoders[0].gate = asyncio.Event()
        waiting = asyncio.ensure_future(paper_model.take(generator, 50))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        paper.decoders[0].gate.set()
        found = generator.get_sequence()[len(paper_model.PROMPT) :]
        found = found + await paper_model.take(generator, 12)
        assert found == paper_model.run_of(paper_model.PROMPT, len(found))
