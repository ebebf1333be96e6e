"""Schemas as zod and pydantic write them: which are taken, and that jsonschema takes every answer to these.

`tests/schemas` has the schemas, the scripts that wrote them, and values that zod and pydantic take for each.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from capstan.errors import GuidanceError
from capstan.guidance import Guidance
from tests.schema_judges import CORPORA, answers, corpus, judged

REFUSED = {("pydantic", "set of text"): "#/properties/tags/uniqueItems: items that are not known to differ"}
TAKEN = [(name, schema) for name in CORPORA for schema in corpus(name) if (name, schema) not in REFUSED]
ANSWERS = 50


def guidance(schema: Any) -> Guidance:
    return Guidance("json_schema", json.dumps(schema, default=float))


def test_the_corpora_are_whole() -> None:
    assert {name: len(corpus(name)) for name in CORPORA} == {"zod": 108, "pydantic": 42}


@pytest.mark.parametrize(("name", "schema"), REFUSED)
def test_what_is_refused_is_told_by_its_place(name: str, schema: str) -> None:
    with pytest.raises(GuidanceError) as raised:
        guidance(corpus(name)[schema]["schema"])
    assert REFUSED[name, schema] in str(raised.value)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "schema"), TAKEN)
def test_answers_fit_and_fitting_values_are_answers(name: str, schema: str) -> None:
    entry = corpus(name)[schema]
    automaton = guidance(entry["schema"]).automaton()
    assert not automaton.ambiguous, "a GPU follows it"
    for text in answers(automaton, ANSWERS, random.Random(schema)):
        assert judged(entry, text) is None, text
    for value in entry["values"]:
        for separators in ((", ", ": "), (",", ":")):
            text = json.dumps(value, ensure_ascii=False, separators=separators, default=float)
            position = automaton.after(automaton.start, text.encode())
            assert automaton.may_end(position), text
