"""A model for each version of the AI SDK, driven by the SDK itself in Node, over completions that are made up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import products

VERSIONS = {"5": "v2", "6": "v3", "7": "v4"}
"""The specification of each major version of npm's `ai`."""
SCRIPT = """
import * as ai from "ai";
import { capstanModel, capstanTranscription } from "capstan-webgpu/ai";

// Names that a version lacks are undefined.
const { generateText, jsonSchema, stepCountIs, isStepCount, streamText, tool } = ai;

const chunks = (text, calls) => [
  { choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }] },
  { choices: [{ index: 0, delta: { reasoning_content: "Hm." }, finish_reason: null }] },
  { choices: [{ index: 0, delta: { content: text, ...(calls ? { tool_calls: calls } : {}) }, finish_reason: null }] },
  { choices: [{ index: 0, delta: {}, finish_reason: calls ? "tool_calls" : "stop" }] },
  { choices: [], usage: { prompt_tokens: 5, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 3 } } },
].map((chunk) => ({ id: "1", object: "chat.completion.chunk", created: 1, model: "m", usage: null, ...chunk }));
const CALL = { index: 0, id: "c", type: "function", function: { name: "add", arguments: '{"a":1,"b":2}' } };
const asked = [];
const create = async (params) => {
  asked.push(params);
  const last = params.messages.at(-1);
  const calls = params.tools && last.role === "user";
  const answer = calls ? chunks("", [CALL]) : chunks(`said ${JSON.stringify(last.content)}`);
  return { async *[Symbol.asyncIterator]() { yield* answer; } };
};
const model = capstanModel({ chat: { completions: { create } } }, { specification: process.argv[2] });
const { text, reasoningText, usage, finishReason } = await generateText({ model, prompt: "hello" });
const parts = [];
for await (const part of streamText({ model, prompt: "hello" }).textStream) parts.push(part);
const inputSchema = jsonSchema({ type: "object", properties: { a: { type: "number" }, b: { type: "number" } } });
const tools = { add: tool({ description: "adds", inputSchema, execute: ({ a, b }) => a + b }) };
const stopWhen = (stepCountIs ?? isStepCount)(3);
const used = await generateText({ model, prompt: "add", tools, stopWhen });
const answers = used.steps.flatMap(({ toolResults }) => toolResults.map(({ output }) => output));
const heard = [];
const transcribe = (sound, options) => {
  heard.push([sound.size, options.language, options.timestamps]);
  const segments = [{ text: " Hi.", start: 0.5, end: 1.25 }];
  return { result: Promise.resolve({ text: "Hi.", segments, language: "de", duration: 2, vtt: null, aborted: false }) };
};
const hearing = capstanTranscription({ transcribe }, { specification: process.argv[2] });
const providerOptions = { capstan: { language: "de", beams: 2 } };
const spoken = await (ai.transcribe ?? ai.experimental_transcribe)({
  ...{ model: hearing, audio: new Uint8Array(100), providerOptions },
});
const { segments, language, durationInSeconds, warnings } = spoken;
const transcript = { text: spoken.text, segments, language, durationInSeconds, warnings: warnings.length, heard };
console.log(JSON.stringify({ transcript, text, reasoningText, usage, finishReason, parts, answers, used: used.text }));
"""


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products.tarball(tmp_path_factory.mktemp("tarball"))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_the_sdk_drives_a_model(version: str, tarball: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{ "private": true, "type": "module" }')
    install = ["npm", "install", str(tarball), f"ai@^{version}", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "script.js").write_text(SCRIPT)
    done = subprocess.run(["node", "script.js", VERSIONS[version]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    said = 'said [{"type":"text","text":"hello"}]'
    assert (told["text"], "".join(told["parts"]), told["reasoningText"]) == (said, said, "Hm.")
    assert (told["finishReason"], told["usage"]["inputTokens"], told["usage"]["outputTokens"]) == ("stop", 5, 2)
    assert told["answers"] == [3]
    assert told["used"] == 'said "3"'
    assert told["transcript"] == {
        "text": "Hi.",
        "segments": [{"text": " Hi.", "startSecond": 0.5, "endSecond": 1.25}],
        "language": "de",
        "durationInSeconds": 2,
        "warnings": 1,
        "heard": [[100, "de", True]],
    }
