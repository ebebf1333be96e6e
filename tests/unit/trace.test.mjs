// Spans in the worker: which are kept, how many, and where the GPU's clock is placed on the worker's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Tracer } from "../../web/src/worker/trace.ts";

const ended = async (tracer) => JSON.parse(await tracer.end());

/** A submit from `begin` on that was taken by the queue at once and done at `done`, with times on the GPU's own clock. */
function submit(tracer, begin, done, gpu, { readable, device = "gpu", picks = 1 } = {}) {
  const times = Promise.resolve({ submitted: begin, done, ...(readable === undefined ? {} : { readable }) });
  const read = gpu && { device, read: async () => gpu };
  tracer.submit("burst", begin, begin + 0.25, times, read, { picks });
}

test("nothing is kept before a trace begins and after it ended", async () => {
  const tracer = new Tracer();
  tracer.add("load", "start Python", 0, 1);
  submit(tracer, 1, 2, [5, 6]);
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal(tracer.on, false);
  tracer.begin();
  assert.equal(tracer.on, true);
  tracer.add("load", "files", 2, 3);
  assert.deepEqual((await ended(tracer)).spans, [["load", "files", 2, 3, {}]]);
  assert.equal(tracer.on, false);
  tracer.begin();
  assert.deepEqual((await ended(tracer)).spans, []);
});

test("a trace that is begun twice goes on", async () => {
  const tracer = new Tracer();
  tracer.begin();
  tracer.add("load", "start Python", 0, 1);
  tracer.begin();
  const found = await ended(tracer);
  assert.equal(found.spans.length, 1);
  assert.equal(found.origin, performance.timeOrigin);
});

test("a submit is told from its wait, its copy and the GPU's work, also where they come after the end was asked for", async () => {
  const tracer = new Tracer();
  tracer.begin();
  submit(tracer, 10, 14, [1000, 1003], { readable: 14.5, picks: 3 });
  const { spans, no_gpu_times: lack } = await ended(tracer);
  assert.deepEqual(spans, [
    ["submit", "burst", 10, 10.25, { picks: 3 }],
    ["wait", "burst", 10, 14, { picks: 3 }],
    ["copy", "burst", 14, 14.5, { picks: 3 }],
    ["GPU", "burst", 11, 14, { picks: 3 }],
  ]);
  assert.equal(lack, "");
});

test("GPU times of a device are moved alike, as late as lets none end after it was told to be done", async () => {
  const tracer = new Tracer();
  tracer.begin();
  submit(tracer, 0, 10.5, [1000, 1010]);
  submit(tracer, 1, 20.125, [1010, 1020]);
  submit(tracer, 2, 30.25, [1020, 1030]);
  submit(tracer, 40, 42, [7, 8], { device: "another" });
  const placed = (await ended(tracer)).spans.filter(([track]) => track === "GPU");
  assert.deepEqual(
    placed.map(([, , begin, end]) => [begin, end]),
    [
      [0.125, 10.125],
      [10.125, 20.125],
      [20.125, 30.125],
      [41, 42],
    ],
  );
});

test("times of the GPU that make no sense are counted, and others may be missing for a reason", async () => {
  const tracer = new Tracer();
  tracer.begin();
  submit(tracer, 0, 1, [0, 0]);
  submit(tracer, 0, 1, [9, 8]);
  tracer.submit("burst", 0, 1, Promise.resolve({ submitted: 0, done: 1 }), {
    device: "gpu",
    read: () => Promise.reject(new Error("the device was lost")),
  });
  const found = await ended(tracer);
  assert.equal(found.unusable, 2);
  assert.equal(found.no_gpu_times, "nothing was replayed on a GPU");
  tracer.begin();
  tracer.lacks("the adapter has no timestamp-query");
  assert.equal((await ended(tracer)).no_gpu_times, "the adapter has no timestamp-query");
  tracer.begin();
  assert.equal(
    (await ended(tracer)).no_gpu_times,
    "nothing was replayed on a GPU",
    "that reason was the other trace's",
  );
});

test("spans that are too many are counted", async () => {
  const tracer = new Tracer(4);
  tracer.begin();
  for (let at = 0; at < 3; at++) tracer.add("load", `part ${at}`, at, at + 1);
  submit(tracer, 3, 4, [1, 2], { readable: 5 });
  const { spans, dropped } = await ended(tracer);
  assert.deepEqual(
    spans.map(([track, name]) => `${track} ${name}`),
    ["load part 0", "load part 1", "load part 2", "submit burst"],
  );
  assert.equal(dropped, 3, "its wait, its copy and the GPU's");
  tracer.begin();
  assert.equal((await ended(tracer)).dropped, 0);
});

test("what fails is not in the trace and keeps it from nothing", async () => {
  const tracer = new Tracer();
  tracer.begin();
  tracer.submit("burst", 0, 1, Promise.reject(new Error("the device was lost")), null);
  assert.deepEqual((await ended(tracer)).spans, [["submit", "burst", 0, 1, {}]]);
});
