"""Scores of given tokens in the page are those of the reference device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from capstan import Generator, GeneratorParams, Model, Score, Tokenizer
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONTEXT = [5, 6, 7, 8, 9]


def tokens(count: int, seed: int = 3) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 250, count)]


def by_reference(name: str, context: list[int], ids: list[int]) -> list[Score]:
    model = Model(str(FIXTURES / name))
    params = GeneratorParams(model)
    params.set_search_options(max_length=256)
    with Generator(model, params) as generator:
        generator.append_tokens(context)
        return generator.score(ids)


def near(found: list[list[float]], wanted: list[Score], bound: float) -> None:
    """Logarithms within `bound`; the best token is the reference's unless two are nearly equal."""
    assert len(found) == len(wanted)
    for (log_probability, best, best_log_probability), score in zip(found, wanted, strict=True):
        assert log_probability == pytest.approx(score.log_probability, abs=bound)
        assert best_log_probability == pytest.approx(score.best_log_probability, abs=bound)
        assert best == score.best or best_log_probability - score.best_log_probability < bound


def scored(scripts: PageScripts, model: str, parts: list[list[int]], **options: Any) -> dict[str, Any]:
    context = options.pop("context", CONTEXT)
    found: dict[str, Any] = scripts.run(
        "scoring", "scored", model, model=model, context=context, parts=parts, **options
    )
    return found


@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_scores_are_the_references_and_the_sequence_goes_on(device: str, scripts: PageScripts) -> None:
    parts = [tokens(90), [11], [12, 13, 14], tokens(20, 8)]
    found = scored(scripts, "nano-llama", parts, device=device, do_sample=False)
    for part, scores, counted in zip(parts, found["scores"], found["counted"], strict=True):
        near(scores, by_reference("nano-llama", CONTEXT, part), 1e-4)
        if device == "webgpu":
            assert counted == {"readbacks": 1, "readback_bytes": 16 * len(part)}
    assert found["next"] == by_reference("nano-llama", CONTEXT, [*parts[-1], 0])[-1].best


@pytest.mark.one_in
@pytest.mark.parametrize("model", ["nano-gemma2", "nano-qwen2", "nano-copies"])
def test_graphs_with_other_heads_and_one_that_gives_the_last_logits_alone(model: str, scripts: PageScripts) -> None:
    part = [each % 250 for each in tokens(12)]
    found = scored(scripts, model, [part])
    near(found["scores"][0], by_reference(model, CONTEXT, part), 2e-4)
    if model != "nano-gemma2":
        # onnxruntime-web reads five numbers back in an eager run of that graph.
        assert found["counted"] == [{"readbacks": 1, "readback_bytes": 16 * len(part)}]
    alone = model == "nano-copies"
    assert found["passes"]["scores"].startswith("a run for each token: the graph gives" if alone else "runs of at most")
    assert found["fallbacks"] == alone


def test_runs_from_a_tape_reach_back_into_the_context(scripts: PageScripts) -> None:
    """The first run of a length is onnxruntime-web's, the second has its tape made, which overwrites the caches; the
    context is run again then. The third part takes three runs, the last of which begins at positions that were
    scored."""
    context, parts = tokens(40, 9), [tokens(30, 4), tokens(30, 5), tokens(90, 6)]
    found = scored(scripts, "nano-llama", parts, context=context, taped=True)
    assert "32 positions: " in found["passes"]["scores"], found["passes"]
    assert "as recorded" in found["passes"]["scores"], found["passes"]
    for part, scores in zip(parts, found["scores"], strict=True):
        near(scores, by_reference("nano-llama", context, part), 1e-4)
    assert found["counted"][2] == {"readbacks": 1, "readback_bytes": 16 * 90}
    assert max(found["memory"].values()) >= 64 * 512 * 4, "the logits of a run are in the ledger"


MODEL = {"model": "/models/nano-llama/", "dtype": None, "device": "webgpu", "capture": None, "run_ahead": None}


def answer(harness: Harness, sequences: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return harness.reply({"kind": "score", **MODEL, "sequences": sequences, **fields})


def test_a_request_scores_sequences_and_texts(harness: Harness) -> None:
    tokenizer, llama = Tokenizer(Model(str(FIXTURES / "nano-llama"))), FIXTURES / "nano-llama"
    text, context = "upon a time there was", "once "
    whole = oracle.prompt(llama, context + text)
    before = len(oracle.prompt(llama, "once"))
    given: list[dict[str, Any]] = [
        {"context_ids": CONTEXT, "token_ids": [10, 11]},
        {"context_ids": [*CONTEXT, 10], "token_ids": [300]},
        {"context": context, "text": text},
        {"text": text},
    ]
    reply = answer(harness, given, max_length=64, token_texts=True)
    assert reply["ok"], reply
    result = reply["result"]
    assert (result["device"], result["reused_tokens"]) == ("webgpu", 0)
    told = result["sequences"]
    assert [each["context_tokens"] for each in told] == [5, 6, before, 1]
    assert [each["token_ids"] for each in told[:3]] == [[10, 11], [300], whole[before:]]
    assert "".join(told[2]["texts"]) == " " + text
    assert told[3]["token_ids"] == tokenizer.encode(text)
    first = [[CONTEXT, [10, 11]], [[*CONTEXT, 10], [300]], [whole[:before], whole[before:]]]
    for each, (ids, scored_ids) in zip(told, first, strict=False):
        wanted = by_reference("nano-llama", ids, scored_ids)
        assert each["log_probabilities"] == pytest.approx([score.log_probability for score in wanted], abs=1e-4)
        assert each["greedy"] == [score.best == score.token for score in wanted]
    refused: list[tuple[list[dict[str, Any]], str, str]] = [
        ([{"context_ids": [1]}], "OptionError", "sequences[0] has neither of text and token_ids"),
        ([{"context_ids": [1], "token_ids": [2], "text": "a"}], "OptionError", "sequences[0] has both of text"),
        ([{"token_ids": [2]}], "OptionError", "give the tokens before them as context_ids"),
        ([{"text": "a", "context_ids": [2]}], "OptionError", "text and context_ids: give its context as a text"),
        ([{"text": ""}], "PromptError", "sequences[0] has no token after its context"),
        ([{"context_ids": [1], "token_ids": []}], "PromptError", "no tokens were given"),
        ([{"context_ids": [1], "token_ids": [512]}], "PromptError", "token 0 is 512; ids go from 0 to 511"),
        ([{"context_ids": [1] * 60, "token_ids": [2] * 5}], "PromptError", "max_length is 64: raise it"),
    ]
    for sequences, kind, text in refused:
        failed = answer(harness, sequences, max_length=64)
        assert not failed["ok"]
        assert (failed["error"]["type"], text in failed["error"]["message"]) == (kind, True), failed["error"]


SCORE = """async ({ model, text, context }) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load(model, { device: "webgpu", maxLength: 64 });
  const found = { behind: await llm.score(text, { context }), alone: await llm.score(text) };
  const wrong = [() => llm.score(5), () => llm.score(text, { context: 5 }), () => llm.score(text, { of: "" })];
  found.errors = [];
  for (const call of wrong) await call().catch(({ code, message }) => found.errors.push(`${code}: ${message}`));
  llm.close();
  return found;
}"""


def test_a_page_scores_a_text(blank_page: Page) -> None:
    tokenizer, llama = Tokenizer(Model(str(FIXTURES / "nano-llama"))), FIXTURES / "nano-llama"
    text, context = " upon a time", "once"
    found = blank_page.evaluate(SCORE, {"model": "/models/nano-llama", "text": text, "context": context})
    ids = oracle.prompt(llama, context + text)
    before = len(oracle.prompt(llama, context))
    wanted = by_reference("nano-llama", ids[:before], ids[before:])
    told = found["behind"]["tokens"]
    assert [each["id"] for each in told] == ids[before:]
    assert "".join(each["text"] for each in told) == text
    assert [each["logprob"] for each in told] == pytest.approx([score.log_probability for score in wanted], abs=1e-4)
    assert [each["greedy"] for each in told] == [score.best == score.token for score in wanted]
    assert found["behind"]["logprob"] == pytest.approx(sum(each["logprob"] for each in told))
    assert found["behind"]["greedy"] == all(each["greedy"] for each in told)
    assert [each["id"] for each in found["alone"]["tokens"]] == tokenizer.encode(text)
    assert found["errors"] == [
        "OptionError: the text is 5; it must be a string",
        "OptionError: context is 5; it must be a string",
        "OptionError: of: no such option; there are context, maxLength",
    ]
