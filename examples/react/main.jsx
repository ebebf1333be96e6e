import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { useCapstan } from "./useCapstan.js";

const MODEL = new URLSearchParams(location.search).get("model") ?? "models/bundled/";

function Completion() {
  const { llm, status, error } = useCapstan(MODEL);
  const [text, setText] = useState("");
  const [said, setSaid] = useState(null);
  const complete = async () => {
    setSaid("generating");
    try {
      const run = llm.complete("def fibonacci(n):", { maxTokens: 32 });
      for await (const part of run) setText((before) => before + part);
      const { tokenIds, finishReason } = await run.result;
      setSaid(`${tokenIds.length} tokens, ${finishReason}`);
    } catch (failure) {
      setSaid(`${failure.code}: ${failure.message}`);
    }
  };
  return (
    <>
      <button disabled={!llm || said !== null} onClick={complete}>
        Complete
      </button>
      <p role="status">{said ?? (error ? `${error.code}: ${error.message}` : status)}</p>
      <pre>
        def fibonacci(n):<output>{text}</output>
      </pre>
    </>
  );
}

function App() {
  const [shown, setShown] = useState(true);
  return (
    <>
      <label>
        <input type="checkbox" checked={shown} onChange={() => setShown(!shown)} /> Show
      </label>
      {shown && <Completion />}
    </>
  );
}

createRoot(document.getElementById("root")).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
