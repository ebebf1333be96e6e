import { Capstan } from "capstan-webgpu";

const output = document.querySelector("output");
const status = document.querySelector("p");
const button = document.querySelector("button");
const model = new URLSearchParams(location.search).get("model") ?? "models/bundled/";

/** Wait until the service worker answers for this page, and have it keep what the page fetched before. */
async function beKept() {
  const { serviceWorker } = navigator;
  if (!serviceWorker || serviceWorker.controller) return;
  const controlled = new Promise((resolve) =>
    serviceWorker.addEventListener("controllerchange", resolve, { once: true }),
  );
  await serviceWorker.register("./service_worker.js");
  await controlled;
  const before = performance.getEntriesByType("resource").map(({ name }) => name);
  await Promise.all([location.href, ...before].map((url) => fetch(url)));
}

button.onclick = async () => {
  button.disabled = true;
  try {
    await beKept();
    const llm = await Capstan.load(model, { onProgress: (progress) => (status.textContent = progress.status) });
    const run = llm.complete("def fibonacci(n):", { maxTokens: 32 });
    for await (const part of run) output.append(part);
    const { tokenIds, finishReason } = await run.result;
    status.textContent = `${tokenIds.length} tokens, ${finishReason}`;
    llm.close();
  } catch (error) {
    status.textContent = `${error.code ?? error.name}: ${error.message}`;
  }
};
