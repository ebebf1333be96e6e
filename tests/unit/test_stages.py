"""The stages agree with plain floating-point arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from capstan.stages import NEGATIVE_INFINITY_KEY, Row
from capstan.stages.sampling import KeyList, sample, token_key
from capstan.stages.search import SearchOptions

LOGITS = [math.log(share) for share in (0.5, 0.26, 0.2, 0.04)]
ENDS = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0]


def keys_of(values: Any) -> KeyList:
    return KeyList(token_key(int(bits)) for bits in values.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("penalty", [1.1, 1.3, 0.5, 0.3, 2.0, 1e-30, 3e38, 1 + 2**-23])
def test_a_penalised_logit_is_the_rounded_quotient_or_product(penalty: float) -> None:
    options = SearchOptions(repetition_penalty=penalty)
    source = np.random.default_rng(1)
    bits = source.integers(0, 2**32, 4000, dtype=np.uint64).astype(np.uint32)
    values = np.concatenate(
        [np.array(ENDS, np.float32), source.normal(0, 5, 4000).astype(np.float32), bits.view(np.float32)]
    )
    (stage,) = options.stages()
    assert stage.edit is not None
    found = keys_of(values)
    seen = list(range(0, len(values), 2)) * 2
    stage.edit(found, options, Row(len(seen), seen))
    with np.errstate(all="ignore"):
        penalised = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))
    values[::2] = penalised[::2]
    assert found == keys_of(values)


def test_tokens_outside_the_vocabulary_are_no_concern_of_a_penalty() -> None:
    options = SearchOptions(repetition_penalty=4.0)
    assert sample([1.0, 3.0, 2.0], options, 2, tokens=[1, 3]) == 2


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    for min_p, kept in (0.0, {0, 1, 2, 3}), (0.1, {0, 1, 2}), (0.51, {0, 1}), (0.53, {0}), (1.0, {0}):
        options = SearchOptions(do_sample=True, top_k=0, min_p=min_p, random_seed=3)
        assert {sample(LOGITS, options, position) for position in range(400)} == kept


def test_min_p_weighs_what_top_p_left_and_greedy_search_ignores_it() -> None:
    options = SearchOptions(do_sample=True, top_k=0, top_p=0.9, min_p=0.01, random_seed=3)
    assert {sample(LOGITS, options, position) for position in range(400)} == {0, 1, 2}
    assert sample(LOGITS, options.replace(do_sample=False, min_p=1.0), 0) == 0


def edited(values: Any, options: SearchOptions, row: Row) -> list[int]:
    """The keys of a row after the one active edit."""
    found = keys_of(values)
    (stage,) = [stage for stage in options.stages() if stage.edit]
    assert stage.edit is not None
    stage.edit(found, options, row)
    return found


def many_values(count: int = 4000) -> Any:
    source = np.random.default_rng(2)
    bits = source.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    ordinary = source.normal(0, 5, count).astype(np.float32)
    return np.concatenate([np.array(ENDS, np.float32), ordinary, bits.view(np.float32)])


@pytest.mark.parametrize(
    ("presence", "frequency"), [(0.5, 0.0), (0.0, 0.7), (-2.0, 1.3), (0.1, -0.1), (2.0, 2.0), (0.0, 2**-24)]
)
def test_generated_tokens_are_penalised_by_their_number(presence: float, frequency: float) -> None:
    """As numpy computes it: the penalty rounded to float32, then subtracted in float32."""
    options = SearchOptions(presence_penalty=presence, frequency_penalty=frequency)
    values = many_values(500)
    picks = np.random.default_rng(3).integers(0, 5, len(values))
    prompt = list(range(0, len(values), 3))
    tokens = prompt + [token for token, number in enumerate(picks) for _ in range(number)]
    found = edited(values, options, Row(len(tokens), tokens, len(prompt)))
    unit = np.round(np.array([presence, frequency]) * 2**24)
    penalty = ((picks * unit[1] + unit[0] * (picks > 0)) / 2**24).astype(np.float32)
    with np.errstate(all="ignore"):
        assert found == keys_of(np.where(picks > 0, values - penalty, values))


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-6, 1.0, 1e6, 3e38])
def test_a_bias_is_added_in_float32(scale: float) -> None:
    values = many_values()
    biases = (np.random.default_rng(4).uniform(-1, 1, len(values)) * scale).astype(np.float32)
    options = SearchOptions().replace(logit_bias=dict(enumerate(map(float, biases))))
    with np.errstate(all="ignore"):
        assert edited(values, options, Row(0)) == keys_of(values + biases)


def test_biases_of_a_json_object_have_strings_as_ids() -> None:
    assert SearchOptions().replace(logit_bias={"7": 1, "3": -2.5}).logit_bias == ((3, -2.5), (7, 1.0))


@pytest.mark.parametrize(
    ("size", "tokens", "banned"),
    [
        (1, [3, 5], {3, 5}),
        (2, [1, 2, 1, 3, 1], {2, 3}),
        (2, [1, 1], {1}),
        (3, [1, 2, 3, 1, 2], {3}),
        (3, [1, 2, 3, 2, 1], set()),
        (3, [1, 1, 1], {1}),
        (5, [1, 2, 3, 4], set()),
        (4, [1, 2, 3], set()),
        (2, [6, 900, 6], set()),
    ],
)
def test_no_run_of_so_many_tokens_is_repeated(size: int, tokens: list[int], banned: set[int]) -> None:
    options = SearchOptions(no_repeat_ngram_size=size)
    assert banned_by(options, tokens) == banned


def banned_by(options: SearchOptions, tokens: list[int]) -> set[int]:
    """Which of eight tokens are never sampled."""
    row = Row(len(tokens), tokens)
    (stage,) = [stage for stage in options.stages() if stage.edit]
    if not stage.due(options, row):
        return set()
    found = edited(np.ones(8, np.float32), options, row)
    return {token for token, key in enumerate(found) if key == NEGATIVE_INFINITY_KEY}


@pytest.mark.parametrize(
    ("words", "tokens", "banned"),
    [
        ([[4]], [], {4}),
        ([[4], [2, 3]], [2], {3, 4}),
        ([[4], [2, 3]], [2, 5], {4}),
        ([[1, 2, 3], [2, 5]], [1, 2], {3, 5}),
        ([[1, 2, 3]], [2], set()),
        ([[2, 2, 2]], [2, 2], {2}),
        ([[2, 7]], [2], {7}),
        ([[7], [4]], [], {4}),
        ([[7, 3]], [7], {3}),
        ([[1, 900], [900, 1]], [1], set()),
    ],
)
def test_bad_words_are_not_ended(words: list[list[int]], tokens: list[int], banned: set[int]) -> None:
    """7 is an end-of-sequence id: alone it is no bad word."""
    assert banned_by(SearchOptions(eos_token_ids=(7,), bad_words_ids=words), tokens) == banned  # type: ignore[arg-type]


def test_stop_token_ids_wait_for_min_length() -> None:
    options = SearchOptions(stop_token_ids=(1,), min_length=3)
    assert [sample([0.0, 2.0, 1.0], options, length) for length in (2, 3)] == [2, 1]
