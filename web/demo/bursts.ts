// The bursts of a run in time: whose time each takes, in lanes and in words.

import type { BurstTimes } from "capstan-webgpu";

export interface Lane {
  name: string;
  /** Its colour in demo.css, and the class of its swatch. */
  colour: string;
  swatch: string;
  /** From when to when a burst takes its time; `before` is the burst before it. */
  span: (burst: BurstTimes, before?: BurstTimes) => [begin: number, end: number];
}

const ON_GPU: readonly Lane[] = [
  { name: "JavaScript encodes and submits", colour: "--host", swatch: "lane-host", span: ([from, to]) => [from, to] },
  {
    name: "GPU computes",
    colour: "--gpu",
    swatch: "lane-gpu",
    // The GPU begins with a burst when it has done with the one before.
    span: ([, submitted, done], before) => [Math.max(submitted, before?.[2] ?? 0), done],
  },
  { name: "The ids are copied", colour: "--copy", swatch: "lane-copy", span: ([, , from, to]) => [from, to] },
  { name: "Python takes the ids", colour: "--python", swatch: "lane-python", span: ([, , , from, to]) => [from, to] },
];
/** Nothing is submitted and nothing copied: the worker computes a step and picks from its logits. */
const ON_CPU: readonly Lane[] = [
  { name: "The CPU computes", colour: "--gpu", swatch: "lane-gpu", span: ([, from, to]) => [from, to] },
  { name: "Python picks the ids", colour: "--python", swatch: "lane-python", span: ([, , , from, to]) => [from, to] },
];

export class Bursts {
  /** The rows of the picture; none before the first run. */
  readonly lanes: readonly Lane[];
  /** When each burst's ids came, in milliseconds since the first burst began. */
  readonly times: readonly number[];
  private readonly since: number;

  constructor(
    private readonly all: readonly BurstTimes[],
    device: string,
  ) {
    this.lanes = all.length === 0 ? [] : device === "wasm" ? ON_CPU : ON_GPU;
    // The first one waits for the prompt.
    this.since = all.length === 0 ? 0 : this.lanes[0]!.span(all[0]!)[0];
    this.times = all.map(([, , , , entered]) => entered - this.since);
  }

  /** The number of tokens up to each burst. */
  get counts(): number[] {
    let count = 0;
    return this.all.map(([, , , , , tokens]) => (count += tokens));
  }

  /** The times of a lane. */
  spans({ span }: Lane): [begin: number, end: number][] {
    return this.all.map((burst, place) => {
      const [begin, end] = span(burst, this.all[place - 1]);
      return [begin - this.since, end - this.since];
    });
  }

  /** All of it in words. */
  get words(): string {
    if (this.all.length === 0) return "Nothing has run yet; ask something, and look again.";
    const shares = this.lanes.map((lane) => {
      const spent = this.spans(lane).reduce((sum, [begin, end]) => sum + Math.max(0, end - begin), 0);
      return `${lane.name}: ${spent.toFixed(1)} ms`;
    });
    const [tokens, took] = [this.counts.at(-1), this.times.at(-1)!.toFixed(1)];
    return `${tokens} tokens in ${this.all.length} bursts, ${took} ms. ${shares.join("; ")}.`;
  }
}
