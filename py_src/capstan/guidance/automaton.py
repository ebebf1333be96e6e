"""Turns a grammar into an automaton with a stack, which reads bytes.

A state and a byte give the next state, and the states that are pushed: the automaton continues from these when a rule
called here has ended. If a state may end its rule, the state on top of the stack may replace it. If the next byte
always determines whether a rule has ended, and which one begins, there is one stack, and a GPU can follow it. Other
rules are copied into each place of their use. If that is impossible, each reading has a stack.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise

from ..stages import GrammarTable
from .byte_graph import ByteGraph
from .grammar import Grammar, NodeError
from .left_recursion import without_left_recursion
from .vocabulary import TokenBytes

__all__ = ["Automaton", "NoTableError", "Position", "automaton_of"]

MOST_STATES = 40_000
MOST_VISITS = 2_000_000
MOST_WORDS = 1 << 21
"""The largest table."""
MOST_STACKS = 500
"""The most readings of one output."""
SMALLER = "ask for fewer alternatives or repetitions"

Stack = tuple[int, ...]
"""A stack of states. The last one is the top, the state that reads the next byte."""

Position = frozenset[Stack]
"""The position of an output: the stack of each reading. Empty if the output does not fit."""

Step = tuple[tuple[int, ...], int]
"""The pushed states, from the bottom up, and the next state."""


class _ClashError(Exception):
    """Raised if the next byte does not distinguish some rules; it has the least used rule of each such set."""

    def __init__(self, sets: Iterable[set[str]], graph: ByteGraph) -> None:
        # Names of repeated nodes are addresses, so the order of the graph is used, which makes the same automaton each
        # time.
        order = {name: (graph.uses[name], number) for number, name in enumerate(graph.starts)}
        self.rules = {min(rules, key=lambda name: order[name]) for rules in sets}


class NoTableError(Exception):
    """Raised if the GPU cannot follow an automaton; the message is the reason."""


class Automaton:
    """`steps` by state: the steps for each class of bytes."""

    def __init__(
        self, classes: bytes, steps: list[dict[int, tuple[Step, ...]]], accepting: list[bool], ambiguous: bool
    ) -> None:
        self.classes = classes
        """The class of each byte."""
        self.steps = steps
        self.accepting = accepting
        """By state, whether its rule may end there."""
        self.ambiguous = ambiguous
        """Whether an output may have several readings."""

    start: Position = frozenset({(0,)})

    def after(self, position: Position, data: bytes) -> Position:
        """The position after some bytes. Raises NodeError for too many readings."""
        for byte in data:
            position = self.step(position, self.classes[byte])
        return position

    def step(self, position: Position, symbol: int) -> Position:
        """The position after a byte of the class `symbol`."""
        found: set[Stack] = set()
        for stack in position:
            for at in reversed(range(len(stack))):
                for pushed, following in self.steps[stack[at]].get(symbol, ()):
                    found.add((*stack[:at], *pushed, following))
                if not self.accepting[stack[at]]:
                    break
        if len(found) > MOST_STACKS:
            raise NodeError(
                f"the output can be read in more than {MOST_STACKS} ways", "begin the rules with different text"
            )
        return frozenset(found)

    def forced(self, position: Position, most: int) -> str:
        """The text that must come next, in whole characters and at most `most` bytes; "" if there is a choice. Raises
        NodeError."""
        found = bytearray()
        while len(found) < most and not self.may_end(position):
            symbols = {symbol for stack in position for state in stack for symbol in self.steps[state]}
            fitting = [symbol for symbol in symbols if self.step(position, symbol)]
            if len(fitting) != 1 or self.classes.count(fitting[0]) > 1:
                break
            found.append(self.classes.index(fitting[0]))
            position = self.step(position, fitting[0])
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            return found[: error.start].decode()

    def may_end(self, position: Position) -> bool:
        """Whether the output may end here."""
        return any(all(self.accepting[state] for state in stack) for stack in position)

    def table(self, tokens: TokenBytes) -> GrammarTable:
        """The automaton as the GPU's table. Raises NoTableError."""
        width = max(self.classes) + 2
        lists: dict[tuple[int, ...], int] = {(): 0}
        pushes = array("I", [0])
        if self.ambiguous:
            raise NoTableError("the next byte does not determine which rule has ended")
        if width * len(self.steps) > MOST_WORDS:
            raise NoTableError(f"its table takes more than {MOST_WORDS} words")
        steps = array("I", bytes(4 * width * len(self.steps)))
        for state, row in enumerate(self.steps):
            for symbol, [(pushed, following)] in row.items():
                if pushed not in lists:
                    lists[pushed] = len(pushes)
                    pushes.extend((len(pushed), *pushed))
                steps[state * width + symbol] = lists[pushed] << 16 | following + 1
            steps[state * width + width - 1] = self.accepting[state]
            if len(pushes) > 0xFFFF:
                raise NoTableError("too many rules begin in different places")
        words = array("I")
        words.frombytes(self.classes)
        pushes_at = len(words) + len(steps)
        tokens_at = pushes_at + len(pushes)
        bytes_at = tokens_at + len(tokens.ends)
        return GrammarTable(words + steps + pushes + tokens.ends + tokens.data, width, pushes_at, tokens_at, bytes_at)


def automaton_of(grammar: Grammar) -> Automaton:
    """The automaton of a grammar. Raises NodeError."""
    grammar = without_left_recursion(grammar)
    joined: set[str] = set()
    before = joined
    ambiguous = False
    while True:
        try:
            return _Builder(ByteGraph(grammar, joined), ambiguous).automaton()
        except _ClashError as clash:
            before, joined = joined, joined | clash.rules
            ambiguous = joined == before
        except NodeError:
            if ambiguous or joined == before:
                raise
            joined, ambiguous = before, True
        except RecursionError:
            raise NodeError("its rules are nested too deeply", "simplify it") from None


class _Builder:
    """Builds an automaton whose states are sets of the graph's states, of one rule."""

    def __init__(self, graph: ByteGraph, ambiguous: bool) -> None:
        self._graph = graph
        self._ambiguous = ambiguous
        """Whether rules may clash."""
        edges = {edge for edges in graph.edges for edge in edges}
        bounds = sorted({0, 256} | {low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
        self._class = bytes(symbol for symbol, (a, b) in enumerate(pairwise(bounds)) for _ in range(a, b))
        self._accepts = {state: name for name, state in graph.accepts.items()}
        self._number: dict[frozenset[int], int] = {}
        self._members: list[frozenset[int]] = []
        self._owner: list[str] = []
        self._steps: list[dict[int, tuple[Step, ...]] | None] = []
        self._making: set[int] = set()
        self._visits = 0
        self._clashes: list[set[str]] = []
        self._calls: dict[str, list[tuple[str, int]]] = {name: [] for name in graph.starts}
        """The callers of a rule, and the state after each call."""

    def automaton(self) -> Automaton:
        graph = self._graph
        for name in ("root", *(name for name in graph.starts if name != "root")):
            self._state([graph.starts[name]], name)
        for number in reversed(range(len(self._members))):  # Called rules follow their callers.
            self._row(number)
        at = 0
        while at < len(self._members):
            self._row(at)
            at += 1
        if self._clashes:
            raise _ClashError(self._clashes, graph)
        accepting = [any(state in self._accepts for state in members) for members in self._members]
        if not self._ambiguous:
            self._require_marked_ends(accepting)
        return Automaton(self._class, [row for row in self._steps if row is not None], accepting, self._ambiguous)

    def _state(self, given: Iterable[int], owner: str) -> int:
        members = self._closed(given)
        if members not in self._number:
            if len(self._members) >= MOST_STATES:
                raise NodeError(f"it takes more than {MOST_STATES} states", SMALLER)
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
            raise NodeError(f"its states are sets of more than {MOST_VISITS} members in all", SMALLER)
        return frozenset(
            state for state in seen if graph.edges[state] or graph.calls[state] is not None or state in self._accepts
        )

    def _row(self, number: int) -> dict[int, tuple[Step, ...]]:
        """The steps of a state, by class of bytes."""
        found = self._steps[number]
        if found is not None:
            return found
        if number in self._making:
            raise NodeError(
                "a rule begins with itself after an element that may be empty", "write the repetition with * or +"
            )
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
        row: dict[int, tuple[Step, ...]] = {}
        for symbol, states in inside.items():
            key = frozenset(states)
            if key not in targets:
                targets[key] = self._state(states, owner)
            row[symbol] = (((), targets[key]),)
        by: dict[int, str] = {}
        for name, after in calls.items():
            following = self._state(after, owner)
            self._calls[name].append((owner, following))
            ends = self._members[following] == {graph.accepts[owner]}
            for symbol, steps in self._row(self._number[self._closed([graph.starts[name]])]).items():
                if symbol in row and not self._ambiguous:
                    self._clashes.append({name, by.get(symbol, name)})
                else:
                    by[symbol] = name
                    own = ((pushed if ends else (following, *pushed), first) for pushed, first in steps)
                    row[symbol] = tuple(dict.fromkeys((*row.get(symbol, ()), *own)))
        self._steps[number] = row
        self._making.discard(number)
        return row

    def _require_marked_ends(self, accepting: list[bool]) -> None:
        """Raise _ClashError for rules that can continue with a byte that can also follow them."""
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
