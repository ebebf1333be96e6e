"""Logits processors: what they see, what their edits do, and what is refused."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any, cast

import pytest

import capstan
from capstan import Generator, GeneratorParams, LogitsError, Model, OptionError
from capstan.generation.named_processors import named_processor
from tests import oracle
from tests.unit.paper_model import PROMPT, PaperModel, run_of, take

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
TOKENS = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(LLAMA))


def generated(model: Model, count: int, *, options: dict[str, Any] | None = None, **params: Any) -> list[int]:
    given = GeneratorParams(model, **params)
    given.set_search_options(do_sample=False, **(options or {}))
    with Generator(model, given) as generator:
        generator.append_tokens(TOKENS)
        for _ in range(count):
            generator.generate_next_token()
        return generator.get_sequence()


def without(best: int) -> list[int]:
    """Greedy ids where each time the `best`-th token is picked, by the oracle's logits."""
    sequence = list(TOKENS)
    for _ in range(6):
        logits = oracle.logits(LLAMA, sequence)
        sequence.append(int((-logits).argsort(kind="stable")[best]))
    return sequence


def test_a_processor_that_edits_nothing_changes_nothing(model: Model) -> None:
    expected = TOKENS + oracle.greedy(LLAMA, TOKENS, 12)
    assert generated(model, 12, logits_processor=lambda _tokens, _logits: None) == expected
    assert generated(model, 12, shortlist_processor=lambda _tokens, _best: None) == expected


def test_all_logits_may_be_edited_in_place_or_replaced(model: Model) -> None:
    seen: list[list[int]] = []

    def in_place(tokens: list[int], logits: memoryview[float]) -> None:
        seen.append(tokens)
        best = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
        logits[best[0]] = logits[best[1]] = float("-inf")

    expected = without(2)
    assert generated(model, 6, logits_processor=in_place) == expected
    assert seen == [expected[:length] for length in range(5, 11)]

    def replaced(_tokens: list[int], logits: memoryview[float]) -> array[float]:
        best = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)
        return array("f", [float(token == best[2]) for token in range(len(logits))])

    assert generated(model, 6, logits_processor=replaced) == expected


def test_a_processor_that_leaves_no_token_is_told_and_the_generator_goes_on(model: Model) -> None:
    def nothing_third(tokens: list[int], logits: memoryview[float]) -> None:
        if banning and len(tokens) == len(TOKENS) + 2:
            logits[:] = array("f", [float("-inf")] * len(logits))

    banning = True
    params = GeneratorParams(model, logits_processor=nothing_third)
    params.set_search_options(do_sample=False)
    expected = TOKENS + oracle.greedy(LLAMA, TOKENS, 4)
    with Generator(model, params) as generator:
        generator.append_tokens(TOKENS)
        for _ in range(2):
            generator.generate_next_token()
        for _ in range(2):
            with pytest.raises(LogitsError, match="after 7 tokens"):
                generator.generate_next_token()
        generator.rewind_to(len(TOKENS) + 1)
        banning = False
        for _ in range(3):
            generator.generate_next_token()
        assert generator.get_sequence() == expected


def test_the_shortlist_is_the_best_tokens_and_edits_may_be_of_any(model: Model) -> None:
    lengths = []

    def edit(_tokens: list[int], best: list[tuple[int, float]]) -> dict[int, float]:
        lengths.append(len(best))
        assert [logit for _, logit in best] == sorted((logit for _, logit in best), reverse=True)
        return {token: float("-inf") for token, _ in best[:2]}

    assert generated(model, 6, shortlist_processor=edit, shortlist=3) == without(2)
    assert lengths == [3] * 6
    assert generated(model, 2, shortlist_processor=lambda _tokens, _best: {300: 1e6}) == [*TOKENS, 300, 300]


def test_stages_come_after_the_processor(model: Model) -> None:
    found = generated(
        model, 3, shortlist_processor=lambda _tokens, _best: {300: 1e6, 301: 1e5}, options={"no_repeat_ngram_size": 1}
    )
    assert found[5:7] == [300, 301]


def test_each_row_is_processed(model: Model) -> None:
    params = GeneratorParams(model, shortlist_processor=lambda tokens, _best: {100 + tokens[0]: 1e6})
    params.set_search_options(do_sample=False, batch_size=2)
    with Generator(model, params) as generator:
        generator.append_tokens([[1, 2], [3, 4]])
        for _ in range(3):
            generator.generate_next_token()
        assert generator.get_next_tokens() == [101, 103]
        assert [generator.get_sequence(row)[2:] for row in range(2)] == [[101] * 3, [103] * 3]


def test_nothing_runs_ahead_and_a_processor_that_raises_is_asked_again() -> None:
    asked: list[list[int]] = []

    def edit(tokens: list[int], _logits: memoryview[float]) -> None:
        asked.append(tokens)
        if len(asked) == 3:
            raise ValueError("not now")

    paper = PaperModel()
    generator = Generator(cast(Model, paper), GeneratorParams(cast(Model, paper), logits_processor=edit))
    generator.append_tokens(PROMPT)
    wanted = run_of(PROMPT, 5)
    assert asyncio.run(take(generator, 2)) == wanted[:2]
    with pytest.raises(ValueError, match="not now"):
        asyncio.run(take(generator, 1))
    assert asyncio.run(take(generator, 3)) == wanted[2:]
    assert asked == [PROMPT + wanted[:count] for count in (0, 1, 2, 2, 3, 4)]
    assert all(burst == (1, True) for burst in paper.decoders[0].submitted)


def test_what_a_processor_edited_before_it_raised_is_computed_anew(model: Model) -> None:
    """The processor edits the first row and raises at the second."""
    asked = 0

    def negated(_tokens: list[int], logits: memoryview[float]) -> array[float]:
        nonlocal asked
        asked += 1
        if asked == failing:
            raise ValueError("not now")
        return array("f", [-logit for logit in logits])

    found = []
    for failing in (0, 4):
        params, asked = GeneratorParams(model, logits_processor=negated), 0
        params.set_search_options(do_sample=False, batch_size=2)
        with Generator(model, params) as generator:
            generator.append_tokens([[5, 6, 7], [8, 9, 10]])
            generator.generate_next_token()
            if failing:
                with pytest.raises(ValueError, match="not now"):
                    generator.generate_next_token()
            for _ in range(3):
                generator.generate_next_token()
            found.append([generator.get_sequence(row)[:7] for row in (0, 1)])
    assert found[0] == found[1]


def nothing(*_: Any) -> None: ...


def test_a_grammar_and_a_processor_are_refused() -> None:
    params = GeneratorParams(cast(Model, PaperModel()), logits_processor=nothing)
    with pytest.raises(OptionError, match="guidance and a logits processor were both given; give one of them"):
        params.set_guidance("regex", "a+")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"logits_processor": nothing, "shortlist_processor": nothing}, {}, "were both given; give one of them"),
        ({"logits_processor": 5}, {}, "logits_processor is 5, of type int; give a function"),
        ({"shortlist_processor": nothing, "shortlist": 0}, {}, "shortlist is 0; it must be from 1 to 100"),
        ({"shortlist_processor": nothing, "shortlist": 101}, {}, "shortlist is 101; it must be from 1 to 100"),
        ({"shortlist": 5}, {}, "shortlist is 5 without a shortlist_processor"),
        ({"logits_processor": nothing, "run_ahead": 4}, {}, "run_ahead is 4, but the given processor"),
        ({"logits_processor": nothing}, {"num_beams": 2}, "num_beams is 2 and a processor was given"),
    ],
)
def test_what_does_not_fit_together_is_refused(given: dict[str, Any], options: dict[str, Any], message: str) -> None:
    paper = cast(Model, PaperModel())

    def made() -> Generator:
        params = GeneratorParams(paper, **given)
        params.set_search_options(**options)
        return Generator(paper, params)

    with pytest.raises(OptionError, match=message):
        made()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shortlist_processor": lambda *_: [1]}, r"the shortlist_processor returned \[1\]; it must return a mapping"),
        (
            {"shortlist_processor": lambda *_: {512: 0.0}},
            "a token of the shortlist_processor is 512; it must be",
        ),
        ({"shortlist_processor": lambda *_: {1.0: 0.0}}, "a token of the shortlist_processor is 1.0; it must be an"),
        ({"shortlist_processor": lambda *_: {1: "x"}}, "gave token 1 the logit 'x'; it must be a number"),
        ({"shortlist_processor": lambda *_: {1: float("nan")}}, "gave token 1 the logit nan; it must be a number"),
        (
            {"logits_processor": lambda *_: array("f", [1.0])},
            "returned 4 bytes of format 'f'; it must return 512 ",
        ),
        ({"logits_processor": lambda *_: array("d", [0.0] * 512)}, "of format 'd'; it must return 512 float32"),
        ({"logits_processor": lambda *_: 5}, "returned 0 bytes of format 'B'; it must return 512 float32"),
    ],
)
def test_what_a_processor_may_not_return(model: Model, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        generated(model, 1, **given)


def test_a_page_names_a_processor_and_a_later_one_takes_its_place(model: Model) -> None:
    @capstan.logits_processor
    def second_best(_tokens: list[int], logits: memoryview[float]) -> None:
        logits[max(range(len(logits)), key=logits.__getitem__)] = float("-inf")

    first = named_processor("second_best")
    assert generated(model, 6, **first.options) == without(1)

    @capstan.shortlist_processor(shortlist=3)
    def third_best(_tokens: list[int], best: list[tuple[int, float]]) -> dict[int, float]:
        return {token: float("-inf") for token, _ in best[:2]}

    assert generated(model, 6, **named_processor("third_best").options) == without(2)

    def looking(_tokens: list[int], best: list[tuple[int, float]]) -> None:
        assert len(best) == 64

    looking.__name__ = "second_best"
    capstan.shortlist_processor(looking)
    again = named_processor("second_best")
    assert again.serial != first.serial, "a conversation that began with the other one does not go on"
    assert generated(model, 3, **again.options) == TOKENS + oracle.greedy(LLAMA, TOKENS, 3)


def test_a_processor_that_nobody_defined_is_refused_with_those_that_there_are() -> None:
    @capstan.logits_processor
    def there(_tokens: list[int], _logits: memoryview[float]) -> None: ...

    for name in ("nowhere", 3, ["there"]):
        with pytest.raises(OptionError, match=r"the defined ones are: .*there.*llm\.python\(code\)"):
            named_processor(name)
    with pytest.raises(OptionError, match="of type str; give a function"):
        capstan.logits_processor("there")  # type: ignore[arg-type]
