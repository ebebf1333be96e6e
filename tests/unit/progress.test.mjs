// The bytes of a load, counted in the worker, and the fraction and the time that a page makes of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { FetchedBytes } from "../../web/src/worker/fetched_bytes.ts";
import { LoadMeter, loadStatus } from "../../web/src/page/progress.ts";

const MB = 1e6;

function counting() {
  const told = [];
  const bytes = new FetchedBytes();
  bytes.begin(({ done, total, whole }) => told.push([done, total, whole]));
  return { bytes, last: () => new Promise((resolve) => setTimeout(() => resolve(told.at(-1)), 120)), told };
}

test("a file is counted once, at its size on the way, whoever tells of it", async () => {
  const { bytes, last, told } = counting();
  bytes.expectRuntime({ "x/ort.wasm": 1000, "x/python.mjs": 50 });
  bytes.reached("x/ort.wasm", 200);
  bytes.reached("x/ort.wasm", 100); // by another worker, behind the first
  assert.deepEqual(await last(), [200, 1050, false]);
  bytes.sentAs("x/ort.wasm", 500, true);
  bytes.whole("x/python.mjs");
  assert.deepEqual(await last(), [150, 550, false]);
  bytes.expect("m/model%20a.data", 4000);
  bytes.add("m/model%20a.data", 1000);
  bytes.knowModel();
  assert.deepEqual(await last(), [1150, 4550, true]);
  bytes.reachedOf("model a.data", 3000, 4000);
  bytes.add("m/model%20a.data", 9000);
  bytes.reached("x/ort.wasm", 1000);
  assert.deepEqual(await last(), [4550, 4550, true]);
  bytes.end();
  bytes.reachedOf("other.gguf", 10, 20);
  assert.deepEqual(await last(), [10, 20, true], "the runtime is there at the next load");
  assert.ok(told.length < 20, "events are few");
});

test("without anybody who wants to hear nothing is told", () => {
  const bytes = new FetchedBytes();
  bytes.expectRuntime({ a: 1 });
  bytes.whole("a");
});

test("the fraction never goes back, and the time left follows the last seconds", () => {
  const meter = new LoadMeter();
  const at = (seconds, done, total, whole = true) =>
    meter.take({ kind: "bytes", done: done * MB, total: total * MB, whole }, 1000 * seconds);
  const some = { status: "starting", file: null, loaded: 0, total: 0 };
  const nothing = { totalBytes: null, secondsLeft: null };
  assert.deepEqual(at(0, 10, 50, false), { ...some, fraction: 0.1, bytes: 10 * MB, ...nothing });
  assert.equal(at(1, 50, 50, false).fraction, 0.5);
  const known = at(2, 60, 200);
  assert.deepEqual([known.fraction, known.totalBytes], [0.5, 200 * MB], "the size of the model became known");
  // 10 MB a second for a long time, then 1.
  for (let seconds = 3; seconds <= 10; seconds++) at(seconds, 60 + 10 * (seconds - 2), 200);
  const quick = at(11, 150, 200);
  assert.deepEqual([quick.fraction, Math.round(quick.secondsLeft)], [0.75, 5]);
  for (let seconds = 12; seconds <= 20; seconds++) at(seconds, 150 + (seconds - 11), 200);
  const slow = at(21, 160, 200);
  assert.deepEqual([slow.fraction, Math.round(slow.secondsLeft)], [0.8, 40]);
  const more = at(22, 161, 400);
  assert.equal(more.fraction, 0.8, "another file was found");
  assert.equal(at(23, 400, 400).secondsLeft, null, "what follows is no download");
  assert.deepEqual(meter.take({ kind: "stdout", text: "x" }), null);
});

test("people read what came of what, and the phase once everything is there", () => {
  const told = { status: "starting Python", bytes: 0, totalBytes: null, secondsLeft: null };
  assert.equal(loadStatus(told), "Starting Python");
  assert.equal(loadStatus({ ...told, bytes: 12.4 * MB }), "Loading: 12 MB");
  const known = { ...told, bytes: 12.4 * MB, totalBytes: 143 * MB };
  assert.equal(loadStatus(known), "Loading: 12 of 143 MB");
  assert.equal(loadStatus({ ...known, secondsLeft: 43.6 }), "Loading: 12 of 143 MB, 44 s left");
  assert.equal(loadStatus({ ...known, totalBytes: 4.5e9, secondsLeft: 290 }), "Loading: 0.01 of 4.50 GB, 5 min left");
  assert.equal(
    loadStatus({ ...known, totalBytes: 4.5e9, secondsLeft: 7500 }),
    "Loading: 0.01 of 4.50 GB, more than an hour left",
  );
  assert.equal(loadStatus({ ...known, bytes: 143 * MB }), "Starting Python");
});
