"""Arguments and results of `llm.chat.completions.create` fit the types of npm's `openai`.
`python3 build.py test tests/examples` runs this with the examples."""

from __future__ import annotations

import subprocess
from pathlib import Path

from buildtools import ROOT
from tests import products

PAGE = """import type OpenAI from "openai";
import { Capstan } from "capstan-webgpu";
import type { Completion, CompletionChunk, CompletionMessage, CompletionTool } from "capstan-webgpu";

type Chat = typeof OpenAI.Chat.Completions.prototype;
type Given = Parameters<Chat["create"]>[0];

declare const llm: Capstan;
const messages = [{ role: "user" as const, content: "hello" }];
const whole: OpenAI.ChatCompletion = await llm.chat.completions.create({ messages, model: "any" });
const stream = await llm.chat.completions.create({ messages, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  const theirs: OpenAI.ChatCompletionChunk = chunk;
  console.log(theirs.choices[0]?.delta.content);
}
const message: OpenAI.ChatCompletionMessageParam = whole.choices[0]!.message;
await llm.chat.completions.create({ messages: [...messages, message] });
const likely = await llm.chat.completions.create({ messages, logprobs: true, top_logprobs: 3, user: "me", n: 1 });
const tokens: OpenAI.ChatCompletionTokenLogprob[] = likely.choices[0]!.logprobs!.content;
const params: OpenAI.ChatCompletionCreateParamsNonStreaming = { model: "any", messages, temperature: 0.5, seed: 7 };
await llm.chat.completions.create(params);
declare const streaming: OpenAI.ChatCompletionCreateParamsStreaming;
for await (const { choices } of await llm.chat.completions.create(streaming)) console.log(choices);
declare const theirTools: OpenAI.ChatCompletionTool[];
await llm.chat.completions.create({ messages, tools: theirTools });
const embedder = await Capstan.loadEmbedder("model/");
const embedded: OpenAI.CreateEmbeddingResponse = await embedder.embeddings.create({ input: ["a"], model: "any" });
console.log(tokens, embedded);
declare const completion: Completion;
declare const chunk: CompletionChunk;
const both: [OpenAI.ChatCompletion, OpenAI.ChatCompletionChunk] = [completion, chunk];
declare const tool: OpenAI.ChatCompletionFunctionTool;
const tools: CompletionTool[] = [{ type: "function", function: { name: tool.function.name } }];
const given: Given = { model: "any", messages, tools, tool_choice: "required" };
const ours: CompletionMessage[] = messages;
console.log(both, given, ours);
"""


def test_completions_have_the_types_of_openais_client(tmp_path: Path) -> None:
    package = products.tarball(tmp_path)
    (tmp_path / "package.json").write_text('{ "private": true, "type": "module" }')
    install = ["npm", "install", str(package), "openai", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "page.ts").write_text(PAGE)
    tsc = [str(ROOT / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--skipLibCheck"]
    flags = ["--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    lib = ["--lib", "ES2024,DOM,DOM.Iterable,DOM.AsyncIterable"]
    done = subprocess.run([*tsc, *flags, *lib, "page.ts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
