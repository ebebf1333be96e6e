"""Several rows of a generator in one taped step: the oracle's sequences, in as many steps as there are tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import Variants, quantized_embedding
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PAD = 2
PROMPTS = [[1, 4, 3, 4, 9, 8], [5, 6, PAD, PAD, PAD, PAD], [PAD, 7, 8, PAD, PAD, PAD]]
"""Rows of 6, 2 and 3 tokens, padded like a batch."""


def test_rows_advance_in_one_step(scripts: PageScripts) -> None:
    free = oracle.rows(LLAMA, PROMPTS, max_length=24)
    eos = [free.picked[1][1], free.picked[9][0]]
    cases: list[dict[str, Any]] = [
        {"max_length": 24},
        {"max_length": 24, "eos": eos},
        {"max_length": 24, "eos": eos, "min_length": 12},
        {"max_length": 24, "repetition_penalty": 1.4},
        {"max_length": 20, "num_beams": 3},
    ]
    found = scripts.run("rows", "generated", "nano-llama", model="nano-llama", prompts=PROMPTS, cases=cases)
    for case, result in zip(cases, found, strict=True):
        wanted = oracle.rows(LLAMA, PROMPTS, **case)
        assert result["sequences"] == wanted.sequences, case
        assert "rows" in result["said"], result["stepped down"]
        assert not result["stepped down"]
        assert result["counted"] <= result["tokens"] + 4, "a step is of all rows"


OTHERS = [
    "nano-gemma3",
    "nano-qwen2",
    "nano-granite",
    "nano-gemma2",
    "families/gemma",
    "families/phi",
    "families/chatglm",
]
"""Those whose embeddings are scaled, and those whose products have biases, which all rows share."""


@pytest.mark.extended
@pytest.mark.parametrize("fixture", OTHERS)
def test_rows_and_beams_of_other_families_advance_in_one_step(
    fixture: str, site: SiteServer, scripts: PageScripts
) -> None:
    name, folder = fixture.rpartition("/")[2], FIXTURES / fixture
    site.models[name] = folder
    prompts = [*PROMPTS, [9, 10, 11, 12, PAD, PAD]]
    cases: list[dict[str, Any]] = [{"max_length": 20}, {"max_length": 12, "num_beams": 4}]
    found = scripts.run("rows", "generated", name, model=name, prompts=prompts, cases=cases)
    for case, result in zip(cases, found, strict=True):
        assert result["sequences"] == oracle.rows(folder, prompts, **case).sequences, case
        assert "rows" in result["said"], result["stepped down"]
        assert not result["stepped down"]
        assert result["counted"] <= result["tokens"] + 4, "a step is of all rows"


@pytest.mark.extended
@pytest.mark.parametrize("fixture", ["nano-qwen3", "nano-gemma3"])
def test_embeddings_in_4_bits_are_looked_up_for_all_rows(
    fixture: str, variants: Variants, scripts: PageScripts
) -> None:
    name = variants.graph(f"{fixture}-tied", quantized_embedding, FIXTURES / fixture)
    arguments: dict[str, Any] = {"model": name, "prompts": PROMPTS, "cases": [{"max_length": 20}]}
    [found] = scripts.run("rows", "generated", name, **arguments)
    assert found["sequences"] == oracle.rows(variants.place / name, PROMPTS, max_length=20).sequences
    assert "rows" in found["said"], found["stepped down"]
    assert not found["stepped down"]


@pytest.mark.extended
def test_each_row_draws_what_it_draws_alone(scripts: PageScripts) -> None:
    case = {"max_length": 20, "do_sample": True, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "random_seed": 11}
    arguments = {"model": "nano-llama", "prompts": PROMPTS, "cases": [case]}
    [joint] = scripts.run("rows", "generated", "nano-llama", **arguments)
    [apart] = scripts.run("rows", "generated", "nano-llama", joint=False, **arguments)
    assert joint["sequences"] == apart["sequences"]
    assert apart["said"] == ""


def test_grammars_and_processors_are_of_each_row(scripts: PageScripts) -> None:
    """The rows' sequences are those of the reference device, whose masks come from another library."""
    hot = {"do_sample": True, "temperature": 3.0, "top_k": 0, "random_seed": 5, "max_length": 40}
    schema = '{"type": "array", "items": {"type": "integer", "maximum": 9999}, "minItems": 1, "maxItems": 3}'
    cases: list[dict[str, Any]] = [{**hot, "guidance": ["json_schema", schema]}, {"max_length": 16, "second": True}]
    found = scripts.run("rows", "generated", "nano-llama", model="nano-llama", prompts=PROMPTS, cases=cases)
    model = Model(str(LLAMA))
    grammar = GeneratorParams(model)
    grammar.set_guidance("json_schema", schema)
    processor = GeneratorParams(model, shortlist_processor=lambda _, best: {best[0][0]: float("-inf")})
    for params, case, result in zip((grammar, processor), cases, found, strict=True):
        options = {name: value for name, value in case.items() if name not in ("guidance", "second")}
        params.set_search_options(batch_size=3, **{"do_sample": False, **options})
        with Generator(model, params) as generator:
            generator.append_tokens(PROMPTS)
            while not generator.is_done():
                generator.generate_next_token()
            assert result["sequences"] == [generator.get_sequence(row) for row in range(3)], case
        assert "rows" in result["said"], result["stepped down"]
        assert not result["stepped down"]
    assert len({tuple(sequence[6:]) for sequence in found[0]["sequences"]}) == 3
    assert found[0]["counted"] <= found[0]["tokens"] + 4, "a step is of all rows"


def test_sequences_that_come_and_go_share_steps_and_get_what_each_gets_alone(scripts: PageScripts) -> None:
    prompts = [[1, 4, 3, 4, 9, 8], [5, 6], [40, 7, 8], [9, 10, 11, 12]]
    for search in ({}, {"repetition_penalty": 1.4}):
        found = scripts.run("rows", "pooled", "nano-llama", model="nano-llama", prompts=prompts, count=10, **search)
        assert found["found"] == [oracle.greedy(LLAMA, prompt, 10, **search) for prompt in prompts]
        again, more = found["again"]
        assert more == oracle.greedy(LLAMA, again, 4, **search)
        assert "rows" in found["said"], found["stepped down"]
        assert (found["rows"], found["stepped down"]) == (4, [])


def test_a_row_scores_tokens_and_tells_its_cache_as_a_sequence_of_one(scripts: PageScripts) -> None:
    prompts, scored = [[1, 4, 3, 4, 9, 8], [5, 6, 9]], [7, 8, 11]
    arguments = {"prompts": prompts, "scored": scored, "cache": "present.0.key"}
    joint, apart, alike = scripts.run("rows", "looked_at", "nano-llama", model="nano-llama", **arguments)
    assert joint == apart
    assert alike == [True, True]
    assert [len(ids) for ids in joint[1]] == [4, 4]
