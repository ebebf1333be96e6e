"""Turns rules that begin with themselves, such as `sum: sum "+" term | term`, into repetitions: `sum: term ("+"
term)*`.
"""

from __future__ import annotations

from collections.abc import Collection

from .byte_graph import circles
from .grammar import Choice, Grammar, Node, NodeError, Repeat, Rule, Series, Text

__all__ = ["without_left_recursion"]

MOST_BRANCHES = 1_000

Branch = tuple[Node, ...]
"""A series whose first item is neither a Series nor, unless it is the only item, an empty text."""


def without_left_recursion(grammar: Grammar) -> Grammar:
    """The same grammar without rules that begin with themselves or each other. Left recursion after an element that may
    be empty stays. Raises NodeError if there are too many branches.
    """
    begins = {
        name: [branch[0].name for branch in branches(node) if isinstance(branch[0], Rule)]
        for name, node in grammar.rules.items()
    }
    found = Grammar()
    found.rules = dict(grammar.rules)
    for group in circles(begins):
        if len(group) > 1 or group[0] in begins[group[0]]:
            # Paull's algorithm: the rules with which a rule begins follow it in the order, so that no circle remains.
            for number, name in enumerate(group):
                found.rules[name] = unrolled(found, name, group[:number])
    return found


def unrolled(grammar: Grammar, name: str, before: Collection[str]) -> Node:
    """The rule, changed so that it begins neither with itself nor with a rule in `before`."""
    waiting, others, again = branches(grammar.rules[name]), [], []
    while waiting:
        branch = waiting.pop(0)
        first, *rest = branch
        if isinstance(first, Rule) and first.name in before:
            waiting[:0] = [shortened((*inner, *rest)) for inner in branches(grammar.rules[first.name])]
        elif first == Rule(name):
            again += [Series(tuple(rest))] if rest else []
        else:
            others.append(branch)
        if len(waiting) + len(others) + len(again) > MOST_BRANCHES:
            raise NodeError(f"rules begin with each other in more than {MOST_BRANCHES} ways", "write them with * or +")
    tail = (Repeat(Choice(tuple(again)), 0, None),) if again else ()
    return Choice(tuple(Series((*branch, *tail)) for branch in others))


def branches(node: Node) -> list[Branch]:
    if isinstance(node, Choice):
        return [branch for item in node.items for branch in branches(item)]
    return [shortened((node,))]


def shortened(branch: Branch) -> Branch:
    """The items, with nested series expanded, without empty texts at the start."""
    while True:
        match branch:
            case (Series(items), *rest) if items or rest:
                branch = (*items, *rest)
            case (Text(""), second, *rest):
                branch = (second, *rest)
            case _:
                return branch
