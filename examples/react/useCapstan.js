import { Capstan } from "capstan-webgpu";
import { useEffect, useState } from "react";

/**
 * A model that is loaded while the component is mounted, and its worker ended with it. StrictMode mounts a component twice:
 * the first load is aborted before it began.
 */
export function useCapstan(model) {
  const [state, setState] = useState({ llm: null, status: "", error: null });
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const onProgress = ({ status }) => signal.aborted || setState({ llm: null, status, error: null });
    Capstan.load(model, { signal, onProgress }).then(
      (llm) => {
        if (signal.aborted) return llm.close();
        signal.addEventListener("abort", () => llm.close());
        setState({ llm, status: "ready", error: null });
      },
      (error) => signal.aborted || setState({ llm: null, status: "", error }),
    );
    return () => stop.abort();
  }, [model]);
  return state;
}
