"""JSON schemas as a grammar: every text that it allows is JSON and fits the schema.

Properties come in the order of the schema, those it does not name last. Between any two parts there may be a blank, or
a line feed with up to 64 blanks or 16 tabs: without a limit a model can go on with white space for ever.
A keyword that is not enforced is refused, with its place as a JSON pointer; it is never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GuidanceError
from ..model_files.json_text import NotJsonError, clipped, read_json
from .grammar import ANY_CHARACTER, Chars, Choice, Grammar, Node, NodeError, Repeat, Rule, Series, Text
from .json_numbers import MOST_DIGITS, MOST_STEP, digits_of, integer_range, multiples, number_range
from .json_text import (
    CHARACTER,
    FREE,
    INTEGER,
    NUMBER,
    Layout,
    any_value,
    json_grammar,
    literal,
    other_key,
    quoted,
    string,
)
from .merging import MergeError, merged
from .regex import parse_regex, parse_searched
from .schema_keywords import (
    ANNOTATIONS,
    TYPED,
    Schema,
    count,
    is_a,
    listed,
    pointer,
    refuse,
    require_apart,
    require_known,
    require_shape,
    require_sound,
    types_of,
)

__all__ = ["json_schema_grammar"]

_OPTIONS = ("whitespace_flexible", "coerce_one_of", "item_separator", "key_separator", "whitespace_pattern")

_HOUR_TO_SECOND = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
_ZONE = r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# The 31st only in months that have it, the 29th of February not: no grammar of a sensible size knows leap years.
_DATE = r"\d{4}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
FORMATS = {
    "date": _DATE,
    "time": _HOUR_TO_SECOND + _ZONE,
    "date-time": _DATE + "T" + _HOUR_TO_SECOND + _ZONE,
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z]{2,24})+",
}


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
            "json_schema #: it refers to itself without an end, or is nested too deeply; simplify it"
        ) from None


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._rules: dict[str, Rule] = {}
        """The rules of schemas that occurred before, by their content."""
        self._shaped: set[int] = set()
        """Parts of the schema whose keywords were checked."""
        self.grammar, root = json_grammar()
        self._layout, self._coerced = FREE, False
        if isinstance(schema, Mapping) and "x-guidance" in schema:
            self._layout, self._coerced = options_of(schema["x-guidance"], "#/x-guidance")
            self._root = schema = {name: value for name, value in schema.items() if name != "x-guidance"}
        require_shape(schema, "#")
        self.grammar.set(root, self.value(schema, "#"))

    def value(self, schema: Any, at: str) -> Node:
        """The rule for a value of the schema; equal schemas share one rule."""
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
        if "$ref" in schema:
            return self._referred(schema, at)
        if "allOf" in schema:
            parts = listed(schema, "allOf", at)
            rest = {name: value for name, value in schema.items() if name != "allOf"}
            for index, part in enumerate(parts):
                rest = self._merged(rest, self._resolved(part, f"{at}/allOf/{index}"), f"{at}/allOf/{index}")
            return self.value(rest, f"{at}/allOf")
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._choice(schema, name, at)
        if "const" in schema:
            return self._values([schema["const"]], schema, f"{at}/const")
        if "enum" in schema:
            return self._values(listed(schema, "enum", at), schema, f"{at}/enum")
        return self._typed(schema, at)

    def _typed(self, schema: Schema, at: str) -> Node:
        types = types_of(schema, at)
        # Keywords of other types than the value's ask for nothing; an integer is a number.
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
                return self._string(schema, at)
            case "integer" | "number":
                return self._number(kind, schema, at)
            case "boolean":
                return Choice((Text("true"), Text("false")))
            case _:
                return Text("null")

    def _object(self, schema: Schema, at: str) -> Node:
        properties = schema.get("properties", {})
        required = list(dict.fromkeys(schema.get("required", ())))
        needed_names = set(required)
        extra = schema.get("additionalProperties", True)
        pairs: list[tuple[Node, bool]] = []
        for name, value in properties.items():
            needed = name in needed_names
            if value is False:
                if needed:
                    refuse(f"{at}/properties/{pointer(name)}", "a required property that nothing fits", "take it out")
                continue
            pairs.append((self._pair(literal(name), value, f"{at}/properties/{pointer(name)}"), needed))
        for index, name in enumerate(required):
            if name not in properties:
                if extra is False:
                    refuse(f"{at}/required/{index}", f"{name!r}", "additionalProperties is false and it has no schema")
                pairs.append((self._pair(literal(name), extra, f"{at}/additionalProperties"), True))
        least, most = count(schema, "minProperties", at, 0), count(schema, "maxProperties", at, None)
        needed_count = sum(needed for _, needed in pairs)
        if least is not None and least > needed_count:
            refuse(f"{at}/minProperties", f"{least}", f"more than the {needed_count} required ones is not enforced")
        if most is not None and (extra is not False or most < len(pairs)):
            refuse(f"{at}/maxProperties", f"{most}", "it is not enforced; list properties and forbid additional ones")
        others: Node | None = None
        for pattern, value in schema.get("patternProperties", {}).items():
            place = f"{at}/patternProperties/{pointer(pattern)}"
            if others is not None or properties or required or extra is not False or most is not None:
                what = "another pattern, properties, required, maxProperties, or additionalProperties that is not false"
                refuse(place, f"together with {what}", "a name could fit both: leave one out")
            key = string(quoted(self._pattern(pattern, place)))
            others = self.grammar.add("pair", self._pair(key, value, place))
        if extra is not False:
            key = other_key(self.grammar, {*properties, *required})
            others = self.grammar.add("pair", self._pair(key, extra, f"{at}/additionalProperties"))
        return Series((Text("{"), self._layout.blank, self._members(pairs, others), Text("}")))

    def _pair(self, key: Node, schema: Any, at: str) -> Node:
        return Series((key, self._layout.colon, self.value(schema, at)))

    def _members(self, pairs: Sequence[tuple[Node, bool]], others: Node | None) -> Node:
        """The pairs in order, each with a comma before it unless it is the first; optional ones may be missing. White
        space follows if there is any: an empty object has the one before."""
        comma, blank = self._layout.comma, self._layout.blank
        # From the last pair to the first: `after` follows another pair, `first` begins the object.
        after: Node = Series((Repeat(Series((comma, others)), 0, None), blank)) if others else blank
        first: Node = Repeat(Series((others, after)), 0, 1) if others else Text("")
        for pair, needed in reversed(pairs):
            behind = self.grammar.add("members", after)
            after_this: Node = Series((comma, pair, behind))
            first_this: Node = Series((pair, behind))
            after = after_this if needed else Choice((after_this, behind))
            first = first_this if needed else Choice((first_this, self.grammar.add("members", first)))
        return first

    def _array(self, schema: Schema, at: str) -> Node:
        least, most = count(schema, "minItems", at, 0) or 0, count(schema, "maxItems", at, None)
        before = listed(schema, "prefixItems", at) if "prefixItems" in schema else []
        items = schema.get("items", True)
        comma = self._layout.comma
        if items is False:
            most = min(len(before), most) if most is not None else len(before)
        if most is not None and least > most:
            refuse(f"{at}/minItems", f"{least}", f"at most {most} items are allowed")
        fixed = [self.value(item, f"{at}/prefixItems/{index}") for index, item in enumerate(before)]
        fixed = fixed if most is None else fixed[:most]
        rest: Node = self._layout.blank if fixed else Text("")
        if most is None or most > len(fixed):
            item = self.value(items, f"{at}/items")
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

    def _string(self, schema: Schema, at: str) -> Node:
        least, most = count(schema, "minLength", at, 0) or 0, count(schema, "maxLength", at, None)
        if most is not None and least > most:
            refuse(f"{at}/minLength", f"{least}", f"maxLength is {most}")
        for name in ("pattern", "format"):
            if name in schema and (least or most is not None or ("pattern" in schema and "format" in schema)):
                others = " and ".join(sorted({"minLength", "maxLength", "pattern", "format"} & schema.keys() - {name}))
                refuse(f"{at}/{name}", f"{name} together with {others}", "say both in one pattern")
        if "pattern" in schema:
            return string(quoted(self._pattern(schema["pattern"], f"{at}/pattern")))
        if "format" in schema:
            kind = schema["format"]
            if kind not in FORMATS:
                refuse(f"{at}/format", f"{kind!r}", f"there are {', '.join(FORMATS)}; or write a pattern")
            return string(quoted(parse_regex(FORMATS[kind])))
        return string(Repeat(CHARACTER, least, most))

    def _pattern(self, pattern: Any, at: str) -> Node:
        try:
            branches = parse_searched(pattern)
        except GuidanceError as error:
            raise GuidanceError(f"json_schema {at}: {error}") from error
        anything = Repeat(Chars(ANY_CHARACTER), 0, None)
        nodes = [Series((*(() if b.start else (anything,)), b.node, *(() if b.end else (anything,)))) for b in branches]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _number(self, kind: str, schema: Schema, at: str) -> Node:
        bounds: dict[str, Any] = {}
        for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if name in schema:
                bounds[name] = schema[name]
                if (digits := digits_of(schema[name])) > MOST_DIGITS:
                    refuse(f"{at}/{name}", f"a number of {digits} digits", f"there may be {MOST_DIGITS}: leave it out")
        if "multipleOf" in schema:
            return self._multiple(kind, schema["multipleOf"], bounds, f"{at}/multipleOf")
        if not bounds:
            return INTEGER if kind == "integer" else NUMBER
        found = (integer_range if kind == "integer" else number_range)(bounds)
        if found is None:
            refuse(at, " and ".join(f"{name} {value}" for name, value in bounds.items()), f"no {kind} fits them")
        return found

    def _multiple(self, kind: str, step: float, bounds: Mapping[str, Any], at: str) -> Node:
        if bounds:
            refuse(at, f"{step} together with {', '.join(bounds)}", "leave out one, or list the values in an enum")
        found = multiples(self.grammar, kind, step)
        if found is None:
            refuse(at, f"{step}", f"there are integers from 1 to {MOST_STEP} and, for numbers, 0.1, 0.01 and so on")
        return found

    def _values(self, values: Sequence[Any], schema: Schema, at: str) -> Node:
        """The values of an enum or a const that have one of the schema's types."""
        asked = {name for name in TYPED | {"enum"} if name in schema} - {at.rpartition("/")[2]}
        if asked:
            refuse(at, f"together with {', '.join(sorted(asked))}", "leave out the values that do not fit them")
        types = types_of(schema, at.rpartition("/")[0])
        fitting = [value for value in values if "type" not in schema or any(is_a(kind, value) for kind in types)]
        if not fitting:
            refuse(at, clipped(list(values)), "no value has the schema's type")
        nodes = [literal(value, self._layout) for value in fitting]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _choice(self, schema: Schema, name: str, at: str) -> Node:
        rest = {key: value for key, value in schema.items() if key != name}
        parts = [self._resolved(part, f"{at}/{name}/{i}") for i, part in enumerate(listed(schema, name, at))]
        places = [f"{at}/{name}/{i}" for i in range(len(parts))]
        if not rest.keys() - ANNOTATIONS and name == "anyOf":
            parts = listed(schema, name, at)
        kept = [(part, place) for part, place in zip(parts, places, strict=True) if part is not False]
        if not kept:
            refuse(f"{at}/{name}", "false alone", "nothing fits it")
        whole = [(self._merged(rest, part, place), place) for part, place in kept]
        if name == "oneOf" and not self._coerced:
            require_apart([part for part, _ in whole], f"{at}/{name}")
        nodes = [self.value(part, place) for part, place in whole]
        return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))

    def _merged(self, a: Any, b: Any, at: str) -> Any:
        """The schema of the values that fit both."""
        try:
            return merged(a, b, ANNOTATIONS)
        except MergeError as error:
            refuse(at, str(error), "write one schema that says both")

    def _referred(self, schema: Schema, at: str) -> Node:
        rest = {name: value for name, value in schema.items() if name != "$ref" and name not in ANNOTATIONS}
        target = schema["$ref"]
        if not rest:
            return self.value(self._target(target, f"{at}/$ref"), target)
        return self.value(self._merged(rest, self._target(target, f"{at}/$ref"), at), at)

    def _resolved(self, schema: Any, at: str) -> Any:
        """The schema, or the one that it refers to with nothing besides."""
        seen = []
        while isinstance(schema, Mapping) and "$ref" in schema and not schema.keys() - ANNOTATIONS - {"$ref"}:
            if schema["$ref"] in seen:
                refuse(f"{at}/$ref", f"{schema['$ref']!r}", "it refers to itself alone")
            seen.append(schema["$ref"])
            schema = self._target(schema["$ref"], f"{at}/$ref")
        return schema

    def _target(self, reference: Any, at: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            refuse(at, f"{reference!r}", "only references within the schema, such as #/$defs/name, are followed")
        found = self._root
        for part in reference[2:].split("/") if reference != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                refuse(at, f"{reference!r}", f"the schema has no {name!r} there")
        if id(found) not in self._shaped:
            self._shaped.add(id(found))
            require_shape(found, reference)
        return found


def options_of(given: Any, at: str) -> tuple[Layout, bool]:
    """llguidance's options: the text between parts, and whether oneOf means anyOf."""
    if not isinstance(given, Mapping):
        refuse(at, clipped(given), "it must be an object")
    patterns: dict[str, Node] = {}
    for name, value in given.items():
        place = f"{at}/{pointer(name)}"
        if name not in _OPTIONS:
            if name == "lenient" and value is False:
                continue
            refuse(place, f"{name} is not enforced", f"there are {', '.join(_OPTIONS)}")
        if not isinstance(value, bool if name in _OPTIONS[:2] else str):
            refuse(place, clipped(value), "it must be true or false" if name in _OPTIONS[:2] else "it must be a string")
        if isinstance(value, str):
            try:
                patterns[name] = parse_regex(value)
            except GuidanceError as error:
                raise GuidanceError(f"json_schema {place}: {error}") from error
    blank: Node = FREE.blank if given.get("whitespace_flexible", True) else Text("")
    if "whitespace_pattern" in patterns:
        blank = Repeat(patterns["whitespace_pattern"], 0, 1)
    comma, colon = patterns.get("item_separator", Text(",")), patterns.get("key_separator", Text(":"))
    layout = Layout(blank, Series((blank, comma, blank)), Series((blank, colon, blank)))
    return layout, given.get("coerce_one_of", False)
