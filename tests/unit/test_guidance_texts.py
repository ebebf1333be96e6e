"""Refusals of schemas, expressions and grammars, with place and remedy; tokenizers whose tokens have bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capstan.errors import GuidanceError, OptionError
from capstan.guidance import Guidance, vocabulary

REFUSED = [
    ("json_schema", "{", "line 1, column 2: not JSON"),
    ("json_schema", '{\n "type": }', "line 2, column 10: not JSON"),
    ("json_schema", "3", "#: 3; a schema is an object, true or false"),
    ("json_schema", "false", "#: the schema false; nothing fits it"),
    ("json_schema", '{"type": "foo"}', "#/type: 'foo'; the types are object, array"),
    ("json_schema", '{"properties": {"a": {"not": {}}}, "required": ["a"]}', "#/properties/a: a required property tha"),
    ("json_schema", '{"not": {"type": "null"}}', "#/not: not is not enforced"),
    (
        "json_schema",
        '{"minLenght": 3}',
        "#/minLenght: minLenght is not a keyword; write minLength, or a name that is less",
    ),
    ("json_schema", '{"required_": []}', "#/required_: required_ is not a keyword; write required"),
    (
        "json_schema",
        '{"properties": {"a/b": {"uniqueItems": true}}}',
        "#/properties/a~1b/uniqueItems: items that are not",
    ),
    (
        "json_schema",
        '{"uniqueItems": true, "items": {"type": "boolean"}, "minItems": 3}',
        "#/minItems: 3; only 2 different v",
    ),
    ("json_schema", '{"uniqueItems": true, "prefixItems": [{}]}', "#/uniqueItems: items that are not known to differ"),
    ("json_schema", '{"uniqueItems": "yes"}', "#/uniqueItems: 'yes'; it must be true or false"),
    ("json_schema", '{"type": "integer", "multipleOf": 6000}', "#/multipleOf: 6000; use a step from 1 to 5000"),
    ("json_schema", '{"type": "number", "multipleOf": 123.4567}', "#/multipleOf: 123.4567; use a step"),
    ("json_schema", '{"type": "number", "multipleOf": 0}', "#/multipleOf: 0; use a step"),
    (
        "json_schema",
        '{"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}',
        "#/multipleOf: 7; no integer fits it and minimum 1 and maximum 6",
    ),
    (
        "json_schema",
        json.dumps({"patternProperties": {key: {} for key in "abcdef"}}),
        "#: it has 6 patterns; use at most 5",
    ),
    (
        "json_schema",
        '{"properties": {"ab": {}}, "required": ["ab"], "propertyNames": {"maxLength": 1}}',
        "#/properties/",
    ),
    (
        "json_schema",
        '{"required": ["ab"], "propertyNames": {"maxLength": 1}}',
        "#/required/0: 'ab'; its name is not all",
    ),
    (
        "json_schema",
        '{"patternProperties": {"(": {}}, "additionalProperties": false}',
        "#/patternProperties/(: regex",
    ),
    (
        "json_schema",
        '{"allOf": [{"patternProperties": {"a": {}}, "additionalProperties": false}, {"required": ["b"]}]}',
        "#/allOf/1: patternProperties and additionalProperties are in two",
    ),
    ("json_schema", '{"x-guidance": {"lenient": true}}', "#/x-guidance/lenient: lenient is not enforced"),
    ("json_schema", '{"x-guidance": {"whitespace_flexible": 1}}', "whitespace_flexible: 1; it must be true or false"),
    ("json_schema", '{"x-guidance": {"item_separator": "("}}', "#/x-guidance/item_separator: regex '(', column 1"),
    ("json_schema", '{"x-guidance": []}', "#/x-guidance: []; it must be an object"),
    ("json_schema", '{"items": {"x-guidance": {}}}', "#/items/x-guidance: x-guidance is not enforced"),
    ("json_schema", '{"type": "string", "pattern": "[("}', "#/pattern: regex '[(', column 1: the set is not closed"),
    (
        "json_schema",
        '{"type": "string", "pattern": "^a$", "minLength": 2}',
        "#/pattern: no text fits pattern and minLength; correct them",
    ),
    (
        "json_schema",
        '{"type": "string", "pattern": "(a)\\\\1"}',
        "#/pattern: regex '(a)\\\\1', column 4: \\1 is a back",
    ),
    (
        "json_schema",
        '{"type": "string", "pattern": "(?=(?!a)b)", "maxLength": 2}',
        "#/pattern: a look-around contains",
    ),
    ("json_schema", '{"type": "string", "format": "nope"}', "#/format: 'nope'; use one of date, time"),
    (
        "json_schema",
        '{"type": "string", "format": "uuid", "maxLength": 35}',
        "#/format: no text fits format and maxLength",
    ),
    ("json_schema", '{"$ref": "#/x"}', "#/$ref: '#/x'; the schema has no 'x' there"),
    ("json_schema", '{"$ref": "http://x"}', "only references within the schema"),
    ("json_schema", '{"$ref": "#"}', "#/$ref: '#'; it refers to itself"),
    ("json_schema", '{"$ref": "#", "type": "object"}', "#/$ref: '#'; it refers to itself"),
    ("json_schema", '{"allOf": [{"$ref": "#", "type": "object"}]}', "#/$ref: '#'; it refers to itself"),
    ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}', "minimum 3 and maximum 2; no integer fits them"),
    ("json_schema", '{"type": "integer", "minimum": 0.1, "exclusiveMaximum": 1}', "no integer fits them"),
    ("json_schema", '{"type": "number", "minimum": "a"}', "#/minimum: 'a'; it must be a number"),
    ("json_schema", '{"minItems": 2, "maxItems": 1}', "#/minItems: 2; at most 1 items are allowed"),
    ("json_schema", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "#/oneOf/1: a value may fit #/oneOf/0 too"),
    ("json_schema", '{"allOf": [{"type": "string"}, {"type": "null"}]}', "#/allOf/1: no type is both"),
    ("json_schema", '{"required": ["a"], "additionalProperties": false}', "#/required/0: 'a'; additionalProperties"),
    (
        "json_schema",
        '{"enum": [1, "ab"], "minimum": 3, "maxLength": 1}',
        "#/enum: [1, 'ab']; no value fits the schema's",
    ),
    ("json_schema", '{"enum": [[1]], "maxItems": 3}', "#/enum: together with maxItems"),
    (
        "json_schema",
        '{"type": "object", "minProperties": 2}',
        "#/minProperties: 2; only 0 named ones and one more",
    ),
    ("regex", "(abc", "column 1: the group is not closed"),
    ("regex", "abc)", "column 4: a group that is not open is closed"),
    ("regex", "a$b", "no text matches it; correct its look-around or anchors"),
    ("regex", "x(^a)", "no text matches it"),
    ("regex", "(?=x)a", "no text matches it"),
    ("regex", r"a\bfoo", "no text matches it"),
    ("regex", "(?=a(?=b))ab", "a look-around contains another look-around"),
    ("regex", "(?<=a$)b", "a look-behind contains an end of the text"),
    ("regex", r"(a)\1", r"column 4: \1 is a back reference"),
    ("regex", r"a\p{Greek}", r"column 2: the property 'Greek'; use one of the categories L, Lu"),
    ("regex", r"\p{L", r"column 1: the property '{'"),
    ("regex", "a{3", "column 2: a counted repetition is not closed"),
    ("regex", "a{3,2}", "column 2: from 3 to 2 repetitions"),
    ("regex", "a{20000}", "column 2: 20000 repetitions; use at most 10000"),
    ("regex", "[a-", "column 1: the set is not closed"),
    ("regex", "[z-a]", "column 3: a range that ends before it begins"),
    ("regex", "*a", "column 1: '*' repeats nothing"),
    ("regex", r"\q", r"column 1: \q is not known"),
    ("regex", r"\ud800", "column 1: "),
    ("lark_grammar", "start: foo", "line 1, column 8: there is no foo"),
    ("lark_grammar", 'start: "a"\n  | "b', "line 2, column 5: the text is not closed"),
    ("lark_grammar", "start: /(a/", "line 1, column 8: regex '(a', column 1"),
    ("lark_grammar", 'x: "a"', "the rule start, which the output must fit, is missing"),
    ("lark_grammar", 'start: A\nA: "b" & "c"', "line 2, column 8: '&' is not supported"),
    ("lark_grammar", "start: <|end|>", "line 1, column 8: there is no special token '<|end|>'; the special tokens are"),
    ("lark_grammar", 'start: %json {"type": "foo"}', "line 1, column 14: json_schema #/type"),
    ("lark_grammar", '%llguidance {"no_forcing": true}\nstart: "a"', "line 1, column 1: %llguidance has options"),
    ("lark_grammar", 'start: %regex {"a": 1}', "line 1, column 8: %regex {'a': 1} is not supported"),
    ("lark_grammar", 'start: %regex {"substring_chunks": [1]}', "substring_chunks is [1]; write a text, or a list"),
    ("lark_grammar", "%import common.NOPE\nstart: NOPE", "line 1, column 1: only common's terminals"),
    ("lark_grammar", 'start: "a")', "line 1, column 11: ')' is not expected here"),
    ("lark_grammar", 'start: "a"\nstart: "b"', "line 2, column 1: start is already defined"),
    ("lark_grammar", 'start: "a".."bc"', "line 1, column 8: a range is from one character"),
    ("ebnf", "root ::= foo", "line 1, column 10: there is no rule foo"),
    ("ebnf", 'root ::= "a\nb"', "line 1, column 10: the text is not closed"),
    ("ebnf", 'x ::= "a"', "the rule root, which the output must fit, is missing"),
    ("ebnf", "root ::= [a-", "line 1, column 10: the set is not closed"),
    ("ebnf", 'root ::=\n ("a"', "line 2, column 2: the group is not closed"),
    ("ebnf", 'root ::= "a" (="b")', "line 1, column 14: look-ahead is not supported"),
    ("ebnf", "foo", "line 1, column 1: a rule, such as root ::= ..., is expected here"),
]


@pytest.mark.parametrize(("kind", "text", "said"), REFUSED, ids=lambda value: value[:40])
def test_a_text_that_is_no_grammar_is_refused_with_its_place(kind: str, text: str, said: str) -> None:
    with pytest.raises(GuidanceError) as raised:
        Guidance(kind, text)
    assert str(raised.value).startswith(kind if kind != "regex" else "regex ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("nope", "x"), "Unsupported guidance type: nope (only json_schema, regex, lark_grammar, ebnf are supported)"),
        (("regex", ""), "Guidance type and data must be provided together"),
        (("", "x"), "Guidance type and data must be provided together"),
        (("regex", None), "guidance data is None; it must be a string"),
        (("json_schema", {"type": "string"}), "it must be a string"),
        (("regex", "a", 1), "enable_ff_tokens is 1; it must be True or False"),
    ],
)
def test_another_kind_and_wrong_types_are_refused(given: Any, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        Guidance(*given)
    assert said in str(raised.value)


def tokenizer(model: Any, decoder: Any, *added: Any) -> str:
    return json.dumps({"model": model, "decoder": decoder, "added_tokens": list(added)})


def test_tokens_are_told_in_the_alphabet_of_bytes() -> None:
    special = {"id": 3, "content": "</s>", "special": True}
    thought = {"id": 4, "content": "é ", "special": False}
    pieces = {"a": 0, "▁é": 1, "<0x0A>": 2, "</s>": 3}
    fallback = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    made = tokenizer({"type": "BPE", "vocab": pieces}, fallback, special, thought)
    # GPT-2 writes a blank as Ġ, a line feed as Ċ, and the two bytes of é as Ã and ©.
    assert vocabulary(made, 6, []) == ["a", "ĠÃ©", "Ċ", "ÿ3ÿ", "Ã©Ġ", ""]
    assert vocabulary(made, 4, [3])[3] == "</s>"
    # No other token can spell what stands for a special one.
    assert vocabulary(tokenizer({"type": "BPE", "vocab": {"ÿ3ÿ": 0, "<0xFF>": 1}}, fallback), 2, [])[1] == ""
    assert vocabulary(tokenizer({"type": "BPE", "vocab": {"aÿ": 0, "ÿ": 1}}, {"type": "ByteLevel"}), 2, []) == ["", ""]
    unigram = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁x", -1.5]]}
    assert vocabulary(tokenizer(unigram, {"type": "Metaspace"}), 2, []) == ["<unk>", "Ġx"]
    assert vocabulary(tokenizer({"type": "BPE", "vocab": {"Ġa": 0}}, {"type": "ByteLevel"}), 1, []) == ["Ġa"]


@pytest.mark.parametrize(
    ("model", "decoder"), [("WordLevel", None), ("WordPiece", {"type": "WordPiece"}), ("BPE", {"type": "BPEDecoder"})]
)
def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused(model: str, decoder: Any) -> None:
    with pytest.raises(GuidanceError, match=rf"a {model} model with .* does not define the bytes of its tokens"):
        vocabulary(tokenizer({"type": model, "vocab": {"a": 0}}, decoder), 1, [])
