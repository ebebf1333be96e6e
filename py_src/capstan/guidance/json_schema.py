"""Turns a JSON schema into a grammar. Every text that the grammar allows is JSON and fits the schema.

Properties come in the order of the schema, unnamed properties last. Between any two parts there may be a blank, or a
line feed with up to 64 blanks or 16 tabs: without a limit a model could write white space forever. A keyword that is
not enforced raises an error, which gives its place as a JSON pointer; no keyword is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GuidanceError
from ..model_files.bounded_json import NotJsonError, clipped, read_json
from .dfa import Dfa, both
from .grammar import Choice, Grammar, Node, NodeError, Repeat, Rule, Series, Text
from .json_members import key_groups, members, permuted
from .json_numbers import MOST_DIGITS, MOST_STEP, digits_of, integer_range, multiples, number_range
from .json_strings import searched, string_node
from .json_text import FREE, INTEGER, NUMBER, any_value, json_grammar, literal, other_key, quoted, string
from .nfa import determined
from .schema_keywords import (
    Schema,
    asks,
    count,
    distinguished,
    modern,
    pointer,
    refuse,
    require_apart,
    require_known,
    require_shape,
    require_sound,
    types_of,
)
from .schemas import MOST_VALUES, Schemas
from .x_guidance import options_of

__all__ = ["json_schema_grammar"]


def json_schema_grammar(text: str) -> Grammar:
    """The grammar of a schema's text. Raises GuidanceError with the line and column, or the JSON pointer."""
    try:
        schema = read_json(text)
    except NotJsonError as error:
        raise GuidanceError(f"json_schema: {error}; correct it") from error
    try:
        require_sound(schema, "#")
        return _Converter(schema).grammar
    except NodeError as error:
        refuse("#", error.what, error.remedy)
    except RecursionError:
        raise GuidanceError(
            "json_schema #: it refers to itself endlessly, or is nested too deeply; simplify it"
        ) from None


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._rules: dict[str, Rule] = {}
        """The rules of earlier schemas, by content."""
        self.grammar, root = json_grammar()
        self._layout, self._coerced = FREE, False
        if isinstance(schema, Mapping) and "x-guidance" in schema:
            self._layout, self._coerced = options_of(schema["x-guidance"], "#/x-guidance")
            schema = {name: value for name, value in schema.items() if name != "x-guidance"}
        self._schemas = Schemas(schema)
        require_shape(schema, "#")
        self.grammar.set(root, self.value(schema, "#"))

    def value(self, schema: Any, at: str) -> Node:
        """The rule for a value of the schema; equal schemas share one rule."""
        if isinstance(schema, Mapping):
            schema = modern(schema)
        if schema is True or schema == {}:
            return any_value(self.grammar, self._layout)
        if schema is False:
            refuse(at, "the schema false", "nothing fits it: take it out")
        if not isinstance(schema, Mapping):
            refuse(at, f"{schema!r}", "a schema is an object, true or false")
        key = json.dumps(schema)
        if key not in self._rules:
            rule = self._rules[key] = self.grammar.reserve("value")
            try:
                self.grammar.set(rule, self._node(schema, at))
            except NodeError as error:
                refuse(at, error.what, error.remedy)
        return self._rules[key]

    def _node(self, schema: Schema, at: str) -> Node:
        require_known(schema, at)
        if "$ref" in schema and not any(map(asks, schema.keys() - {"$ref"})):
            self._schemas.resolved(schema, at)
            return self.value(self._schemas.target(schema["$ref"], f"{at}/$ref"), schema["$ref"])
        if "$ref" in schema or "allOf" in schema:
            return self.value(self._schemas.flat(schema, at), at)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._choice(schema, name, at)
        if "const" in schema or "enum" in schema:
            return self._values(schema, "const" if "const" in schema else "enum", at)
        # Keywords of other types than the value's have no effect; an integer is a number.
        types = types_of(schema, at)
        kinds = [kind for kind in types if not (kind == "integer" and "number" in types)]
        branches = [self._of_type(kind, schema, at) for kind in kinds]
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _of_type(self, kind: str, schema: Schema, at: str) -> Node:
        match kind:
            case "object":
                return self._object(schema, at)
            case "array":
                return self._array(schema, at)
            case "string":
                return string_node(schema, at)
            case "integer" | "number":
                return self._number(kind, schema, at)
            case "boolean":
                return Choice((Text("true"), Text("false")))
            case _:
                return Text("null")

    def _object(self, schema: Schema, at: str) -> Node:
        properties, patterned = schema.get("properties", {}), schema.get("patternProperties", {})
        required = list(dict.fromkeys(schema.get("required", ())))
        extra = schema.get("additionalProperties", True)
        patterns = {pattern: self._name_pattern(pattern, at) for pattern in patterned}
        allowed = self._schemas.names(schema.get("propertyNames", True), f"{at}/propertyNames")
        names = [*dict.fromkeys([*properties, *required, *(allowed if isinstance(allowed, list) else ())])]
        needed_names = set(required)
        pairs: list[tuple[Node, bool]] = []
        for name in names:
            fits = [pattern for pattern, (_, possibly) in patterns.items() if possibly.matches(name)]
            value, place = self._valued(schema, [name] if name in properties else [], fits, at)
            outside = name not in allowed if isinstance(allowed, list) else allowed and not allowed.matches(name)
            if value is not False and not outside:
                pairs.append((self._pair(literal(name), value, place), name in needed_names))
            elif name in needed_names and name in properties:
                refuse(f"{at}/properties/{pointer(name)}", "a required property that nothing fits", "take it out")
            elif name in needed_names:
                remedy = (
                    "its name is not allowed"
                    if outside
                    else ("additionalProperties is false and the property has no schema")
                )
                refuse(f"{at}/required/{required.index(name)}", f"{name!r}", remedy)
        others: list[Node] = []
        if not patterns and allowed is None and extra is not False:
            others = [self._pair(other_key(self.grammar, {*names}), extra, f"{at}/additionalProperties")]
        elif not isinstance(allowed, list) and (patterns or extra is not False):
            for matched, keys in key_groups(names, allowed, patterns):
                value, place = self._valued(schema, [], matched, at)
                if value is not False:
                    others.append(self._pair(string(quoted(keys.machine())), value, place))
        other = self.grammar.add("pair", others[0] if len(others) == 1 else Choice(tuple(others))) if others else None
        least, most = count(schema, "minProperties", at, 0) or 0, count(schema, "maxProperties", at, None)
        inside = members(self.grammar, self._layout, pairs, other, least, most)
        if inside is None:
            what = "minProperties" if "minProperties" in schema else "maxProperties"
            described = f"{len(pairs)} named ones" + (" and one more" if other else "")
            refuse(f"{at}/{what}", f"{schema.get(what)}", f"only {described} are known to differ")
        return Series((Text("{"), self._layout.blank, inside, Text("}")))

    def _name_pattern(self, pattern: str, at: str) -> tuple[Dfa, Dfa]:
        """Automata for the names that match a pattern in all regex libraries, and for those that match it in at least
        one.
        """
        place = f"{at}/patternProperties/{pointer(pattern)}"
        possibly = searched(pattern, place, True)
        if not possibly.whole:
            refuse(place, "it takes too many states to determine which names match", "write a shorter pattern")
        return searched(pattern, place), possibly

    def _valued(self, schema: Schema, named: Sequence[str], matched: Sequence[str], at: str) -> tuple[Any, str]:
        """The schema for the value of a property, by its name or the patterns that the name matches, and the schema's
        place.
        """
        parts = [(schema["properties"][name], f"{at}/properties/{pointer(name)}") for name in named]
        parts += [(schema["patternProperties"][p], f"{at}/patternProperties/{pointer(p)}") for p in matched]
        if not parts:
            parts = [(schema.get("additionalProperties", True), f"{at}/additionalProperties")]
        value, place = parts[0]
        for more in parts[1:]:
            value = self._schemas.merged(self._schemas.flat(value, place), self._schemas.flat(*more), more[1])
        return (False if self._schemas.resolved(value, place) is False else value), place

    def _pair(self, key: Node, schema: Any, at: str) -> Node:
        return Series((key, self._layout.colon, self.value(schema, at)))

    def _array(self, schema: Schema, at: str) -> Node:
        least, most = count(schema, "minItems", at, 0) or 0, count(schema, "maxItems", at, None)
        first, later = "prefixItems", "items"
        if isinstance(schema.get("items"), list):
            first, later = "items", "additionalItems"
        before: Sequence[Any] = schema.get(first, [])
        items = schema.get(later, True)
        if self._schemas.resolved(items, f"{at}/{later}") is False:
            most = min(len(before), most) if most is not None else len(before)
        if most is not None and least > most:
            refuse(f"{at}/minItems", f"{least}", f"at most {most} items are allowed")
        if schema.get("uniqueItems") and (most is None or most > 1):
            inside = self._unique(items, least, most, before, at)
            return Series((Text("["), self._layout.blank, inside, Text("]")))
        comma = self._layout.comma
        fixed = [self.value(item, f"{at}/{first}/{index}") for index, item in enumerate(before)]
        fixed = fixed if most is None else fixed[:most]
        rest: Node = self._layout.blank if fixed else Text("")
        if most is None or most > len(fixed):
            item = self.value(items, f"{at}/{later}")
            low, high = max(least - len(fixed), 0), None if most is None else most - len(fixed)
            if fixed:
                rest = Series((Repeat(Series((comma, item)), low, high), self._layout.blank))
            else:
                more = Repeat(Series((comma, item)), max(low - 1, 0), None if high is None else high - 1)
                tail = Series((more, self._layout.blank))
                rest = Series((item, tail)) if low else Repeat(Series((item, tail)), 0, 1)
        for index in reversed(range(len(fixed))):
            whole = Series(((comma,) if index else ()) + (fixed[index], rest))
            rest = whole if index < least else Choice((whole, self._layout.blank if index else Text("")))
        return Series((Text("["), self._layout.blank, rest, Text("]")))

    def _unique(self, items: Any, least: int, most: int | None, before: Sequence[Any], at: str) -> Node:
        values = None if before else self._schemas.values(items, f"{at}/items")
        if values is None or len(values) > MOST_VALUES:
            few = f"at most {MOST_VALUES} values, of an enum, booleans or integers between bounds"
            refuse(f"{at}/uniqueItems", "items that are not known to differ", f"use {few}, or leave it out")
        found = permuted(self.grammar, self._layout, values, least, most)
        if found is None:
            refuse(f"{at}/minItems", f"{least}", f"only {len(values)} different values fit")
        return found

    def _number(self, kind: str, schema: Schema, at: str) -> Node:
        bounds: dict[str, Any] = {}
        for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if name in schema:
                bound = bounds[name] = schema[name]
                if (digits := digits_of(bound)) <= MOST_DIGITS:
                    continue
                # Numbers have at most this number of digits, so such a bound excludes none.
                if abs(bound) < 1 or (bound > 0) is not name.endswith("aximum"):
                    refuse(
                        f"{at}/{name}", f"a number of {digits} digits", f"use at most {MOST_DIGITS}, or leave it out"
                    )
                bounds[name] = (10**MOST_DIGITS - 1) * (1 if bound > 0 else -1)
        ranged = integer_range if kind == "integer" else number_range
        found = ranged(bounds) if bounds else None
        described = " and ".join(f"{name} {value}" for name, value in bounds.items())
        if bounds and found is None:
            refuse(at, described, f"no {kind} fits them")
        if "multipleOf" not in schema:
            return found or (INTEGER if kind == "integer" else NUMBER)
        steps = multiples(kind, schema["multipleOf"])
        if steps is None:
            remedy = f"use a step from 1 to {MOST_STEP}, less with digits after the point"
            refuse(f"{at}/multipleOf", f"{schema['multipleOf']}", remedy)
        if found is not None:
            steps = both([steps, determined(found)])
        if not steps.ends:
            refuse(f"{at}/multipleOf", f"{schema['multipleOf']}", f"no {kind} fits it and {described}")
        return steps.machine()

    def _values(self, schema: Schema, name: str, at: str) -> Node:
        """The values of an enum or a const that fit the schema."""
        values = self._schemas.values(schema, at)
        if not values:
            given = [schema["const"]] if name == "const" else schema["enum"]
            refuse(f"{at}/{name}", clipped(given), "no value fits the schema's other keywords")
        nodes = [literal(value, self._layout) for value in values]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _choice(self, schema: Schema, name: str, at: str) -> Node:
        whole = self._schemas.alternatives(schema, name, at)
        parts, places = [part for part, _ in whole], [place for _, place in whole]
        if name == "anyOf" and any(part is True or not any(map(asks, part)) for part in parts):
            return any_value(self.grammar, self._layout)
        if name == "oneOf" and not self._coerced:
            parts = list(distinguished(parts))
            require_apart(parts, f"{at}/{name}")
        nodes = [self.value(part, place) for part, place in zip(parts, places, strict=True)]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))
