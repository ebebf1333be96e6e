// An agent over answers that are made up here: which calls it makes, what it tells the model, and how it ends.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CapstanError } from "capstan-webgpu";
import { Agent } from "../../web/src/agent/agent.ts";
import { madeUpRun } from "./made_up_run.mjs";

globalThis.location ??= { href: "http://page.example/" };

let count = 0;
function calling(name, given = {}, id = `call${count++}`) {
  const called = { name, arguments: typeof given === "string" ? given : JSON.stringify(given) };
  return { kind: "call", text: "", call: { id, type: "function", function: called } };
}

/** A model that gives these answers, lists of parts or functions that make a run; what it was asked is kept in `asked`. */
function over(...answers) {
  const asked = [];
  const chat = (messages, options) => {
    asked.push({ messages: [...messages], options });
    const parts = answers[asked.length - 1] ?? ["the end"];
    if (typeof parts === "function") return parts(options);
    const calls = parts.some((part) => part.kind === "call");
    return madeUpRun(parts, { finishReason: calls ? "tool_calls" : "stop" });
  };
  return { llm: { chat }, asked };
}

const READS = { name: "read", readOnly: true, execute: () => ({ rows: 3 }) };
const WRITES = { name: "write", execute: () => "written" };
const outcomes = ({ steps }) =>
  steps.map(({ calls }) => calls.map(({ name, outcome, result }) => [name, outcome, result]));

test("a call is made, its result is asked with, and the trace has both", async () => {
  const { llm, asked } = over([{ kind: "reasoning", text: "Hm." }, calling("read", { a: 1 }, "abc")], ["three"]);
  const given = [];
  const parameters = { type: "object", properties: { a: { type: "integer" } } };
  const tool = { ...READS, description: "reads", parameters, execute: (got) => (given.push(got), { rows: 3 }) };
  const agent = new Agent(llm, { tools: [tool], instructions: "Be brief.", temperature: 0 });
  const run = agent.run("How many?");
  const steps = [];
  for await (const step of run) steps.push(step);
  const result = await run.result;
  assert.deepEqual([result.text, result.finishReason, given], ["three", "stop", [{ a: 1 }]]);
  assert.deepEqual(steps, result.steps);
  assert.deepEqual(run.steps, result.steps);
  const [first, second] = steps;
  assert.deepEqual([first.step, first.asked], [1, [{ role: "user", content: "How many?" }]]);
  const { ms, ...call } = first.calls[0];
  assert.ok(ms >= 0 && first.ms >= ms);
  const about = { id: "abc", name: "read", arguments: { a: 1 }, source: "code" };
  assert.deepEqual(call, { ...about, outcome: "returned", result: '{"rows":3}' });
  assert.deepEqual(second.asked, [{ role: "tool", tool_call_id: "abc", name: "read", content: '{"rows":3}' }]);
  const [question, said, told, end] = result.messages;
  assert.deepEqual([question.role, told, end], ["user", second.asked[0], { role: "assistant", content: "three" }]);
  assert.deepEqual([said.reasoning_content, said.tool_calls[0].function.name], ["Hm.", "read"]);
  assert.deepEqual(asked[1].messages, [{ role: "system", content: "Be brief." }, ...result.messages.slice(0, 3)]);
  const { tools, strictTools, temperature, signal } = asked[0].options;
  assert.deepEqual([strictTools, temperature, signal.aborted], [true, 0, true]);
  assert.deepEqual(tools, [{ type: "function", function: { name: "read", description: "reads", parameters } }]);
});

test("the parts of all answers come as those of a chat, and results beside them", async () => {
  const { llm } = over(["Let me see. ", calling("read")], ["three"]);
  const parts = [];
  for await (const { kind, text, step, call, result } of new Agent(llm, { tools: [READS] }).run("?").split())
    parts.push([step, kind, call?.function.name ?? result?.outcome ?? text]);
  assert.deepEqual(parts, [
    [1, "answer", "Let me see. "],
    [1, "call", "read"],
    [1, "result", "returned"],
    [2, "answer", "three"],
  ]);
});

test("a call that is not marked read-only waits for the app, which may refuse", async () => {
  const asks = [];
  const confirm = (call) => (asks.push(call), call.arguments.good);
  const { llm } = over([calling("read"), calling("write", { good: true })], [calling("write", { good: 1 })]);
  const agent = new Agent(llm, { tools: [READS, { ...WRITES, description: "writes" }], confirm });
  const result = await agent.run("go").result;
  assert.deepEqual(outcomes(result), [
    [
      ["read", "returned", '{"rows":3}'],
      ["write", "returned", "written"],
    ],
    [["write", "refused", "The user refused this call."]],
    [],
  ]);
  assert.deepEqual(
    asks.map(({ name, description, source }) => [name, description, source]),
    Array(2).fill(["write", "writes", "code"]),
  );
  await assert.rejects(new Agent(over().llm, { tools: [WRITES] }).run("go").result, {
    code: "OptionError",
    message: /^confirm is missing, but "write" of code is not marked read-only; give confirm/,
  });
  const failing = new Agent(over([calling("write")]).llm, {
    tools: [WRITES],
    confirm: () => Promise.reject(new Error("x")),
  });
  await assert.rejects(failing.run("go").result, { message: "x" });
});

test("the model is told what it did wrong, and what failed", async () => {
  const broken = { ...READS, name: "broken", execute: () => Promise.reject(new TypeError("no such row")) };
  const circle = {};
  circle.itself = circle;
  const odd = { ...READS, name: "odd", execute: () => circle };
  const nothing = { ...READS, name: "nothing", execute: () => undefined };
  const calls = [calling("now"), calling("read", "[1]"), calling("broken"), calling("odd"), calling("nothing")];
  const result = await new Agent(over(calls).llm, { tools: [READS, broken, odd, nothing] }).run("go").result;
  const [[now, list, fails, circular, empty]] = outcomes(result);
  assert.deepEqual(now, ["now", "failed", 'There is no tool "now". The tools are: read, broken, odd, nothing.']);
  assert.deepEqual(list, ["read", "failed", "The arguments are no JSON object: [1]"]);
  assert.deepEqual(fails, ["broken", "failed", "The call failed: TypeError: no such row"]);
  assert.match(circular[2], /^The call failed: TypeError: Converting circular/);
  assert.deepEqual(empty, ["nothing", "returned", "null"]);
  assert.equal(result.finishReason, "stop");
});

test("a call has a limit of time and of bytes, and a run one of steps", async () => {
  const ended = [];
  const hangs = {
    ...READS,
    name: "hangs",
    execute: (_, { signal }) => new Promise(() => (signal.onabort = () => ended.push(1))),
  };
  const long = { ...READS, name: "long", execute: () => "é".repeat(50) };
  const again = Array(9).fill([calling("hangs"), calling("long")]);
  const options = { tools: [hangs, long], toolTimeout: 20, maxResultBytes: 11, maxSteps: 2 };
  const result = await new Agent(over(...again).llm, options).run("go").result;
  assert.deepEqual([result.finishReason, result.steps.length, ended.length], ["tool_calls", 2, 2]);
  const [[slow, cut]] = outcomes(result);
  assert.deepEqual(slow.slice(0, 2), ["hangs", "failed"]);
  assert.deepEqual(
    cut[2],
    "ééééé\n[The result is cut here: it has 50 characters, the limit is 11 bytes. Ask for less.]",
  );
  const whole = await new Agent(over([calling("long")]).llm, { tools: [long], maxResultBytes: 100 }).run("go").result;
  assert.deepEqual(outcomes(whole)[0][0][2], "é".repeat(50));
  const most = await new Agent(over([calling("long")]).llm, { tools: [long], maxResultBytes: 99 }).run("go").result;
  assert.equal(outcomes(most)[0][0][2].split("\n")[0], "é".repeat(49));
  const unlimited = await new Agent(over([calling("hangs")]).llm, { tools: [hangs], toolTimeout: 20 }).run("go").result;
  assert.equal(outcomes(unlimited)[0][0][2], "The call failed: Error: there was no result after 20 ms, the limit");
});

test("a run ends by its signal, by leaving its loop, or by abort, whatever it is waiting for", async () => {
  const never = () => new Promise(() => {});
  for (const [options, parts] of [
    [{ tools: [{ ...READS, execute: never }] }, [calling("read")]],
    [{ tools: [WRITES], confirm: never }, [calling("write")]],
    [{ page: { getTools: never, executeTool: never } }, []],
  ]) {
    const controller = new AbortController();
    const run = new Agent(over(parts).llm, options).run("go", { signal: controller.signal });
    setTimeout(() => controller.abort(), 10);
    const { finishReason, steps } = await run.result;
    assert.equal(finishReason, "abort");
    assert.deepEqual(
      steps.flatMap(({ calls }) => calls.map(({ result }) => result)),
      parts.map(() => "The run was ended."),
    );
  }
  const { llm, asked } = over(...Array(9).fill([calling("read")]));
  const run = new Agent(llm, { tools: [READS] }).run("go");
  for await (const _ of run) break;
  await run.result;
  assert.ok(asked.length < 9);
  const early = await new Agent(llm, { tools: [READS] }).run("go", { signal: AbortSignal.abort() }).result;
  assert.deepEqual([early.finishReason, early.text, early.steps], ["abort", "", []]);
});

test("a model that fails fails the run, whose steps are there", async () => {
  const error = new CapstanError({ type: "PromptError", message: "too long" });
  const run = new Agent(over([calling("read")], () => madeUpRun([], { error })).llm, { tools: [READS] }).run("go");
  await assert.rejects(run.result, error);
  assert.equal(run.steps.length, 1);
  await assert.rejects(async () => {
    for await (const _ of run);
  }, error);
});

test("what the page registers by WebMCP is listed for each answer, and called by the browser", async () => {
  let tools = [
    { name: "fill", description: "fills", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } },
  ];
  const executed = [];
  const page = {
    getTools: async () => tools,
    async executeTool(tool, given, { signal }) {
      executed.push([tool.name, given, signal.aborted]);
      tools = [{ name: "send", description: "sends", annotations: { consequentialHint: true } }];
      return '{"ok":true}';
    },
  };
  const asks = [];
  const { llm, asked } = over([calling("fill", { a: 1 })], [calling("send")]);
  const confirm = ({ name, annotations }) => (asks.push([name, annotations]), true);
  const result = await new Agent(llm, { page, confirm }).run("go").result;
  assert.deepEqual(executed, [
    ["fill", { a: 1 }, false],
    ["send", {}, false],
  ]);
  assert.deepEqual(asks, [["send", { consequentialHint: true }]]);
  const named = asked.map(({ options }) => options.tools.map((tool) => tool.function.name));
  assert.deepEqual(named, [["fill"], ["send"], ["send"]]);
  assert.deepEqual(result.steps[0].calls[0].source, "page");
});

test("a page that does not give its tools is refused, and no result is longer than its limit", async () => {
  const circle = {};
  circle.itself = circle;
  const described = { name: "read", description: "reads", inputSchema: circle };
  const refusals = [
    [() => Promise.reject(null), /^the page did not give its tools \(null\); leave out page/],
    [async () => "read", /^the page did not give its tools \(TypeError: getTools gave no array\)/],
    [async () => [described], /^the page did not give its tools \(TypeError: Converting circular/],
  ];
  for (const [getTools, message] of refusals) {
    const page = { getTools, executeTool: async () => null };
    await assert.rejects(new Agent(over().llm, { page }).run("go").result, { code: "ToolServerError", message });
  }
  const { llm } = over([calling("x".repeat(1000))]);
  const { steps } = await new Agent(llm, { tools: [READS], maxResultBytes: 20 }).run("go").result;
  assert.match(steps[0].calls[0].result, /^There is no tool "xx\n\[The result is cut here: it has \d+ characters/);
});

test("only the first answer may be required to call", async () => {
  const { llm, asked } = over([calling("read")]);
  await new Agent(llm, { tools: [READS], toolChoice: "required" }).run("go").result;
  assert.deepEqual(
    asked.map(({ options }) => options.toolChoice),
    ["required", undefined],
  );
  const bare = over(["hello"]);
  await new Agent(bare.llm).run([{ role: "user", content: "hi" }]).result;
  assert.deepEqual(Object.keys(bare.asked[0].options), ["signal"]);
});

test("options that an agent does not have, and tools of one name, are refused", async () => {
  const { llm } = over();
  const refused = (message) => (error) =>
    error instanceof CapstanError && error.code === "OptionError" && message.test(error.message);
  for (const [options, message] of [
    [{ n: 2 }, /^n: no such option; there are instructions, maxSteps/],
    [{ signal: AbortSignal.abort() }, /^signal: no such option/],
    [{ maxSteps: 0 }, /^maxSteps is 0; it must be a whole number from 1 to 1000/],
    [{ toolTimeout: 0 }, /^toolTimeout is 0/],
    [{ toolTimeout: Infinity }, /^toolTimeout is Infinity; it must be a whole number from 1 to 2147483647/],
    [{ tools: [{ name: "a" }] }, /^tools\[0\]\.execute: missing/],
    [{ tools: [{ ...READS, readonly: true }] }, /^tools\[0\]\.readonly: no such option/],
    [{ mcp: ["ftp://a"] }, /^mcp: "ftp:\/\/a" is no http address/],
    [{ mcp: [{ address: "http://a" }] }, /^mcp\[0\]\.address: no such option/],
    [{ page: { registerTool() {} } }, /^page is .*; it must be document.modelContext of WebMCP/],
  ])
    assert.throws(() => new Agent(llm, options), refused(message));
  assert.throws(() => new Agent({}), refused(/^the model is not one that Capstan.load gave/));
  assert.throws(() => new Agent(llm).run(3), refused(/^messages is 3/));
  assert.throws(() => new Agent(llm).run("a", { signl: 1 }), refused(/^signl: no such option/));
  const twice = new Agent(llm, { tools: [READS, READS] }).run("go").result;
  await assert.rejects(twice, refused(/^two tools are named "read": one of code, one of code; rename one/));
  const page = { getTools: async () => [{ name: "read", description: "reads" }], executeTool: async () => null };
  const both = new Agent(llm, { tools: [READS], page, confirm: () => true }).run("go").result;
  await assert.rejects(both, refused(/^two tools are named "read": one of code, one of page; rename one/));
  const many = Array.from({ length: 129 }, (_, number) => ({ ...READS, name: `read${number}` }));
  await assert.rejects(
    new Agent(llm, { tools: many }).run("go").result,
    refused(/^there are 129 tools; .* at most 128/),
  );
});
