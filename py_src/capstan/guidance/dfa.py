"""Builds deterministic automata over characters, for the texts that several conditions all allow.

A pattern with a length, a format or another pattern is one automaton, whose states combine those of its parts. States
are found from the first one on, shorter texts first. At most MOST_WEIGHT are made: if there are more, longer texts are
left out, and the automaton is not `whole`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .grammar import Machine, NodeError, Ranges, united

__all__ = ["MOST_WEIGHT", "Dfa", "both", "explored", "lengths", "partition"]

MOST_WEIGHT = 4_000
"""The most states of one automaton. A state with characters beyond ASCII counts as 8, its number of states over
bytes.
"""
_WIDE = 8
_MOST_MERGED = 500
"""The largest automaton with circles whose equal states are merged."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Dfa:
    """An automaton that begins in state 0. Without states it matches no text."""

    symbols: tuple[Ranges, ...]
    """Sets of characters that all steps treat in the same way; texts have no characters outside these sets."""
    steps: tuple[tuple[int, ...], ...]
    """By state and symbol the next state, -1 for none."""
    ends: tuple[bool, ...]
    """By state, whether the text may end there."""
    whole: bool = True
    """Whether the automaton is complete: no text was left out because of the limit."""

    def matches(self, text: str) -> bool:
        state = 0 if self.ends else -1
        for code in map(ord, text):
            symbol = next((n for n, ranges in enumerate(self.symbols) if _within(code, ranges)), None)
            if state < 0 or symbol is None:
                return False
            state = self.steps[state][symbol]
        return state >= 0 and self.ends[state]

    def require_some(self, what: str, remedy: str) -> Dfa:
        """Return this automaton. Raise NodeError if it matches no text."""
        if not self.ends:
            if self.whole:
                raise NodeError(what, remedy)
            raise NodeError(f"its shortest text takes more than {MOST_WEIGHT} states", "write a shorter expression")
        return self

    def machine(self) -> Machine:
        rows: list[tuple[tuple[int, int, int], ...]] = []
        joined: dict[tuple[int, ...], Ranges] = {}
        for row in self.steps:
            by_target: dict[int, tuple[int, ...]] = {}
            for symbol, target in enumerate(row):
                if target >= 0:
                    by_target[target] = (*by_target.get(target, ()), symbol)
            for these in by_target.values():
                if these not in joined:
                    joined[these] = united(pair for symbol in these for pair in self.symbols[symbol])
            rows.append(tuple((*pair, target) for target, these in by_target.items() for pair in joined[these]))
        return Machine(tuple(rows), self.ends)


def lengths(least: int, most: int | None, characters: Ranges) -> Dfa:
    """Texts of `least` to `most` characters of a set."""
    last = least if most is None else most
    steps = [(state + 1,) for state in range(last)] + [(last if most is None else -1,)]
    return Dfa((characters,), tuple(steps), tuple(state >= least for state in range(last + 1)))


def both(all_of: Sequence[Dfa], none_of: Sequence[Dfa] = ()) -> Dfa:
    """The texts that all automata of `all_of` match and none of `none_of`; the latter must be whole."""
    if not all(part.whole for part in none_of):
        raise NodeError("it takes too many states to determine which texts do not match", "write a shorter pattern")
    parts = [*all_of, *none_of]
    needed = len(all_of)
    keys, symbols = [], []
    for key, ranges in partition([dict(enumerate(part.symbols)) for part in parts]).items():
        if None not in key[:needed]:
            keys.append(key)
            symbols.append(ranges)

    # State -1 stands for a text that no longer fits an automaton of `none_of`.
    def after(states: tuple[int, ...], symbol: int) -> tuple[int, ...] | None:
        following = tuple(
            -1 if state < 0 or own is None else part.steps[state][own]
            for part, state, own in zip(parts, states, keys[symbol], strict=True)
        )
        return None if -1 in following[:needed] else following

    def ends(states: tuple[int, ...]) -> bool:
        ending = [state >= 0 and part.ends[state] for state, part in zip(states, parts, strict=True)]
        return all(ending[:needed]) and not any(ending[needed:])

    start = tuple(0 if part.ends else -1 for part in parts)
    found = Dfa((), (), ()) if -1 in start[:needed] else explored(start, symbols, after, ends)
    return replace(found, whole=found.whole and all(part.whole for part in all_of))


def explored(
    start: Key,
    symbols: Sequence[Ranges],
    after: Callable[[Key, int], Key | None],
    ends: Callable[[Key], bool],
    room: Callable[[], bool] = lambda: True,
) -> Dfa:
    """The automaton of the states that can be reached from the first one, up to the limit."""
    wide = [any(last > 0x7F for _, last in ranges) for ranges in symbols]
    number = {start: 0}
    waiting = deque([start])
    steps: list[list[int]] = []
    ending: list[bool] = []
    weight = 0
    while waiting and weight <= MOST_WEIGHT and room():
        state = waiting.popleft()
        row: list[int] = []
        for symbol in range(len(symbols)):
            following = after(state, symbol)
            if following is not None and following not in number:
                number[following] = len(number)
                waiting.append(following)
            row.append(-1 if following is None else number[following])
        weight += _WIDE if any(target >= 0 and beyond for target, beyond in zip(row, wide, strict=True)) else 1
        steps.append(row)
        ending.append(ends(state))
    return replace(_kept(symbols, steps, ending), whole=not waiting)


def _kept(symbols: Sequence[Ranges], steps: Sequence[Sequence[int]], ends: Sequence[bool]) -> Dfa:
    """An automaton without the states from which no end is reached, and with equal states merged. Steps to states
    beyond the last one are dropped.
    """
    before: list[list[int]] = [[] for _ in steps]
    for state, row in enumerate(steps):
        for target in {*row}:
            if 0 <= target < len(steps):
                before[target].append(state)
    alive = {state for state, end in enumerate(ends) if end}
    waiting = list(alive)
    while waiting:
        more = [state for state in before[waiting.pop()] if state not in alive]
        alive.update(more)
        waiting += more
    if 0 not in alive:
        return Dfa((), (), ())
    rows = {state: tuple(target if target in alive else -1 for target in steps[state]) for state in sorted(alive)}
    merged = _merged(rows, ends)
    names = {group: number for number, group in enumerate(dict.fromkeys(merged[state] for state in rows))}
    first = {names[merged[state]]: state for state in reversed(rows)}
    new_steps = tuple(
        tuple(names[merged[target]] if target >= 0 else -1 for target in rows[first[number]])
        for number in range(len(names))
    )
    used = [n for n in range(len(symbols)) if any(row[n] >= 0 for row in new_steps)]
    return Dfa(
        tuple(symbols[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in new_steps),
        tuple(ends[first[number]] for number in range(len(names))),
    )


def _merged(rows: Mapping[int, tuple[int, ...]], ends: Sequence[bool]) -> dict[int, Hashable]:
    """The same value for states from which the same texts lead to an end."""
    order = _last_first(rows)
    found: dict[int, Hashable] = {}
    if order is not None:
        known: dict[Hashable, int] = {}
        for state in order:
            key = (ends[state], tuple(found[target] if target >= 0 else -1 for target in rows[state]))
            found[state] = known.setdefault(key, len(known))
        return found
    if len(rows) > _MOST_MERGED:
        return {state: state for state in rows}
    found = {state: ends[state] for state in rows}
    groups = 0
    while len(set(found.values())) > groups:
        groups = len(set(found.values()))
        keys = {state: (found[state], *(found[t] if t >= 0 else -1 for t in row)) for state, row in rows.items()}
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
        found = {state: numbers[key] for state, key in keys.items()}
    return found


def _last_first(rows: Mapping[int, tuple[int, ...]]) -> list[int] | None:
    """The states, each after those that it leads to; None if there is a circle."""
    leaving = {state: len({target for target in row if target >= 0}) for state, row in rows.items()}
    before: dict[int, list[int]] = {state: [] for state in rows}
    for state, row in rows.items():
        for target in {target for target in row if target >= 0}:
            before[target].append(state)
    order = [state for state, count in leaving.items() if count == 0]
    for state in order:
        for earlier in before[state]:
            leaving[earlier] -= 1
            if leaving[earlier] == 0:
                order.append(earlier)
    return order if len(order) == len(rows) else None


def partition(parts: Sequence[Mapping[int, Ranges]]) -> dict[tuple[int | None, ...], Ranges]:
    """Disjoint sets of characters, each keyed by the sets that contain it, one of each part (None if the part has
    none); the sets of one part do not overlap.
    """
    changes: dict[int, list[tuple[int, int | None]]] = {}
    for number, sets in enumerate(parts):
        for name, ranges in sets.items():
            for first, last in ranges:
                changes.setdefault(last + 1, []).insert(0, (number, None))
                changes.setdefault(first, []).append((number, name))
    now: list[int | None] = [None] * len(parts)
    found: dict[tuple[int | None, ...], list[tuple[int, int]]] = {}
    start = 0
    for edge in sorted(changes):
        if any(name is not None for name in now):
            found.setdefault(tuple(now), []).append((start, edge - 1))
        for number, begun in changes[edge]:
            now[number] = begun
        start = edge
    return {key: united(ranges) for key, ranges in found.items()}


def _within(code: int, ranges: Ranges) -> bool:
    return any(first <= code <= last for first, last in ranges)
