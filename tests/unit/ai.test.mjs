// A model for Vercel's AI SDK, over runs that are made up here. tests/examples drives it by the SDK itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { capstanModel } from "../../web/src/page/ai.ts";
import { Completions } from "../../web/src/page/completions.ts";
import { madeUpRun } from "./made_up_run.mjs";

/** A model whose runs say `parts`, or begin and then fail; what was asked for is kept in `asked`. */
function over(parts, { finishReason = "stop", error = null, between = () => {}, specification = "v4" } = {}) {
  const asked = [];
  let left = 0;
  const chat = (messages, options) => {
    asked.push({ messages, options });
    return madeUpRun(parts, { finishReason, error, between, keptTokens: 3, left: () => left++ });
  };
  const model = capstanModel(
    { chat: Object.assign(chat, { completions: new Completions(chat) }) },
    { modelId: "tiny", specification },
  );
  return { model, asked, left: () => left };
}

const PROMPT = [{ role: "user", content: [{ type: "text", text: "hello" }] }];
const TOOL = { type: "function", name: "weather", description: "tells it", inputSchema: { type: "object" } };
const CALL = {
  ...{ kind: "call", text: "<tool_call>...</tool_call>" },
  call: { id: "a1b2c3d4e", type: "function", function: { name: "weather", arguments: '{"city":"Rome"}' } },
};

async function collected({ stream }) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

test("a call gives its text, why it ended, and what it took", async () => {
  const { model, asked } = over(["Hi", " there"], { finishReason: "length" });
  const { content, finishReason, usage, warnings } = await model.doGenerate({ prompt: PROMPT });
  assert.deepEqual(content, [{ type: "text", text: "Hi there" }]);
  assert.deepEqual(finishReason, { unified: "length", raw: "length" });
  assert.deepEqual(usage.inputTokens, { total: 5, noCache: 2, cacheRead: 3, cacheWrite: undefined });
  assert.equal(usage.outputTokens.total, 2);
  assert.deepEqual(warnings, []);
  assert.deepEqual(asked[0].messages, [{ role: "user", content: "hello" }]);
});

test("models of earlier specifications say the same in their words", async () => {
  const asked = {
    prompt: PROMPT,
    reasoning: "high",
    tools: [{ type: "provider-defined", id: "a.b", name: "b", args: {} }],
  };
  const { model: older } = over(["Hi", " there"], { finishReason: "length", specification: "v2" });
  const { content, finishReason, usage, warnings } = await older.doGenerate(asked);
  assert.deepEqual([older.specificationVersion, content[0].text, finishReason], ["v2", "Hi there", "length"]);
  assert.deepEqual(usage, { inputTokens: 5, outputTokens: 2, totalTokens: 7, cachedInputTokens: 3 });
  assert.deepEqual(
    warnings.map(({ type, message }) => [type, message.split(":")[0]]),
    [
      ["other", "tool a.b"],
      ["other", "reasoning"],
    ],
  );
  const parts = await collected(await older.doStream(asked));
  assert.equal(parts[0].warnings[0].type, "other");
  assert.deepEqual(parts.at(-1), { type: "finish", finishReason: "length", usage });
  assert.equal(parts.map(({ delta = "" }) => delta).join(""), "Hi there");
  const { model: third } = over(["Hi"], { specification: "v3" });
  assert.equal(third.specificationVersion, "v3");
  assert.deepEqual((await third.doGenerate({ prompt: PROMPT })).finishReason, { unified: "stop", raw: "stop" });
  assert.throws(() => over([], { specification: "v5" }), {
    code: "OptionError",
    message: /^specification is "v5"; it must be/,
  });
});

test("reasoning is a part of its own, and providerOptions.capstan.thinking asks for it", async () => {
  const { model, asked } = over([{ kind: "reasoning", text: "Hm." }, "Yes"]);
  const providerOptions = { capstan: { thinking: true } };
  const { content, warnings } = await model.doGenerate({ prompt: PROMPT, providerOptions });
  const said = [
    { type: "reasoning", text: "Hm." },
    { type: "text", text: "Yes" },
  ];
  assert.deepEqual([content, warnings, asked[0].options.thinking], [said, [], true]);
  const parts = await collected(await model.doStream({ prompt: PROMPT, providerOptions: { capstan: { depth: 3 } } }));
  assert.deepEqual(
    parts.map(({ type, delta }) => delta ?? type),
    [
      "stream-start",
      "response-metadata",
      "reasoning-start",
      "Hm.",
      "reasoning-end",
      "text-start",
      "Yes",
      "text-end",
      "finish",
    ],
  );
  assert.equal(parts[0].warnings[0].feature, "providerOptions.capstan: depth");
});

test("variables of the chat template are provider options", async () => {
  const { model, asked } = over(["Yes"]);
  const variables = { budget: 3, dates: [1] };
  for (const capstan of [
    { reasoningEffort: "low" },
    { chatTemplateKwargs: variables, thinking: false },
    { chatTemplateKwargs: variables, reasoningEffort: "low" },
  ])
    assert.deepEqual((await model.doGenerate({ prompt: PROMPT, providerOptions: { capstan } })).warnings, []);
  assert.deepEqual(
    asked.map(({ options: { signal, ...options } }) => options),
    [
      { chatTemplateKwargs: { reasoning_effort: "low" } },
      { thinking: false, chatTemplateKwargs: variables },
      { chatTemplateKwargs: { ...variables, reasoning_effort: "low" } },
    ],
  );
});

test("a stream has the parts of the specification in their order", async () => {
  const { model } = over(["Hi", " there"]);
  const parts = await collected(await model.doStream({ prompt: PROMPT }));
  assert.deepEqual(
    parts.map(({ type }) => type),
    ["stream-start", "response-metadata", "text-start", "text-delta", "text-delta", "text-end", "finish"],
  );
  assert.equal(parts.map(({ delta = "" }) => delta).join(""), "Hi there");
  assert.equal(parts[1].modelId, "tiny");
  assert.deepEqual(parts.at(-1).finishReason, { unified: "stop", raw: "stop" });
  const raw = await collected(await model.doStream({ prompt: PROMPT, includeRawChunks: true }));
  assert.equal(raw.filter(({ type }) => type === "raw")[1].rawValue.choices[0].delta.content, "Hi");
});

test("a tool call comes whole, and its result goes back to the model", async () => {
  const { model, asked } = over(["I look. ", CALL]);
  const parts = await collected(await model.doStream({ prompt: PROMPT, tools: [TOOL] }));
  const call = parts.find(({ type }) => type === "tool-call");
  assert.deepEqual([call.toolName, JSON.parse(call.input)], ["weather", { city: "Rome" }]);
  assert.deepEqual(parts.at(-1).finishReason, { unified: "tool-calls", raw: "tool_calls" });
  assert.equal(asked[0].options.tools[0].function.parameters, TOOL.inputSchema);
  const { toolCallId } = call;
  const output = { type: "json", value: { degrees: 20 } };
  await model.doGenerate({
    prompt: [
      { role: "system", content: "Be brief." },
      ...PROMPT,
      {
        role: "assistant",
        content: [
          { type: "reasoning", text: "hm" },
          { ...call, input: { city: "Rome" } },
        ],
      },
      { role: "tool", content: [{ type: "tool-result", toolCallId, toolName: "weather", output }] },
    ],
    tools: [TOOL],
    toolChoice: { type: "none" },
  });
  const [, , said, told] = asked[1].messages;
  assert.deepEqual(said.tool_calls[0].function, { name: "weather", arguments: { city: "Rome" } });
  assert.deepEqual(told, { role: "tool", content: '{"degrees":20}', tool_call_id: toolCallId, name: "weather" });
});

test("settings become the run's options; what there is not comes as a warning", async () => {
  const { model, asked } = over(["{}"]);
  const schema = { type: "object", properties: { city: { type: "string" } } };
  const sampling = { temperature: 0.5, topP: 0.9, topK: 7, seed: 3, maxOutputTokens: 9, stopSequences: [";"] };
  const { warnings } = await model.doGenerate({
    prompt: PROMPT,
    ...sampling,
    presencePenalty: 0.1,
    frequencyPenalty: 0.2,
    responseFormat: { type: "json", schema },
    tools: [{ type: "provider", id: "some.search", name: "search", args: {} }],
    reasoning: "high",
  });
  const { signal, ...options } = asked[0].options;
  assert.deepEqual(options, {
    ...{ temperature: 0.5, topP: 0.9, topK: 7, seed: 3, maxTokens: 9, stop: [";"] },
    ...{ presencePenalty: 0.1, frequencyPenalty: 0.2, jsonSchema: schema },
  });
  assert.deepEqual(
    warnings.map(({ type, feature }) => [type, feature]),
    [
      ["unsupported", "tool some.search"],
      ["unsupported", "reasoning"],
    ],
  );
});

test("an abort rejects with its reason, and whoever leaves a stream ends its run", async () => {
  const stop = new AbortController();
  const { model } = over(["a", "b"], { between: () => stop.abort() });
  await assert.rejects(model.doGenerate({ prompt: PROMPT, abortSignal: stop.signal }), { name: "AbortError" });
  const { model: other, left } = over(["a", "b", "c"]);
  const { stream } = await other.doStream({ prompt: PROMPT });
  const reader = stream.getReader();
  for (let type = ""; type !== "text-delta";) ({ type } = (await reader.read()).value);
  await reader.cancel();
  assert.equal(left(), 1);
});

test("a failure of the run, and a message with a file of a provider, reject", async () => {
  const error = new Error("no memory");
  const { model, asked } = over(["a"], { error });
  await assert.rejects(model.doGenerate({ prompt: PROMPT }), error);
  await assert.rejects(collected(await model.doStream({ prompt: PROMPT })), error);
  const file = { type: "file", mediaType: "image/png", data: { type: "reference", reference: { a: "b" } } };
  const refused = model.doGenerate({ prompt: [{ role: "user", content: [file] }] });
  await assert.rejects(refused, { code: "OptionError", message: /of type "file, reference"; a model reads texts/ });
  assert.equal(asked.length, 2);
});

for (const [given, message] of [
  [{ toolChoice: { type: "nope" } }, /^tool_choice is "nope"; it must be/],
  [{ toolChoice: { type: "required" } }, /^tool_choice is "required", but there are no tools/],
  [{ tools: [{ ...TOOL, type: "nope" }] }, /^tools\[0\].type is "nope"; it must be "function"/],
  [{ tools: {} }, /^the call cannot be read/],
  [{ responseFormat: { type: "xml" } }, /^response_format.type is "xml"; it must be "text", /],
  [{ stopSequences: {} }, /^stop is {}; it must be a string or a list of strings/],
  [{ maxOutputTokens: "5" }, /^max_completion_tokens is "5"; it must be a finite number/],
  [{ providerOptions: { capstan: { thinking: "yes" } } }, /enable_thinking is "yes"; it must be a boolean/],
  [{ prompt: "hello" }, /^the call cannot be read/],
  [{ prompt: [{ role: "user", content: 5 }] }, /^the call cannot be read/],
  [{ prompt: [{ role: "user", content: [{ type: "text", text: 5 }] }] }, /content\[0\].text is 5; it must be a string/],
  [{ prompt: [{ role: 5, content: [{ type: "text", text: "a" }] }] }, /^messages\[0\].role is 5; it must be a string/],
]) {
  test(`${JSON.stringify(given)} is refused`, async () => {
    const { model, asked } = over(["a"]);
    const call = { prompt: PROMPT, ...given };
    await assert.rejects(async () => model.doGenerate(call), { code: "OptionError", message });
    await assert.rejects(async () => collected(await model.doStream(call)), { code: "OptionError", message });
    assert.equal(asked.length, 0);
  });
}

test("what is no loaded model is refused", () => {
  for (const llm of [undefined, 5, {}, Promise.resolve({})])
    assert.throws(() => capstanModel(llm), {
      code: "OptionError",
      message: /^the model is not one that Capstan.load gave/,
    });
});
