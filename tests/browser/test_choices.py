"""Several answers to one prompt, `n`, are the rows of one batch: in `complete`, `chat` and completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from capstan import Generator, GeneratorParams, Model
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.browser.model_variants import LLAMA

QWEN2 = LLAMA.parent / "nano-qwen2"
PROMPT = [5, 6, 7, 8]
SAMPLING = {"temperature": 1.3, "seed": 5}
ASK = """async ({ prompt, sampling, device }) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load("/models/nano-qwen2", { device });
  const messages = [{ role: "user", content: "hello" }];
  const found = { parts: [] };
  const run = llm.complete(prompt, { ...sampling, n: 3, maxTokens: 8, logprobs: true });
  for await (const part of run.split()) found.parts.push(part);
  found.result = await run.result;
  const stop = found.result.choices[1].tokenIds[2];
  const search = { stop_token_ids: [stop] };
  found.stopped = await llm.complete(prompt, { ...sampling, n: 3, maxTokens: 8, search }).result;
  found.alone = await llm.complete(prompt, { ...sampling, maxTokens: 8 }).result;
  const first = [];
  for await (const text of llm.complete(prompt, { ...sampling, n: 3, maxTokens: 8 })) first.push(text);
  found.first = first.join("");
  found.chat = await llm.chat(messages, { ...sampling, n: 3, maxTokens: 6 }).result;
  const asked = { messages, n: 3, max_tokens: 6, temperature: 1.3, seed: 5, logprobs: true };
  found.whole = await llm.chat.completions.create(asked);
  found.chunks = [];
  const stream = await llm.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) found.chunks.push(chunk);
  const yes = { type: "string", enum: ["yes", "no"] };
  found.guided = await llm.chat(messages, { n: 3, seed: 3, temperature: 3, jsonSchema: yes }).result;
  const cut = llm.complete(prompt, { ...sampling, n: 3 });
  for await (const text of cut) if (text) break;
  found.cut = await cut.result;
  found.stats = llm.stats();
  const failed = ({ code, message }) => [code, message];
  const refusal = async (run) => run().catch(failed);
  found.refused = {
    greedy: await refusal(async () => llm.complete(prompt, { n: 2, temperature: 0 }).result),
    many: await refusal(async () => llm.complete(prompt, { n: 33 }).result),
    none: await refusal(async () => llm.complete(prompt, { n: 0 }).result),
    text: await refusal(async () => llm.chat(messages, { n: "2" }).result),
    session: await refusal(async () => llm.session().send("hello", { n: 2 })),
  };
  found.after = await llm.complete(prompt, { ...sampling, maxTokens: 8 }).result;
  llm.close();
  return found;
}"""


@pytest.fixture(scope="module", params=["wasm", pytest.param("webgpu", marks=pytest.mark.extended)])
def found(request: pytest.FixtureRequest, browser: Browser, site: SiteServer) -> Iterator[dict[str, Any]]:
    page = browser.new_page()
    errors = watch(page, [])
    page.goto(site.url + "blank.html")
    yield page.evaluate(ASK, {"prompt": PROMPT, "sampling": SAMPLING, "device": request.param})
    page.close()
    assert not errors, f"the page reported {errors}"


def test_rows_are_those_of_the_reference_device(found: dict[str, Any]) -> None:
    model = Model(str(QWEN2))
    params = GeneratorParams(model)
    params.set_search_options(
        num_return_sequences=3, do_sample=True, temperature=1.3, random_seed=5, max_length=len(PROMPT) + 8
    )
    with Generator(model, params) as reference:
        reference.append_tokens(PROMPT)
        while not reference.is_done():
            reference.generate_next_token()
        wanted = [reference.get_sequence(row)[len(PROMPT) :] for row in range(3)]
    choices = found["result"]["choices"]
    ends = set(model.config.eos_token_ids)
    for choice, ids in zip(choices, wanted, strict=True):
        length = next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))
        assert choice["tokenIds"] == ids[:length]
        assert choice["finishReason"] == ("stop" if ids[length - 1] in ends else "length")
    assert len({tuple(choice["tokenIds"]) for choice in choices}) == 3


def test_a_row_that_ends_early_leaves_the_others_to_go_on(found: dict[str, Any]) -> None:
    before, stopped = found["result"]["choices"], found["stopped"]["choices"]
    last = before[1]["tokenIds"][2]
    for choice, whole in zip(stopped, before, strict=True):
        ids = whole["tokenIds"]
        ends = ids.index(last) + 1 if last in ids else len(ids)
        assert (choice["tokenIds"], choice["finishReason"]) == (ids[:ends], "stop" if last in ids else "length")
        assert whole["text"].startswith(choice["text"])
    assert {choice["finishReason"] for choice in stopped} == {"stop", "length"}


def test_the_first_row_is_the_answer_without_n(found: dict[str, Any]) -> None:
    result = found["result"]
    assert result["tokenIds"] == result["choices"][0]["tokenIds"] == found["alone"]["tokenIds"]
    assert found["first"] == result["text"] == found["alone"]["text"]
    assert found["after"]["tokenIds"] == found["alone"]["tokenIds"]
    assert [choice["tokenIds"] for choice in found["alone"]["choices"]] == [found["alone"]["tokenIds"]]


def test_parts_and_probabilities_are_told_for_each_row(found: dict[str, Any]) -> None:
    for place, choice in enumerate(found["result"]["choices"]):
        parts = [part["text"] for part in found["parts"] if part["choice"] == place]
        assert "".join(parts) == choice["text"]
        told = [each["tokenId"] for each in choice["logprobs"]]
        assert told == choice["tokenIds"][: len(told)]
        assert len(choice["tokenIds"]) - len(told) == (choice["finishReason"] == "stop")
    assert [part["choice"] for part in found["parts"]] != sorted(part["choice"] for part in found["parts"])


def test_chats_and_completions_have_the_same_choices(found: dict[str, Any]) -> None:
    chat, whole = found["chat"], found["whole"]
    ends = [(choice["finishReason"], choice["contextFull"]) for choice in chat["choices"]]
    assert ends == [("length", False)] * 3
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    texts = [choice["answer"] for choice in chat["choices"]]
    assert [choice["message"]["content"] for choice in whole["choices"]] == texts
    assert len(set(texts)) > 1
    assert whole["usage"]["completion_tokens"] == sum(len(choice["tokenIds"]) for choice in chat["choices"]) == 18
    for index, text in enumerate(texts):
        deltas = [each for chunk in found["chunks"] for each in chunk["choices"] if each["index"] == index]
        assert "".join(each["delta"].get("content", "") for each in deltas) == text
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        assert [each["finish_reason"] for each in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1]["finish_reason"] == "length"
        assert sum(len((each["logprobs"] or {"content": []})["content"]) for each in deltas) == 6
    assert found["chunks"][-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": found["chunks"][-1]["usage"]["prompt_tokens_details"]
    }


def test_each_row_fits_the_grammar_and_an_abort_keeps_all(found: dict[str, Any]) -> None:
    assert {choice["answer"] for choice in found["guided"]["choices"]} == {'"yes"', '"no"'}
    cut = found["cut"]
    assert [choice["finishReason"] for choice in cut["choices"]] == ["abort"] * 3
    assert all(choice["tokenIds"] for choice in cut["choices"])
    assert found["stats"]["tokens"] > sum(len(choice["tokenIds"]) for choice in cut["choices"])


def test_what_n_cannot_be_is_told(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert {code for code, _ in refused.values()} == {"OptionError"}
    messages = {name: message for name, (_, message) in refused.items()}
    assert messages["greedy"].startswith(
        "num_return_sequences (n) is 2, but without sampling all sequences are the same"
    )
    for name, value in {"many": "33", "none": "0", "text": '"2"'}.items():
        assert messages[name] == f"n is {value}; it must be a whole number from 1 to 32"
    assert messages["session"].startswith("n is 2; a session goes on from one answer")
