"""Beams that the device chooses in bursts: the loop and its records, over the reference device and on paper."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Sequence
from typing import Any, cast

import pytest

from capstan import Generator, GeneratorParams, Model
from capstan.device import separate_rows
from capstan.device.beam_interface import BeamBurst, BeamOptions, Continuation, Round
from capstan.device.separate_rows import SeparateRows
from capstan.device.webgpu.beam_steps import BeamSteps
from capstan.errors import LogitsError
from capstan.generation.beam_search import continuations, ranked
from tests.unit.test_beams import EOS, hypotheses, wanted
from tests.unit.test_rows import LEVEL, LLAMA, loaded

SEARCHES: list[str] = []
"""The calls of each search."""


class Searching(SeparateRows[Any]):
    """Separate rows that search beams by what they can do anyway."""

    options: BeamOptions
    scores: list[float]
    tokens: list[int]
    barren_after = -1
    """Steps until a beam has no number among its logits; negative for never."""

    async def prepare_beams(self, options: BeamOptions) -> str | None:
        self.options = options
        SEARCHES.clear()
        return None

    def begin_beams(self, scores: Sequence[float], sources: Sequence[int]) -> None:
        SEARCHES.append(f"begin {len(sources)}")
        self.scores = list(scores)

    def submit_beams(self, picks: int, choose_first: bool) -> Awaitable[BeamBurst]:
        SEARCHES.append(f"submit {picks}")
        return self.search(picks, choose_first)

    async def search(self, picks: int, choose_first: bool) -> BeamBurst:
        rounds = [await self.one_round(choose_first and pick == 0) for pick in range(picks)]
        beams = self.options.beams
        tokens = [[0 if each is None else c.token for each in step for c in chosen(each, beams)] for step in rounds]
        return BeamBurst(tuple(zip(*tokens, strict=True)), 0.0, 0.0, 0.0, 0.0, 0.0, rounds=tuple(rounds))

    async def one_round(self, first: bool) -> tuple[Round | None, ...]:
        if not first:
            await self.step(self.tokens)
        beams, barren = self.options.beams, self.barren_after == 0
        self.barren_after -= 1
        lists = [continuations(each) for each in await self.shortlists(self.options.looked, range(self.rows))]
        rounds = [
            ranked(self.scores[at : at + beams], lists[at : at + beams], self.options.ends)
            for at in range(0, self.rows, beams)
        ]
        self.reorder([at * beams + each.parent for at, found in enumerate(rounds) for each in found.chosen])
        self.tokens = [each.token for found in rounds for each in found.chosen]
        self.scores = [each.score for found in rounds for each in found.chosen]
        return tuple(None if barren else found for found in rounds)


def chosen(found: Round | None, beams: int) -> Sequence[Continuation]:
    return (Continuation(0, 0, 0.0),) * beams if found is None else found.chosen


@pytest.fixture(autouse=True)
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_rows, "SeparateRows", Searching)


@pytest.mark.parametrize("prompts", [LEVEL[:1], LEVEL], ids=["one", "level"])
@pytest.mark.parametrize("eos", [[], EOS], ids=["no ends", "many ends"])
def test_hypotheses_are_the_oracles(prompts: list[list[int]], eos: list[int]) -> None:
    options: dict[str, Any] = {"num_beams": 3, "returned": 2, "max_length": 24}
    assert hypotheses(loaded(LLAMA, eos), prompts, **options) == wanted(prompts, eos=eos, **options)
    assert SEARCHES[0] == f"begin {3 * len(prompts)}"
    assert len([call for call in SEARCHES if call.startswith("begin")]) == 1


def test_a_beam_without_numbers_is_told_once_its_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Searching, "barren_after", 3)
    with generator(loaded(LLAMA), num_beams=2, max_length=24) as beams:
        beams.append_tokens(LEVEL[0])
        for _ in range(3):
            beams.generate_next_token()
        before = beams.get_sequence(0)
        for _ in range(2):
            with pytest.raises(LogitsError, match="the logits of a beam are all NaN"):
                beams.generate_next_token()
        assert beams.get_sequence(0) == before


def test_once_logits_are_asked_for_the_host_chooses_until_a_rewind() -> None:
    with generator(loaded(LLAMA), num_beams=3, max_length=20) as beams:
        beams.append_tokens(LEVEL[0])
        beams.get_logits()
        for _ in range(4):
            beams.generate_next_token()
        assert SEARCHES[0] == "begin 3"
        beams.get_logits()
        SEARCHES.clear()
        while not beams.is_done():
            beams.generate_next_token()
        assert SEARCHES == []
        assert [beams.get_sequence(0)] == wanted(LEVEL[:1], num_beams=3, max_length=20)
        beams.rewind_to(0)
        beams.append_tokens(LEVEL[0])
        while not beams.is_done():
            beams.generate_next_token()
        assert SEARCHES[0] == "begin 3"
        assert [beams.get_sequence(0)] == wanted(LEVEL[:1], num_beams=3, max_length=20)


def generator(model: Model, **search: Any) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, **search)
    return Generator(model, params)


def words(*numbers: float) -> list[float]:
    """Numbers as the engine gives them: a float by its bits."""
    return [float(array("I", array("f", [x]).tobytes())[0]) if isinstance(x, float) else float(x) for x in numbers]


class Engine:
    """Two steps of one prompt of two beams, the second without numbers."""

    def make_beam_search(self, spec: Any) -> int:
        return 1

    async def beam_burst(self, *given: Any) -> list[float]:
        first = words(1, -0.5, 1, 70, -1.5, 0, 71, -2.5, 1, -0.5, 9, 9)
        return [1.0, 2.0, 3.0, 4.0, 5.0, *first, *words(0xFFFFFFFF, -0.5, *([0] * 10))]


def test_records_are_read_by_step_and_prompt() -> None:
    steps = BeamSteps(cast(Any, Engine()), cast(Any, Rows()), cast(Any, None))
    steps._made = cast(Any, Anything())
    refused = asyncio.run(steps.prepare(BeamOptions(40, 80, frozenset())))
    assert refused == "40 beams with 80 continuations each exceed 1024 in all"
    assert asyncio.run(steps.prepare(BeamOptions(2, 4, frozenset({3})))) is None

    async def read() -> BeamBurst:
        return await steps.submit(2, True, 7, 0)

    burst = asyncio.run(read())
    found = Round((Continuation(1, 70, -1.5), Continuation(0, 71, -2.5)), ((1, -0.5),), -0.5)
    assert burst.rounds == ((found,), (None,))
    assert burst.rows == ((70, 0), (71, 0))
    assert (burst.submitted, burst.entered, burst.picks) == (1.0, 5.0, 2)


class Anything:
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


class Rows(Anything):
    rows = 2
    capacity = 64
    owner = "rows"
    spans: dict[str, Any] = {"state": Anything()}  # noqa: RUF012

    def handle(self, name: str) -> int:
        return 1
