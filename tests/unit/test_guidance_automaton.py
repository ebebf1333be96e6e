"""Automata of grammars: the masks that are made of them, several readings, and what has none."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from capstan.errors import GuidanceError
from capstan.guidance import (
    Automaton,
    Constraint,
    Guidance,
    Masks,
    Position,
    TokenBytes,
    automaton_of,
    vocabulary,
)
from capstan.guidance import automaton as automaton_module
from capstan.guidance import masks as masks_module
from capstan.local.numpy_token_walks import LocalTokenWalks
from tests.guidance_runs import EXPRESSIONS, GRAMMARS, SCHEMAS

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
SIZE, END = 512, 1
OPEN = {"type": "object", "properties": {f"part{n}": {"type": "string", "maxLength": 20} for n in range(9)}}
TREE = {"type": "object", "properties": {"v": {"type": "null"}, "kids": {"type": "array", "items": {"$ref": "#"}}}}
CASES = [
    *(("json_schema", json.dumps(schema)) for schema in (*SCHEMAS.values(), {}, OPEN, TREE)),
    *(("regex", expression) for expression in (*EXPRESSIONS, "(?s).+")),
    *((kind, data) for kind, data, _ in GRAMMARS),
    ("regex", r"\p{Lu}[\p{L}\p{Nd}]{0,9}"),
    ("lark_grammar", 'start: %regex {"substring_chunks": ["ab", "c", "de"]}'),
    ("json_schema", json.dumps({"x-guidance": {"whitespace_flexible": False, "item_separator": ", ?"}})),
    ("json_schema", '{"type": "array", "items": {"multipleOf": 12, "type": "integer"}}'),
    ("json_schema", '{"type": "number", "multipleOf": 0.25, "minimum": -1.5, "exclusiveMaximum": 2}'),
    ("json_schema", '{"type": "string", "format": "email", "pattern": "^[^q]+@[a-z.]+$", "maxLength": 20}'),
    ("json_schema", r'{"type": "string", "pattern": "^(?=.*\\d)(?!a)[^\"]{2,9}$"}'),
    ("json_schema", '{"type": "array", "items": {"enum": ["a", "ab", 1]}, "uniqueItems": true, "minItems": 1}'),
    (
        "json_schema",
        '{"type": "object", "propertyNames": {"pattern": "^[ab]"}, "minProperties": 1, "maxProperties": 2}',
    ),
    ("json_schema", '{"type": "object", "patternProperties": {"a": {"type": "null"}}, "properties": {"b": {}}}'),
    ("regex", r"(?:(?!--)[a-z-])+|é\b.*"),
]


CALL = '{"x-guidance": {"whitespace_flexible": false}, "type": "array", "items": {"type": "object"}, "minItems": 1}'
NATIVE = f"start: TEXT | call\nTEXT: /[^{{<](.|\\n)*/\ncall: %json {CALL}"
"""The form of onnxruntime-genai's examples: what begins as a call may be text."""
AMBIGUOUS = [
    ("lark_grammar", NATIVE),
    ("ebnf", 'root ::= "a" root "a" | "b" root "b" | "a"'),
    ("ebnf", "root ::= [!-z] root [!-z] | [!-z]"),
]


@pytest.fixture(scope="module")
def tokens() -> TokenBytes:
    return TokenBytes(vocabulary((NANO / "tokenizer.json").read_text(), SIZE, [END]), [END])


def allowed(automaton: Automaton, position: Position, tokens: TokenBytes) -> set[int]:
    fits = {token for token in range(SIZE) if tokens[token] and automaton.after(position, tokens[token])}
    return fits | ({END} if automaton.may_end(position) else set())


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("kind", "data"), [*AMBIGUOUS, *CASES])
def test_masks_have_the_tokens_whose_bytes_fit(kind: str, data: str, tokens: TokenBytes) -> None:
    rng = random.Random(5)
    automaton = Guidance(kind, data).automaton()
    assert automaton.ambiguous == ((kind, data) in AMBIGUOUS)
    masks = Masks(automaton, lambda: LocalTokenWalks(tokens), [END])
    for _ in range(3):
        position = automaton.start
        for _ in range(25):
            assert automaton.ambiguous or len(position) == 1
            mask = int.from_bytes(masks.mask(position), "little")
            fitting = allowed(automaton, position, tokens)
            assert fitting == {token for token in range(SIZE) if mask >> token & 1}
            pick = rng.choice(sorted(fitting))
            if pick == END:
                break
            position = automaton.after(position, tokens[pick])
    masks.close()


def test_a_table_of_masks_is_begun_anew_when_it_is_large(monkeypatch: pytest.MonkeyPatch, tokens: TokenBytes) -> None:
    monkeypatch.setattr(masks_module, "MOST_POSITIONS", 3)
    automaton = Guidance("regex", "[a-z]{9}").automaton()
    masks, position = Masks(automaton, lambda: LocalTokenWalks(tokens), [END]), automaton.start
    for _ in range(9):
        mask = int.from_bytes(masks.mask(position), "little")
        assert {token for token in range(SIZE) if mask >> token & 1} == allowed(automaton, position, tokens)
        position = automaton.after(position, b"a")


@cache
def balanced(text: str) -> bool:
    """Whether `root ::= root root "a" | "b"` has the text."""
    parts = range(1, len(text) - 1)
    return text == "b" or (text[-1:] == "a" and any(balanced(text[:cut]) and balanced(text[cut:-1]) for cut in parts))


def test_an_automaton_is_the_same_each_time() -> None:
    grammars = [Guidance("regex", "(?s).{3}.*").grammar for _ in range(30)]
    first, *others = [automaton_of(grammar).steps for grammar in grammars]
    assert others == [first] * 29


def test_tables_stay_small() -> None:
    """Rules are there once, however often they are used: the grammar of any JSON in each of nine places, counts of
    characters, white space."""
    for schema in ({}, OPEN, SCHEMAS["person"]):
        automaton = automaton_of(Guidance("json_schema", json.dumps(schema)).grammar)
        assert len(automaton.steps) < 500


def palindrome(text: str) -> bool:
    return text == text[::-1] and len(text) % 2 == 1


@pytest.mark.parametrize(
    ("kind", "data", "fits"),
    [
        ("ebnf", 'root ::= "a" root "a" | "b" root "b" | "a" | "b"', palindrome),
        ("ebnf", 'root ::= root "a" | "b"', "ba*"),
        ("ebnf", 'root ::= root root "a" | "b"', balanced),
        ("ebnf", 'root ::= x "a" | "b"\nx ::= root "b" | "a" | root', "(b|aa)(ba|a)*"),
        ("ebnf", 'root ::= root | "a"', "a"),
        ("lark_grammar", 'start: start "a" | start "b" "b" | ', "(a|bb)*"),
        ("lark_grammar", 'start: x "b"\nx: x "a" | y\ny: x "b" | "a"', "a(a|b)*b"),
    ],
)
def test_rules_that_begin_or_end_with_themselves(kind: str, data: str, fits: str | Callable[[str], bool]) -> None:
    automaton = Guidance(kind, data).automaton()
    judge = fits if callable(fits) else lambda text: bool(re.fullmatch(fits, text))
    for length in range(9):
        for letters in itertools.product("ab", repeat=length):
            text = "".join(letters)
            assert automaton.may_end(automaton.after(automaton.start, text.encode())) == judge(text), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'root ::= "a"? root "b" | "c"',
            "a rule begins with itself after an element that may be empty; write the repetition",
        ),
        (
            'root ::= ("a" "b" "c" "d" "e"){10000}',
            "it takes more than 40000 states; ask for fewer alternatives or repetitions",
        ),
    ],
)
def test_grammars_without_an_automaton_are_refused(text: str, said: str) -> None:
    with pytest.raises(GuidanceError, match=f"ebnf: {said}"):
        Guidance("ebnf", text).automaton()


def test_too_many_readings_are_refused(tokens: TokenBytes) -> None:
    pair = 'x ::= "a" (x "b" | y "c") | "a"\ny ::= "a" (x "d" | y "e") | "a"'
    guidance = Guidance("ebnf", f"root ::= x | y\n{pair}")
    constraint = Constraint(guidance, guidance.automaton(), tokens)
    with pytest.raises(GuidanceError, match="ebnf: the output can be read in more than 500 ways; begin the rules with"):
        constraint.position([letter(tokens)] * 30)


def test_readings_that_only_a_mask_would_meet_are_refused(monkeypatch: pytest.MonkeyPatch, tokens: TokenBytes) -> None:
    monkeypatch.setattr(automaton_module, "MOST_STACKS", 1)
    guidance = Guidance("ebnf", 'root ::= "a" root "a" | "a"')
    constraint = Constraint(guidance, guidance.automaton(), tokens)
    masks = Masks(guidance.automaton(), lambda: LocalTokenWalks(tokens), [END])
    with pytest.raises(GuidanceError, match="more than 1 ways"):
        constraint.allowed([letter(tokens)] * 2, masks)


def letter(tokens: TokenBytes) -> int:
    return next(token for token in range(SIZE) if tokens[token] == b"a")


@pytest.mark.parametrize(
    ("expression", "begun", "forced"),
    [
        ("(yes|no), é.", "yes", ", é"),
        ("(yes|no), é.", "", ""),
        ("ab?", "a", ""),
        ("a[éè]b", "a", ""),
        ("aéb", "a\u00c3", ""),
        ("a日+", "", "a日"),
        ("a+b{3}", "ab", "bb"),
    ],
)
def test_text_that_must_come_next(expression: str, begun: str, forced: str) -> None:
    automaton = Guidance("regex", expression).automaton()
    position = automaton.after(automaton.start, begun.encode("latin-1"))
    assert automaton.forced(position, 100) == forced


def test_bytes_of_tokens_are_those_of_the_vocabulary() -> None:
    given = ["\u0120a", "end", "", "\u20ac", "\u00c3\u00a9"]
    tokens = TokenBytes(given, [1])
    assert [tokens[token] for token in range(5)] == [b" a", b"", b"", "\u20ac".encode(), "\u00e9".encode()]
    assert [end & 0x7FFFFFFF for end in tokens.ends] == [0, 2, 2, 2, 5, 7]
    assert [end >> 31 for end in tokens.ends] == [0, 1, 0, 0, 0, 0]
