"""The reference sampler, against known answers and plain floating-point computations."""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from capstan.errors import OptionError
from capstan.stages import NEGATIVE_INFINITY_KEY, TimestampTokens, temperature_scale
from capstan.stages.sampling import (
    NO_TOKEN,
    PeakedLogits,
    _weightless_below,
    philox4x32_10,
    sample,
    token_key,
    token_keys,
    token_weight,
)
from capstan.stages.search import SearchOptions

SAMPLED = SearchOptions(max_length=1000, do_sample=True, top_k=0, random_seed=7)
INF, NAN = math.inf, math.nan


def bits_of(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


def key_of(value: float) -> int:
    return token_key(bits_of(value))


def draws(logits: Sequence[float], options: SearchOptions, count: int) -> list[int]:
    row = array("f", logits)
    return [sample(row, options, position) for position in range(count)]


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    largest = max(logits)
    powers = [math.exp((value - largest) / temperature) for value in logits]
    return [power / math.fsum(powers) for power in powers]


# philox4x32_10


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Random123's kat_vectors.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
            (0xFFFFFFFF, 0xFFFFFFFF),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32_10(counter, key) == expected


# token_key, token_keys


def test_keys_order_floats_as_floats_are_ordered() -> None:
    values = [-INF, -3.4e38, -1.5, -1.0, -1e-40, 0.0, 1e-45, 1e-40, 0.5, 1.0, 3.4e38, INF]
    keys = [key_of(value) for value in values]
    assert keys == sorted(set(keys))


def test_minus_zero_equals_zero_and_every_nan_counts_as_minus_infinity() -> None:
    assert key_of(-0.0) == key_of(0.0)
    for bits in (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0xFFFFFFFF):
        assert token_key(bits) == key_of(-INF) == NEGATIVE_INFINITY_KEY


@pytest.mark.parametrize("special", [[], [-0.0], [NAN], [-NAN], [INF, -INF], [-0.0, NAN]])
def test_keys_of_a_row_are_the_keys_of_its_elements(special: list[float]) -> None:
    row = array("f", [0.25, -3.5, 0.0, 1e-42, *special])
    assert token_keys(row) == [key_of(value) for value in row]


def test_a_row_may_come_in_any_of_the_usual_forms() -> None:
    values = [0.5, -1.25, 3.0, -INF]
    keys = [key_of(value) for value in values]
    halves: Any = np.array(values, np.float16)
    singles: Any = np.array(values, np.float32)
    assert token_keys(values) == keys
    assert token_keys(array("d", values)) == keys
    assert token_keys(memoryview(array("f", values))) == keys
    assert token_keys(singles) == keys
    assert token_keys(halves) == keys
    assert token_keys(array("H", halves.view(np.uint16).tolist()), float16_bits=True) == keys
    assert token_keys([1e60, -1e60]) == [key_of(INF), key_of(-INF)]


def test_a_buffer_of_integers_is_refused() -> None:
    with pytest.raises(OptionError, match="'i'"):
        sample(array("i", [1, 2]), SAMPLED, 0)


# token_weight


@pytest.mark.parametrize("temperature", [0.01, 0.3, 0.7, 1.0, 1.9, 50.0, 1e-30, 1e30])
def test_weights_are_the_exponentials_within_the_stated_error(temperature: float) -> None:
    source = random.Random(3)
    scale = temperature_scale(temperature)
    for _ in range(4000):
        magnitude = 10 ** source.uniform(-8, 8) * min(temperature, 1e6)
        top, value = sorted((array("f", [source.gauss(0, magnitude) for _ in range(2)])), reverse=True)
        exact = math.exp((value - top) / temperature) * 2**30
        weight = token_weight(key_of(value), key_of(top), scale)
        error = (2e-7 + max(abs(top), abs(value)) / temperature * 2**-30) * exact + 0.5
        assert abs(weight - exact) <= error


def test_weights_at_the_ends() -> None:
    scale = temperature_scale(1.0)
    assert token_weight(key_of(2.0), key_of(2.0), scale) == 2**30
    assert token_weight(key_of(INF), key_of(INF), scale) == 2**30
    assert token_weight(key_of(3e38), key_of(INF), scale) == 0
    assert token_weight(key_of(3e38), key_of(INF), temperature_scale(1e50)) == 0
    assert token_weight(key_of(-INF), key_of(2.0), scale) == 0
    assert token_weight(key_of(-3.4e38), key_of(3.4e38), scale) == 0
    assert token_weight(key_of(-1e-45), key_of(1e-45), scale) == 2**30
    assert token_weight(key_of(-21.4), key_of(0.0), scale) == 1
    assert token_weight(key_of(-21.6), key_of(0.0), scale) == 0


def test_float32_logits_that_differ_in_the_last_place_weigh_differently_at_a_low_temperature() -> None:
    scale = temperature_scale(1e-6)
    top = 1.0
    below = struct.unpack("f", struct.pack("I", bits_of(top) - 1))[0]
    assert token_weight(key_of(below), key_of(top), scale) == pytest.approx(
        math.exp(-(2**-24) / 1e-6) * 2**30, rel=4e-7
    )


@pytest.mark.parametrize("temperature", [0.01, 1.0, 40.0, 1e-9, 1e38])
@pytest.mark.parametrize("top", [0.0, 17.25, -3.5, 1e9, -1e9, 1e-30, 3e38, INF])
def test_no_token_with_a_weight_is_left_out(top: float, temperature: float) -> None:
    scale = temperature_scale(temperature)
    floor = _weightless_below(key_of(top), temperature)
    for below in range(1, 2000):
        assert token_weight(max(floor - below, NEGATIVE_INFINITY_KEY), key_of(top), scale) == 0


# sample: greedy


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1.0, 3.0, 2.0], 1),
        ([3.0, 1.0, 3.0], 0),
        ([-0.0, 0.0], 0),
        ([NAN, 1.0, NAN], 1),
        ([-NAN, -5.0], 1),
        ([1.0, INF, INF], 1),
        ([-INF, 1.0, INF, INF], 2),
        ([-INF, -INF, -3e38], 2),
        ([-INF, NAN, -INF], NO_TOKEN),
        ([-INF, -INF], NO_TOKEN),
        ([4.0], 0),
    ],
)
def test_greedy_takes_the_largest_logit_and_the_lowest_id_among_equals(logits: list[float], expected: int) -> None:
    assert sample(array("f", logits), SearchOptions(do_sample=False), 0) == expected
    assert sample(array("f", logits), SAMPLED.replace(top_k=1), 0) == expected


# sample: which tokens can be drawn


def reference_support(logits: Sequence[float], temperature: float, top_k: int, top_p: float) -> tuple[set[int], float]:
    """Ids that may be drawn, and how close (in probability) the top_p boundary is to a token's edge."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        order = order[:top_k]
    shares = softmax([logits[token] for token in order], temperature)
    mass, margin = 0.0, 1.0
    for count, share in enumerate(shares, 1):
        mass += share
        margin = min(margin, abs(mass - top_p))
        if mass >= top_p and top_p < 1:
            return set(order[:count]), margin
    return set(order), 1.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"),
    [(0, 0.5, 1.0), (5, 1.0, 1.0), (5, 0.7, 1.0), (12, 0.9, 0.6), (3, 0.2, 2.0), (0, 0.95, 0.3), (40, 0.99, 1.0)],
)
def test_only_and_all_tokens_of_the_plain_definition_can_be_drawn(top_k: int, top_p: float, temperature: float) -> None:
    source = random.Random(11)
    options = SAMPLED.replace(top_k=top_k, top_p=top_p, temperature=temperature)
    for _ in range(10):
        logits = array("f", [source.gauss(0, 1.2) for _ in range(24)])
        support, margin = reference_support(logits, temperature, top_k, top_p)
        assert margin > 1e-5
        seen = {sample(logits, options, position) for position in range(400)}
        assert seen <= support
        shares = softmax([logits[token] if token in support else -INF for token in range(24)], temperature)
        assert {token for token in support if shares[token] > 0.05} <= seen


def test_top_k_takes_the_lowest_ids_among_equals() -> None:
    logits = [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]
    assert set(draws(logits, SAMPLED.replace(top_k=3), 200)) == {0, 1, 4}
    assert set(draws(logits, SAMPLED.replace(top_k=4), 200)) == {0, 1, 2, 4}


def test_top_p_takes_the_lowest_ids_among_equals_and_stops_at_exactly_p() -> None:
    logits = [5.0] * 4
    assert set(draws(logits, SAMPLED.replace(top_p=0.5), 100)) == {0, 1}
    assert set(draws(logits, SAMPLED.replace(top_p=0.51), 100)) == {0, 1, 2}
    assert set(draws(logits, SAMPLED.replace(top_p=0.25), 100)) == {0}


def test_top_p_is_a_share_of_what_top_k_kept() -> None:
    logits = [0.0] * 8
    assert set(draws(logits, SAMPLED.replace(top_k=4, top_p=0.5), 100)) == {0, 1}


def test_a_tiny_top_p_is_greedy_and_a_top_p_of_one_keeps_everything() -> None:
    logits = [0.0, 0.1, 0.0]
    assert set(draws(logits, SAMPLED.replace(top_p=1e-300), 100)) == {1}
    assert set(draws(logits, SAMPLED.replace(top_p=1.0), 100)) == {0, 1, 2}


def test_top_k_of_the_vocabulary_or_more_keeps_everything() -> None:
    logits = [0.3, 0.1, 0.2]
    for top_k in (3, 4, 1000):
        assert draws(logits, SAMPLED.replace(top_k=top_k), 100) == draws(logits, SAMPLED, 100)


def test_a_row_without_anything_above_minus_infinity_has_no_token() -> None:
    for options in (SAMPLED, SAMPLED.replace(top_k=2), SAMPLED.replace(top_p=0.5)):
        assert set(draws([-INF, NAN, -INF], options, 20)) == {NO_TOKEN}


def test_plus_infinity_shares_the_draw_among_its_equals_only() -> None:
    assert set(draws([INF, 3.0, INF, -INF, NAN], SAMPLED, 100)) == {0, 2}


def test_masked_tokens_are_never_drawn_not_even_within_top_k() -> None:
    assert set(draws([-INF, 0.0, NAN, 0.0], SAMPLED.replace(top_k=3, temperature=1e30), 100)) == {1, 3}


@pytest.mark.parametrize(("word", "expected"), [(0, 1), (2**30 - 1, 1), (2**30, 3), (2**31, 4), (2**32 - 1, 5)])
def test_the_draw_takes_the_first_id_whose_running_sum_exceeds_it(
    word: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.stages.sampling.philox4x32_10", lambda counter, key: (word, 0, 0, 0))
    assert sample(array("f", [-INF, 2.0, -INF, 2.0, 2.0, 2.0, -INF]), SAMPLED, 0) == expected


def test_end_of_sequence_ids_wait_for_min_length() -> None:
    row = array("f", [1.0, 9.0, 5.0])
    options = SearchOptions(max_length=50, min_length=10, eos_token_ids=(1, 7))
    assert [sample(row, options, position) for position in (0, 9, 10)] == [2, 2, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "min_length": 4},
        {"do_sample": False, "repetition_penalty": 3.0},
        {"do_sample": True, "top_k": 0, "temperature": 0.2},
        {"do_sample": True, "top_k": 5, "top_p": 0.7, "repetition_penalty": 3.0, "min_length": 4},
        {"do_sample": True, "bad_words_ids": [[each] for each in range(100)]},
        {"do_sample": False, "timestamps": TimestampTokens(0, 100, 98, (99,), (1,), 10)},
        {"do_sample": False, "guided": True},
        {"do_sample": False, "guided": True, "repetition_penalty": 3.0},
        {"do_sample": True, "guided": True, "top_k": 0, "temperature": 0.2},
        {"do_sample": True, "guided": True, "top_k": 5, "top_p": 0.7, "repetition_penalty": 3.0, "min_length": 4},
    ],
)
@pytest.mark.parametrize("special", [[], [-INF], [-INF] * 80, [NAN], [INF]])
def test_peaks_of_a_row_change_no_pick(options: dict[str, Any], special: list[float]) -> None:
    source = random.Random(5)
    search = SearchOptions(max_length=1000, eos_token_ids=(3, 129), **options)
    for position in range(40):
        values = [float(round(source.gauss(0, 4))) for _ in range(130)]
        at = source.randrange(40)
        values[at : at + len(special)] = special
        values += [9.0, 9.0, -0.0]
        row = PeakedLogits("f", values)
        row.peaks = [NAN if any(map(math.isnan, part)) else max(part) for part in (row[:64], row[64:128], row[128:])]
        tokens = [source.randrange(len(row)) for _ in range(position)]
        # Masks of few tokens, and of nearly all.
        share = source.choice([0.02, 0.5, 0.98])
        words = [sum((source.random() < share) << bit for bit in range(32)) for _ in range(5)]
        words[source.randrange(4)] |= 1
        allowed = array("I", words).tobytes()
        plain = sample(array("f", row), search, position, tokens=tokens, allowed=allowed)
        assert sample(row, search, position, tokens=tokens, allowed=allowed) == plain


def test_no_logits_is_an_error() -> None:
    with pytest.raises(OptionError, match="empty"):
        sample(array("f"), SAMPLED, 0)


# sample: how often


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.5, 0), (1.7, 6)])
def test_draws_follow_the_softmax(temperature: float, top_k: int) -> None:
    source = random.Random(5)
    logits = list(array("f", [source.gauss(0, 1) for _ in range(12)]))
    kept, _ = reference_support(logits, temperature, top_k, 1.0)
    shares = softmax([value if token in kept else -INF for token, value in enumerate(logits)], temperature)
    count = 20000
    options = SAMPLED.replace(temperature=temperature, top_k=top_k)
    seen = draws(logits, options, count)
    square = sum((seen.count(token) - count * shares[token]) ** 2 / (count * shares[token]) for token in kept)
    freedom = len(kept) - 1
    assert square < freedom + 4 * math.sqrt(2 * freedom), "chi-square is more than 4 standard deviations off"


def test_a_draw_depends_on_seed_position_and_row_alone() -> None:
    row = array("f", [0.0] * 1000)
    first = [sample(row, SAMPLED, position, batch_row) for position in range(8) for batch_row in range(8)]
    again = [sample(row, SAMPLED, position, batch_row) for position in range(8) for batch_row in range(8)]
    other = [sample(row, SAMPLED.replace(random_seed=2**63), p, r) for p in range(8) for r in range(8)]
    assert first == again
    assert len(set(first)) > 50
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 5


def test_a_draw_is_word_0_of_philox_over_position_and_row_with_the_seed_as_key() -> None:
    options = SAMPLED.replace(random_seed=7 | 5 << 32)
    for position, row in ((3, 0), (0, 3), (9, 2)):
        unit = philox4x32_10((position, row, 0, 0), (7, 5))[0]
        assert sample(array("f", [1.5] * 1000), options, position, row) == unit * 1000 >> 32


def test_both_halves_of_the_seed_count() -> None:
    row = array("f", [0.0] * 100000)
    assert len({sample(row, SAMPLED.replace(random_seed=seed), 0) for seed in (1, 1 + 2**32, 1 + 2**63)}) == 3
