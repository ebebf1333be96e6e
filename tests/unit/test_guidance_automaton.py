"""Automata of grammars: they allow the tokens that xgrammar allows, and are told where there is none."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from capstan.guidance import Guidance, NoAutomatonError, Position, TokenBytes, automaton_of, vocabulary
from capstan.guidance.automaton import Automaton
from capstan.local.grammars import LocalGrammars
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


@pytest.fixture(scope="module")
def pieces() -> list[str]:
    return vocabulary((NANO / "tokenizer.json").read_text(), SIZE, [END])


@pytest.fixture(scope="module")
def grammars(pieces: list[str]) -> LocalGrammars:
    return LocalGrammars(pieces, [END])


def allowed(automaton: Automaton, position: Position, tokens: TokenBytes) -> set[int]:
    fits = {token for token in range(SIZE) if tokens[token] and automaton.after(position, tokens[token]) is not None}
    return fits | ({END} if automaton.may_end(position) else set())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "data"), CASES)
def test_what_is_allowed_is_what_xgrammar_allows(
    kind: str, data: str, pieces: list[str], grammars: LocalGrammars
) -> None:
    rng = random.Random(5)
    tokens, guidance = TokenBytes(pieces, [END]), Guidance(kind, data)
    automaton = automaton_of(guidance.grammar)
    for _ in range(3):
        matcher = asyncio.run(grammars.compile(guidance.text))
        position: Position | None = automaton.start
        for _ in range(25):
            assert position is not None
            mask = int.from_bytes(asyncio.run(matcher.mask()), "little")
            fitting = allowed(automaton, position, tokens)
            assert fitting == {token for token in range(SIZE) if mask >> token & 1}
            pick = rng.choice(sorted(fitting))
            if pick == END:
                break
            assert matcher.accept(pick)
            position = automaton.after(position, tokens[pick])
        matcher.close()


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('root ::= "a" root "a" | "a"', "contains itself where its end cannot be told from a part of it"),
        ('root ::= root "a" | "b"', "begins with itself"),
        ('root ::= ("a" "b" "c"){10000}', "it takes more than"),
    ],
)
def test_grammars_without_an_automaton_are_told(text: str, said: str) -> None:
    with pytest.raises(NoAutomatonError, match=said):
        automaton_of(Guidance("ebnf", text).grammar)


def test_bytes_of_tokens_are_those_of_the_vocabulary() -> None:
    given = ["\u0120a", "end", "", "\u20ac", "\u00c3\u00a9"]
    tokens = TokenBytes(given, [1])
    assert [tokens[token] for token in range(5)] == [b" a", b"", b"", "\u20ac".encode(), "\u00e9".encode()]
    assert [end & 0x7FFFFFFF for end in tokens.ends] == [0, 2, 2, 2, 5, 7]
    assert [end >> 31 for end in tokens.ends] == [0, 1, 0, 0, 0, 0]
