"""A grammar as an automaton with a stack, over bytes: a GPU can follow it.

A state and a byte give the next state, and the states that are pushed: the automaton continues from those when a rule
called here has ended. If a state has no step for the byte and may end its rule, the state on top of the stack replaces
it. A grammar has such an automaton if the next byte always tells whether a rule has ended, and which one begins. Rules
for which it does not are copied into each place of their use; NoAutomatonError if that is not possible.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise

from ..stages import GrammarTable
from .byte_graph import ByteGraph, NoAutomatonError
from .grammar import Grammar
from .vocabulary import TokenBytes

__all__ = ["Automaton", "NoAutomatonError", "Position", "automaton_of"]

MOST_STATES = 20_000
MOST_VISITS = 2_000_000
MOST_WORDS = 1 << 21
"""The largest table."""

Position = tuple[int, ...]
"""The stack, its top last: the state that reads the next byte."""

Step = tuple[tuple[int, ...], int]
"""The pushed states, from the bottom up, and the next state."""


class _ClashError(Exception):
    """Rules cannot be told apart by the next byte; of each such set the one that is used least."""

    def __init__(self, sets: Iterable[set[str]], graph: ByteGraph) -> None:
        # Names of repeated nodes are addresses: the order of the graph makes the same automaton each time.
        order = {name: (graph.uses[name], number) for number, name in enumerate(graph.starts)}
        self.rules = {min(rules, key=lambda name: order[name]) for rules in sets}


class Automaton:
    """`steps` by state: the step for each class of bytes."""

    def __init__(self, classes: bytes, steps: list[dict[int, Step]], accepting: list[bool]) -> None:
        self.classes = classes
        """The class of each byte."""
        self.steps = steps
        self.accepting = accepting
        """By state, whether its rule may end there."""

    start: Position = (0,)

    def after(self, position: Position, data: bytes) -> Position | None:
        """The position after some bytes; None if they do not fit."""
        stack = list(position)
        for byte in data:
            symbol = self.classes[byte]
            while symbol not in self.steps[stack[-1]]:
                if len(stack) == 1 or not self.accepting[stack[-1]]:
                    return None
                stack.pop()
            pushed, following = self.steps[stack[-1]][symbol]
            stack[-1:] = [*pushed, following]
        return tuple(stack)

    def may_end(self, position: Position) -> bool:
        """Whether the output may end here."""
        return all(self.accepting[state] for state in position)

    def table(self, tokens: TokenBytes) -> GrammarTable:
        """The same as the GPU takes it. Raises NoAutomatonError if it is too large."""
        width = max(self.classes) + 2
        lists: dict[tuple[int, ...], int] = {(): 0}
        pushes = array("I", [0])
        if width * len(self.steps) > MOST_WORDS:
            raise NoAutomatonError(f"its table takes more than {MOST_WORDS} words")
        steps = array("I", bytes(4 * width * len(self.steps)))
        for state, row in enumerate(self.steps):
            for symbol, (pushed, following) in row.items():
                if pushed not in lists:
                    lists[pushed] = len(pushes)
                    pushes.extend((len(pushed), *pushed))
                steps[state * width + symbol] = lists[pushed] << 16 | following + 1
            steps[state * width + width - 1] = self.accepting[state]
            if len(pushes) > 0xFFFF:
                raise NoAutomatonError("too many rules begin in different places")
        words = array("I")
        words.frombytes(self.classes)
        pushes_at = len(words) + len(steps)
        tokens_at = pushes_at + len(pushes)
        bytes_at = tokens_at + len(tokens.ends)
        return GrammarTable(words + steps + pushes + tokens.ends + tokens.data, width, pushes_at, tokens_at, bytes_at)


def automaton_of(grammar: Grammar) -> Automaton:
    """Raises NoAutomatonError."""
    joined: set[str] = set()
    while True:
        try:
            return _Builder(ByteGraph(grammar, joined)).automaton()
        except _ClashError as clash:
            if clash.rules <= joined:
                raise NoAutomatonError("the next byte does not tell which rule has ended") from None
            joined |= clash.rules
        except RecursionError:
            raise NoAutomatonError("its rules are nested too deeply") from None


class _Builder:
    """States are sets of the graph's states, of one rule."""

    def __init__(self, graph: ByteGraph) -> None:
        self._graph = graph
        edges = {edge for edges in graph.edges for edge in edges}
        bounds = sorted({0, 256} | {low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
        self._class = bytes(symbol for symbol, (a, b) in enumerate(pairwise(bounds)) for _ in range(a, b))
        self._accepts = {state: name for name, state in graph.accepts.items()}
        self._number: dict[frozenset[int], int] = {}
        self._members: list[frozenset[int]] = []
        self._owner: list[str] = []
        self._steps: list[dict[int, Step] | None] = []
        self._making: set[int] = set()
        self._visits = 0
        self._clashes: list[set[str]] = []
        self._calls: dict[str, list[tuple[str, int]]] = {name: [] for name in graph.starts}
        """Who calls a rule, and the state where it goes on."""

    def automaton(self) -> Automaton:
        graph = self._graph
        for name in ("root", *(name for name in graph.starts if name != "root")):
            self._state([graph.starts[name]], name)
        for number in reversed(range(len(self._members))):  # Called rules stand behind their callers.
            self._row(number)
        at = 0
        while at < len(self._members):
            self._row(at)
            at += 1
        if self._clashes:
            raise _ClashError(self._clashes, graph)
        accepting = [any(state in self._accepts for state in members) for members in self._members]
        self._require_ends_told(accepting)
        return Automaton(self._class, [row for row in self._steps if row is not None], accepting)

    def _state(self, given: Iterable[int], owner: str) -> int:
        members = self._closed(given)
        if members not in self._number:
            if len(self._members) >= MOST_STATES:
                raise NoAutomatonError(f"it takes more than {MOST_STATES} states")
            self._number[members] = len(self._members)
            self._members.append(members)
            self._owner.append(owner)
            self._steps.append(None)
        return self._number[members]

    def _closed(self, given: Iterable[int]) -> frozenset[int]:
        graph, seen, waiting = self._graph, set(given), list(given)
        while waiting:
            state = waiting.pop()
            more = list(graph.empty[state])
            call = graph.calls[state]
            if call is not None and call[0] in graph.nullable:
                more.append(call[1])
            more = [each for each in more if each not in seen]
            seen.update(more)
            waiting += more
        self._visits += len(seen)
        if self._visits > MOST_VISITS:
            raise NoAutomatonError(f"its states are sets of more than {MOST_VISITS} members in all")
        return frozenset(
            state for state in seen if graph.edges[state] or graph.calls[state] is not None or state in self._accepts
        )

    def _row(self, number: int) -> dict[int, Step]:
        """The steps of a state, by class of bytes."""
        found = self._steps[number]
        if found is not None:
            return found
        if number in self._making:
            raise NoAutomatonError("a rule begins with itself")
        self._making.add(number)
        graph, owner = self._graph, self._owner[number]
        inside: dict[int, set[int]] = {}
        calls: dict[str, set[int]] = {}
        for state in self._members[number]:
            for low, high, target in graph.edges[state]:
                for symbol in range(self._class[low], self._class[high] + 1):
                    inside.setdefault(symbol, set()).add(target)
            call = graph.calls[state]
            if call is not None:
                calls.setdefault(call[0], set()).add(call[1])
        targets: dict[frozenset[int], int] = {}
        row: dict[int, Step] = {}
        for symbol, states in inside.items():
            key = frozenset(states)
            if key not in targets:
                targets[key] = self._state(states, owner)
            row[symbol] = ((), targets[key])
        by: dict[int, str] = {}
        for name, behind in calls.items():
            following = self._state(behind, owner)
            self._calls[name].append((owner, following))
            ends = self._members[following] == {graph.accepts[owner]}
            for symbol, (pushed, first) in self._row(self._number[self._closed([graph.starts[name]])]).items():
                if symbol in row:
                    self._clashes.append({name, by.get(symbol, name)})
                else:
                    by[symbol] = name
                    row[symbol] = (pushed if ends else (following, *pushed), first)
        self._steps[number] = row
        self._making.discard(number)
        return row

    def _require_ends_told(self, accepting: list[bool]) -> None:
        """Raise _ClashError for rules that may go on with a byte that may also follow them."""
        first = [set(row or ()) for row in self._steps]
        follow: dict[str, set[int]] = {name: set() for name in self._calls}
        changed = True
        while changed:
            changed = False
            for name, sites in self._calls.items():
                size = len(follow[name])
                for owner, following in sites:
                    follow[name] |= first[following]
                    if accepting[following]:
                        follow[name] |= follow[owner]
                changed |= len(follow[name]) > size
        clashes = {
            frozenset((self._owner[state],))
            for state, ends in enumerate(accepting)
            if ends and first[state] & follow[self._owner[state]]
        }
        if clashes:
            raise _ClashError(map(set, clashes), self._graph)
