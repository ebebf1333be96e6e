// The words and lanes of a run's bursts in the demo page.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Bursts } from "../../web/demo/bursts.ts";

test("on a GPU the time of each burst has four parts, and the GPU takes one burst after the other", () => {
  const bursts = new Bursts(
    [
      [100, 101, 110, 112, 115, 2],
      [103, 105, 120, 121, 125, 3],
    ],
    "webgpu",
  );
  assert.deepEqual(
    [bursts.times, bursts.counts],
    [
      [15, 25],
      [2, 5],
    ],
  );
  assert.deepEqual(
    bursts.lanes.map((lane) => bursts.spans(lane)),
    [
      [
        [0, 1],
        [3, 5],
      ],
      [
        [1, 10],
        [10, 20],
      ],
      [
        [10, 12],
        [20, 21],
      ],
      [
        [12, 15],
        [21, 25],
      ],
    ],
  );
  assert.equal(
    bursts.words,
    "5 tokens in 2 bursts, 25.0 ms. JavaScript encodes and submits: 3.0 ms; GPU computes: 19.0 ms; " +
      "The ids are copied: 3.0 ms; Python takes the ids: 7.0 ms.",
  );
});

test("without a GPU there are no times of a GPU, and no number is there twice", () => {
  // As capstan.device.host_sampled tells them: the host's time is that of the pick.
  const bursts = new Bursts(
    [
      [97, 100, 140, 140, 143, 1],
      [141, 143, 180, 180, 182, 1],
    ],
    "wasm",
  );
  assert.deepEqual(
    [bursts.times, bursts.counts],
    [
      [43, 82],
      [1, 2],
    ],
  );
  assert.equal(bursts.words, "2 tokens in 2 bursts, 82.0 ms. The CPU computes: 77.0 ms; Python picks the ids: 5.0 ms.");
  assert.ok(!/GPU|copied|submits/.test(bursts.lanes.map(({ name }) => name).join()));
});

test("before the first run there is nothing to draw", () => {
  const bursts = new Bursts([], "");
  assert.deepEqual([bursts.words, bursts.lanes.length], ["Nothing has run yet; ask something, and look again.", 0]);
});
