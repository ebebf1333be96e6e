"""Rows that are decoders of their own: which decoder a row continues after a reordering, and how it draws."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from capstan.device.separate_rows import SeparateRows
from capstan.stages.search import SearchOptions
from tests.unit.paper_model import PaperDecoder

SAMPLED = SearchOptions(max_length=64, do_sample=True, random_seed=7)
GREEDY = SAMPLED.replace(do_sample=False)


class NumberedDecoder(PaperDecoder):
    """Notes the rows by whose numbers it draws, and takes over the cache of another."""

    def __init__(self, number: int) -> None:
        super().__init__(64)
        self.number = number
        self.cache = [number]
        self.drawn_as: list[int] = []

    def set_search(self, options: SearchOptions, row: int = 0) -> None:
        self.drawn_as.append(row)

    def copy_from(self, other: PaperDecoder) -> None:
        self.cache = list(other.cache)


def reordered(parents: Sequence[int], options: SearchOptions) -> list[NumberedDecoder]:
    made = [NumberedDecoder(number) for number in range(len(parents))]
    rows = SeparateRows(made)
    for row in range(len(parents)):
        rows.set_search(options, row)
    for decoder in made:
        decoder.drawn_as.clear()
    rows.reorder(parents)
    return rows.decoders


@pytest.mark.parametrize("parents", [[0, 1, 2], [1, 0, 2], [2, 2, 2], [1, 1, 0], [0, 0, 1]])
def test_each_row_has_its_parents_cache_and_a_decoder_of_its_own(parents: list[int]) -> None:
    found = reordered(parents, GREEDY)
    assert [decoder.cache for decoder in found] == [[parent] for parent in parents]
    assert len({decoder.number for decoder in found}) == len(parents)


def test_a_row_that_draws_does_so_by_its_own_number_in_another_decoder() -> None:
    found = reordered([1, 0, 2], SAMPLED)
    assert [(decoder.number, decoder.drawn_as) for decoder in found] == [(1, [0]), (0, [1]), (2, [])]
    assert [decoder.drawn_as for decoder in reordered([1, 0, 2], GREEDY)] == [[], [], []]
