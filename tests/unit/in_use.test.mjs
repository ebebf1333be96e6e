// A handle of a file system is not collected while a call of it is under way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { using } from "../../web/src/worker/storage/in_use.ts";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");

async function collected(reference) {
  for (let i = 0; i < 5; i++) {
    await new Promise((resolve) => setTimeout(resolve));
    collect();
  }
  return reference.deref() === undefined;
}

/** A call of a handle that alone knows whom to answer, as a browser's: where the answer goes, and a weak reference to it. */
function begun(call) {
  const answers = [];
  const handle = {
    call() {
      return new Promise((resolve) => (this.answer = resolve));
    },
  };
  void call(handle).then((answer) => answers.push(answer));
  return { answers, reference: new WeakRef(handle) };
}

test("a handle stays until its call has ended", async () => {
  const { answers, reference } = begun((handle) => using(handle, (one) => one.call()));
  assert.equal(await collected(reference), false);
  reference.deref().answer("read");
  assert.equal(await collected(reference), true);
  assert.deepEqual(answers, ["read"]);
});

test("a handle to which nobody refers is collected while its call is under way", async () => {
  const { reference } = begun(async (handle) => await handle.call());
  assert.equal(await collected(reference), true);
});
