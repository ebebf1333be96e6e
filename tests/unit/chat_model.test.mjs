// The sentences of <capstan-chat> at the end of an answer, over runs that are made up here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ModelAnswers } from "../../web/src/chat/chat_model.ts";
import { madeUpRun } from "./made_up_run.mjs";

/** The sentence below a conversation whose last run ended for that reason. */
async function said(canChat, finishReason, contextFull = false) {
  const run = () => madeUpRun(["Yes"], { finishReason, contextFull });
  const llm = { stats: () => ({ canChat }), complete: run, session: () => ({ send: run, messages: [] }) };
  const turn = { asked: "Well?", answer: "", content: "Well?", attached: [], append() {} };
  let status;
  const chat = {
    ...{ messages: [{ role: "user", content: "Well?" }], turns: [turn] },
    getAttribute: () => null,
    showStatus: (text) => (status = text),
  };
  assert.equal(await new ModelAnswers(llm, chat).answer(turn, new AbortController().signal), finishReason);
  assert.equal(turn.answer, "Yes");
  return status;
}

test("the sentence below an answer tells which limit was met", async () => {
  for (const [canChat, what] of [
    [true, "conversation"],
    [false, "text"],
  ]) {
    assert.equal(await said(canChat, "length", true), `The ${what} is as long as it may be.`);
    assert.equal(await said(canChat, "length"), "The answer is as long as it may be.");
    assert.equal(await said(canChat, "abort"), "Stopped.");
    for (const reason of ["stop", "tool_calls", "time"]) assert.equal(await said(canChat, reason), "");
  }
});

for (const canChat of [true, false]) {
  test(`an answer is continued ${canChat ? "in its message" : "as a text"}`, async () => {
    const given = [];
    const run = (asked, { continueFinalMessage = false }) => {
      given.push(asked, continueFinalMessage);
      return madeUpRun([" is it"], { finishReason: "stop" });
    };
    const llm = { stats: () => ({ canChat }), complete: run, session: () => ({ send: run, messages: [] }) };
    const turn = { asked: "Well?", answer: "Here", content: "Well?", attached: [], append() {} };
    const user = { role: "user", content: "Well?" };
    const chat = { messages: [user], turns: [turn], getAttribute: () => null, showStatus() {} };
    await new ModelAnswers(llm, chat).answer(turn, new AbortController().signal);
    const messages = [user, { role: "assistant", content: "Here" }];
    assert.deepEqual(given, canChat ? [messages, true] : ["Well?Here", false]);
    assert.equal(turn.answer, "Here is it");
  });
}
