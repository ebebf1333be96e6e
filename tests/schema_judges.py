"""Answers that a grammar allows, by chance, and jsonschema's opinion of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import regex
from jsonschema.validators import extend

from capstan.guidance import Automaton

__all__ = ["CORPORA", "answers", "corpus", "judged"]

CORPORA = {"zod": 108, "pydantic": 42}
"""The corpora of `tests/schemas`, with their numbers of schemas."""
_FAR = 1 << 20


@cache
def corpus(name: str) -> dict[str, dict[str, Any]]:
    """Schemas by name, each with its `values` that fit; numbers are exact."""
    path = Path(__file__).parent / "schemas" / f"{name}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(), parse_float=Decimal)["schemas"]
    return found


def answers(automaton: Automaton, count: int, rng: random.Random) -> Iterator[str]:
    """Texts that an automaton of one reading allows: some bytes by chance, and then the shortest way to an end."""
    ways = _ways(automaton)
    members: list[list[int]] = [[] for _ in range(max(automaton.classes) + 1)]
    for byte, symbol in enumerate(automaton.classes):
        members[symbol].append(byte)
    for _ in range(count):
        position = automaton.start
        text, free = bytearray(), rng.choice((0, 3, 10, 30, 100))
        while not automaton.may_end(position) or len(text) < free:
            fitting = [symbol for symbol in range(len(members)) if automaton.step(position, symbol)]
            if not fitting or (automaton.may_end(position) and rng.random() < 0.05):
                break
            if len(text) < free:
                symbol = rng.choice(fitting)
            else:
                # Rules that may end here end.
                [stack] = position
                top = next(at for at in reversed(range(len(stack))) if at == 0 or not automaton.accepting[stack[at]])
                position = frozenset({stack[: top + 1]})
                symbol = ways[stack[top]][1]
            text.append(rng.choice(members[symbol]))
            position = automaton.step(position, symbol)
        yield text.decode()


def _ways(automaton: Automaton) -> list[tuple[int, int]]:
    """By state, how many bytes the shortest way to the end of its rule has, and its first symbol."""
    found = [(0 if ends else _FAR, -1) for ends in automaton.accepting]
    changed = True
    while changed:
        changed = False
        for state in reversed(range(len(found))):
            for symbol, [(pushed, following)] in automaton.steps[state].items():
                length = 1 + found[following][0] + sum(found[each][0] for each in pushed)
                if length < found[state][0]:
                    found[state] = (length, symbol)
                    changed = True
    return found


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Python's `re` has no properties."""
    if isinstance(value, str) and not regex.search(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _type(validator: Any, types: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """OpenAPI 3.0's."""
    if value is not None or not schema.get("nullable"):
        yield from jsonschema.Draft4Validator.VALIDATORS["type"](validator, types, value, schema)


def _any_of(validator: Any, parts: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if value is not None or not schema.get("nullable"):
        yield from jsonschema.Draft4Validator.VALIDATORS["anyOf"](validator, parts, value, schema)


_VALIDATORS = {
    "draft-2020-12": jsonschema.Draft202012Validator,
    "draft-07": jsonschema.Draft7Validator,
    "openapi-3.0": extend(jsonschema.Draft4Validator, {"type": _type, "anyOf": _any_of}),
}


def judged(entry: Mapping[str, Any], text: str) -> str | None:
    """The reason for which jsonschema refuses a text, None if it takes it; `format` is an assertion."""
    validator = _VALIDATORS[entry.get("target", "draft-2020-12")]
    if "\\p{" in json.dumps(entry["schema"], default=str):
        validator = extend(validator, {"pattern": _pattern})
    value = json.loads(text, parse_float=Decimal)
    found = validator(entry["schema"], format_checker=validator.FORMAT_CHECKER).iter_errors(value)
    return next((error.message for error in found), None)
