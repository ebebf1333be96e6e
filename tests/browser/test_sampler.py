"""The sampler on the GPU against the reference sampler: every id equal, and every buffer as the state layout says."""

from __future__ import annotations

import base64
import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, Page

from capstan.guidance import Automaton, Guidance, Position, TokenBytes, automaton_of
from capstan.guidance.vocabulary import _in_alphabet
from capstan.stages import STACK, TimestampTokens, position_words
from capstan.stages.program import Drafting
from capstan.stages.sampling import NO_TOKEN, sample
from capstan.stages.search import SearchOptions
from capstan_host.site_server import SiteServer
from tests.browser.bundled_page import page_with

ROOT = Path(__file__).parents[2]
INF, NAN = math.inf, math.nan
POISON = 0xA5A5A5A5
LENGTH = 5

SAMPLED = SearchOptions(max_length=1000, do_sample=True, top_k=0, random_seed=0x123456789ABCDEF, pad_token_id=77)
GREEDY = SAMPLED.replace(do_sample=False)
BOTH = SAMPLED.replace(top_k=50, top_p=0.9, temperature=1.3)

# Options and the dispatches of one step with them.
OPTIONS: list[tuple[SearchOptions, int]] = [
    (GREEDY, 2),
    (SAMPLED, 3),
    (SAMPLED.replace(temperature=0.3), 3),
    (SAMPLED.replace(top_k=2), 7),
    (SAMPLED.replace(top_p=0.8), 7),
    (BOTH, 11),
    (SAMPLED.replace(top_k=5, top_p=0.5, temperature=20.0), 11),
    (SAMPLED.replace(top_k=1), 2),
    (SAMPLED.replace(top_p=1e-12), 7),
    (SAMPLED.replace(min_p=0.05), 3),
    (BOTH.replace(min_p=0.3), 11),
    (SAMPLED.replace(top_k=5, min_p=1.0), 7),
]


@dataclass(frozen=True)
class State:
    """One row of the state buffer, as the state layout names it."""

    length: int = LENGTH
    cursor: int = 0
    done: int = 0
    picked: int = POISON
    uncounted: int = 0
    """Tokens that count for min_length besides the length."""

    def words(self) -> list[int]:
        return [self.length, self.cursor, self.done, self.picked, self.uncounted, POISON, POISON, POISON]


def sent(
    option: SearchOptions,
    vocab: int,
    capacity: int = 8,
    sequences: Sequence[Sequence[int]] = ((),),
    prompt: int = 0,
    allowed: bytes = b"",
    positions: Sequence[Sequence[int]] = (),
    drafting: Drafting | None = None,
) -> dict[str, Any]:
    """A program as the page takes it, with its parameters, tables and what the rows' sequences are; `positions` say
    where they are in a grammar."""
    program = option.sampler_program(vocab, capacity, drafting=drafting)
    parts = [bytearray(program.row(tokens, prompt, 0, allowed)) for tokens in sequences]
    for part, position in zip(parts, positions, strict=False):
        assert program.own_at is not None
        words = position_words(position)
        part[4 * program.own_at : 4 * program.own_at + len(words)] = words
    rows = b"".join(parts)
    return {
        "words": list(array("I", program.words)),
        "table": list(array("I", program.table)),
        "memory": list(array("I", rows)),
        "program": {
            "passes": program.passes,
            "wgsl": program.wgsl,
            "banWgsl": program.ban_wgsl,
            "maskWgsl": program.mask_wgsl,
            "endWgsl": program.end_wgsl,
            "rowWords": program.row_words,
            "allowedAt": program.allowed_at,
            "ownAt": program.own_at,
            "drafts": program.drafts,
        },
    }


class SamplerPage:
    """The page with the bundled test script."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def run(
        self,
        rows: Sequence[Any],
        options: Sequence[SearchOptions],
        *,
        states: Sequence[State] = (),
        sequences: Sequence[Sequence[int]] = (),
        prompt: int = 0,
        allowed: bytes = b"",
        grammar: Sequence[Sequence[int]] = (),
        steps: int = 1,
        submits: int = 1,
        ring_capacity: int = 0,
        max_length: int = 64,
        positions: bool = True,
    ) -> list[dict[str, Any]]:
        """The buffers after `submits` passes of `steps` steps, for each of `options`, from the same start."""
        vocab = len(rows[0])
        request = {
            "rows": len(rows),
            "vocab": vocab,
            "logitsType": "float32" if rows[0].itemsize == 4 else "float16",
            "logits": base64.b64encode(b"".join(row.tobytes() for row in rows)).decode(),
            "programs": [
                sent(option, vocab, max_length, sequences or [()] * len(rows), prompt, allowed, grammar)
                for option in options
            ],
            "steps": steps,
            "submits": submits,
            "state": [word for state in states or [State()] * len(rows) for word in state.words()],
            "ringCapacity": ring_capacity or steps * submits,
            "maxLength": max_length,
            "positions": positions,
        }
        results: list[dict[str, Any]] = self.page.evaluate("request => runSampler(request)", request)
        return results


@pytest.fixture(scope="module")
def sampler(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SamplerPage]:
    with page_with("sampler_page.ts", browser, site.url, tmp_path_factory.mktemp("sampler")) as page:
        yield SamplerPage(page)


def rows_of_many_kinds(vocab: int, count: int, seed: int) -> list[list[float]]:
    """Random rows, most of them ordinary, some with ties, masks, NaN, infinities, one peak or nothing at all."""
    source = random.Random(seed)

    def row(index: int) -> list[float]:
        spread = source.choice([0.1, 1.0, 3.0, 3.0, 10.0])
        shift = source.choice([0.0, 0.0, -30.0, 30.0])
        values = [source.gauss(shift, spread) for _ in range(vocab)]
        match index % 16:
            case 1:  # many ties
                return [round(value) for value in values]
            case 2:  # no token can be picked
                return [source.choice([-INF, NAN]) for _ in values]
            case 3:  # one-hot
                peak = source.randrange(vocab)
                return [0.0 if token == peak else -INF for token in range(vocab)]
            case 4:  # all equal
                return [values[0]] * vocab
            case 5:  # two levels: the cut falls into a tie
                return [source.choice([1.0, 2.0]) for _ in values]
            case 6:  # mostly masked
                return [value if source.random() < 0.2 else source.choice([-INF, NAN, -NAN]) for value in values]
            case 7:  # around zero, both zeros
                return [source.choice([0.0, -0.0, 1e-7, -1e-7, 1e-42, -6e-5]) for _ in values]
            case 8:  # infinities above the rest
                return [source.choice([INF, value, value]) for value in values]
            case 9:  # one far above the rest
                values[source.randrange(vocab)] += 60
                return values
            case 10:  # the ends of the range
                return [source.choice([65504.0, -65504.0, value, 60000.0]) for value in values]
        return values

    return [row(index) for index in range(count)]


def typed(row: Sequence[float], half: bool) -> Any:
    return np.array(row, np.float16) if half else array("f", row)


def check_ids(
    rows: Sequence[Any], option: SearchOptions, ids: Sequence[int], sequences: Sequence[Sequence[int]] = ()
) -> None:
    for index, (row, got) in enumerate(zip(rows, ids, strict=True)):
        expected = sample(row, option, LENGTH, index, tokens=sequences[index] if sequences else ())
        assert got == expected, f"row {index} of {len(rows)}: {got}, not {expected}, with {option}"


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("vocab", "half", "count"),
    [
        (1, False, 32),
        (2, False, 256),
        (2, True, 256),
        (511, False, 48),
        (511, True, 96),
        (512, False, 128),
        (2048, False, 48),
        (4099, False, 16),
        (4099, True, 16),
        (151936, False, 2),
    ],
)
def test_the_ids_equal_the_reference_samplers(sampler: SamplerPage, vocab: int, half: bool, count: int) -> None:
    rows = [typed(row, half) for row in rows_of_many_kinds(vocab, count, seed=vocab)]
    options = OPTIONS if vocab < 10000 else OPTIONS[:2] + OPTIONS[5:6]
    results = sampler.run(rows, [option for option, _ in options], max_length=LENGTH + 1)
    for (option, dispatches), result in zip(options, results, strict=True):
        check_ids(rows, option, result["ring"])
        if option.top_k < vocab:  # else the cut is off
            assert result["dispatches"] == dispatches


@pytest.mark.one_in(2)
@pytest.mark.parametrize("half", [False, True])
def test_every_kind_of_bits_is_read_as_the_reference_reads_it(sampler: SamplerPage, half: bool) -> None:
    source = random.Random(9)
    infinity, bits = (0x7C00, 16) if half else (0x7F800000, 32)
    sign = 1 << (bits - 1)
    ends = [0, 1, 2, infinity // 31, infinity - 1, infinity, infinity + 1, sign - 1]
    subnormal = infinity // 31  # of a float16 that is; a float32 this small is normal
    rows = []
    for index in range(64):
        draw = [lambda: source.getrandbits(bits - 1), lambda: source.choice(ends), lambda: source.randrange(subnormal)]
        magnitudes = [draw[index % 3]() for _ in range(16)]
        words = np.full(511 if half else 512, sign | infinity, np.uint16 if half else np.uint32)
        words[source.sample(range(511), 16)] = [word | source.choice([0, sign]) for word in magnitudes]
        rows.append(words.view(np.float16 if half else np.float32))
    options = [GREEDY, SAMPLED.replace(top_k=4), *(SAMPLED.replace(temperature=value) for value in (1e-5, 2e4, 1e38))]
    for option, result in zip(options, sampler.run(rows, options), strict=True):
        check_ids(rows, option, result["ring"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("half", [False, True])
def test_temperatures_near_zero_and_far_above_one(sampler: SamplerPage, half: bool) -> None:
    source = random.Random(2)
    rows = [typed([source.gauss(0, 3) for _ in range(512)], half) for _ in range(32)]
    options = [SAMPLED.replace(temperature=value) for value in (1e-300, 1e-6, 0.01, 0.05, 5.0, 300.0, 1e12, 1e300)]
    for option, result in zip(options, sampler.run(rows, options), strict=True):
        check_ids(rows, option, result["ring"])


def test_float32_logits_of_every_size(sampler: SamplerPage) -> None:
    source = random.Random(3)
    rows = []
    options = []
    for exponent in (-44, -38, -20, -3, 3, 9, 20, 38):
        rows = [array("f", [source.uniform(-3, 3) * 10.0**exponent for _ in range(512)]) for _ in range(8)]
        options = [SAMPLED.replace(temperature=10.0**exponent, top_p=top_p) for top_p in (1.0, 0.7)]
        for option, result in zip(options, sampler.run(rows, options), strict=True):
            check_ids(rows, option, result["ring"])


def test_a_run_is_the_same_for_any_number_of_steps_a_submit(sampler: SamplerPage) -> None:
    source = random.Random(4)
    rows = [array("f", [source.gauss(0, 1) for _ in range(512)]) for _ in range(4)]
    total = 24
    options = [GREEDY, SAMPLED, BOTH]
    runs = [sampler.run(rows, options, steps=steps, submits=total // steps) for steps in (1, 3, 8)]
    for index, option in enumerate(options):
        expected = [sample(row, option, LENGTH + step, r) for r, row in enumerate(rows) for step in range(total)]
        assert option is GREEDY or len(set(expected)) > 40
        for run in runs:
            assert run[index]["ring"] == expected
            assert [run[index]["state"][8 * row] for row in range(4)] == [LENGTH + total] * 4


@dataclass
class Row:
    """A row of every buffer, advanced by the state layout's rules."""

    state: State
    ring: list[int]
    input_ids: list[int]
    mask: list[int]
    position_ids: list[int]

    @classmethod
    def poisoned(cls, state: State, ring_capacity: int, max_length: int) -> Row:
        return cls(state, [POISON] * ring_capacity, [POISON] * 2, [POISON] * 2 * max_length, [POISON] * 2)

    def advance(self, token: int, option: SearchOptions) -> None:
        length, cursor, done, picked = self.state.length, self.state.cursor, self.state.done, self.state.picked
        self.ring[cursor % len(self.ring)] = option.pad_token_id if done else token
        if not done:
            picked = picked if token == NO_TOKEN else token
            if token == NO_TOKEN or token in option.end_token_ids:
                done = 1
            elif 2 * length < len(self.mask):
                self.input_ids = [token, 0]
                self.mask[2 * length : 2 * length + 2] = [1, 0]
                self.position_ids = [length, 0]
                length += 1
        self.state = replace(self.state, length=length, cursor=(cursor + 1) % 2**32, done=done, picked=picked)


def check_buffers(result: Mapping[str, Any], rows: Sequence[Row], positions: bool) -> None:
    assert result["state"] == [word for row in rows for word in row.state.words()]
    assert result["ring"] == [word for row in rows for word in row.ring]
    assert result["inputIds"] == [word for row in rows for word in row.input_ids]
    assert result["mask"] == [word for row in rows for word in row.mask]
    untouched = [POISON] * 2 * len(rows)
    assert result["positionIds"] == ([word for row in rows for word in row.position_ids] if positions else untouched)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("positions", [True, False])
def test_every_buffer_follows_the_state_layout(sampler: SamplerPage, positions: bool) -> None:
    source = random.Random(6)
    max_length, ring_capacity, steps = 16, 5, 8
    # Ordinary, done before, at, one below and beyond max_length, the ring's end and the cursor's own end ahead.
    states = [
        State(),
        State(length=9, cursor=3),
        State(done=1, cursor=4, picked=12),
        State(length=16, cursor=1),
        State(length=15),
        State(length=20),
        State(length=0, cursor=2**32 - 3),
        State(length=12, cursor=2, picked=0),
    ] * 2
    rows = [array("f", [source.gauss(0, 1) for _ in range(511)]) for _ in states]
    ids = sampler.run(rows, [BOTH], states=states, steps=steps, max_length=64, ring_capacity=64)[0]["ring"]
    # End-of-sequence ids that some rows meet in the middle of the burst, one of them only by sampling.
    greedy = [sample(row, GREEDY, 0) for row in rows]
    eos = (greedy[1], 500, greedy[8 + 7], *[ids[64 * row + step] for row, step in ((0, 3), (4, 0), (9, 6))])
    options = [option.replace() for option in (GREEDY, SAMPLED, BOTH)]
    options = [
        SearchOptions(**{**vars(option), "eos_token_ids": eos[:3], "stop_token_ids": eos[3:]}) for option in options
    ]
    results = sampler.run(
        rows,
        options,
        states=states,
        steps=steps,
        max_length=max_length,
        ring_capacity=ring_capacity,
        positions=positions,
    )
    for option, result in zip(options, results, strict=True):
        expected = [Row.poisoned(state, ring_capacity, max_length) for state in states]
        for index, row in enumerate(expected):
            for _ in range(steps):
                row.advance(sample(rows[index], option, row.state.length, index), option)
        assert {row.state.done for row in expected} == {0, 1}
        check_buffers(result, expected, positions)


@pytest.mark.extended
def test_end_of_sequence_ids_wait_for_min_length(sampler: SamplerPage) -> None:
    source = random.Random(8)
    rows = [array("f", [source.gauss(0, 1) for _ in range(511)]) for _ in range(4)]
    for row in rows:
        row[3] = row[300] = 9.0
    many = (*range(600, 1600), 300, 3, 9999)
    for base, uncounted, ends in (
        *((GREEDY, 0, (300, 3, 9999)), (SAMPLED, 0, (300, 3, 9999)), (BOTH, 0, many)),
        *((GREEDY, 3, (300, 3, 9999)), (GREEDY, 0, many)),
    ):
        option = SearchOptions(**{**vars(base), "eos_token_ids": ends, "min_length": LENGTH + 4})
        states = [State(uncounted=uncounted)] * len(rows)
        result = sampler.run(rows, [option.replace(min_length=LENGTH + 4 + uncounted)], steps=8, states=states)[0]
        for index, row in enumerate(rows):
            expected = Row.poisoned(State(), 8, 64)
            for _ in range(8):
                expected.advance(sample(row, option, expected.state.length, index), option)
            assert result["ring"][8 * index : 8 * index + 8] == expected.ring
            assert expected.state.length >= LENGTH + 4
            assert expected.state.done == 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("penalty", [1.1, 0.3, 3e38])
@pytest.mark.parametrize("half", [False, True])
def test_what_a_sequence_has_is_penalised_as_the_reference_does_it(
    sampler: SamplerPage, half: bool, penalty: float
) -> None:
    source = random.Random(10)
    rows = [typed(row, half) for row in rows_of_many_kinds(511, 64, seed=10)]
    sequences = [source.choices(range(511), k=source.choice([1, 40, 500])) for _ in rows]
    options = [base.replace(repetition_penalty=penalty) for base in (GREEDY, BOTH)]
    for option, result in zip(options, sampler.run(rows, options, sequences=sequences), strict=True):
        check_ids(rows, option, result["ring"], sequences)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("penalty", [1.5, 1.1, 0.3, 1e-30, 3e38])
def test_a_penalised_logit_is_exact_to_the_bit(sampler: SamplerPage, penalty: float) -> None:
    """Token 5 is penalised; 3 or 7 has the float32 that it must become. The lowest of equal ids wins."""
    source = np.random.default_rng(12)
    values = np.concatenate([source.normal(0, 4, 96), source.normal(0, 1e-38, 32)]).astype(np.float32)
    factor = np.float32(penalty)
    with np.errstate(all="ignore"):
        exact = np.where(values < 0, values * factor, values / factor)
    values, exact = values[np.isfinite(exact)], exact[np.isfinite(exact)]
    assert len(values) > 30
    option = GREEDY.replace(repetition_penalty=penalty)
    for other, expected in (3, 3), (7, 5):
        rows = []
        for value, become in zip(values, exact, strict=True):
            row = np.full(16, -np.inf, np.float32)
            row[5], row[other] = value, become
            rows.append(row)
        (result,) = sampler.run(rows, [option], sequences=[[5]] * len(rows))
        assert result["ring"] == [expected] * len(rows)


FOLLOWING: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.4, "frequency_penalty": 0.7},
    {"presence_penalty": -0.5, "frequency_penalty": 0.6, "repetition_penalty": 1.1},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "frequency_penalty": 0.01},
    {"bad_words_ids": [[token] for token in range(0, 40, 3)] + [[token, token] for token in range(40)]},
]
"""Options of stages that read the sequence."""


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("choice", "vocab"), [*((choice, 40) for choice in FOLLOWING), (FOLLOWING[0], 5000), (FOLLOWING[5], 5000)]
)
def test_stages_follow_the_picks_of_a_burst(sampler: SamplerPage, choice: dict[str, Any], vocab: int) -> None:
    source = random.Random(11)
    rows = [typed([source.gauss(2, 1) for _ in range(vocab)], half=vocab > 4096) for _ in range(2)]
    length, steps, prompt = 30, 24, 25
    sequences = [source.choices(range(min(vocab, 60)), k=length) for _ in rows]
    sequences[1][-4:] = sequences[1][:4]
    options = [base.replace(**choice) for base in (GREEDY, BOTH)]
    states = [State(length=length)] * len(rows)
    results = sampler.run(rows, options, states=states, sequences=sequences, prompt=prompt, steps=steps, submits=2)
    for option, result in zip(options, results, strict=True):
        for index, row in enumerate(rows):
            tokens = list(sequences[index])
            while len(tokens) < length + 2 * steps and tokens[-1] != NO_TOKEN:
                tokens.append(sample(row, option, len(tokens), index, tokens=tokens, prompt=prompt))
            picked = result["ring"][2 * steps * index : 2 * steps * (index + 1)]
            # At most 64 positions: from there on the length, and what is remembered, stays. A row ends without a token.
            count = min(34, len(tokens) - length)
            assert picked[:count] == tokens[length : length + count]
            assert option is not options[0] or len(set(picked)) > 1, "the greedy pick alone repeats one token"


@pytest.mark.one_in
@pytest.mark.parametrize(("vocab", "begin"), [(40, 22), (5000, 3500), (5000, 4700)])
def test_timestamps_come_by_their_rules_within_a_burst(sampler: SamplerPage, vocab: int, begin: int) -> None:
    """Rows of different beginnings, some where timestamps are only together likelier than text."""
    source = random.Random(29)
    never, never_first = tuple(source.sample(range(begin - 4), 9)), (begin - 3, 3)
    known = TimestampTokens(3, begin, begin - 3, (*never, begin - 1), never_first, 5)
    beginnings: list[list[int]] = [[], [begin + 2], [begin + 2, 4], [begin + 2, 4, begin + 3]]
    beginnings += [[*beginnings[3], begin + 3], [4, 5], [begin, 4, begin + 6, begin + 6, 4]]
    sequences = [[1, 2, 3, *beginning] for beginning in beginnings * 3]
    count = vocab - begin
    rows = []
    for number in range(len(sequences)):
        logits = [source.gauss(0, 1) for _ in range(vocab)]
        logits[source.randrange(begin - 4)] = 4.0
        level = 4.0 - math.log(count) + [-0.7, -0.02, 0.02][number % 3]
        logits[begin:] = [level + source.gauss(0, 0.1) for _ in range(count)]
        rows.append(typed(logits, half=vocab > 4096))
    rows[5][7], rows[6][begin + 7] = math.nan, math.inf
    states = [State(length=len(each)) for each in sequences]
    options = [replace(base, timestamps=known) for base in (GREEDY, BOTH, GREEDY.replace(repetition_penalty=1.2))]
    results = sampler.run(rows, options, states=states, sequences=sequences, prompt=3, steps=6)
    kinds = set()
    for option, result in zip(options, results, strict=True):
        for index, row in enumerate(rows):
            tokens = list(sequences[index])
            for place in range(6):
                tokens.append(sample(row, option, len(tokens), index, tokens=tokens, prompt=3))
                assert result["ring"][6 * index + place] == tokens[-1], (index, place)
                kinds.add(tokens[-1] >= begin)
    assert kinds == {False, True}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("vocab", [40, 5000])
def test_only_tokens_of_the_mask_are_picked(sampler: SamplerPage, vocab: int) -> None:
    """Also where stages ban all of them, and where they are all -inf; with memory of other stages around the mask."""
    source = random.Random(17)
    few = sorted(source.sample(range(vocab), 7))
    allowed = b"".join(
        (sum(1 << (t & 31) for t in few if t >> 5 == i)).to_bytes(4, "little") for i in range(-(-vocab // 32))
    )
    rows = [typed([source.gauss(2, 1) for _ in range(vocab)], half=vocab > 4096) for _ in range(3)]
    for token in few:
        rows[2][token] = -math.inf
    tokens = source.choices(range(vocab), k=LENGTH)
    choices: list[dict[str, Any]] = [
        *({}, {"repetition_penalty": 1.4}, {"bad_words_ids": [[token] for token in few]}),
        {"no_repeat_ngram_size": 2, "frequency_penalty": 0.3, "min_length": 60},
    ]
    for base in (GREEDY, SAMPLED, BOTH):
        options = [replace(base.replace(**choice), guided=True) for choice in choices]
        results = sampler.run(rows, options, sequences=[tokens] * len(rows), allowed=allowed)
        for option, result in zip(options, results, strict=True):
            for index, row in enumerate(rows):
                expected = sample(row, option, LENGTH, index, tokens=tokens, prompt=0, allowed=allowed)
                assert result["ring"][index] == expected
                assert expected in few


PIECES = [
    *'{}[]":, 0123-.enultrfasxy\\',
    '":',
    '": ',
    '", "',
    "[[",
    "]]",
    "}}",
    '{"a',
    "true,",
    "null",
    '"}',
    "12",
    "\n",
    "\n  ",
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("filler", [0, 5000])
def test_picks_are_followed_through_a_grammar_without_the_host(sampler: SamplerPage, filler: int) -> None:
    """Each step's mask is that of the grammar behind the picks before it; the rows are at different places."""
    source = random.Random(23)
    pieces = ["</s>", *PIECES, *(f"{source.choice('xyz')}{number}" for number in range(filler)), '"]']
    tokens, vocab = TokenBytes([piece if piece != "</s>" else "" for piece in written(pieces)], [0]), len(pieces)
    automaton = automaton_of(Guidance("json_schema", "{}").grammar)
    starts = ["", '{"a":[', "[[1,", '"x', "[" * 90, "-"]
    positions = [behind(automaton, automaton.start, start.encode()) for start in starts]
    rows = [typed([source.gauss(0, 3) for _ in range(vocab)], half=False) for _ in starts]
    table = automaton.table(tokens)
    options = [replace(each, guided=True, grammar=table, eos_token_ids=(0,)) for each in (GREEDY, SAMPLED, BOTH)]
    options.append(options[1].replace(repetition_penalty=1.3, no_repeat_ngram_size=2))
    steps = 9
    results = sampler.run(
        rows,
        options,
        sequences=[()] * len(rows),
        grammar=[stack for position in positions for stack in position],
        steps=steps,
        max_length=64,
        states=[State(length=0)] * len(rows),
    )
    ended = 0
    for option, result in zip(options, results, strict=True):
        for index, row in enumerate(rows):
            position, picked = positions[index], list[int]()
            for step in range(steps):
                mask = mask_of(automaton, position, tokens, vocab)
                expected = sample(row, option, step, index, tokens=picked, allowed=mask)
                assert result["ring"][index * steps + step] == expected, (option, index, step)
                picked.append(expected)
                if expected == 0:
                    ended += 1
                    break
                position = behind(automaton, position, tokens[expected])
    assert ended
    assert len(set(results[1]["ring"])) > 10


def test_where_a_mask_is_not_known_nothing_is_picked(sampler: SamplerPage) -> None:
    """A token that pushes more than there is room for, and a stack that is full; the host's mask then serves."""
    pieces = ["[", "1", "x"]
    automaton = automaton_of(Guidance("json_schema", "{}").grammar)
    full = behind(automaton, automaton.start, b"[" * STACK)
    nearly = behind(automaton, automaton.start, b"[" * (STACK - 1))
    assert [len(stack) for stack in full] == [STACK]
    row = typed([3.0, 0.0, 9.0, 5.0], half=False)
    found = []
    by_host: Position = frozenset({()})
    for last, position in (("[" * 40, automaton.start), ("y", full), ("y", nearly), ("[" * 40, by_host)):
        tokens = TokenBytes([*written(pieces), *written([last])], [])
        option = replace(GREEDY, guided=True, grammar=automaton.table(tokens))
        mask = (0b1010).to_bytes(4, "little")
        [result] = sampler.run([row], [option], sequences=[()], allowed=mask, grammar=[*position], steps=3)
        found.append(result["ring"])
    pad = GREEDY.pad_token_id
    assert found[0] == [NO_TOKEN, pad, pad]
    assert found[1] == [0, NO_TOKEN, pad]
    assert found[2] == [0, 0, NO_TOKEN]
    assert found[3] == [3, 3, 3], "without a position the host's mask counts"


def behind(automaton: Automaton, position: Position, data: bytes) -> Position:
    found = automaton.after(position, data)
    assert len(found) == 1
    return found


def written(pieces: Sequence[str]) -> list[str]:
    return [_in_alphabet(piece.encode()) for piece in pieces]


def mask_of(automaton: Automaton, position: Position, tokens: TokenBytes, vocab: int) -> bytes:
    """By the automaton on the host; token 0 ends outputs."""
    words = array("I", bytes(4 * -(-vocab // 32)))
    for token in range(vocab):
        fits = automaton.may_end(position) if token == 0 else automaton.after(position, tokens[token])
        if fits:
            words[token // 32] |= 1 << token % 32
    return words.tobytes()


@pytest.mark.extended
@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e6])
def test_a_bias_is_exact_to_the_bit(sampler: SamplerPage, scale: float) -> None:
    """Token 5 has a bias; 3 or 7 has the float32 that it must become. The lowest of equal ids wins."""
    source = np.random.default_rng(13)
    values = np.concatenate([source.normal(0, 4, 96), source.normal(0, 1e-38, 32), [0.0, -0.0]]).astype(np.float32)
    for bias in map(np.float32, (scale, -scale / 3, -values[1])):
        option = GREEDY.replace(logit_bias={5: float(bias), 1: 3.0})
        for other, expected in (3, 3), (7, 5):
            rows = np.full((len(values), 16), -np.inf, np.float32)
            rows[:, 5], rows[:, other] = values, values + bias
            (result,) = sampler.run([*rows], [option])
            assert result["ring"] == [expected] * len(rows)


NOTHING = 0xFFFFFFFE


@pytest.mark.parametrize(
    ("wrong_at", "state", "picked"),
    [
        (0, State(length=8), 1),
        (2, State(length=8), 3),
        (4, State(length=8), 5),
        (2, State(length=8, done=1), 0),
    ],
    ids=["no draft is right", "two are", "all are", "the row is done"],
)
def test_of_a_drafted_step_the_state_after_its_last_pick_is_left(
    sampler: SamplerPage, wrong_at: int, state: State, picked: int
) -> None:
    """The drafts are what followed the last two tokens; the pick after position `wrong_at` is not the draft behind."""
    vocab, sequence, drafts = 40, [1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]
    picks = [*drafts, 7]
    picks[wrong_at] = 9
    logits = np.zeros((len(picks), vocab), np.float32)
    logits[range(len(picks)), picks] = 1
    # The second one is of several workgroups.
    pasts = [np.arange(size) + 1000 for size in (3, 2000)]
    kepts = [np.stack([past + 10_000 * (1 + place) for place in range(len(picks))]) for past in pasts]
    option = GREEDY.replace(max_length=16)
    found = sampler.page.evaluate(
        "run => runDrafted(run)",
        {
            **sent(option, vocab, 16, [sequence], drafting=Drafting(len(drafts), 2)),
            "vocab": vocab,
            "logits": logits.reshape(-1).tolist(),
            "state": state.words(),
            "maxLength": 16,
            "states": [
                {"past": past.tolist(), "kept": kept.reshape(-1).tolist()}
                for past, kept in zip(pasts, kepts, strict=True)
            ],
        },
    )
    assert found["drafted"][::2] == [sequence[-1], *drafts]
    assert found["ring"] == [*picks[:picked], *[NOTHING] * (len(picks) - picked), POISON]
    for place, (past, kept) in enumerate(zip(pasts, kepts, strict=True)):
        assert found[f"past {place}"] == (kept[picked - 1] if picked else past).tolist()


def test_a_second_sampler_of_the_same_shape_makes_no_pipeline(sampler: SamplerPage) -> None:
    rows = [array("f", [0.0] * 513)]
    pipelines = [[result["pipelines"] for result in sampler.run(rows, [GREEDY, BOTH])] for _ in range(2)]
    assert pipelines == [[2, 5], [0, 0]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {
                "programs": [
                    {**sent(GREEDY, 3), "program": {"passes": ["beam"], "wgsl": "", "banWgsl": "", "rowWords": 0}}
                ]
            },
            'no pass "beam"',
        ),
        (
            {"programs": [{**sent(GREEDY.replace(repetition_penalty=2), 3), "memory": [1]}]},
            "1 words do not fit from row 0; a row has 3",
        ),
        ({"vocab": 4}, "logits has 12 bytes; it needs 16"),
        ({"vocab": 0}, "vocab is 0; it must be an integer from 1 to 16777216"),
        ({"rows": 65536}, "rows is 65536; it must be an integer from 1 to 65535"),
        ({"ringCapacity": 0}, "ringCapacity is 0"),
    ],
)
def test_parameters_and_targets_that_do_not_fit_are_refused(
    sampler: SamplerPage, change: dict[str, Any], message: str
) -> None:
    request: dict[str, Any] = {
        "rows": 1,
        "vocab": 3,
        "logitsType": "float32",
        "logits": base64.b64encode(bytes(12)).decode(),
        "programs": [sent(GREEDY, 3)],
        "steps": 1,
        "submits": 1,
        "state": State().words(),
        "ringCapacity": 1,
        "maxLength": 8,
        "positions": False,
    }
    with pytest.raises(Error, match=message):
        sampler.page.evaluate("request => runSampler(request)", {**request, **change})
