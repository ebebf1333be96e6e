// A session of the Prompt API over runs that are made up here: tools, room in the context, and failures.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CapstanError } from "../../web/src/page/capstan.ts";
import { knownModels } from "../../web/src/page/known_models.ts";
import { Session } from "../../web/src/page/chat_session.ts";
import { asException } from "../../web/src/prompt_api/prompt_errors.ts";
import { readConstraint, readPrompt } from "../../web/src/prompt_api/prompt_input.ts";
import { PromptSession } from "../../web/src/prompt_api/prompt_session.ts";
import { DEFAULT_MODEL } from "../../web/src/prompt_api/shared_model.ts";
import { madeUpRun } from "./made_up_run.mjs";

const signal = new AbortController().signal;
const TYPES = new Set(["text"]);
const call = (name, given) => ({
  ...{ kind: "call", text: "" },
  call: { id: `${name}-1`, type: "function", function: { name, arguments: JSON.stringify(given) } },
});

/** A session whose model says `answers`, one after another; a word is a token. */
async function over(answers, { tools = [], maxLength = 100, options = {} } = {}) {
  const asked = [];
  const rest = [...answers];
  const answer = (messages, options) => {
    asked.push({ messages, options });
    const parts = rest.shift() ?? ["yes"];
    return parts instanceof Error ? madeUpRun(["no"], { error: parts }) : madeUpRun(parts);
  };
  const words = (text) => text.split(" ").length;
  const count = async (given) =>
    typeof given === "string" ? words(given) : given.reduce((sum, { content }) => sum + words(content), 0);
  const llm = {
    session: (messages) => new Session(answer, async () => undefined, async () => undefined, messages),
    tokenizer: { count },
    stats: () => ({ maxLength, model: { search: { do_sample: true, top_k: 7, temperature: 0.6 } } }),
  };
  const session = await PromptSession.begin({ llm, options, tools }, null, signal);
  const ask = async (input, constraint = null) => {
    const shown = [];
    const text = await session.ask(readPrompt(input, TYPES), constraint, signal, (part) => shown.push(part));
    assert.equal(shown.join(""), text);
    return text;
  };
  return { session, asked, ask };
}

test("tools are called side by side, and the model answers with their results", async () => {
  const called = [];
  const tool = (name) => ({
    ...{ name, description: `the ${name}`, inputSchema: { type: "object" } },
    execute: async (given) => {
      called.push([name, given]);
      return name === "time" ? 12 : "warm";
    },
  });
  const calls = [call("time", { city: "Rome" }), call("weather", {})];
  const { asked, ask, session } = await over([calls, ["It is ", "warm"]], { tools: [tool("time"), tool("weather")] });
  assert.equal(await ask("How warm is it?"), "It is warm");
  assert.deepEqual(called, [["time", { city: "Rome" }], ["weather", {}]]);
  const parameters = { type: "object" };
  assert.deepEqual(asked[0].options.tools[1], {
    type: "function",
    function: { name: "weather", description: "the weather", parameters },
  });
  assert.deepEqual(asked[1].messages.slice(-2), [
    { role: "tool", tool_call_id: "time-1", name: "time", content: "12" },
    { role: "tool", tool_call_id: "weather-1", name: "weather", content: "warm" },
  ]);
  assert.equal(asked[1].messages.at(-3).tool_calls.length, 2);
  assert.equal(session.usage, 7);
});

test("a tool that fails, or a run, leaves the session as it was", async () => {
  const failed = new Error("no network");
  const tool = { name: "time", description: "it", inputSchema: {}, execute: () => Promise.reject(failed) };
  const lost = new CapstanError({ type: "DeviceLostError", message: "lost\nit" });
  const { asked, ask, session } = await over([["well"], [call("time", {})], lost, ["good"]], { tools: [tool] });
  await ask("one");
  const { usage } = session;
  await assert.rejects(ask("two"), (error) => error === failed);
  assert.equal(session.usage, usage);
  await assert.rejects(ask("three"), { name: "UnknownError", message: "lost it", cause: lost });
  assert.equal(await ask("four"), "good");
  assert.deepEqual(asked.at(-1).messages.map(({ content }) => content), ["one", "well", "four"]);
});

test("the oldest turns make room, whole ones, but not the messages at the beginning", async () => {
  const { asked, ask, session } = await over([], { maxLength: 12 });
  let overflows = 0;
  session.overflowed = () => overflows++;
  await session.append(readPrompt([{ role: "system", content: "be brief" }], TYPES), signal);
  for (const word of ["one", "two", "three"]) await ask(word);
  assert.equal(overflows, 0);
  await ask("a b c d e f");
  assert.equal(overflows, 1);
  assert.deepEqual(asked.at(-1).messages.map(({ content }) => content), ["be brief", "three", "yes", "a b c d e f"]);
  await assert.rejects(ask("a b c d e f g h i j"), (error) => {
    assert.deepEqual([error.name, error.requested, error.quota], ["QuotaExceededError", 2 + 2 + 7 + 10, 12]);
    return true;
  });
  assert.equal(overflows, 1);
  await ask("g");
  assert.deepEqual(asked.at(-1).messages.map(({ content }) => content).slice(0, 2), ["be brief", "a b c d e f"]);
});

test("turns come in the order of their calls, each with what the earlier ones left", async () => {
  const { asked, ask } = await over([["first"], new CapstanError({ type: "OptionError", message: "wrong" }), ["third"]]);
  const all = await Promise.allSettled([ask("one"), ask("two"), ask("three")]);
  assert.deepEqual(all.map(({ value }) => value), ["first", undefined, "third"]);
  assert.deepEqual(asked[2].messages.map(({ content }) => content), ["one", "first", "three"]);
});

test("a constraint is told to the model unless the page leaves that out, and checked", async () => {
  const { asked, ask } = await over([['{"a":1}'], ["{"], ["abc"], ["b"]]);
  const schema = { type: "object" };
  await ask("rate", readConstraint({ responseConstraint: schema }));
  assert.match(asked[0].messages[0].content, /^rate\n\nAnswer in JSON .*\{"type":"object"\}$/);
  assert.equal(asked[0].options.jsonSchema, '{"type":"object"}');
  await assert.rejects(ask("rate", readConstraint({ responseConstraint: schema })), { name: "SyntaxError" });
  const left = { responseConstraint: /^A.C$/gis, omitResponseConstraintInput: true };
  assert.equal(await ask("say", readConstraint(left)), "abc");
  assert.deepEqual([asked[2].messages.at(-1).content, asked[2].options.regex], ["say", "(?is:^A.C$)"]);
  await assert.rejects(ask("say", readConstraint(left)), { name: "SyntaxError" });
  for (const flags of ["m", "v"])
    assert.throws(() => readConstraint({ responseConstraint: new RegExp("a", flags) }), { name: "NotSupportedError" });
});

test("failures of Capstan have the names of the specification", () => {
  const named = (type) => asException(new CapstanError({ type, message: "why" }), "OperationError").name;
  assert.deepEqual(
    ["GuidanceError", "ModelFileError", "PictureError", "PromptError", "OutOfMemoryError"].map(named),
    ["NotSupportedError", "NetworkError", "EncodingError", "QuotaExceededError", "OperationError"],
  );
  const other = new RangeError("own");
  assert.equal(asException(other, "UnknownError"), other);
});

test("the model of pages that choose none is a known one", () => {
  assert.ok(knownModels().some(({ id }) => id === DEFAULT_MODEL));
});
