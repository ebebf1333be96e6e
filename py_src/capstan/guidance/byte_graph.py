"""Turns a grammar into a graph whose edges are bytes of its outputs; the automaton is made from this graph.

States of a node are made for the state that follows it, so nodes with equal ends share states. A rule is either copied
into the place of its use, or called: an edge names the rule and the state after the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from functools import lru_cache
from typing import Any

from .grammar import (
    Chars,
    Choice,
    Edge,
    Grammar,
    Look,
    Machine,
    Node,
    NodeError,
    Repeat,
    Rule,
    Series,
    Special,
    Text,
    byte_runs,
)

__all__ = ["ByteGraph", "circles"]

MOST_STATES = 100_000
_WORTH_A_CALL = 8
"""A repeated part with at least this many states is called like a rule."""


Compiling = Generator[tuple[Node, int], Any, int]
"""Yields each inner node with the state after it, receives the node's first state, and returns its own first state."""


class ByteGraph:
    """States by number. `joined` are rules that are copied instead of called, where possible."""

    def __init__(self, grammar: Grammar, joined: Collection[str] = ()) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        """By state, its edges: first and last byte, and the next state."""
        self.empty: list[list[int]] = []
        """The states that each state reaches without a byte."""
        self.calls: list[tuple[str, int] | None] = []
        """The rule that a state calls, and the state after the call."""
        self.starts: dict[str, int] = {}
        """The first state of the output, "root", and of every called rule."""
        self.accepts: dict[str, int] = {}
        """The last state of each of these; no edge leaves it."""
        self._nodes: dict[str, Node] = dict(grammar.rules)
        """The called nodes, by name."""
        self._rules: dict[str, Rule] = {}
        self._joined = joined
        self._sizes: dict[int, int] = {}
        self._made: dict[tuple[int, int], int] = {}
        """By the node's object identity and the state after it."""
        self._runs: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}
        self._called = worth_calling(grammar) - set(joined)
        require_no_circle(grammar, self._called)
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in self.starts:
                first = self.accepts[name] = self._state()
                self.starts[name] = self._compiled(self._nodes[name], first)
                waiting += dict.fromkeys(call[0] for call in self.calls[first:] if call is not None)
        self.nullable = self._nullable()
        self.uses = Counter(call[0] for call in self.calls if call is not None)
        """The number of calls of each rule."""

    def _state(self) -> int:
        if len(self.edges) >= MOST_STATES:
            raise NodeError(f"it takes more than {MOST_STATES} states", "ask for fewer alternatives or repetitions")
        self.edges.append([])
        self.empty.append([])
        self.calls.append(None)
        return len(self.edges) - 1

    def _compiled(self, node: Node, end: int) -> int:
        """The state from which the node's texts lead to `end`. Nested nodes wait in a list, since recursion could be as
        deep as an object has properties.
        """
        waiting = [((id(node), end), self._compile(node, end))]
        found: int | None = None
        while waiting:
            key, steps = waiting[-1]
            try:
                inner, after = steps.send(found)
            except StopIteration as ended:
                self._made[key] = found = ended.value
                waiting.pop()
                continue
            found = self._made.get((id(inner), after))
            if found is None:
                waiting.append(((id(inner), after), self._compile(inner, after)))
        assert found is not None
        return found

    def _compile(self, node: Node, end: int) -> Compiling:
        match node:
            case Text(text):
                return self._run(tuple((byte, byte) for byte in text.encode()), end)
            case Special():
                return self._run(tuple((byte, byte) for byte in node.data), end)
            case Chars(ranges):
                state = self._state()
                for first, last in ranges:
                    for (low, high), *run in byte_runs_apart(first, last):
                        self.edges[state].append((low, high, self._run(tuple(run), end)))
                return state
            case Series(items):
                for item in reversed(items):
                    end = yield item, end
                return end
            case Choice(items):
                state = self._state()
                for item in items:
                    self.empty[state].append((yield item, end))
                return state
            case Repeat(item, least, most):
                return (yield from self._repeated(self._shared(item), least, most, end))
            case Machine():
                return self._machine(node, end)
            case Edge() | Look():
                raise AssertionError("regex.py makes a Machine of these")
            case Rule(name):
                if name not in self._called:
                    end = yield self._nodes[name], end
                    return end
                state = self._state()
                self.calls[state] = (name, end)
                return state

    def _machine(self, machine: Machine, end: int) -> int:
        states = [self._state() for _ in machine.ends]
        for state, row, ends in zip(states, machine.steps, machine.ends, strict=True):
            for first, last, target in row:
                for (low, high), *run in byte_runs_apart(first, last):
                    self.edges[state].append((low, high, self._run(tuple(run), states[target])))
            self.empty[state] = ends * [end]
        return states[0]

    def _run(self, run: tuple[tuple[int, int], ...], end: int) -> int:
        """The state from which these bytes, each in its range, lead to `end`."""
        for at in reversed(range(len(run))):
            key = (run[at:], end) if len(run) < 4 else None
            found = None if key is None else self._runs.get(key)
            if found is None:
                found = self._state()
                self.edges[found].append((*run[at], end))
                if key is not None:
                    self._runs[key] = found
            end = found
        return end

    def _repeated(self, item: Node, least: int, most: int | None, end: int) -> Compiling:
        if most is None:
            after = self._state()
            self.empty[after] = [(yield item, after), end]
            for _ in range(least):
                after = yield item, after
            return after
        after = end
        for number in reversed(range(most)):
            one = yield item, after
            if number < least:
                after = one
            else:
                after = self._state()
                self.empty[after] = [one, end]
        return after

    def _shared(self, item: Node) -> Node:
        """The repeated node, as a call if it is large."""
        name = f"repeated {id(item)}"
        if isinstance(item, Rule) or name in self._joined or self._size(item) < _WORTH_A_CALL:
            return item
        self._nodes[name] = item
        self._called.add(name)
        return self._rules.setdefault(name, Rule(name))

    def _size(self, node: Node) -> int:
        """The approximate number of states of a node; a rule counts as one."""
        if id(node) not in self._sizes:
            match node:
                case Text(text):
                    found = len(text.encode())
                case Special():
                    found = len(node.data)
                case Chars(ranges):
                    found = 1 if ranges and ranges[-1][1] < 128 else _WORTH_A_CALL
                case Series(items) | Choice(items):
                    found = sum(map(self._size, items))
                case Repeat(item, _, most):
                    found = self._size(item) * (most or 1)
                case Machine():
                    found = node.states
                case Rule() | Edge() | Look():
                    found = 1
            self._sizes[id(node)] = found
        return self._sizes[id(node)]

    def _nullable(self) -> set[str]:
        """The called rules that may match the empty text."""
        found: set[str] = set()
        while True:
            more = {name for name in self.starts if name not in found and self._may_end(name, found)}
            if not more:
                return found
            found |= more

    def _may_end(self, name: str, nullable: set[str]) -> bool:
        seen: set[int] = set()
        waiting = [self.starts[name]]
        while waiting:
            state = waiting.pop()
            if state == self.accepts[name]:
                return True
            if state not in seen:
                seen.add(state)
                waiting += self.empty[state]
                call = self.calls[state]
                if call is not None and call[0] in nullable:
                    waiting.append(call[1])
        return False


@lru_cache(maxsize=4096)
def byte_runs_apart(first: int, last: int) -> list[list[tuple[int, int]]]:
    """byte_runs of a range of characters, with ASCII separate from others."""
    if first < 128 <= last:
        return [*byte_runs(first, 127), *byte_runs(128, last)]
    return [*byte_runs(first, last)]


def worth_calling(grammar: Grammar) -> set[str]:
    """Rules that are used more than once, or contain themselves."""
    inner = {name: used(node) for name, node in grammar.rules.items()}
    uses: Counter[str] = Counter()
    for counts in inner.values():
        uses.update(counts)
    found = {name for name in grammar.rules if uses[name] > 1}
    for group in circles(inner):
        if len(group) > 1 or group[0] in inner[group[0]]:
            found.update(group)
    return found


def circles(inner: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """The sets of rules that contain each other, given the rules that each rule contains; a set comes after the rules
    that it contains. Tarjan's algorithm.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: dict[str, None] = {}
    for root in inner:
        visiting = [(root, iter(inner[root]))] if root not in number else []
        while visiting:
            name, rest = visiting[-1]
            if name not in number:
                number[name] = lowest[name] = len(number)
                open_[name] = None
            for other in rest:
                if other not in number:
                    visiting.append((other, iter(inner[other])))
                    break
                if other in open_:
                    lowest[name] = min(lowest[name], number[other])
            else:
                visiting.pop()
                if visiting:
                    lowest[visiting[-1][0]] = min(lowest[visiting[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    together: list[str] = []
                    while not together or together[-1] != name:
                        together.append(open_.popitem()[0])
                    yield together


def used(node: Node, times: int = 1) -> Counter[str]:
    """The number of uses of each rule in a node."""
    match node:
        case Rule(name):
            return Counter({name: times})
        case Series(items) | Choice(items):
            found: Counter[str] = Counter()
            for item in items:
                found.update(used(item, times))
            return found
        case Repeat(item, _, most):
            return used(item, times * (2 if most is None else most))
        case _:
            return Counter()


def require_no_circle(grammar: Grammar, called: Collection[str]) -> None:
    """Raise NodeError if a rule that is not called contains itself."""
    inner = {name: [other for other in used(node) if other not in called] for name, node in grammar.rules.items()}
    for group in circles(inner):
        if len(group) > 1 or group[0] in inner[group[0]]:
            raise NodeError(
                "a rule contains itself, and the next byte does not determine whether it has ended", "simplify it"
            )
