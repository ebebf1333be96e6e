// A transcription model for Vercel's AI SDK, over runs that are made up here. tests/examples drives it by the SDK itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { capstanTranscription } from "../../web/src/page/ai.ts";

const SEGMENTS = [{ text: " Hi.", start: 0.5, end: 1.25 }];

function over(options = {}, { aborted = false, error = null } = {}) {
  const asked = [];
  const transcribe = (sound, given) => {
    asked.push({ sound, given });
    const found = { text: "Hi.", segments: SEGMENTS, language: "en", duration: 2, vtt: null, aborted };
    return { result: error ? Promise.reject(error) : Promise.resolve(found) };
  };
  return { model: capstanTranscription({ transcribe }, options), asked };
}

const AUDIO = { audio: new Uint8Array([82, 73, 70, 70]), mediaType: "audio/wav" };

test("a call gives text, segments and the language; the sound is a Blob of bytes or of base64", async () => {
  const { model, asked } = over({ modelId: "tiny" });
  const { text, segments, language, durationInSeconds, warnings, response } = await model.doGenerate(AUDIO);
  assert.deepEqual([text, language, durationInSeconds, warnings], ["Hi.", "en", 2, []]);
  assert.deepEqual(segments, [{ text: " Hi.", startSecond: 0.5, endSecond: 1.25 }]);
  assert.equal(response.modelId, "tiny");
  await model.doGenerate({ ...AUDIO, audio: "UklGRg==" });
  for (const { sound, given } of asked) {
    assert.equal(await sound.text(), "RIFF");
    assert.deepEqual(given, { language: undefined, task: undefined, timestamps: true });
  }
});

test("provider options are the run's, what is not supported is a warning of each version", async () => {
  const capstan = { language: "de", task: "translate", timestamps: false, beams: 2 };
  const asking = { ...AUDIO, providerOptions: { capstan }, timestampGranularities: ["word"] };
  const { model, asked } = over();
  const { warnings } = await model.doGenerate(asking);
  assert.deepEqual(asked[0].given, { language: "de", task: "translate", timestamps: false });
  assert.deepEqual(
    warnings.map(({ type, feature }) => [type, feature]),
    [
      ["unsupported", "timestamps of words"],
      ["unsupported", "providerOptions.capstan: beams"],
    ],
  );
  for (const [specification, type] of [
    ["v3", "unsupported"],
    ["v2", "other"],
  ]) {
    const { model: older } = over({ specification });
    const told = await older.doGenerate(asking);
    assert.equal(older.specificationVersion, specification);
    assert.deepEqual(
      told.warnings.map((each) => each.type),
      [type, type],
    );
  }
});

test("an aborted call rejects with the signal's reason, a failure with the run's", async () => {
  const reason = new Error("enough");
  await assert.rejects(over().model.doGenerate({ ...AUDIO, abortSignal: AbortSignal.abort(reason) }), reason);
  const controller = new AbortController();
  const { model, asked } = over({}, { aborted: true });
  const run = model.doGenerate({ ...AUDIO, abortSignal: controller.signal });
  controller.abort(reason);
  await assert.rejects(run, reason);
  assert.equal(asked[0].given.signal, controller.signal);
  const error = new Error("no sound");
  await assert.rejects(over({}, { error }).model.doGenerate(AUDIO), error);
});

test("what is no transcriber, and an unknown specification, are refused", () => {
  assert.throws(() => capstanTranscription({}), { code: "OptionError", message: /Capstan.loadTranscriber/ });
  assert.throws(() => over({ specification: "v9" }), { code: "OptionError", message: /specification is "v9"/ });
});
