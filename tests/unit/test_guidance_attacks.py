"""Grammars of the wrong types, and of sizes that nobody asks for: refused with their place, at once."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from capstan.errors import GuidanceError, OptionError
from capstan.guidance import Guidance, automaton_of, regex
from capstan.guidance.grammar import Text

DIGITS = "1" + 400 * "0"
PROPERTIES = {f"property {number}": {"type": "integer"} for number in range(5000)}
RULES = range(10_000)
TOO_LARGE = [
    (
        "json_schema",
        f'{{"items": {{"type": "integer", "minimum": {DIGITS}}}}}',
        "#/items/minimum: a number of 401 digits",
    ),
    ("json_schema", '{"type": "number", "minimum": 1e-300}', "#/minimum: a number of 301 digits; use at most 64"),
    ("json_schema", json.dumps({"items": {"properties": PROPERTIES}}), "#/items: it takes more than 5000 rules"),
    ("json_schema", '{"items": {"type": "string", "maxLength": 1000000}}', "#/items: it takes 1000"),
    ("json_schema", '{"items": {"maxItems": 10000000000}}', "#/items: it takes 3"),
    (
        "json_schema",
        '{"type": "string", "pattern": "((a?){50}){50}"}',
        "#/pattern: regex '((a?){50}){50}', column 15: it",
    ),
    (
        "json_schema",
        '{"pattern": "^(a|b)*a(a|b){30}$", "maxLength": 99}',
        "#/pattern: its shortest text takes more",
    ),
    ("json_schema", '{"pattern": "(?:.{0,900}x){1,20}", "maxLength": 9}', "#/pattern: it takes more than 20000 states"),
    (
        "json_schema",
        '{"patternProperties": {"^(a|b)*a(a|b){14}$": {}}}',
        "#/patternProperties/^(a|b)*a(a|b){14}$: it takes too many states to determine which names match",
    ),
    ("json_schema", json.dumps({"oneOf": [{"const": number} for number in range(2000)]}), "#/oneOf: 2000 branches"),
    ("json_schema", json.dumps({"enum": [f"{number:0100}" for number in range(2000)]}), "#: it takes 20"),
    ("regex", "((a?){50}){50}", "column 15: it takes 15625000000 states; at most 100000"),
    ("regex", "a{" + 5000 * "9" + "}", "column 2: 10001 repetitions"),
    ("regex", 30_000 * "a", "column 20001: it has 30000 characters; at most 20000 are read: write rules, or an enum"),
    ("regex", 2000 * "(", "column 65: 65 groups within each other; use at most 64"),
    ("lark_grammar", "start: r1\n" + "\n".join(f'r{n}: "a"' for n in RULES), "line 5000, column 7: it takes more than"),
    ("lark_grammar", "start: " + 2000 * "(", "line 1, column 72: 65 groups"),
    ("lark_grammar", 'start: "a"~' + 5000 * "9", "repetitions; use at most 10000"),
    (
        "lark_grammar",
        'start: %json {"maximum": ' + 5000 * "9" + "}",
        "line 1, column 14: an integer of thousands of digits",
    ),
    (
        "ebnf",
        "root ::= r1\n" + "\n".join(f'r{n} ::= "a"' for n in RULES),
        "line 5001, column 10: it takes more than 5000",
    ),
    ("ebnf", "root ::= " + 2000 * "(", "line 1, column 74: 65 groups"),
    ("ebnf", 'root ::= "a"{' + 5000 * "9" + "}", "repetitions; use at most 10000"),
]
HALVES = [
    ("json_schema", r'{"items": {"const": "\ud800"}}', r"#/items/const: '\ud800' has half of a surrogate pair"),
    ("json_schema", r'{"properties": {"\udfff": {}}}', r"#/properties: '\udfff' has half of a surrogate pair"),
    ("json_schema", '{"const": "\ud800"}', "json_schema"),
    ("regex", "a\nb\ud800", r"regex, line 2, column 2: '\ud800' is half of a surrogate pair"),
    ("lark_grammar", 'start: "\udfff"', "lark_grammar, line 1, column 9: "),
    ("lark_grammar", r'start: %json {"const": "\ud800"}', "line 1, column 14: json_schema #/const"),
    ("ebnf", "root ::= [a\udabc]", "ebnf, line 1, column 12: "),
    ("json_schema", '{"type": "number", "maximum": NaN}', "#/maximum: nan; write a number that JSON has"),
    ("json_schema", '{"items": {"minimum": -Infinity}}', "#/items/minimum: -inf"),
    ("json_schema", '{"enum": [1, 1e999]}', "#/enum/1: inf"),
]


@pytest.mark.parametrize(("kind", "text", "said"), TOO_LARGE + HALVES, ids=lambda value: ascii(value[:40]))
def test_sizes_and_values_that_no_grammar_has_are_refused_with_their_place(kind: str, text: str, said: str) -> None:
    with pytest.raises(GuidanceError) as raised:
        Guidance(kind, text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": dict([*PROPERTIES.items()][:200])},
        {"type": "object", "properties": dict([*PROPERTIES.items()][:200]), "additionalProperties": False},
        {"enum": [f"value {number}" for number in range(2000)]},
        {"type": "object", "required": [f"unknown {number}" for number in range(200)]},
    ],
    ids=["properties", "no others", "enum", "required"],
)
def test_large_schemas_have_automata(schema: Any) -> None:
    automaton = automaton_of(Guidance("json_schema", json.dumps(schema)).grammar)
    texts = schema.get("enum") or [dict.fromkeys(schema.get("required") or schema["properties"], 5)]
    position = automaton.after(automaton.start, json.dumps(texts[-1]).encode())
    assert automaton.may_end(position)
    assert not automaton.ambiguous


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2.5, -0.0, 1e308, 10**30, 10**100, "", "a", "object", "integer", "(", "#/x", "#"),
    *([], [1], ["a", "a"], [[]], [{}], [True], {}, {"a": 1}, {"type": "string"}, [{"type": "null"}, False]),
    *("\ud800", float("nan"), float("inf"), {"\udc00": {}}, ["string", []], "#/$defs/9", "\0", 3 * ["b"]),
]
KEYWORDS = [
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "title", "not", "uniqueItems", "x-guidance"),
    *("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
]


def schema_of(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(VALUES)
    found: dict[str, Any] = {}
    for keyword in rng.sample(KEYWORDS, rng.randrange(1, 5)):
        draw = rng.random()
        if draw < 0.5:
            found[keyword] = rng.choice(VALUES)
        elif draw < 0.7:
            found[keyword] = [schema_of(rng, depth - 1) for _ in range(rng.randrange(3))]
        elif draw < 0.85:
            found[keyword] = {rng.choice(["a", "b/~", "$ref"]): schema_of(rng, depth - 1)}
        else:
            found[keyword] = schema_of(rng, depth - 1)
    return found


PIECES = [
    *(
        "root ::= ",
        "start: ",
        "a",
        '"',
        "'",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "2,",
        "9" * 20,
        "|",
        "*",
        "~",
        "%json",
        "%ignore ",
    ),
    *(
        "\\",
        "\\u",
        "\\x",
        "\\p{",
        "L}",
        "d800",
        "^",
        "$",
        "-",
        "\n",
        "/",
        "i",
        "..",
        "<",
        ">",
        "<[",
        "123",
        "%regex",
        "A: ",
    ),
    *("%llguidance {}", "\ud800", "é", "?", "+", "start:", "(?i)", "(?", "<!", " ", "x ::= "),
]


def test_a_long_expression_is_read_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It made a text of each beginning of it: the letters of 10,000 were 50,000,000."""
    read: list[int] = []

    def text(letters: str) -> Text:
        read.append(len(letters))
        return Text(letters)

    monkeypatch.setattr(regex, "Text", text)
    for length in (100, 10_000, 20_000):
        read.clear()
        automaton_of(Guidance("regex", length * "a").grammar) if length < 20_000 else Guidance("regex", length * "a")
        assert sum(read) == length


def test_definitions_are_checked_where_they_are_used() -> None:
    definitions = '"$defs": {"old": {"items": 4}, "odd": 3}'
    Guidance("json_schema", f'{{"type": "null", {definitions}}}')
    for name, said in (("old", "#/$defs/old/items: 4; a schema is"), ("odd", "#/$defs/odd: 3; a schema is an object")):
        with pytest.raises(GuidanceError) as raised:
            Guidance("json_schema", f'{{"$ref": "#/$defs/{name}", {definitions}}}')
        assert said in str(raised.value)


def test_whatever_is_given_only_typed_errors_come_out() -> None:
    rng = random.Random(27)
    kinds = {"json_schema": 1500, "regex": 1000, "lark_grammar": 1000, "ebnf": 1000}
    for kind, count in kinds.items():
        taken = 0
        for _ in range(count):
            if kind == "json_schema":
                text = json.dumps(schema_of(rng, 3))
            else:
                head = {"lark_grammar": "start: ", "ebnf": "root ::= "}.get(kind, "") if rng.random() < 0.7 else ""
                text = head + "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
            try:
                Guidance(kind, text)
                taken += 1
            except OptionError:
                pass
            except Exception as error:
                pytest.fail(f"{kind} {text!a}: {error!r}")
        assert taken > 5, kind
