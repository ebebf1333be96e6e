"""Generations under a grammar with models of random weights, each judged by readers that know nothing of the grammar.

    PYTHONPATH=py_src .venv/bin/python -m tests.guidance_runs --count 5000 --seed 1

prints the misfits, and the number that fit. A generation has a fixture, a grammar and search options by chance; half of
them are drawn at temperature 2 from all tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capstan import Generator, GeneratorParams, Model, Tokenizer
from tests.json_schemas import fits

__all__ = ["EXPRESSIONS", "GRAMMARS", "SCHEMAS", "Run", "judged", "runs"]

FIXTURES = Path(__file__).parent / "fixtures"
MODELS = ("nano-llama", "nano-qwen2", "nano-granite", "nano-gemma3", "nano-blocks", "nano-phi4")
MAX_LENGTH = 256

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": -120, "maximum": 4031}, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ['a"b', None, 1.5, {"x": [1]}, "é\n"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    },
    "bounds": {
        "type": "array",
        "prefixItems": [
            {"type": "number", "minimum": -0.5, "exclusiveMaximum": 12.25},
            {"type": "integer", "exclusiveMinimum": 9, "maximum": 1000},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 0.125},
            {"type": "number", "minimum": -3.75, "maximum": -1.5},
        ],
        "items": False,
        "minItems": 2,
    },
    "nested": {
        "$defs": {"point": POINT, "many": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2}},
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}, "path": {"$ref": "#/$defs/many"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": '^[A-Z]{2}-[^a-y]{1,3}("|\\\\|\n)x?$'},
    "found": {"type": "string", "pattern": "q|^[0-9]+$"},
    "formats": {
        "type": "object",
        "properties": {kind: {"format": kind, "type": "string"} for kind in ("date", "date-time", "uuid", "ipv4")},
        "required": ["date", "ipv4"],
        "additionalProperties": False,
    },
    "others": {
        "type": "object",
        "properties": {"na": {"type": "integer", "minimum": 0, "maximum": 9}, "nab": {"const": True}},
        "required": ["na"],
        "additionalProperties": {"type": "boolean"},
    },
    "choice": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": [1, {"a": "b"}]}, POINT]},
    "one": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "boolean"}}, "required": ["t", "v"]},
            {"type": "object", "properties": {"t": {"const": "b"}, "w": {"type": "null"}}, "required": ["t", "w"]},
            {"type": "integer", "maximum": 5, "minimum": -5},
        ]
    },
    "both": {
        "allOf": [POINT, {"required": ["y"]}, {"properties": {"y": {"type": "integer", "minimum": 1, "maximum": 9}}}]
    },
    "any": {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": False},
}
EXPRESSIONS = [
    r"[0-9]{3}-[a-z]{2,5}X",
    r"(?i)ab[^x-z]{2,3}(\d{1,9}|\w)\.?",
    r"(yes|no|maybe é)( \d{1,2}){0,2}",
    r"\s?[^\S\n]{1,2}[\u4e00-\u9fff]{1,2}.",
    r"(a|b|(c|d){2}){1,4}\\\.",
]
GRAMMARS = [
    (
        "lark_grammar",
        'start: "[" item ("," item)~0..2 "]"\nitem: NUM | /[a-c]{1,3}/\nNUM: /[0-9]{1,3}/',
        r"\[(\d{1,3}|[abc]{1,3})(,(\d{1,3}|[abc]{1,3})){0,2}\]",
    ),
    (
        "lark_grammar",
        '%ignore / {1,2}/\nstart: A "x"i B?\nA: "a".."c"\nB: "é"{2}',
        r"[abc] {0,2}( {1,2})*[xX] *(éé *)?",
    ),
    (
        "ebnf",
        'root ::= head tail{0,2}\nhead ::= [^a-z\\n"] | "zz"\ntail ::= ("1" | [2-3])+ "."',
        r'([^a-z\n"]|zz)([123]+\.){0,2}',
    ),
]


@dataclass(frozen=True)
class Run:
    model: str
    kind: str
    name: str
    data: str
    judge: Any
    """The schema, or the expression."""
    options: dict[str, Any]
    forced: bool


def runs(count: int, seed: int) -> Iterator[Run]:
    """So many, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        hot = {"do_sample": True, "temperature": 2.0, "top_k": 0}
        others = {"do_sample": True, "temperature": rng.choice([0.3, 1.0]), "top_k": rng.choice([0, 5, 50])}
        options = hot if rng.random() < 0.5 else others if rng.random() < 0.7 else {"do_sample": False}
        options = {**options, "top_p": rng.choice([1.0, 0.7])} if options is others else options
        sort = rng.random()
        if sort < 0.6:
            name = rng.choice(sorted(SCHEMAS))
            kind, data, judge = "json_schema", json.dumps(SCHEMAS[name]), SCHEMAS[name]
        elif sort < 0.85:
            data = judge = rng.choice(EXPRESSIONS)
            kind = name = "regex"
        else:
            kind, data, judge = rng.choice(GRAMMARS)
            name = kind
        seeded = {**options, "random_seed": rng.randrange(2**32)}
        yield Run(rng.choice(MODELS), kind, name, data, judge, seeded, rng.random() < 0.25)


_models: dict[str, tuple[Model, Tokenizer]] = {}


def judged(run: Run) -> tuple[str, str]:
    """'fits', 'cut' by max_length, or what is wrong; and the output."""
    if run.model not in _models:
        model = Model(str(FIXTURES / run.model))
        _models[run.model] = model, Tokenizer(model)
    model, tokenizer = _models[run.model]
    params = GeneratorParams(model)
    params.set_search_options(max_length=MAX_LENGTH, **run.options)
    params.set_guidance(run.kind, run.data, run.forced)
    with Generator(model, params) as generator:
        generator.append_tokens([5, 6, 7])
        while not generator.is_done():
            generator.generate_next_token()
        output = tokenizer.decode(generator.get_sequence(0)[3:])
        if generator.finish_reason == "length":
            return "cut", output
    try:
        if "\ufffd" in output:
            return "no UTF-8", output
        if isinstance(run.judge, str):
            return "fits" if re.fullmatch(run.judge, output) else "no match", output
        return "fits" if fits(json.loads(output), run.judge) else "does not fit the schema", output
    except ValueError as error:
        return f"no JSON: {error}", output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found: Counter[str] = Counter()
    began = time.perf_counter()
    for number, run in enumerate(runs(given.count, given.seed)):
        verdict, output = judged(run)
        found[f"{verdict} {run.kind}" if verdict in ("fits", "cut") else "wrong"] += 1
        if verdict not in ("fits", "cut"):
            print(f"{number}: {verdict}: {output!r}, {run}", flush=True)
        if number % 500 == 499:
            print(f"{number + 1}: {dict(found)}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{given.count} generations, seed {given.seed}: {dict(found)}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
