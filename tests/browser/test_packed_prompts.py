"""Prompts of several rows in runs of tokens of any of them: the oracle's sequences, from the second prompts on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (37 * i + 11 * seed) % 500 for i in range(length)]


PAD = 2


def padded(*lengths: int) -> list[list[int]]:
    """Prompts of these lengths, as a batch."""
    found = [prompt(number, length) for number, length in enumerate(lengths)]
    return [ids + [PAD] * (max(lengths) - len(ids)) for ids in found]


def test_rows_of_any_length(scripts: PageScripts) -> None:
    prompts = padded(13, 1, 5, 2)
    runs: list[dict[str, Any]] = [{"prompts": prompts, "count": 6}] * 3
    found = scripts.run("packed", "batches", "nano-llama", model="nano-llama", runs=runs)
    print(found)
    wanted = oracle.rows(LLAMA, prompts, max_length=13 + 6).sequences
    assert [result["sequences"] for result in found] == [[wanted]] * 3
