// Code that the workers of the JavaScript contenders share: messages in, results out, one generate with its times and
// counts.
import "./counts.js";

/** Serve calls {id, name, args} with the contender's functions of those names. */
export function serve(functions) {
  let turn = Promise.resolve();
  const answer = async ({ id, name, args }) => {
    try {
      postMessage({ id, ok: true, result: await functions[name](args ?? {}) });
    } catch (error) {
      postMessage({ id, ok: false, error: String(error?.stack ?? error) });
    }
  };
  self.onmessage = ({ data }) => (turn = turn.then(() => answer(data)));
}

/**
 * Time one generation. `generate(onToken)` calls onToken for each id once it is on the CPU.
 * Returns ids, `first_ms` (from the call to the first id), `rest_ms` (from the first id to the last) and, if so asked,
 * what was counted between the first id and the last.
 */
export async function timed(generate, counting) {
  const ids = [];
  let first = 0;
  let last = 0;
  let counts = null;
  const start = performance.now();
  await generate((id) => {
    last = performance.now();
    if (!ids.length) first = last;
    ids.push(id);
    if (counting) counts = ids.length === 1 ? benchCounts.start() : benchCounts.counted();
  });
  return { ids, first_ms: first - start, rest_ms: last - first, counts };
}
