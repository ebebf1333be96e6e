"""Beams give the oracle's hypotheses, over the reference device; their scores by definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model
from tests import oracle
from tests.unit.test_rows import LEVEL, LLAMA, PADDED, loaded


def hypotheses(model: Model, prompts: Sequence[Sequence[int]], returned: int = 1, **search: Any) -> list[list[int]]:
    """oracle.rows' sequences, by capstan."""
    params = GeneratorParams(model)
    params.set_search_options(
        **{"do_sample": False, "batch_size": len(prompts), "num_return_sequences": returned, **search}
    )
    with Generator(model, params) as generator:
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
            assert len(generator.get_next_tokens()) == len(prompts) * search["num_beams"]
        return [generator.get_sequence(row) for row in range(len(prompts) * returned)]


def wanted(prompts: Sequence[Sequence[int]], returned: int = 1, **search: Any) -> list[list[int]]:
    return oracle.rows(LLAMA, prompts, returned=returned, num_return_sequences=returned, **search).sequences


CASES: dict[str, dict[str, Any]] = {
    "two": {"num_beams": 2},
    "five": {"num_beams": 5},
    "a repetition penalty": {"num_beams": 3, "repetition_penalty": 1.3},
    "no repeated pairs": {"num_beams": 3, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("prompts", [LEVEL[:1], LEVEL, PADDED], ids=["one", "level", "padded"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_beams_are_the_oracles(prompts: list[list[int]], options: dict[str, Any]) -> None:
    options = {"returned": 2, "max_length": 24, **options}
    assert hypotheses(loaded(LLAMA), prompts, **options) == wanted(prompts, **options)


# Many ids end a sequence, so that hypotheses of many lengths compete.
EOS = [180, 178, 91, 120, 429, 78, 243, 20, 413, 342, 109, 33, 118, 174]


@pytest.mark.parametrize("length_penalty", [-2.0, 0.0, 1.0, 4.0])
@pytest.mark.parametrize("prompts", [LEVEL, PADDED], ids=["level", "padded"])
@pytest.mark.parametrize("least", [0, 12])
def test_ends_make_the_oracles_hypotheses(prompts: list[list[int]], length_penalty: float, least: int) -> None:
    options: dict[str, Any] = {"num_beams": 3, "returned": 3, "max_length": 24, "min_length": least}
    options["length_penalty"] = length_penalty
    assert hypotheses(loaded(LLAMA, EOS), prompts, **options) == wanted(prompts, eos=EOS, **options)


@pytest.mark.parametrize("length_penalty", [-2.0, 0.0, 0.5, 1.0, 4.0])
def test_without_early_stopping_each_prompt_ends_as_the_oracles_alone(length_penalty: float) -> None:
    """In a batch onnxruntime-genai 0.18 compares the second and further prompts with scores of the one before them."""
    options: dict[str, Any] = {"num_beams": 3, "returned": 3, "max_length": 24, "early_stopping": False}
    options["length_penalty"] = length_penalty
    alone = [found for prompt in LEVEL for found in wanted([prompt], eos=EOS, **options)]
    assert hypotheses(loaded(LLAMA, EOS), LEVEL, **options) == alone
    stopped = hypotheses(loaded(LLAMA, EOS), LEVEL, **{**options, "early_stopping": True})
    assert stopped != alone or length_penalty < 4


def test_beams_go_on_where_more_continuations_than_are_looked_at_are_ends() -> None:
    free = wanted([LEVEL[0]], returned=6, num_beams=6, max_length=24)
    ends = sorted({ids[3] for ids in wanted([LEVEL[0]], returned=6, num_beams=6, max_length=4)})
    found = hypotheses(loaded(LLAMA, ends), [LEVEL[0]], num_beams=2, returned=2, max_length=24, early_stopping=False)
    assert len(ends) > 4
    assert found != free[:2]
    assert not any(token in ends for ids in found for token in ids[3:])
