"""Finds regular expressions whose search takes quadratic time.

Each failed try reads to the end of a run of characters, and the next try begins one character later: `a+b` reads all of
`aaaa` before it fails. Such runs must then be short. The search is harmless where another part takes the whole run at
once, as `\\s+` does after `\\s+(?!\\S)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from .expressions import UnreadError, Walks, walks_of

__all__ = ["LONGEST_RUN", "longest_run", "searched_again"]

LONGEST_RUN = 20_000
"""The longest run of characters that is read again from each of them, which takes about a second."""


@lru_cache(maxsize=256)
def searched_again(expression: str) -> tuple[Callable[[str], bool], ...]:
    """For each repeated part whose search takes quadratic time, a function that returns whether the part can read a
    character.
    """
    try:
        walks = walks_of(expression)
    except (UnreadError, re.error, OverflowError, RecursionError):
        return ()  # `danger` refuses the expression.
    return tuple(test_of(walks, loop) for loop in loops(walks) if searches_again(walks, loop))


def longest_run(text: str, reads: Callable[[str], bool]) -> int:
    """The length of the single run of characters that would take a search as long as all runs in the text do together.
    Characters for which `reads` is true form runs.
    """
    known = {character: reads(character) for character in set(text)}
    runs = groupby(map(known.__getitem__, text))
    return int(sum(sum(1 for _ in run) ** 2 for read, run in runs if read) ** 0.5)


def loops(walks: Walks) -> Iterator[frozenset[int]]:
    """The positions of each repeated part."""
    reached = [walks.after(position) for position in range(len(walks.follow))]
    yield from {
        frozenset(p for p in found if position in reached[p])
        for position, found in enumerate(reached)
        if position in found
    }


def searches_again(walks: Walks, loop: frozenset[int]) -> bool:
    """Whether a try may begin at each character of a run that `loop` reads, read it to its end, and fail."""
    read = members(walks, loop)
    for part in walks.looked_at:
        if loop & reached_by(walks, part.first, read):
            return True
    begun = reached_by(walks, walks.whole.first, read)
    return bool(loop & begun) and not loop <= walks.whole.final and not taken_at_once(walks, loop, read)


def taken_at_once(walks: Walks, loop: frozenset[int], read: frozenset[str]) -> bool:
    """Whether another repeated part, which cannot fail, takes the whole run, and no part before it takes a piece of the
    run.

    A match that first repeats a set of the whole run takes the longest possible piece at once, so that only a rest is
    left.
    """
    whole = {p for p, after in enumerate(walks.follow) if p in after and read <= walks.matched(p)}
    later = {p for q in whole | loop for p in walks.after(q)}
    ends = (walks.whole.last.keys() & reached_by(walks, walks.whole.first, read)) - later
    return any(not any(end < p for end in ends) for p in whole & walks.whole.first.keys() & walks.whole.final)


def reached_by(walks: Walks, first: Iterable[int], read: frozenset[str]) -> set[int]:
    """The positions after any number of these characters, from `first` on."""
    found: set[int] = set()
    waiting = [*first]
    while waiting:
        position = waiting.pop()
        if position not in found and walks.matched(position) & read:
            found.add(position)
            waiting += walks.follow[position]
    return found


def members(walks: Walks, positions: Iterable[int]) -> frozenset[str]:
    return frozenset[str]().union(*(walks.matched(position) for position in positions))


def test_of(walks: Walks, positions: Iterable[int]) -> Callable[[str], bool]:
    tests = [walks.tests[position] for position in positions]
    return lambda character: any(test(character) is not False for test in tests)
