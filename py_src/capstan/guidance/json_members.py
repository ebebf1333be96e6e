"""Makes grammars for the members of objects, and for the items of arrays with unique items."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from .dfa import Dfa, both, lengths
from .grammar import Choice, Grammar, Node, NodeError, Repeat, Rule, Series, Text
from .json_text import WRITABLE, Layout, literal
from .nfa import determined

__all__ = ["key_groups", "members", "permuted"]

MOST_PERMUTED = 8
"""The most values that may come in any order, since each set of them is a rule; beyond this they come in the order of
the schema.
"""
MOST_PATTERNS = 5
"""The most patterns for names, since each set of them is a kind of name."""


def members(
    grammar: Grammar,
    layout: Layout,
    pairs: Sequence[tuple[Node, bool]],
    others: Node | None,
    least: int,
    most: int | None,
) -> Node | None:
    """The members of an object, `least` to `most` in all, separated by commas: the pairs in order, of which optional
    ones (False) may be missing, then any number of `others`. White space follows the last member; an empty object has
    only the white space before its members. None if there are too few pairs.
    """
    comma, blank = layout.comma, layout.blank
    top = max(1, least, most or 0)

    def pairs_after(count: int) -> Node | None:
        end: Node = blank if count else Text("")
        missing = max(0, least - count)
        room = None if most is None else most - count
        if others is None or room == 0:
            return None if missing else end
        if missing > 1:
            return None
        if count:
            return Series((Repeat(Series((comma, others)), missing, room), blank))
        more = Repeat(Series((comma, others)), 0, None if room is None else room - 1)
        return Repeat(Series((others, more, blank)), missing, 1)

    # The next node by the number of pairs so far, where `top` stands for `top` or more.
    nexts = [pairs_after(count) for count in range(top + 1)]
    for pair, needed in reversed(pairs):
        behind = [None if node is None else grammar.add("members", node) for node in nexts]
        nexts = []
        for count, without in enumerate(behind):
            branches: list[Node] = []
            after = behind[min(count + 1, top)]
            if after is not None and (most is None or count < most):
                branches.append(Series((*((comma,) if count else ()), pair, after)))
            if without is not None and not needed:
                branches.append(without)
            nexts.append(None if not branches else branches[0] if len(branches) == 1 else Choice(tuple(branches)))
    return nexts[0]


def permuted(grammar: Grammar, layout: Layout, values: Sequence[Any], least: int, most: int | None) -> Node | None:
    """The items of an array: `least` to `most` of these values, each at most once. None if there are too few values."""
    nodes = [literal(value, layout) for value in values]
    most = len(values) if most is None else min(most, len(values))
    if len(values) > MOST_PERMUTED:
        return members(grammar, layout, [(node, False) for node in nodes], None, least, most)
    if least > most:
        return None
    rules: dict[int, Rule] = {}
    # By the set of values so far, as bits, from the largest sets on.
    for there in reversed(range(1 << len(values))):
        count = there.bit_count()
        branches: list[Node] = [layout.blank if count else Text("")] if count >= least else []
        for number, node in enumerate(nodes):
            if count < most and not there >> number & 1:
                comma = (layout.comma,) if count else ()
                branches.append(Series((*comma, node, rules[there | 1 << number])))
        if count <= most:
            rules[there] = grammar.add("items", Choice(tuple(branches)))
    return rules[0]


def key_groups(
    names: Collection[str], allowed: Dfa | None, patterns: Mapping[str, tuple[Dfa, Dfa]]
) -> Iterator[tuple[tuple[str, ...], Dfa]]:
    """The names other than `names`, grouped by the set of patterns that they match. `patterns` has for each pattern the
    names that match it in all regex libraries, and the names that match it in at least one.
    """
    if len(patterns) > MOST_PATTERNS:
        raise NodeError(f"it has {len(patterns)} patterns", f"use at most {MOST_PATTERNS}")
    named = [determined(Choice(tuple(map(Text, names))))] if names else []
    for which in product((True, False), repeat=len(patterns)):
        matched = [pattern for pattern, is_matched in zip(patterns, which, strict=True) if is_matched]
        unmatched = [possibly for pattern, (_, possibly) in patterns.items() if pattern not in matched]
        all_of = [allowed or lengths(0, None, WRITABLE), *(patterns[pattern][0] for pattern in matched)]
        found = both(all_of, [*named, *unmatched])
        if found.ends:
            yield tuple(matched), found
