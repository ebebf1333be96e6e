"""Turns expressions with look-around and anchors into deterministic automata, whose states are sets of an expression's
states.

Look-ahead is a promise that a walk through the expression carries: a set of states that later text keeps or breaks. For
each look-behind, an automaton state also has the states that its expression has reached in the preceding text.
Look-behind within look-ahead works; other look-around within look-around is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .dfa import Dfa, explored, partition
from .grammar import (
    ANY_CHARACTER,
    Chars,
    Choice,
    Edge,
    Look,
    Machine,
    Node,
    NodeError,
    Ranges,
    Repeat,
    Rule,
    Series,
    Special,
    Text,
    chars,
)

__all__ = ["ANYTHING", "determined", "looks", "plain"]

ANYTHING = Repeat(Chars(ANY_CHARACTER), 0, None)
_MOST_STATES = 20_000
MOST_VISITS = 500_000
"""The most members of all sets of states together."""

_Test = Edge | tuple[Look, int]
"""An anchor, or look-around with its first state, or the number of a look-behind."""
_Promise = tuple[bool, frozenset[int]]
"""A promise: whether the text must break it, and its states."""
_Walk = tuple[int, frozenset[_Promise]]
_Key = tuple[frozenset[_Walk], tuple[frozenset[int], ...], bool]
"""A state of the automaton: the walks, the states of each look-behind, and whether this is the start of the text."""


def looks(node: Node) -> bool:
    """Whether the node has look-around or an anchor."""
    match node:
        case Look() | Edge():
            return True
        case Series(items) | Choice(items):
            return any(map(looks, items))
        case Repeat(item):
            return looks(item)
        case _:
            return False


def plain(node: Node) -> Node:
    """The node itself or, if it has look-around, a machine for its texts. Raises NodeError if it matches no text."""
    if not looks(node):
        return node
    return determined(node).require_some("no text matches it", "correct its look-around or anchors").machine()


def determined(node: Node) -> Dfa:
    """An automaton for the texts that a node without rules matches. Raises NodeError."""
    return _Walks(node).dfa()


@dataclass
class _State:
    moves: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of sets of characters, each with the next state."""
    jumps: list[int] = field(default_factory=list)
    """The states that a state reaches without a character."""
    test: tuple[_Test, int] | None = None
    """The anchor or look-around of a state, with the state after it."""


class _Walks:
    def __init__(self, node: Node) -> None:
        self._states: list[_State] = []
        self._sets: dict[Ranges, int] = {}
        self._behind: list[tuple[int, int]] = []
        """The first and the last state of each look-behind."""
        self._within: list[Look] = []
        """The kind of look-around that is being compiled."""
        self._known: dict[Look, int] = {}
        """The first state of each look-ahead, the number of each look-behind."""
        self._last: set[int] = set()
        """The ends of look-ahead and of look-behind."""
        self._visits = 0
        self._after_promises: dict[tuple[frozenset[int], int, tuple[frozenset[int], ...]], frozenset[int]] = {}
        self._end = self._state()
        self._start = self._compiled(node, self._end)
        self._symbols = partition([{0: ranges} for ranges in self._sets])
        self._moves = [
            {
                symbol: frozenset(target for number, target in state.moves if key[number] is not None)
                for symbol, key in enumerate(self._symbols)
            }
            if state.moves
            else {}
            for state in self._states
        ]

    def _state(self) -> int:
        if len(self._states) >= _MOST_STATES:
            raise NodeError(f"it takes more than {_MOST_STATES} states", "ask for fewer repetitions")
        self._states.append(_State())
        return len(self._states) - 1

    def _compiled(self, node: Node, behind: int) -> int:
        match node:
            case Text(text):
                for character in reversed(text):
                    behind = self._compiled(chars(character), behind)
                return behind
            case Chars(ranges):
                found = self._state()
                self._states[found].moves.append((self._sets.setdefault(ranges, len(self._sets)), behind))
                return found
            case Series(items):
                for item in reversed(items):
                    behind = self._compiled(item, behind)
                return behind
            case Choice(items):
                found = self._state()
                self._states[found].jumps = [self._compiled(item, behind) for item in items]
                return found
            case Repeat(item, least, most):
                return self._repeated(item, least, most, behind)
            case Machine():
                return self._machine(node, behind)
            case Edge(end):
                if end and self._within and self._within[-1].behind:
                    raise NodeError("a look-behind contains an end of the text", "write the expression without it")
                found = self._state()
                self._states[found].test = (node, behind)
                return found
            case Look():
                return self._look(node, behind)
            case Rule() | Special():
                raise AssertionError("expressions have no rules")

    def _repeated(self, item: Node, least: int, most: int | None, behind: int) -> int:
        if most is None:
            after = self._state()
            self._states[after].jumps = [self._compiled(item, after), behind]
        else:
            after = behind
            for _ in range(most - least):
                one = self._state()
                self._states[one].jumps = [self._compiled(item, after), behind]
                after = one
        for _ in range(least):
            after = self._compiled(item, after)
        return after

    def _machine(self, machine: Machine, behind: int) -> int:
        states = [self._state() for _ in machine.ends]
        for state, row, ends in zip(states, machine.steps, machine.ends, strict=True):
            for first, last, target in row:
                number = self._sets.setdefault(((first, last),), len(self._sets))
                self._states[state].moves.append((number, states[target]))
            self._states[state].jumps += ends * [behind]
        return states[0]

    def _look(self, node: Look, behind: int) -> int:
        if self._within and (self._within[-1].behind or not node.behind):
            raise NodeError("a look-around contains another look-around", "write the expression without it")
        first = self._known.get(node)
        if first is None:
            self._within.append(node)
            last = self._state()
            self._last.add(last)
            first = self._compiled(Series((ANYTHING, node.item)) if node.behind else node.item, last)
            self._within.pop()
            if node.behind:
                self._behind.append((first, last))
                first = len(self._behind) - 1
            self._known[node] = first
        found = self._state()
        self._states[found].test = ((node, first), behind)
        return found

    def dfa(self) -> Dfa:
        symbols = [*self._symbols.values()]
        return explored(self._begun(), symbols, self._after, self._ends, lambda: self._visits <= MOST_VISITS)

    def _begun(self) -> _Key:
        behind = tuple(self._closed({first}, True, ()) for first, _ in self._behind)
        return self._walks({(self._start, frozenset())}, behind, True), behind, True

    def _after(self, key: _Key, symbol: int) -> _Key | None:
        walks, behind, _ = key
        now = tuple(self._closed(self._moved(states, symbol), False, ()) for states in behind)
        found: set[_Walk] = set()
        kept_promises: dict[frozenset[_Promise], frozenset[_Promise] | None] = {}
        for state, promises in walks:
            targets = self._moves[state].get(symbol)
            if not targets:
                continue
            if promises not in kept_promises:
                kept_promises[promises] = self._kept(promises, symbol, now)
            left = kept_promises[promises]
            if left is not None:
                found.update((target, left) for target in targets)
        return (self._walks(found, now, False), now, False) if found else None

    def _read(self, states: frozenset[int], symbol: int, behind: tuple[frozenset[int], ...]) -> frozenset[int]:
        """The states of a promise after a character."""
        key = (states, symbol, behind)
        if key not in self._after_promises:
            self._after_promises[key] = self._closed(self._moved(states, symbol), False, behind)
        return self._after_promises[key]

    def _moved(self, states: Iterable[int], symbol: int) -> set[int]:
        return {target for state in states for target in self._moves[state].get(symbol, ())}

    def _kept(
        self, promises: frozenset[_Promise], symbol: int, behind: tuple[frozenset[int], ...]
    ) -> frozenset[_Promise] | None:
        """The promises that are still open after a character; None if one is broken."""
        found: set[_Promise] = set()
        self._visits += len(promises)
        for negated, states in promises:
            after = self._read(states, symbol, behind)
            done = not self._last.isdisjoint(after)
            if done is negated and (done or not after):
                return None
            if not done and after:
                found.add((negated, after))
        return frozenset(found)

    def _passes(self, test: _Test, first: bool, end: bool, behind: tuple[frozenset[int], ...]) -> bool:
        """Whether an anchor or a look-behind holds here."""
        if isinstance(test, Edge):
            return end if test.end else first
        look, number = test
        return (self._behind[number][1] in behind[number]) != look.negated

    def _closed(
        self, given: Iterable[int], first: bool, behind: tuple[frozenset[int], ...], end: bool = False
    ) -> frozenset[int]:
        """These states and those that they reach without a character, outside of promises."""
        seen = set(given)
        waiting = list(seen)
        while waiting:
            state = self._states[waiting.pop()]
            more = list(state.jumps)
            if state.test is not None and self._passes(state.test[0], first, end, behind):
                more.append(state.test[1])
            more = [each for each in more if each not in seen]
            seen.update(more)
            waiting += more
        self._visits += len(seen)
        return frozenset(state for state in seen if state in self._last or self._goes_on(state))

    def _goes_on(self, state: int) -> bool:
        """Whether the next character, or the end of the text, matters to a state."""
        test = self._states[state].test
        return bool(self._moves[state]) or (test is not None and isinstance(test[0], Edge) and test[0].end)

    def _walks(
        self, given: set[_Walk], behind: tuple[frozenset[int], ...], first: bool, end: bool = False
    ) -> frozenset[_Walk]:
        """These walks and those that they reach without a character."""
        seen = set(given)
        waiting = list(seen)
        while waiting:
            number, promises = waiting.pop()
            state = self._states[number]
            more = [(target, promises) for target in state.jumps]
            if state.test is not None:
                test, target = state.test
                if isinstance(test, Edge) or test[0].behind:
                    if self._passes(test, first, end, behind):
                        more.append((target, promises))
                else:
                    look, start = test
                    ahead = self._closed({start}, first, behind, end)
                    done = not self._last.isdisjoint(ahead)
                    if end or done:
                        if done is not look.negated:
                            more.append((target, promises))
                    else:
                        more.append((target, promises | {(look.negated, ahead)}))
            more = [each for each in more if each not in seen]
            seen.update(more)
            waiting += more
        self._visits += len(seen)
        return frozenset(walk for walk in seen if walk[0] == self._end or self._goes_on(walk[0]))

    def _ends(self, key: _Key) -> bool:
        """Whether the text may end with these walks."""
        walks, behind, first = key
        for state, promises in self._walks(set(walks), behind, first, True):
            if state == self._end and all(
                self._last.isdisjoint(self._closed(states, first, behind, True)) is negated
                for negated, states in promises
            ):
                return True
        return False
