// A handle of a file system is not collected while a call of it is under way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { using } from "../../web/src/storage/in_use.ts";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");

async function collected(reference) {
  for (let i = 0; i < 5; i++) {
    await new Promise((resolve) => setTimeout(resolve));
    collect();
  }
  return reference.deref() === undefined;
}

/** A call of a handle to which nothing else refers, how to answer it, and a weak reference to the handle. */
function begun(call) {
  let answer;
  const handle = { call: () => new Promise((resolve) => (answer = resolve)) };
  return { answered: call(handle), answer: (value) => answer(value), reference: new WeakRef(handle) };
}

test("a handle stays until its call has ended", async () => {
  const { answered, answer, reference } = begun((handle) => using(handle, (one) => one.call()));
  assert.equal(await collected(reference), false);
  answer("read");
  assert.equal(await answered, "read");
  assert.equal(await collected(reference), true);
});

test("a handle to which nobody refers is collected while its call is under way", async () => {
  const { reference } = begun((handle) => handle.call());
  assert.equal(await collected(reference), true);
});
