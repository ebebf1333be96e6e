// Values of every kind, and the loop that tries cases with them: for the attacks in Node.

import { CapstanError } from "../../web/src/wire/errors.ts";

/** Milliseconds after which a case counts as hanging. */
const LIMIT_MS = 20_000;
/** Milliseconds for which a case may hold the page: a loaded machine is given time. */
const HELD_MS = 15_000;

/** Numbers from 0 to 1 by a seed (mulberry32). */
export function randomBy(seed) {
  let state = seed >>> 0;
  const random = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (limit) => Math.floor(random() * limit);
  return { random, below, one: (list) => list[below(list.length)] };
}

/** Makers of values to throw. */
export const THROWN = [
  () => new Error("a\nb"),
  () => null,
  () => Symbol("s"),
  () => Object.create(null),
  () => "x".repeat(1e5),
];
export const raise = (make) => () => {
  throw make();
};
const cycle = (made) => {
  made.self = made[0] = made;
  return made;
};
const deep = (levels) => {
  let made = [];
  for (let level = 0; level < levels; level++) made = level % 2 ? [made] : { made };
  return made;
};
const throwing = (make) => Object.defineProperty({ role: "user" }, "content", { enumerable: true, get: raise(make) });
const revoked = (target) => {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
};
class Odd {
  role = "user";
  get content() {
    return "odd";
  }
}
/** Values of every kind, made again each time. */
export const VALUES = [
  ...[undefined, null, true, false, 0, -0, -1, 1.5, 1e308, NaN, Infinity, 2 ** 53 + 2, 10n, 2n ** 80n].map(
    (value) => () => value,
  ),
  ...["", "x", "\ud800", "\0", "a\u2028b\nc", "__proto__", "constructor", "toString", "9".repeat(400)].map(
    (value) => () => value,
  ),
  ...[() => "x".repeat(1e6), () => Symbol("s"), () => Symbol.iterator, () => () => 1, () => class {}, () => new Odd()],
  ...[() => [], () => ({}), () => [[]], () => [null], () => [, 1], () => Array(1e5), () => Object.create(null)],
  ...[
    () => new Date(NaN),
    () => new Map([[1, 2]]),
    () => new Set([1]),
    () => /x/g,
    () => new Error("e"),
    () => new Promise(() => {}),
  ],
  ...[
    () => new Uint8Array(3),
    () => new BigInt64Array(2),
    () => new ArrayBuffer(4),
    () => new DataView(new ArrayBuffer(4)),
  ],
  ...[() => new File(["x"], "genai_config.json"), () => [new File(["x"], "a")], () => new URL("http://h.test/m/")],
  ...[() => cycle([]), () => cycle({}), () => deep(100), () => deep(3_500), () => deep(50_000)],
  ...THROWN.flatMap((make) => [
    () => throwing(make),
    () => ({ toJSON: raise(make) }),
    () => ({ toString: raise(make), valueOf: raise(make) }),
    () => ({ [Symbol.toPrimitive]: raise(make) }),
    () => ({ length: 1, [Symbol.iterator]: raise(make) }),
    () => new Proxy({}, { get: raise(make) }),
    () => new Proxy([1], { get: raise(make) }),
    () => new Proxy({}, { ownKeys: raise(make) }),
    () => new Proxy({}, { getPrototypeOf: raise(make), has: raise(make) }),
  ]),
  ...[() => revoked({}), () => revoked([]), () => ({ toJSON: () => undefined }), () => ({ toJSON: () => 5n })],
  ...[() => Object.create({ role: "user", content: "inherited" }), () => JSON.parse('{"__proto__": {"content": "x"}}')],
  ...[5e6, 2 ** 31, 33, "*", "../..", "/", "auto", "required", "json_object"].map((value) => () => value),
  ...[() => [{}], () => [{ role: 5 }], () => ({ a: 1 }), () => [{ role: "user", content: 5 }], () => ({ type: "xml" })],
  ...[() => "ab".repeat(2 ** 26), () => [[{ role: "user", content: "a" }]]],
  ...[() => ({ then: raise(THROWN[0]) }), () => AbortSignal.abort(), () => ({ aborted: false, addEventListener: 1 })],
];

/** The reason why an error is none of ours, with one of these codes and a short message; null if it is one. */
function faultOf(error, codes) {
  if (!(error instanceof CapstanError))
    return `${typeof error}: ${error instanceof Error ? error.stack.slice(0, 300) : "?"}`;
  if (!codes.includes(error.code)) return `${error.code}: ${error.message.slice(0, 200)}`;
  if (error.message.length > 2000) return `a message of ${error.message.length} characters`;
  return /[\n\r]/.test(error.message) ? `a message of several lines: ${error.message.slice(0, 200)}` : null;
}

/**
 * Try the cases of a part, from a number on: `node FILE SEED COUNT PART PARTS FIRST`. `make` gives each case: what it is
 * `about`, its `run`, after which `fault` says what is wrong with its result, and the requests that it sent. `good` says
 * now and then what is wrong with a good case.
 */
export async function tryEach({ numbers, good, codes = ["OptionError"] }, make) {
  const [, count, part, parts, first] = numbers;
  const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
  let unhandled = null;
  process.on("unhandledRejection", (error) => (unhandled = error));
  process.on("uncaughtException", (error) => (unhandled = error));
  for (let number = 0; number < count; number++) {
    const made = make();
    if (number % parts !== part - 1 || number < first) continue;
    const { run, fault, requests = () => [] } = made;
    const about = { ...made.about, number };
    print(about);
    unhandled = null;
    const begun = performance.now();
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, LIMIT_MS, "late")));
    try {
      const called = (async () => run())();
      const held = performance.now() - begun;
      let outcome = await Promise.race([late, called.then((result) => fault(result) ?? "taken")]);
      if (held > HELD_MS) outcome = `the page was held for ${Math.round(held)} ms`;
      print({ ...about, outcome, requests: requests() });
    } catch (error) {
      const why = faultOf(error, codes);
      // An aborted signal's own reason is what a page expects.
      const own = error instanceof DOMException && error.name === "AbortError";
      print({ ...about, outcome: why === null || own ? "refused" : why, requests: [] });
    }
    clearTimeout(timer);
    await new Promise((resolve) => setTimeout(resolve));
    if (unhandled !== null)
      print({ ...about, outcome: `nobody handles ${unhandled?.stack ?? typeof unhandled}`, requests: [] });
    const outcome = number % (20 * parts) < parts ? await good() : null;
    if (outcome !== null) print({ ...about, outcome, requests: [] });
  }
  // The end of the process would throw away lines that nobody has read yet.
  process.stdout.write("", () => process.exit(0));
}
