// A run whose answer is made up: for tests of what is built on runs.

/** A run that says `parts`, texts of the answer or AnswerParts, or begins and then fails by `error`; `left` is called when its loop ends. */
export function madeUpRun(parts, { error = null, logprobs = null, between, left, ...ended } = {}) {
  const said = parts.map((part) => (typeof part === "string" ? { kind: "answer", text: part } : part));
  const joined = (kind) => said.map((part) => (part.kind === kind ? part.text : "")).join("");
  const choice = {
    text: said.map(({ text }) => text).join(""),
    reasoning: joined("reasoning"),
    answer: joined("answer"),
    toolCalls: said.flatMap(({ call }) => (call ? [call] : [])),
    tokenIds: parts.map((_, place) => place),
    logprobs,
    finishReason: "stop",
    ...ended,
  };
  const result = error
    ? Promise.reject(error)
    : Promise.resolve({ ...choice, choices: [choice], promptTokens: 5, ...ended });
  result.catch(() => undefined);
  let came = 0;
  const run = {
    result,
    count: 1,
    logprobs: () => logprobs?.slice(0, came) ?? [],
    async *split() {
      try {
        for (const part of said) {
          came++;
          yield { ...part, choice: 0 };
          between?.();
        }
        await result;
      } finally {
        left?.();
      }
    },
    async *[Symbol.asyncIterator]() {
      for await (const { text } of run.split()) yield text;
    },
  };
  return run;
}
