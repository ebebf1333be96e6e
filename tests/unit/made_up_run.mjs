// A run whose answer is made up: for tests of what is built on runs.

import { splitReasoning, Splitter } from "../../web/src/reasoning.ts";

/** A run that says `parts`, or begins and then fails by `error`; `left` is called when its loop ends. */
export function madeUpRun(parts, { error = null, logprobs = null, begun = false, between, left, ...ended } = {}) {
  const choice = {
    ...splitReasoning(parts.join(""), { begun }),
    text: parts.join(""),
    tokenIds: parts.map((_, place) => place),
    logprobs,
    finishReason: "eos",
    ...ended,
  };
  const result = error
    ? Promise.reject(error)
    : Promise.resolve({ ...choice, choices: [choice], promptTokens: 5, ...ended });
  result.catch(() => undefined);
  let came = 0;
  return {
    result,
    count: 1,
    logprobs: () => logprobs?.slice(0, came) ?? [],
    async *split() {
      const splitter = new Splitter(() => begun);
      for await (const part of this) for (const each of splitter.push(part)) yield { ...each, choice: 0 };
      for (const each of splitter.end()) yield { ...each, choice: 0 };
    },
    async *[Symbol.asyncIterator]() {
      try {
        for (const part of parts) {
          came++;
          yield part;
          between?.();
        }
        await result;
      } finally {
        left?.();
      }
    },
  };
}
