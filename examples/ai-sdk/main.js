import { generateText, Output, streamText } from "ai";
import { Capstan } from "capstan-webgpu";
import { capstanModel } from "capstan-webgpu/ai";

const output = document.querySelector("output");
const status = document.querySelector("p");
const [ask, choose, stop] = document.querySelectorAll("button");
const folder = new URLSearchParams(location.search).get("model") ?? "models/chat/";
let loading = null;

/** The model, loaded by the first click. */
async function model() {
  loading ??= Capstan.load(folder, { onProgress: (progress) => (status.textContent = progress.status) });
  return capstanModel(await loading);
}

async function perform(work) {
  const controller = new AbortController();
  stop.onclick = () => controller.abort();
  ask.disabled = choose.disabled = true;
  stop.disabled = false;
  output.textContent = "";
  try {
    status.textContent = await work(await model(), controller.signal);
  } catch (error) {
    status.textContent = `${error.code ?? error.name}: ${error.message}`;
  }
  ask.disabled = choose.disabled = false;
  stop.disabled = true;
}

ask.onclick = () =>
  perform(async (model, abortSignal) => {
    let failure = null;
    let aborted = false;
    const { textStream, usage, finishReason } = streamText({
      ...{ model, abortSignal, instructions: "Be brief.", prompt: "hello", temperature: 0, maxOutputTokens: 400 },
      onAbort: () => (aborted = true),
      onError: ({ error }) => (failure = error),
    });
    for await (const part of textStream) output.append(part);
    if (failure) throw failure;
    return aborted ? "stopped" : `${(await usage).outputTokens} tokens, ${await finishReason}`;
  });

choose.onclick = () =>
  perform(async (model, abortSignal) => {
    const choice = Output.choice({ options: ["yes", "no"] });
    const { output: chosen, usage } = await generateText({ model, abortSignal, prompt: "Is it?", output: choice });
    output.append(chosen);
    return `${usage.outputTokens} tokens, chosen`;
  });
