"""Prompts of several rows in the same runs: the oracle's sequences, from the second time on that such prompts come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from capstan.tape import PASSES
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.long_windows import PROMPT, longer

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PAD = 2
TOGETHER = [name for name in PASSES if name not in ("direct", "prefill")]


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (37 * i + 11 * seed + i * i % 13) % 500 for i in range(length)]


def padded(*lengths: int) -> list[list[int]]:
    """Prompts of these lengths, as a batch."""
    found = [prompt(number, length) for number, length in enumerate(lengths)]
    return [ids + [PAD] * (max(lengths) - len(ids)) for ids in found]


def told(*results: dict[str, Any]) -> tuple[int, int]:
    """The runs and tokens since the first of two results of the same rows, or in all."""
    found = [re.search(r"(\d+) runs had (\d+) tokens", result["said"]) for result in results]
    counts = [tuple(map(int, each.groups())) if each else (0, 0) for each in found]
    first, last = [(0, 0), *counts][-2:]
    return last[0] - first[0], last[1] - first[1]


def test_rows_of_any_length_are_run_together_and_long_ones_alone(scripts: PageScripts) -> None:
    short, long = padded(13, 1, 5, 2), padded(20, 129, 128, 1)
    runs: list[dict[str, Any]] = [{"prompts": short, "count": 6, "options": {"max_length": 19}}] * 2
    runs.append({"prompts": long, "count": 5, "options": {"max_length": 134}})
    found = scripts.run("packed", "batches", "nano-llama", model="nano-llama", runs=runs)
    for run, result in zip(runs, found, strict=True):
        assert result["sequences"] == oracle.rows(LLAMA, run["prompts"], **run["options"]).sequences
        assert not result["stepped down"]
    # All but the last token of each, in runs of eight on an adapter that is software.
    assert [told(*found[:2]), told(*found[1:])] == [(3, 17), (19, 146)]


@pytest.mark.extended
@pytest.mark.parametrize(
    "search", [{"repetition_penalty": 1.4}, {"num_beams": 2}, {"min_length": 18}], ids=["penalty", "beams", "least"]
)
def test_searches_begin_behind_them(search: dict[str, Any], scripts: PageScripts) -> None:
    options = {"max_length": 19, **search}
    runs = [{"prompts": padded(13, 1, 5, 2), "count": 6, "options": options}] * 2
    found = scripts.run("packed", "batches", "nano-llama", model="nano-llama", runs=runs)
    wanted = oracle.rows(LLAMA, padded(13, 1, 5, 2), **options).sequences
    assert [result["sequences"] for result in found] == [wanted, wanted]
    assert told(*found) == (3, 17)


@pytest.mark.extended
def test_caches_of_8_bits_hold_the_same(scripts: PageScripts) -> None:
    runs = [{"prompts": padded(13, 1, 5, 30), "count": 8}] * 2
    found = scripts.run("packed", "batches", "nano-llama", model="nano-llama", runs=runs, kv_cache_dtype="int8")
    assert found[0]["sequences"] == found[1]["sequences"]
    assert told(*found) == (6, 45)


def test_sequences_that_are_admitted_at_once_beside_others(variants: Variants, scripts: PageScripts) -> None:
    """The tape is recorded and checked while two sequences are under way."""
    begun = [prompt(number, length) for number, length in enumerate((30, 4, 21))]
    more = [[(0, prompt(7, 9)), (2, prompt(8, 3))], [(0, [5]), (1, prompt(9, 12)), (2, prompt(3, 2))]]
    name = variants.folder("nano-llama-admitted").name
    found = scripts.run("packed", "pooled", name, model=name, begun=begun, turns=more, count=3)
    given: list[list[int]] = [[], [], []]
    for turn, sequences in zip(([*enumerate(begun)], *more), found["found"], strict=True):
        for number, ids in turn:
            given[number] += ids
        given = [[*ids, *oracle.greedy(LLAMA, ids, 3)] for ids in given]
        assert sequences == given
    # Besides the last token of each, the last picks were not run yet.
    assert (told(found), found["stepped down"]) == ((4, 27), [])


@pytest.mark.extended
def test_rows_whose_caches_slide_keep_bases_of_their_own(variants: Variants, scripts: PageScripts) -> None:
    source = FIXTURES / "nano-gemma3"
    name = longer(source, variants.folder("nano-gemma3-packed", source)).name
    begun = [PROMPT[:620], PROMPT[40:360]]
    more = [[(0, prompt(7, 9)), (1, prompt(8, 30))]] * 2
    given = {"model": name, "begun": begun, "turns": more, "count": 3, "passes": TOGETHER}
    found = scripts.run("packed", "pooled", name, **given)
    sequences = begun
    for turn, results in zip(([], *more), found["found"], strict=True):
        sequences = [[*ids, *dict(turn).get(number, [])] for number, ids in enumerate(sequences)]
        sequences = [[*ids, *oracle.greedy(variants.place / name, ids, 3)] for ids in sequences]
        assert results == sequences
    assert (told(found), found["stepped down"]) == ((5, 39), [])


def test_a_row_that_begins_as_another_one_takes_its_start_over(scripts: PageScripts) -> None:
    start = prompt(1, 24)
    prompts = [[*start, 5, 6], [*start, 7, 8], prompt(2, 26), [*start[:20], *prompt(4, 6)]]
    given = {"model": "nano-llama", "runs": [prompts] * 3, "count": 4, "limit": 1}
    found = scripts.run("packed", "shared", "nano-llama", **given)
    wanted = oracle.rows(LLAMA, prompts, max_length=30).sequences
    assert [(result["sequences"], result["reused"]) for result in found] == [(wanted, 44)] * 3
    # The first and the third one, then what is left of the others.
    assert told(*found[1:]) == (8, 56)


def test_what_a_long_row_takes_over_is_not_overwritten_while_others_are_run(scripts: PageScripts) -> None:
    """Its place was that of a short row, at whose end the step that ends the others' prompts would write."""
    start = prompt(1, 24)
    short, *others = padded(154, 3, 5)[1:], [*start, *prompt(5, 130)], [*start, *prompt(6, 130)]
    runs = [[start], [short[0], others[0], short[1]], [short[0], others[0], short[1]], [others[1], *short]]
    given = {"model": "nano-llama", "runs": runs, "count": 4, "limit": 1 << 22}
    found = scripts.run("packed", "shared", "nano-llama", **given)
    for prompts, result in zip(runs[1:], found[1:], strict=True):
        assert result["sequences"] == oracle.rows(LLAMA, prompts, max_length=158).sequences
    assert [result["reused"] for result in found] == [0, 24, 153, 24]
    assert told(found[3])[1] > told(found[2])[1]


def test_a_run_that_writes_elsewhere_is_found_out(scripts: PageScripts) -> None:
    # No other test stores a tape for so many rows.
    prompts = padded(13, 1, 5, 2, 3)
    found = scripts.run("packed", "mixed_up", "nano-llama", model="nano-llama", prompts=prompts, count=6)
    assert found["sequences"] == [oracle.rows(LLAMA, prompts, max_length=19).sequences] * 2
    reason = "a run of tokens of 5 rows differs from steps of one row in kv "
    assert found["said"].startswith(f"run one after another: {reason}")
    [stepped_down] = found["stepped down"]
    assert stepped_down.startswith(f"prompts of several rows in the same runs: {reason}")


@pytest.mark.extended
def test_a_cancelled_wait_for_the_tape_loses_nothing(scripts: PageScripts) -> None:
    # No other test stores a tape for so many rows.
    prompts = padded(13, 1, 5, 2, 3, 4)
    found = scripts.run("packed", "cancelled", "nano-llama", model="nano-llama", prompts=prompts, count=6)
    assert found["ended"] == "CancelledError"
    assert found["sequences"] == oracle.rows(LLAMA, prompts, max_length=19).sequences
    assert told(found) == (3, 22)
