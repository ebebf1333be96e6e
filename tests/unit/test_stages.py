"""What the stages compute, against plain floating-point arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from capstan.sampling import sample, token_key
from capstan.search import SearchOptions
from capstan.stages import Row

LOGITS = [math.log(share) for share in (0.5, 0.26, 0.2, 0.04)]
ENDS = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0]


def keys_of(values: Any) -> list[int]:
    return [token_key(int(bits)) for bits in values.astype(np.float32).view(np.uint32)]


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
