"use client";

import { Capstan } from "capstan-webgpu";
import { useState } from "react";

export default function Page() {
  const [status, setStatus] = useState("");
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const complete = async () => {
    setBusy(true);
    const model = new URLSearchParams(location.search).get("model") ?? "models/bundled/";
    try {
      const llm = await Capstan.load(model, { onProgress: (progress) => setStatus(progress.status) });
      const run = llm.complete("def fibonacci(n):", { maxTokens: 32 });
      for await (const part of run) setText((before) => before + part);
      const { tokenIds, finishReason } = await run.result;
      setStatus(`${tokenIds.length} tokens, ${finishReason}`);
      llm.close();
    } catch (error) {
      setStatus(`${error.code}: ${error.message}`);
    }
  };
  return (
    <>
      <button disabled={busy} onClick={complete}>
        Complete
      </button>
      <p role="status">{status}</p>
      <pre>
        def fibonacci(n):<output>{text}</output>
      </pre>
    </>
  );
}
