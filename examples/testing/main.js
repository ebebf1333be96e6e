import { Capstan } from "capstan-webgpu";

const output = document.querySelector("output");
const status = document.querySelector("p");
const button = document.querySelector("button");
const given = new URLSearchParams(location.search);

// The tests find the model here.
window.llm = Capstan.load(given.get("model") ?? "models/bundled/", {
  device: given.get("device") ?? "auto",
  onProgress: (progress) => (status.textContent = progress.status),
});

button.onclick = async () => {
  button.disabled = true;
  try {
    const llm = await window.llm;
    const run = llm.complete("def fibonacci(n):", { temperature: 0, maxTokens: 32 });
    for await (const part of run) output.append(part);
    const { tokenIds, finishReason } = await run.result;
    status.textContent = `${tokenIds.length} tokens, ${finishReason}`;
  } catch (error) {
    status.textContent = `${error.code}: ${error.message}`;
  }
};
