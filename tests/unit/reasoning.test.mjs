// Reasoning is told from the answer, in whole texts and in texts that grow.

import assert from "node:assert/strict";
import { test } from "node:test";
import { splitReasoning } from "../../web/src/chat/reasoning.ts";

const CASES = [
  ["", {}, "", ""],
  ["Hello.", {}, "", "Hello."],
  [" Hello.\n", {}, "", " Hello.\n"],
  ["<think>\nhm\n</think>\n\nHello", {}, "hm", "Hello"],
  ["\n<think>hm</think>Hello\n", {}, "hm", "Hello\n"],
  ["<think>\n\n</think>\n\nHello", {}, "", "Hello"],
  ["hm\n</think>\n\nHello", { begun: true }, "hm", "Hello"],
  ["<think>\nhm</think>Hello", { begun: true }, "hm", "Hello"],
  ["Use a and </think> to end.", {}, "", "Use a and </think> to end."],
  ["hm\n</think>\n\nHello", {}, "", "hm\n</think>\n\nHello"],
  ["Such models write <think>hm</think> first.", {}, "", "Such models write <think>hm</think> first."],
  ["hm</think>Hello", { begun: false }, "", "hm</think>Hello"],
  // Code about the tags.
  ["`<think>` opens it, `</think>` ends it.", {}, "", "`<think>` opens it, `</think>` ends it."],
  ["Say `</think>` at last.", {}, "", "Say `</think>` at last."],
  ["<think>Is it `</think>`? Yes.</think>`</think>`", {}, "Is it `</think>`? Yes.", "`</think>`"],
  ["<think>`x</think>y`", {}, "`x", "y`"],
  ["<think>`</think>y`", {}, "`", "y`"],
  ["<think>a</think>\n```xml\n<think>\nb\n</think>\n```", { begun: true }, "a", "```xml\n<think>\nb\n</think>\n```"],
  // Blocks within blocks and behind the answer.
  ["<think>a <think> b</think>c</think>d", {}, "a <think> b", "c</think>d"],
  ["<think>a</think>b<think>c</think>d", {}, "a", "b<think>c</think>d"],
  ["<thinking>hm</thinking>", {}, "", "<thinking>hm</thinking>"],
  ["a < b and </thin", {}, "", "a < b and </thin"],
];
const OPEN = [
  ["<think>\nhm, so", {}, "hm, so"],
  ["hm, so", { begun: true }, "hm, so"],
  ["<think>a </thi", {}, "a </thi"],
  ["", { begun: true }, ""],
];

for (const [text, options, reasoning, answer] of CASES)
  test(`of ${JSON.stringify(text)} ${JSON.stringify(options)}`, () => {
    assert.deepEqual(splitReasoning(text, options), { reasoning, answer, open: false });
  });

for (const [text, options, reasoning] of OPEN)
  test(`${JSON.stringify(text)} does not end its reasoning`, () => {
    assert.deepEqual(splitReasoning(text, options), { reasoning, answer: "", open: true });
  });

test("half a tag at the end of a growing text is in neither part", () => {
  const growing = true;
  assert.deepEqual(splitReasoning("<thi", { growing }), { reasoning: "", answer: "", open: false });
  assert.deepEqual(splitReasoning("<think>", { growing }), { reasoning: "", answer: "", open: true });
  assert.deepEqual(splitReasoning("<think>a\n</thi", { growing }), { reasoning: "a", answer: "", open: true });
  assert.deepEqual(splitReasoning("<think>a <b", { growing }), { reasoning: "a <b", answer: "", open: true });
  assert.deepEqual(splitReasoning("<thi"), { reasoning: "", answer: "<thi", open: false });
});

test("both parts only grow where the beginning is known, and come to what the whole text has", () => {
  for (const [text, { begun = false }] of [...CASES, ...OPEN])
    for (const known of [begun, true]) {
      let before = { reasoning: "", answer: "" };
      for (let length = 0; length <= text.length; length++) {
        const now = splitReasoning(text.slice(0, length), { begun: known, growing: length < text.length });
        assert.ok(now.reasoning.startsWith(before.reasoning), JSON.stringify([text, before, now]));
        assert.ok(now.answer.startsWith(before.answer), JSON.stringify([text, before, now]));
        before = now;
      }
      assert.deepEqual(before, splitReasoning(text, { begun: known }));
    }
});
