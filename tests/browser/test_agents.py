"""An agent in a page: a model's held calls of tools in code, of MCP servers and of the page's own, by WebMCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from capstan_host.headless.chromium import flags
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.browser.agent_module import agent_module
from tests.browser.mcp_server import HOSTILE, everything, failing

OPEN = """async ([client, agent]) => {
  const [{ Capstan }, { Agent }] = await Promise.all([import(client), import(agent)]);
  const llm = await Capstan.load("/models/nano-qwen2/", { device: "wasm" });
  const plain = (error) => { if (!error.code) throw error; return { code: error.code, message: error.message }; };
  const GIVEN = { temperature: 0, maxTokens: 220, toolChoice: "required", maxSteps: 1, toolTimeout: 10000 };
  window.llm = llm;
  window.made = (given) => new Agent(llm, { ...GIVEN, ...given });
  window.ran = (given) => made(given).run("hi").result.catch(plain);
}"""


@pytest.fixture(scope="module")
def errors() -> list[str]:
    return []


@pytest.fixture(scope="module")
def page(
    browser: Browser, quick_browser: Path, site: SiteServer, errors: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """A page of a browser with WebMCP, which this Chromium has behind a flag, with a loaded model."""
    arguments = ["--headless=new", *flags("software"), "--enable-blink-features=WebMCP"]
    other = browser.browser_type.launch(executable_path=str(quick_browser), args=arguments)
    with agent_module(tmp_path_factory.mktemp("agent"), site) as module:
        page = other.new_page()
        watch(page, errors)
        page.goto(site.url + "blank.html")
        page.evaluate(OPEN, [f"{site.url}capstan/capstan.js", module])
        yield page
    other.close()


@pytest.fixture
def agents(page: Page, errors: list[str]) -> Iterator[Page]:
    yield page
    # A server that cannot be reached is the browser's to report, too.
    assert [line for line in errors if "Failed to load resource" not in line and "CORS" not in line] == []
    errors.clear()


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    with everything() as url:
        yield url


@pytest.fixture(scope="module")
def failures() -> Iterator[str]:
    with failing() as url:
        yield url


RUN = """async ([url, tools]) => {
  const asked = [];
  const confirm = (call) => (asked.push(call), false);
  // Random weights may add properties without end, which these schemas allow: another seed then.
  for (let seed = 1; ; seed++) {
    const agent = made({ mcp: [{ url, tools }], confirm, temperature: 1, seed });
    const steps = [];
    const run = agent.run("hi");
    for await (const { step, calls, answer } of run) steps.push({ step, calls, answer: answer.toolCalls });
    const { finishReason, messages } = await run.result;
    await agent.close();
    if (finishReason === "tool_calls" || seed === 20) return { asked, steps, finishReason, messages };
  }
}"""


def test_a_model_calls_the_reference_server_and_its_arguments_fit(agents: Page, reference: str) -> None:
    found = agents.evaluate(RUN, [reference, ["get-structured-content"]])
    assert (found["finishReason"], [step["step"] for step in found["steps"]]) == ("tool_calls", [1])
    [call] = found["steps"][0]["calls"]
    assert call["arguments"]["location"] in ("New York", "Chicago", "Los Angeles")
    assert (call["outcome"], call["source"]) == ("returned", reference)
    assert '"temperature"' in call["result"]
    question, said, told = found["messages"]
    assert (question, said["tool_calls"]) == ({"role": "user", "content": "hi"}, found["steps"][0]["answer"])
    assert told == {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": "get-structured-content",
        "content": call["result"],
    }
    assert found["asked"] == [], "the server marks it read-only"
    refused = agents.evaluate(RUN, [reference, ["toggle-simulated-logging"]])
    [call] = refused["steps"][0]["calls"]
    assert call["outcome"] == "refused"
    [asked] = refused["asked"]
    assert (asked["name"], asked["arguments"], asked["source"]) == (call["name"], call["arguments"], reference)
    assert asked["description"]
    missing = agents.evaluate("(given) => ran(given)", {"mcp": [{"url": reference, "tools": ["nothing"]}]})
    assert missing["code"] == "OptionError"
    assert missing["message"].startswith(f"the MCP server {reference} has no tool nothing; it has echo, ")


PICTURE = """(url) => ran({ mcp: [{ url, tools: ["get-tiny-image"] }], confirm: () => true })"""


def test_parts_of_a_result_that_are_no_text_are_named(agents: Page, reference: str) -> None:
    [step] = agents.evaluate(PICTURE, reference)["steps"]
    assert "\n[image: image/png; only texts are read]\n" in step["calls"][0]["result"]


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("hangs", "The call failed: Error: there was no result after 400 ms, the limit"),
        ("babbles", "The call failed: "),
        ("flood", "The call failed: RangeError: an answer of the server has more than 4194304 bytes"),
        ("wrong", "The call failed: "),
        ("denies", "no such row"),
    ],
)
def test_the_model_is_told_how_a_server_failed(way: str, told: str, agents: Page, failures: str) -> None:
    found = agents.evaluate("(given) => ran(given)", {"mcp": [failures + way], "toolTimeout": 400})
    [call] = found["steps"][0]["calls"]
    assert call["outcome"] == "failed"
    assert call["result"].startswith(told)
    assert len(call["result"]) < 300
    assert found["messages"][-1]["content"] == call["result"]


def test_a_long_result_is_cut_and_says_so(agents: Page, failures: str) -> None:
    found = agents.evaluate("(given) => ran(given)", {"mcp": [failures + "large"], "maxResultBytes": 20})
    [call] = found["steps"][0]["calls"]
    cut = "[The result is cut here: it has 100000 characters, the limit is 20 bytes. Ask for less.]"
    assert (call["outcome"], call["result"]) == ("returned", "a" * 20 + "\n" + cut)


GAVE_NONE = "the MCP server URL did not give its tools ("


@pytest.mark.parametrize(
    ("way", "code", "told"),
    [
        ("silent", "ToolServerError", f"{GAVE_NONE}Error: there was no result after 400 ms, the limit); check its"),
        ("garbage", "ToolServerError", GAVE_NONE),
        ("listless", "ToolServerError", GAVE_NONE),
        (
            "list-flood",
            "ToolServerError",
            f"{GAVE_NONE}RangeError: an answer of the server has more than 4194304",
        ),
        ("twice", "OptionError", 'two tools are named "act": one of URL, one of URL; rename one, or choose'),
        ("unholdable", "GuidanceError", "tools: the parameters of act: json_schema #/properties/a"),
        ("writes", "OptionError", 'confirm is missing, but "act" of URL is not marked read-only; give confirm'),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_by_name(
    way: str, code: str, told: str, agents: Page, failures: str
) -> None:
    found = agents.evaluate("(given) => ran(given)", {"mcp": [failures + way], "toolTimeout": 400})
    assert found.get("code") == code, found
    assert found["message"].startswith(told.replace("URL", failures + way)), found


def test_a_server_that_is_not_there_is_refused(agents: Page) -> None:
    found = agents.evaluate("(given) => ran(given)", {"mcp": ["http://127.0.0.1:9/mcp"]})
    assert found["code"] == "ToolServerError"
    assert "check its address (Streamable HTTP), that it runs, and that it allows this page by CORS" in found["message"]


INJECTED = """async (url) => {
  const { steps, messages } = await ran({ mcp: [url], maxSteps: 2, maxTokens: 60 });
  const loose = { chatTemplateKwargs: { split_special_tokens: false } };
  const before = messages.slice(0, 3);
  const [literal, effective] = [await llm.tokenizer.count(before), await llm.tokenizer.count(before, loose)];
  return { told: before[2].content, prompt: steps[1].answer.promptTokens, literal, effective };
}"""


def test_what_a_tool_returns_is_data_and_ends_no_turn(agents: Page, failures: str) -> None:
    found = agents.evaluate(INJECTED, failures + "hostile")
    assert found["told"] == HOSTILE
    assert found["prompt"] == found["literal"] > found["effective"]


REGISTER = """async () => {
  const context = document.modelContext;
  document.body.innerHTML = '<input id="seats" value="">';
  const properties = { seats: { enum: [1, 2, 3] } };
  const schema = { type: "object", properties, required: ["seats"], additionalProperties: false };
  await context.registerTool({
    name: "book", description: "Books seats", inputSchema: schema, annotations: { consequentialHint: true },
    execute: async ({ seats }) => ((document.querySelector("#seats").value = seats), { booked: seats }),
  });
  const asked = [];
  const confirm = ({ name, source, annotations }) => asked.push([name, source, annotations.consequentialHint]) > 0;
  const { steps } = await ran({ page: context, confirm });
  return { asked, call: steps[0].calls[0], seats: document.querySelector("#seats").value };
}"""


def test_a_model_fills_a_form_by_what_the_page_registered(agents: Page) -> None:
    """The browser is the judge: it is its WebMCP."""
    found = agents.evaluate(REGISTER)
    assert found["asked"] == [["book", "page", True]]
    seats = found["call"]["arguments"]["seats"]
    assert seats in (1, 2, 3)
    assert (found["seats"], found["call"]["result"]) == (str(seats), f'{{"booked":{seats}}}')


AUTO = """async () => {
  const read = { name: "read", readOnly: true, execute: () => "4" };
  const run = made({ tools: [read], toolChoice: "auto", maxTokens: 12, maxSteps: 3 }).run("hi");
  const kinds = new Set();
  for await (const { kind } of run.split()) kinds.add(kind);
  const { text, finishReason } = await run.result;
  const controller = new AbortController();
  const long = { toolChoice: "auto", maxTokens: 400, search: { min_length: 400 } };
  const ended = made(long).run("hi", { signal: controller.signal });
  for await (const _ of ended.split()) controller.abort();
  return { kinds: [...kinds], text, finishReason, ended: (await ended.result).finishReason };
}"""


def test_a_model_that_may_call_may_answer_in_text(agents: Page) -> None:
    found: dict[str, Any] = agents.evaluate(AUTO)
    assert (found["kinds"], found["ended"]) == (["answer"], "abort")
    assert found["finishReason"] in ("stop", "length")
    assert found["text"]
    assert not found["text"].startswith("{")
