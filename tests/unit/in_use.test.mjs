// Neither a handle of a file system nor a stream is collected while a call of it is under way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { ByteReader, Chunk } from "../../web/src/worker/storage/chunk.ts";
import { using } from "../../web/src/wire/in_use.ts";

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

for (const mode of ["byob", undefined]) {
  test(`a stream is not collected while ${mode ?? "its default"} reader waits for bytes`, async () => {
    const { answers, reference } = begun(async (handle) => {
      handle.read = () => handle.call();
      handle.getReader = (options) => {
        if (options?.mode !== mode) throw new TypeError("no such reader");
        return handle;
      };
      const chunk = new Chunk(4);
      const found = await new ByteReader(handle).fill(chunk, 4);
      return [...chunk.view(found)];
    });
    assert.equal(await collected(reference), false);
    reference.deref().answer({ done: false, value: new Uint8Array([1, 2, 3, 4]) });
    assert.equal(await collected(reference), true);
    assert.deepEqual(answers, [[1, 2, 3, 4]]);
  });
}
