// Cross-Origin Storage of a worker, and of the page that a worker without it asks.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { answerWorker, crossOriginFiles, PageFiles } from "../../web/src/wire/cross_origin.ts";

const HASH = "a".repeat(64);

/** An API as the explainer's cross-origin-storage.d.ts has it. */
function offered(files, calls = []) {
  const getFileHandle = async (hash, options = {}) => {
    calls.push([hash, options]);
    if (files instanceof Error) throw files;
    if (!options.create && !files[hash.value]) throw new DOMException("not there", "NotFoundError");
    return {
      getFile: async () => files[hash.value],
      createWritable: async () => ({
        write: async (file) => (files[hash.value] = file),
        close: async () => {
          if ((await files[hash.value].text()) === "other") throw new DOMException("another hash", "DataError");
        },
      }),
    };
  };
  define({ getFileHandle });
  return calls;
}

function define(crossOriginStorage) {
  Object.defineProperty(globalThis, "navigator", { value: { crossOriginStorage }, configurable: true });
}

afterEach(() => define(undefined));

/** As a worker that asks its page. */
function pageFiles() {
  const files = new PageFiles((asked) => void answerWorker(asked).then((answer) => files.take(answer)));
  return files;
}

for (const [where, found] of Object.entries({ "of its own": crossOriginFiles, "of its page": pageFiles }))
  test(`a worker finds and keeps files by the API ${where}`, async () => {
    const calls = offered({});
    const files = found();
    assert.equal(await files.find(HASH), null);
    await files.keep(HASH, new Blob(["bytes"]), false);
    assert.equal(await (await files.find(HASH)).text(), "bytes");
    await files.keep(HASH, new Blob(["bytes"]), true);
    const hash = { algorithm: "SHA-256", value: HASH };
    const [get, keep, keepHere] = [{}, { create: true, origins: "*" }, { create: true }];
    assert.deepEqual(calls, [
      [hash, get],
      [hash, keep],
      [hash, get],
      [hash, keepHere],
    ]);
    await assert.rejects(files.keep(HASH, new Blob(["other"]), false), /another hash/);
    offered(new DOMException("the user refused", "NotAllowedError"));
    await assert.rejects(found().find(HASH), /the user refused/);
  });

test("a browser without the API has none", async () => {
  define(undefined);
  assert.equal(crossOriginFiles(), null);
  define({});
  assert.equal(crossOriginFiles(), null);
  await assert.rejects(pageFiles().find(HASH), /this page has no navigator.crossOriginStorage/);
});

test("answers reach the question that they are for", async () => {
  const asked = [];
  const files = new PageFiles((question) => asked.push(question));
  const [first, second] = [files.find("1"), files.find("2")];
  files.take({ id: asked[1].id, found: "of the second", failure: null });
  files.take({ id: asked[0].id, found: "of the first", failure: null });
  assert.deepEqual([await first, await second], ["of the first", "of the second"]);
});
