"""The log probabilities that a generator returns for each token, on CPython over the reference device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import Generator, GeneratorParams, Model, OptionError, Speculation

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPT = [5, 6, 7, 8, 9]
COUNT, TOKENS = 3, 12


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(LLAMA))


def params(model: Model, change: Callable[[GeneratorParams], object] | None = None, **search: Any) -> GeneratorParams:
    made = GeneratorParams(model, logits_processor=doubled if change is edited else None)
    made.set_search_options(**{"do_sample": False, "max_length": len(PROMPT) + TOKENS} | search)
    if change not in (None, edited):
        change(made)
    return made


def doubled(_: list[int], logits: memoryview[float]) -> memoryview[float]:
    return memoryview((np.asarray(logits) * np.float32(2)).tobytes()).cast("f")


def edited(_: GeneratorParams) -> None:
    """With a logits processor."""


def grammar(made: GeneratorParams) -> None:
    made.set_guidance("regex", "[a-z ]{20,}")


def softmax(logits: memoryview[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.asarray(logits, np.float64)
    found: np.ndarray[Any, np.dtype[np.float64]] = values - values.max() - np.log(np.exp(values - values.max()).sum())
    return found


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 3.0, "top_k": 0, "random_seed": 5},
    "penalty": {"repetition_penalty": 3.0},
    "grammar": {"change": grammar, "do_sample": True, "random_seed": 2},
    "edited": {"change": edited},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_token_has_its_log_probability_by_the_models_logits(way: str, model: Model) -> None:
    with Generator(model, params(model, **WAYS[way])) as plain:
        plain.append_tokens(PROMPT)
        wanted = []
        while not plain.is_done():
            plain.generate_next_token()
            wanted += plain.get_next_tokens()
    outside = 0
    with Generator(model, params(model, **WAYS[way])) as generator, Generator(model, params(model)) as other:
        generator.watch_log_probabilities(COUNT)
        generator.append_tokens(PROMPT)
        ids: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            [found], [token] = generator.get_log_probabilities(), generator.get_next_tokens()
            other.rewind_to(0)
            other.append_tokens([*PROMPT, *ids])
            logits = other.get_logits()
            best = [int(each) for each in np.argsort(-np.asarray(logits), kind="stable")[:COUNT]]
            assert list(found) == best + [token] * (token not in best)
            assert list(found.values()) == pytest.approx([softmax(logits)[each] for each in found], abs=1e-5)
            outside += token not in best
            ids += [token]
    assert ids == wanted
    assert outside > 0 or "do_sample" not in WAYS[way]


def test_they_can_be_asked_for_and_left_out_in_the_midst(model: Model) -> None:
    ahead = GeneratorParams(model, run_ahead=4)
    ahead.set_search_options(do_sample=False, max_length=len(PROMPT) + TOKENS)
    with Generator(model, params(model)) as plain, Generator(model, ahead) as generator:
        for each in (plain, generator):
            each.append_tokens(PROMPT)
        for place in range(TOKENS):
            if place in (3, 6):
                generator.watch_log_probabilities(0 if place == 3 else None)
            for each in (plain, generator):
                each.generate_next_token()
            assert generator.get_next_tokens() == plain.get_next_tokens()
            told = list(generator.get_log_probabilities()[0])
            assert told == (list(generator.get_next_tokens()) if 3 <= place < 6 else [])


def test_each_row_has_its_own(model: Model) -> None:
    search: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 2.0, "random_seed": 9}
    with Generator(model, params(model, num_return_sequences=3, **search)) as generator:
        generator.watch_log_probabilities(1)
        generator.append_tokens(PROMPT)
        generator.generate_next_token()
        first = generator.get_log_probabilities()
        tokens = list(generator.get_next_tokens())
    assert len(set(tokens)) > 1
    assert [row.keys() >= {token} for row, token in zip(first, tokens, strict=True)] == [True] * 3
    assert len({next(iter(row)) for row in first}) == 1, "all rows have the same prompt"


def test_a_count_out_of_range_beams_and_drafts_are_refused(model: Model) -> None:
    with Generator(model, params(model)) as generator:
        for count in (-1, model.config.vocab_size + 1):
            with pytest.raises(OptionError, match=f"count is {count}"):
                generator.watch_log_probabilities(count)
    with (
        Generator(model, params(model, num_beams=2)) as beams,
        pytest.raises(OptionError, match="not available with num_beams"),
    ):
        beams.watch_log_probabilities(1)
    drafted = params(model)
    drafted.set_speculation(Speculation())
    with Generator(model, drafted) as drafts, pytest.raises(OptionError, match="not available with speculation"):
        drafts.watch_log_probabilities(1)
