"""Constrained decoding in the page: on each device the ids of the reference device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model, Tokenizer
from tests.browser.page_scripts import PageScripts
from tests.guidance_runs import SCHEMAS
from tests.json_schemas import fits

pytestmark = pytest.mark.own_page

NANO = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPT = [5, 6, 7]
HOT = {"do_sample": True, "temperature": 2.0, "top_k": 0, "random_seed": 4, "max_length": 100}
DEEP = "\n".join(['root ::= "(" r1 ")" | "x"', *(f'r{n} ::= r{n + 1} "{n}"' for n in range(1, 20)), 'r20 ::= root "."'])
"""Each bracket is 21 rules deep."""
CALL = '{"type": "array", "items": {"type": "object"}, "minItems": 1}'
CASES: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("json_schema", json.dumps(SCHEMAS["person"]), False, HOT),
    ("json_schema", json.dumps(SCHEMAS["nested"]), True, {**HOT, "top_p": 0.8, "top_k": 40}),
    ("regex", "(yes|no), [0-9]{2} é this text has to come", True, {"do_sample": False, "max_length": 100}),
    ("regex", r"\d{3}-[a-z]{2,4}", False, {**HOT, "repetition_penalty": 1.5, "min_length": 40}),
    ("ebnf", DEEP, False, {"do_sample": False, "max_length": 24, "logit_bias": {10: 50.0}}),
    ("lark_grammar", f"start: TEXT | call\nTEXT: /[^{{<](.|\\n)*/\ncall: %json {CALL}", False, HOT),
    ("lark_grammar", 'start: "a" <pad> t{2} </s>\nt: /[a-z]{3}/ (<s> | <[2]>)', False, HOT),
]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """The ids of the reference device."""
    model = Model(str(NANO))
    found = []
    for kind, data, forced, search in CASES:
        params = GeneratorParams(model)
        params.set_search_options(**search)
        params.set_guidance(kind, data, forced)
        ids = []
        with Generator(model, params) as generator:
            generator.append_tokens(PROMPT)
            while not generator.is_done():
                generator.generate_next_token()
                ids += generator.get_next_tokens()
        found.append(ids)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("source", [{}, {"capture": "off"}, {"device": "wasm"}], ids=["tape", "eager", "wasm"])
def test_outputs_are_those_of_the_reference_device(
    source: dict[str, str], expected: list[list[int]], scripts: PageScripts
) -> None:
    outputs = scripts.run("guiding", "guided", "nano-llama", model="nano-llama", prompt=PROMPT, cases=CASES, **source)
    assert [output["ids"] for output in outputs] == expected
    # A rewind keeps the grammar in step: the same draws come again.
    assert [output["again"] for output in outputs] == [ids[2:] for ids in expected]
    assert {output["capture"] for output in outputs} == {"tape" if not source else "off"}
    decode = Tokenizer(Model(str(NANO))).decode
    assert fits(json.loads(decode(expected[0])), SCHEMAS["person"])
    assert outputs[2]["steps"] < len(expected[2]) / 2
    tokens = len(expected[0])
    if source.get("capture") or source.get("device"):
        assert outputs[0]["steps"] == tokens - 1
    else:
        # Picks run ahead in bursts of 8.
        assert outputs[0]["waits"] <= tokens / 8 + 3
        assert outputs[0]["steps"] <= tokens + 16
        assert outputs[4]["waits"] > 8, "at the end the stack is too deep for the GPU"
