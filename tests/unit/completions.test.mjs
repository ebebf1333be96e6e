// Chats with OpenAI's parameters and results, over runs that are made up here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Completions } from "../../web/src/page/completions.ts";
import { madeUpRun } from "./made_up_run.mjs";

/** Completions over runs that say `parts`; what was asked for is kept in `asked`. */
function over(parts, { finishReason = "stop", error = null, logprobs = [] } = {}) {
  const asked = [];
  const completions = new Completions((messages, options) => {
    asked.push({ messages, options });
    const told = { finishReason, error, keptTokens: 2 };
    return madeUpRun(parts, { ...told, logprobs: options.logprobs ? logprobs : null });
  });
  return { completions, asked };
}

const COMPUTED = { prompt_tokens_details: { cached_tokens: 2 } };
const MESSAGES = [{ role: "user", content: "hello" }];
const TOOL = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};
const CALL = {
  ...{ kind: "call", text: "<tool_call>...</tool_call>" },
  call: { id: "a1b2c3d4e", type: "function", function: { name: "weather", arguments: '{"city":"Rome"}' } },
};

async function collected(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("parameters of other servers are the worker's options", async () => {
  const { completions, asked } = over(["Hi"]);
  await completions.create({ messages: MESSAGES, top_k: 4, min_p: 0.1, repetition_penalty: 1.2 });
  const { signal, ...options } = asked[0].options;
  assert.deepEqual(options, { topK: 4, minP: 0.1, repetitionPenalty: 1.2 });
});

const likely = (token, logprob) => ({ tokenId: token.charCodeAt(0), token, logprob, bytes: [token.charCodeAt(0)] });
const LOGPROBS = [
  { ...likely("a", -0.5), topLogprobs: [likely("a", -0.5), likely("c", -1)] },
  { ...likely("b", -2), topLogprobs: [likely("d", -0.25), likely("b", -2)] },
];

test("log probabilities are OpenAI's, in a completion and in the chunks of their tokens", async () => {
  const params = { messages: MESSAGES, logprobs: true, top_logprobs: 2 };
  const { completions, asked } = over(["a", "b"], { logprobs: LOGPROBS });
  const { logprobs } = (await completions.create(params)).choices[0];
  const { signal, ...options } = asked[0].options;
  assert.deepEqual(options, { logprobs: true, topLogprobs: 2 });
  const token = (text, logprob) => ({ token: text, logprob, bytes: [text.charCodeAt(0)] });
  const first = { ...token("a", -0.5), top_logprobs: [token("a", -0.5), token("c", -1)] };
  const second = { ...token("b", -2), top_logprobs: [token("d", -0.25), token("b", -2)] };
  assert.deepEqual(logprobs, { content: [first, second], refusal: null });
  const chunks = await collected(await completions.create({ ...params, stream: true }));
  const told = chunks.map(({ choices }) => [choices[0].delta.content, choices[0].logprobs.content]);
  assert.deepEqual(told, [
    ["", []],
    ["a", [first]],
    ["b", [second]],
    [undefined, []],
  ]);
  const without = await collected(await completions.create({ messages: MESSAGES, stream: true }));
  assert.ok(without.every(({ choices }) => !("logprobs" in choices[0])));
});

test("reasoning is apart from the content", async () => {
  const { completions: thinks, asked } = over([
    { kind: "reasoning", text: "Hm" },
    { kind: "reasoning", text: "m." },
    "Yes",
    ".",
  ]);
  const asks = { messages: MESSAGES, chat_template_kwargs: { enable_thinking: true } };
  const { message } = (await thinks.create(asks)).choices[0];
  assert.equal(asked[0].options.thinking, true);
  assert.deepEqual(message, { role: "assistant", content: "Yes.", refusal: null, reasoning_content: "Hmm." });
  const deltas = (await collected(await thinks.create({ ...asks, stream: true }))).map(
    ({ choices }) => choices[0].delta,
  );
  const joined = (name) => deltas.map((delta) => delta[name] ?? "").join("");
  assert.deepEqual([joined("reasoning_content"), joined("content")], ["Hmm.", "Yes."]);
});

test("variables of the chat template are passed on, reasoning_effort among them", async () => {
  const { completions, asked } = over(["Hi"]);
  const variables = { documents: [], budget: null };
  for (const given of [
    { reasoning_effort: "low" },
    { reasoning_effort: "low", chat_template_kwargs: { enable_thinking: false, ...variables } },
    { chat_template_kwargs: { reasoning_effort: "high" } },
    { reasoning_effort: null, chat_template_kwargs: {} },
  ])
    await completions.create({ messages: MESSAGES, ...given });
  const told = asked.map(({ options: { signal, ...options } }) => options);
  assert.deepEqual(told, [
    { chatTemplateKwargs: { reasoning_effort: "low" } },
    { thinking: false, chatTemplateKwargs: { ...variables, reasoning_effort: "low" } },
    { chatTemplateKwargs: { reasoning_effort: "high" } },
    {},
  ]);
  const twice = { reasoning_effort: "low", chat_template_kwargs: { reasoning_effort: "low" } };
  await assert.rejects(
    completions.create({ messages: MESSAGES, ...twice }),
    /reasoning_effort stands in chat_template/,
  );
});

test("what OpenAI's servers alone use is taken, and told once", async (context) => {
  const warn = context.mock.method(console, "warn", () => undefined);
  const { completions, asked } = over(["Hi"]);
  const idle = { user: "me", store: false, metadata: { a: "b" }, service_tier: "auto" };
  const keys = { safety_identifier: "x", prompt_cache_key: "y", logprobs: false, parallel_tool_calls: true };
  await completions.create({ messages: MESSAGES, user: null });
  assert.equal(warn.mock.callCount(), 0);
  for (let i = 0; i < 2; i++) await completions.create({ messages: MESSAGES, ...idle, ...keys });
  for (const { options } of asked) assert.deepEqual(Object.keys(options), ["signal"]);
  const told = warn.mock.calls.map((call) => call.arguments[0]);
  const names = "user, store, metadata, service_tier, safety_identifier, prompt_cache_key";
  assert.deepEqual(told, [`chat.completions: ${names} tell OpenAI's servers something and change nothing here`]);
});

test("without parallel calls the run is asked for one", async () => {
  const { completions, asked } = over([CALL]);
  for (const parallel_tool_calls of [false, true])
    await completions.create({ messages: MESSAGES, tools: [TOOL], parallel_tool_calls });
  assert.deepEqual(
    asked.map(({ options }) => options.parallelToolCalls),
    [false, undefined],
  );
});

test("a completion has OpenAI's form", async () => {
  const { completions, asked } = over(["Hi", " there"]);
  const found = await completions.create({ messages: MESSAGES, model: "any" });
  assert.match(found.id, /^chatcmpl-/);
  assert.ok(Math.abs(found.created - Date.now() / 1000) < 5);
  const message = { role: "assistant", content: "Hi there", refusal: null };
  assert.deepEqual([found.object, found.model], ["chat.completion", "any"]);
  assert.deepEqual(found.choices, [{ index: 0, message, logprobs: null, finish_reason: "stop" }]);
  assert.deepEqual(found.usage, { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, ...COMPUTED });
  const { signal, ...options } = asked[0].options;
  assert.deepEqual(options, {});
});

test("chunks begin with the role, have the text, and end with the reason and, if asked for, the usage", async () => {
  const { completions } = over(["Hi", " there"], { finishReason: "length" });
  const given = { messages: MESSAGES, stream: true };
  const chunks = await collected(await completions.create({ ...given, stream_options: { include_usage: true } }));
  assert.deepEqual(
    chunks.map(({ choices: [choice] }) => choice && [choice.delta, choice.finish_reason]),
    [
      [{ role: "assistant", content: "" }, null],
      [{ content: "Hi" }, null],
      [{ content: " there" }, null],
      [{}, "length"],
      undefined,
    ],
  );
  assert.deepEqual(
    chunks.map(({ usage }) => usage),
    [...[null, null, null, null], { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, ...COMPUTED }],
  );
  assert.equal(new Set(chunks.map(({ id }) => id)).size, 1);
  assert.ok(chunks.every(({ object }) => object === "chat.completion.chunk"));
  const without = await collected(await completions.create(given));
  assert.ok(without.every((chunk) => !("usage" in chunk) && chunk.choices.length === 1));
});

test("parameters are the run's options; null is as if it were left out", async () => {
  const { completions, asked } = over(["a"]);
  await completions.create({
    ...{ messages: MESSAGES, temperature: 0.5, top_p: 0.9, seed: 4, stop: ["x"], max_tokens: 5, n: 1 },
    ...{ max_completion_tokens: 7, frequency_penalty: 0.1, presence_penalty: 0.2, logit_bias: { 12: -5 } },
  });
  await completions.create({
    messages: MESSAGES,
    temperature: null,
    seed: null,
    stop: null,
    max_tokens: null,
    n: null,
  });
  const [{ signal, ...all }, { signal: other, ...none }] = asked.map(({ options }) => options);
  assert.deepEqual(all, {
    ...{ temperature: 0.5, topP: 0.9, seed: 4, stop: ["x"], maxTokens: 7, n: 1 },
    ...{ frequencyPenalty: 0.1, presencePenalty: 0.2, search: { logit_bias: { 12: -5 } } },
  });
  assert.deepEqual(none, {});
});

test("messages are as templates take them", async () => {
  const { completions, asked } = over(["a"]);
  const call = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Rome"}' } };
  await completions.create({
    messages: [
      {
        role: "developer",
        content: [
          { type: "text", text: "be " },
          { type: "text", text: "brief" },
        ],
      },
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "sun" },
    ],
  });
  assert.deepEqual(asked[0].messages, [
    { role: "system", content: "be brief" },
    {
      role: "assistant",
      content: "",
      tool_calls: [{ ...call, function: { name: "weather", arguments: { city: "Rome" } } }],
    },
    { role: "tool", content: "sun", tool_call_id: "call_1" },
  ]);
});

test("a call of the run is a tool call, in a completion and in chunks", async () => {
  const { completions, asked } = over(["Let me look. ", CALL]);
  const found = await completions.create({ messages: MESSAGES, tools: [TOOL] });
  const [{ message, finish_reason: reason }] = found.choices;
  assert.deepEqual([message.content, reason, message.tool_calls], ["Let me look. ", "tool_calls", [CALL.call]]);
  assert.deepEqual([asked[0].options.tools, asked[0].options.toolChoice], [[TOOL], undefined]);
  const alone = await over([CALL, CALL]).completions.create({ messages: MESSAGES, tools: [TOOL], stream: true });
  const chunks = await collected(alone);
  const calls = chunks.flatMap(({ choices: [choice] }) => choice.delta.tool_calls ?? []);
  assert.deepEqual(calls, [
    { index: 0, ...CALL.call },
    { index: 1, ...CALL.call },
  ]);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "tool_calls");
});

test("a call that has to be made is asked of the run", async () => {
  const { completions, asked } = over([CALL]);
  const other = { type: "function", function: { name: "time" } };
  const ask = (tool_choice) => completions.create({ messages: MESSAGES, tools: [TOOL, other], tool_choice });
  const found = await ask("required");
  assert.equal(found.choices[0].message.content, null);
  assert.equal(found.choices[0].message.tool_calls[0].function.name, "weather");
  assert.equal(found.choices[0].finish_reason, "tool_calls");
  await ask({ type: "function", function: { name: "weather" } });
  await ask("none");
  assert.deepEqual(
    asked.map(({ options: { toolChoice, tools } }) => [toolChoice, tools?.length]),
    [
      ["required", 2],
      [{ name: "weather" }, 2],
      [undefined, undefined],
    ],
  );
});

test("a response format is a grammar", async () => {
  const { completions, asked } = over(["{}"]);
  const schema = { type: "object", properties: { a: { type: "integer" } } };
  for (const response_format of [
    { type: "text" },
    { type: "json_object" },
    { type: "json_schema", json_schema: { name: "a", schema } },
  ])
    await completions.create({ messages: MESSAGES, response_format });
  assert.deepEqual(
    asked.map(({ options }) => options.jsonSchema),
    [undefined, { type: "object" }, schema],
  );
});

test("the stream's controller and the signal end the run", async () => {
  for (const end of [(stream) => stream.controller.abort(), (_, stop) => stop.abort()]) {
    const { completions, asked } = over(["a"], { finishReason: "abort" });
    const stop = new AbortController();
    const stream = await completions.create({ messages: MESSAGES, stream: true }, { signal: stop.signal });
    assert.equal(asked[0].options.signal.aborted, false);
    end(stream, stop);
    assert.equal(asked[0].options.signal.aborted, true);
    assert.equal((await collected(stream)).at(-1).choices[0].finish_reason, "stop");
  }
});

test("a run's error is the completion's, of a stream at its loop", async () => {
  const error = new Error("too long");
  const { completions } = over(["a"], { error });
  await assert.rejects(completions.create({ messages: MESSAGES }), error);
  const stream = await completions.create({ messages: MESSAGES, stream: true });
  await assert.rejects(collected(stream), error);
});

for (const [given, message] of [
  [
    { tools: [{ type: "custom", custom: {} }] },
    'tools[0].type is "custom"; it must be "function": only functions are called',
  ],
  [
    { tools: [TOOL], tool_choice: { type: "allowed_tools", allowed_tools: {} } },
    'tool_choice.type is "allowed_tools"; it must be "function": only functions are called',
  ],
  [{ tool_choice: "required" }, 'tool_choice is "required", but there are no tools'],
  [
    { tools: [TOOL], tool_choice: { type: "function", function: { name: "a" } } },
    'tool_choice: "a" is none of the tools',
  ],
  [
    { tools: [TOOL], tool_choice: "required", response_format: { type: "json_object" } },
    "response_format: a tool call is requested; give one of the two",
  ],
  [{ messages: [{ role: "user", content: [{ type: "image_url" }] }] }, "messages[0].content[0].image_url: missing"],
  [
    { messages: [{ role: "user", content: [{ type: "input_audio", input_audio: {} }] }] },
    'messages[0].content[0].type is "input_audio"; it must be "text", "image_url", "image" or "file": no model hears in ' +
      "a chat, and Capstan.loadTranscriber turns speech into text",
  ],
  [
    {
      messages: [
        { role: "assistant", tool_calls: [{ id: "", type: "function", function: { name: "a", arguments: "{" } }] },
      ],
    },
    "messages: the arguments of the call of a are no JSON object: {",
  ],
  [
    { response_format: { type: "xml" } },
    'response_format.type is "xml"; it must be "text", "json_object" or "json_schema"',
  ],
  [{ response_format: "json_object" }, /^response_format is "json_object"; it must be an object of type "text", /],
  [
    { response_format: { type: "json_schema", json_schemas: {} } },
    "response_format.json_schemas: no such option; there are type, json_schema",
  ],
  [{ response_format: { type: "json_schema" } }, "response_format.json_schema: missing"],
  [
    { response_format: { type: "json_schema", json_schema: { name: "a", shema: {} } } },
    "response_format.json_schema.shema: no such option; there are name, description, schema, strict",
  ],
  [{ response_format: { type: "json_object", schema: {} } }, "response_format.schema: no such option; there are type"],
  [{ tools: [TOOL], tool_choice: 5 }, /^tool_choice is 5; it must be "none", "auto" or "required" or an object of /],
  [{ tools: [TOOL], tool_choice: "nope" }, /^tool_choice is "nope"; it must be "none", "auto" or "required" or /],
  [{ tools: [TOOL], tool_choice: { type: "function", name: "weather" } }, /^tool_choice.name: no such option; /],
  [{ tools: [{ name: "weather" }] }, 'tools[0].type is undefined; it must be "function": only functions are called'],
  [{ tools: [{ type: "function", function: {} }] }, "tools[0].function.name: missing"],
  [{ tools: {} }, "tools is {}; it must be a list of tools"],
  [{ stop: {} }, "stop is {}; it must be a string or a list of strings"],
  [{ stream_options: { include_usage: true } }, /^stream_options is of a stream, but stream is not true/],
  [{ stream: true, stream_options: { usage: true } }, "stream_options.usage: no such option; there are include_usage"],
  [
    { stream: true, stream_options: { include_usage: "yes" } },
    'stream_options.include_usage is "yes"; it must be a boolean',
  ],
  [{ n: 5e6 }, "n is 5000000; it must be a whole number from 1 to 32"],
  [{ logprobs: true, top_logprobs: 1e9 }, "top_logprobs is 1000000000; it must be a whole number from 0 to 20"],
  [{ temperature: "1" }, 'temperature is "1"; it must be a finite number'],
  [{ logit_bias: { 5: "much" } }, 'logit_bias.5 is "much"; it must be a finite number'],
  [{ messages: [{}] }, "messages[0].role: missing"],
  [{ messages: null }, "messages: missing; give a list of messages"],
  [{ messages: [{ role: 5, content: "a" }] }, "messages[0].role is 5; it must be a string"],
  [{ messages: [{ role: "user" }] }, /^messages\[0\].content: missing; only an assistant's message with tool_calls/],
  [{ messages: [{ role: "user", content: null }] }, /^messages\[0\].content: missing/],
  [{ messages: [{ role: "user", content: 5 }] }, "messages[0].content is 5; it must be a string or a list of parts"],
  [{ messages: [{ role: "user", content: true }] }, /^messages\[0\].content is true; it must be a string or/],
  [{ messages: [{ role: "user", content: { a: 1 } }] }, /^messages\[0\].content is {"a":1}; it must be a string or/],
  [{ messages: [{ role: "user", content: [{ type: "text" }] }] }, "messages[0].content[0].text: missing"],
  [{ messages: [{ role: "assistant" }] }, /^messages\[0\].content: missing/],
  [
    { messages: [{ role: "assistant", tool_calls: [{ type: "function", function: { name: "a", arguments: {} } }] }] },
    "messages[0].tool_calls[0].function.arguments is {}; it must be a string",
  ],
]) {
  test(`${JSON.stringify(given)} is refused`, async () => {
    const { completions, asked } = over(["a"]);
    await assert.rejects(completions.create({ messages: MESSAGES, ...given }), { code: "OptionError", message });
    assert.equal(asked.length, 0);
  });
}
