"""Automata accept exactly the texts that grammars mean."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from capstan.guidance import Automaton, Guidance, Position, automaton_of
from capstan.guidance.grammar import Chars, Grammar, Node, Repeat, Series, Text
from tests.guidance_runs import judged, runs


def ends(automaton: Automaton, position: Position, at_most: int) -> Iterator[bytes]:
    """Texts that may end, of each run of bytes that may follow each other the first, the last and one between."""
    if automaton.may_end(position):
        yield b""
    if at_most == 0:
        return
    found = {byte for byte in range(256) if automaton.after(position, bytes([byte]))}
    starts = [byte for byte in found if byte - 1 not in found]
    for first in sorted(starts):
        last = next(byte for byte in range(first, 256) if byte + 1 not in found)
        between = {(first + last) // 2, 0xC4, 0xE0, 0xE5, 0xED, 0xF0}
        for byte in sorted({first, last, *(byte for byte in between if first < byte < last)}):
            for rest in ends(automaton, automaton.after(position, bytes([byte])), at_most - 1):
                yield bytes([byte]) + rest


SETS = [
    ((0, 0xD7FF), (0xE000, 0x10FFFF)),
    ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)),
    ((0x80, 0x7FF),),
    ((0x85, 0x785),),
    ((0x900, 0x2345),),
    ((0x1F600, 0x1F64F),),
    ((0x41, 0x5A), (0xE9, 0xE9), (0x4E00, 0x9FFF)),
    ((0xFFFF, 0x10000),),
    ((0x10FFFF, 0x10FFFF),),
]


WRAPPED: dict[str, tuple[Callable[[Node], Node], str, int]] = {
    "alone": (lambda node: node, "", 4),
    "followed": (lambda node: Series((node, Text("é"))), "é", 6),
    "repeated": (lambda node: Repeat(node, 1, 2), "", 3),
}


@pytest.mark.parametrize("ranges", SETS, ids=str)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_sets_of_characters_are_utf8_and_nothing_else(ranges: tuple[tuple[int, int], ...], wrapped: str) -> None:
    wrap, behind, most = WRAPPED[wrapped]
    grammar = Grammar()
    grammar.add("root", wrap(Chars(ranges)))
    automaton = automaton_of(grammar)
    for text in ends(automaton, automaton.start, most):
        characters = text.decode().removesuffix(behind)
        assert characters
        assert all(any(first <= ord(c) <= last for first, last in ranges) for c in characters), text
    for code in sorted({edge for pair in ranges for n in pair for edge in (n - 1, n, n + 1)}):
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            inside = any(first <= code <= last for first, last in ranges)
            assert takes(automaton, f"{chr(code)}{behind}") == inside, hex(code)


def takes(automaton: Automaton, text: str) -> bool:
    """Whether the text may be the whole output."""
    return automaton.may_end(automaton.after(automaton.start, text.encode()))


def accepts(kind: str, data: str, text: str) -> bool:
    return takes(automaton(kind, data), text)


@cache
def automaton(kind: str, data: str) -> Automaton:
    return Guidance(kind, data).automaton()


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"a.c", ["abc", "aéc", "a\nc", "ac"]),
        (r"(?s)a.c", ["a\nc"]),
        (r"(?i)straße|[k-m]x", ["STRAßE", "lX", "Ax"]),
        (r"^x{2,3}?y*$", ["xx", "xxxyy", "x", "xxxxy"]),
        (r"\d+\.\d{2}|\s", ["12.34", "\u3000", "12.3", "a"]),
        (r"[^\W\d]+[]\-^]", ["ab]", "ab-", "a^", "1]", "a"]),
        (r"(?:a|(b|(?P<n>c))+)\x41\u00e9", ["bcbAé", "aAé", "Aé"]),
    ],
)
def test_expressions_mean_what_they_mean_in_python(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert accepts("regex", pattern, text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ('{"type": "integer", "minimum": -12, "maximum": 1030}', "-12 -1 0 9 10 999 1030", "-13 1031 007 -0 1.0"),
        ('{"type": "integer", "exclusiveMinimum": 99}', "100 123456789", "99 5"),
        ('{"type": "integer", "exclusiveMinimum": 2.5, "exclusiveMaximum": 5.5}', "3 5", "2 6"),
        ('{"type": "integer", "maximum": -3}', "-3 -45", "-2 0 3"),
        ('{"type": "number", "minimum": 0.25, "exclusiveMaximum": 3.5}', "0.25 0.3 1 3.499 2.000001", "0.2 3.5 0 4"),
        ('{"type": "number", "minimum": -1.5, "maximum": -0.5}', "-1.5 -0.5 -1 -0.75", "-1.6 -0.4 0 1"),
        ("{}", '[[1],{"a":[]}]', '{"a":[1} [[1]'),
        ('{"type": "number"}', "-0 1e5 2.5E-3", "+1 .5 01 1e"),
        ('{"type": "string", "maxLength": 2}', r'"" "\n" "éé" "\u00e9x"', '"abc" "\t" "\\ud800" \'a\''),
        ('{"type": "string", "pattern": "^.\\\\.$"}', r'"\"." "é."', '"ab" """."'),
        ('{"required": ["b"], "properties": {"a": true}, "type": "object"}', '{"b":1} {"a":2,"b":1}', '{} {"a":1}'),
        (
            '{"properties": {"ab": {"type": "null"}}, "type": "object"}',
            '{"a":1} {"ab":null,"abc":2}',
            '{"ab":1} {"a\\u0062":1}',
        ),
        ('{"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}}', "[] [1] [1,2,2]", "[2] [1,1]"),
        ('{"type": "array", "items": {"const": 2}, "minItems": 2, "maxItems": 3}', "[2,2] [2,2,2]", "[2] [2,2,2,2] []"),
        ('{"enum": [1, "a"], "type": "string"}', '"a"', "1"),
        ('{"const": "ü\\n"}', r'"ü\n"', '"ü"'),
        ('{"const": {"a":[1,{}]}}', '{"a":[1,{}]} {\n"a":[1,{\n}]}', '{"a":[1]}'),
        (
            '{"patternProperties": {"^[a-c]\\\\.": {"type": "null"}}, "additionalProperties": false, "type": "object"}',
            '{} {"a.":null} {"b.\\n":null,"a.x":null}',
            '{"d.":null} {"a":null} {"a.":1}',
        ),
        ('{"type": "number", "multipleOf": 0.01}', "0 -12.5 3.25 7", "1.234 1e2 .5 01"),
        ('{"type": "integer", "multipleOf": 7}', "0 7 -14 700 1001", "1 -8 07 1000 7.0"),
        ('{"type": "integer", "multipleOf": 7, "minimum": -14, "maximum": 30}', "0 7 -14 28", "-21 35 1"),
        ('{"type": "integer", "multipleOf": 1.5}', "0 3 -6", "1 2 4"),
        ('{"type": "number", "multipleOf": 2.5, "exclusiveMinimum": -5, "maximum": 5}', "0 -2.5 2.5 5", "-5 1 7.5"),
        ('{"multipleOf": 4, "allOf": [{"multipleOf": 6}], "type": "integer"}', "0 12 24", "4 6 8"),
        ('{"type": "string", "pattern": "^(?=.*[0-9])(?!a)", "maxLength": 3}', '"x1" "0" "b2c"', '"a1" "x" "xyz1" ""'),
        ('{"type": "string", "pattern": "\\\\bcat\\\\b"}', '"cat" "-cat,"', '"cats" "écat"'),
        ('{"type": "string", "pattern": "^(?:[a-z]$|x\\\\d)"}', '"q" "x1" "x1y"', '"qq" "xy"'),
        ('{"type": "string", "pattern": "^[^a]$", "minLength": 1}', r'"b" "\"" "\n"', '"a" "" "bb"'),
        ('{"type": "string", "format": "email", "pattern": "^é"}', '"é@b"', '"é" "a@b"'),
        ('{"type": "string", "format": "date", "pattern": "^\\\\d{4}$"}', '"2024"', '"2024-02-29"'),
        ('{"type": "string", "format": "date"}', '"2024-02-29" "2000-02-29"', '"2023-02-29" "1900-02-29" "0000-01-01"'),
        ('{"type": "string", "format": "uri", "maxLength": 9}', '"ab://c/d" "mailto:a"', '"ab://c/d?e" "a" ""'),
        ('{"type": "string", "format": "nanoid", "pattern": "^[a-z]$"}', '"a"', '"A" "ab"'),
        ('{"type": "array", "items": {"enum": ["a", 1]}, "uniqueItems": true}', '[] ["a"] [1,"a"] ["a",1]', "[1,1]"),
        (
            '{"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 20}, "uniqueItems": true, '
            '"minItems": 2}',
            "[1,2] [5,19,20]",
            "[1] [2,2] []",
        ),
        ('{"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}}', "[] [1,2,2]", "[2] [1,1]"),
        ('{"type": "array", "items": [{"const": 1}], "additionalItems": false}', "[] [1]", "[1,1]"),
        (
            '{"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}}',
            '{} {"a":1} {"a":1,"b":1} {"b":1}',
            '{"c":1} {"a":2}',
        ),
        (
            '{"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"pattern": "^x"}]}, "required": ["a"]}',
            '{"a":1} {"a":1,"xy":2}',
            '{"xy":2} {"a":1,"b":2}',
        ),
        (
            '{"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"maximum": 5}}, '
            '"properties": {"ab": {"minimum": 3}}}',
            '{"ab":4} {"ab":3,"ac":9,"xb":-1,"c":null} {"xb":"t"}',
            '{"ab":9} {"ab":2} {"ac":null} {"xb":6}',
        ),
        (
            '{"type": "object", "patternProperties": {"^\\\\w$": {"const": 1}}, "properties": {"é": {"minimum": 0}}}',
            '{"a":1} {"é":1} {"--":2}',
            '{"a":2} {"é":2} {"ü":2}',
        ),
        (
            '{"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false, "minProperties": 1, '
            '"maxProperties": 1}',
            '{"a":1} {"b":1}',
            '{} {"a":1,"b":1}',
        ),
        ('{"type": "object", "required": ["a"], "minProperties": 2}', '{"a":1,"b":2}', '{"a":1} {"b":1}'),
        (
            '{"oneOf": [{"type": "object", "properties": {"t": {"const": 1}}}, {"type": "object", "properties": '
            '{"t": {"const": 2}}}], "discriminator": {"propertyName": "t"}}',
            '{"t":1} {"t":2,"x":0}',
            '{} {"t":3}',
        ),
        ('{"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 1}', "0.5 1", "0 2"),
        ('{"type": "integer", "nullable": true, "x-order": 3, "placeholder": "n"}', "1 null", '"a"'),
        ('{"enum": [1, 5, "ab", "c", null], "minimum": 2, "maxLength": 1}', '5 "c" null', '1 "ab"'),
        ('{"type": "object", "properties": {"a": {"not": {}}}}', '{} {"b":1}', '{"a":1}'),
    ],
)
def test_schemas_allow_what_fits_them(schema: str, good: str, bad: str) -> None:
    for texts, fitting in ((good, True), (bad, False)):
        for text in texts.split(" "):
            assert accepts("json_schema", schema, text) == fitting, text


def test_white_space_may_stand_between_any_two_parts_and_ends_somewhere() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "array"}}, "additionalProperties": false}'
    for text, fitting in [
        (" {}", False),
        ('{ "a" : [ 1 , 2 ] }', True),
        ('{\n  "a": [\n\t\t1,\n    2\n  ]\n}', True),
        ("{\n" + 64 * " " + '"a":[]}', True),
        ("{\n" + 65 * " " + '"a":[]}', False),
        ("{   }", False),
    ]:
        assert accepts("json_schema", schema, text) == fitting, text


NATIVE = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            {"whitespace_flexible": False},
            '{"a":[1,2],"b":{}}',
            '{"a": [1,2],"b":{}}|{ "a":[1,2],"b":{}}|{"a":[1, 2],"b":{}}',
        ),
        (
            NATIVE,
            '{"a": [1, 2], "b": {}}|{"a": [], "b": {"x": [null, 1]}}',
            '{"a":[1,2],"b":{}}|{"a": [1, 2], "b": { }}',
        ),
        ({"whitespace_pattern": " {2}"}, '{"a":[1,2],"b":{}}|{  "a"  :  [1  ,2],"b":{}}', '{ "a":[1,2],"b":{}}'),
        (
            {"whitespace_flexible": False, "item_separator": "\\s{0,2},"},
            '{"a":[1 ,2]  ,"b":{}}',
            '{"a":[1, 2],"b":{}}|{"a":[1   ,2],"b":{}}',
        ),
        ({}, '{ "a" :[1 , 2],"b":{}}', '{  "a":[1,2],"b":{}}'),
    ],
)
def test_text_between_parts_is_as_the_options_say(options: dict[str, object], good: str, bad: str) -> None:
    items = {"type": "array", "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"a": items, "b": {"type": "object"}}, "required": ["a", "b"]}
    given = json.dumps({"x-guidance": options, **schema, "additionalProperties": False})
    for texts, fitting in ((good, True), (bad, False)):
        for text in texts.split("|"):
            assert accepts("json_schema", given, text) == fitting, text


def test_tools_of_the_native_examples_are_called_as_their_options_say() -> None:
    """The Lark grammar that onnxruntime-genai's example scripts make of a list of tools."""
    place = {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "where"}},
        "required": ["place"],
    }
    properties = {"name": {"const": "weather"}, "parameters": place}
    tool = {"description": "tells", "type": "object", "properties": properties, "required": ["name", "parameters"]}
    schema = {"x-guidance": NATIVE, "type": "array", "items": {"anyOf": [{**tool, "additionalProperties": False}]}}
    call = json.dumps({**schema, "minItems": 1})
    grammar = f"start: TEXT | functioncall\nTEXT: /[^{{<](.|\\n)*/\nfunctioncall: %json {call}"
    called = '[{"name": "weather", "parameters": {"place": "Rome"}}]'
    for kind, data in (("json_schema", call), ("lark_grammar", grammar.replace("TEXT | ", ""))):
        assert accepts(kind, data, called)
        assert accepts(kind, data, called.replace("}]", "}, " + called[1:]))
        assert not accepts(kind, data, called.replace(": ", ":"))
    assert accepts("lark_grammar", grammar, "It rains.\nOften.")
    assert not accepts("lark_grammar", grammar, "<tool>")


def test_one_of_is_any_of_where_the_options_say_so() -> None:
    schema = '{"x-guidance": {"coerce_one_of": true}, "oneOf": [{"type": "integer"}, {"type": "number"}]}'
    assert accepts("json_schema", schema, "3")


def test_unicode_categories_mean_what_unicodedata_says() -> None:
    for pattern, within in (
        (r"\p{Lu}", lambda kind: kind == "Lu"),
        (r"\PL", lambda kind: kind[0] != "L"),
        (r"[\p{Nd}\p{Zs}x]", lambda kind: kind in ("Nd", "Zs")),
    ):
        automaton = Guidance("regex", pattern).automaton()
        for character in "aZéÉ中٣３ \u3000,\u01c5\U0001d400\U0001f600":
            assert takes(automaton, character) == within(unicodedata.category(character)), (pattern, character)


SUM = """
%ignore / +/
%import common.INT -> N
?start: sum // a comment
sum: item ("+" item)*
item: N | "(" sum ")"
"""
MIXED = """start: "x"i ("a".."c")~2 | A{2}
  | "%" ["é"]
A: /[0-9]\\//
"""
LIST = """root ::= item-s ("," item-s)* # a comment
item-s ::= [^,"\\n]{2} | 'é' | x "!"
x ::= . "x"?
"""


@pytest.mark.parametrize(
    ("kind", "data", "good", "bad"),
    [
        ("lark_grammar", SUM, "1+2_(1+(23))+4_1 + 2 _1", "1+_1++2_()_ 1"),
        ("lark_grammar", MIXED, "Xab_xcc_1/2/_%_%é", "xa_1/_é_1/2/3/"),
        ("lark_grammar", 'start: %json {"type":"boolean"} "!"', "true!_false!", "true"),
        ("lark_grammar", '%llguidance {}\nstart: %json {"x-guidance": {}, "type": "null"}', "null", "true"),
        (
            "lark_grammar",
            'start: "x" %regex {"substring_chunks": ["ab", "c", "de"]}',
            "x_xab_xabc_xc_xcde_xabcde_xde",
            "xb_xabde_xa_xabcdea",
        ),
        ("lark_grammar", 'start: S\nS: %regex {"substring_chars": "aba"}', "a_ab_aba_ba_b_", "abab_aa"),
        ("ebnf", LIST, "ab,é_日本,xx!_x!", "abc_,_é,"),
        ("ebnf", 'root ::= "(" root ")" | "" | root "+"', "(())_+_(+)+", "(_)("),
    ],
)
def test_grammars_allow_what_they_say(kind: str, data: str, good: str, bad: str) -> None:
    for texts, fitting in ((good, True), (bad, False)):
        for text in texts.split("_"):
            assert accepts(kind, data, text) == fitting, text


def test_outputs_of_random_models_fit() -> None:
    """`python -m tests.guidance_runs` does any number of them."""
    verdicts = {judged(run)[0] for run in runs(36, seed=20)}
    assert verdicts <= {"fits", "cut"}
    assert "fits" in verdicts
