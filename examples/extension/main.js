import { Capstan } from "capstan-webgpu";

const output = document.querySelector("output");
const status = document.querySelector("p");
const button = document.querySelector("button");
const model = new URLSearchParams(location.search).get("model") ?? "models/bundled/";

button.onclick = async () => {
  button.disabled = true;
  try {
    const llm = await Capstan.load(model, { onProgress: (progress) => (status.textContent = progress.status) });
    const run = llm.complete("def fibonacci(n):", { maxTokens: 32 });
    for await (const part of run) output.append(part);
    const { tokenIds, finishReason } = await run.result;
    status.textContent = `${tokenIds.length} tokens, ${finishReason}`;
    llm.close();
  } catch (error) {
    status.textContent = `${error.code}: ${error.message}`;
  }
};
