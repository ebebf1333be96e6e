// The drawer for those who want to look inside: when the bursts of the last run came and whose time they took, what the
// tape of a decode step is made of, and the memory that is live. Loaded when it is opened for the first time.

import type { BurstTimes, MemoryResult, OperationsResult } from "capstan-webgpu";
import uPlot from "uplot";
import uPlotStyle from "uplot/dist/uPlot.min.css";
import { bytes, element, made, say, tableRow, UNKNOWN } from "./elements";

/** The rows above the axis: whose time each draws, and its colour in demo.css. */
const LANES = [
  { name: "JavaScript encodes and submits", colour: "--host" },
  { name: "GPU computes", colour: "--gpu" },
  { name: "The ids are copied", colour: "--copy" },
  { name: "Python takes the ids", colour: "--python" },
] as const;
const LANE_PX = 12;
const PLOT_PX = 230;
/** Kinds of operations have colours in turn. */
const KINDS = 8;

document.adoptedStyleSheets.push(styleOf(uPlotStyle));

function styleOf(text: string): CSSStyleSheet {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  return sheet;
}

export class Drawer {
  private readonly box = element("timeline", HTMLElement);
  private readonly probe = made("span", "");
  private plot: uPlot | null = null;
  private bursts: readonly BurstTimes[] = [];

  constructor() {
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.box);
    // Canvases keep the colours of their last drawing.
    new MutationObserver(() => this.plot?.redraw()).observe(document.documentElement, {
      attributeFilter: ["data-theme"],
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot?.redraw());
  }

  // When the bursts came.

  /** Draw the last run. */
  showBursts(bursts: readonly BurstTimes[]): void {
    // The first one waits for the prompt.
    const since = bursts[0]?.[0] ?? 0;
    const moved = ([encoded, submitted, done, readable, entered, steps]: BurstTimes): BurstTimes => [
      encoded - since,
      submitted - since,
      done - since,
      readable - since,
      entered - since,
      steps,
    ];
    this.bursts = bursts = bursts.map(moved);
    this.plot?.destroy();
    this.plot = null;
    this.box.replaceChildren(this.probe);
    say("timeline-note", told(bursts));
    if (bursts.length === 0) return;
    let count = 0;
    const counts = bursts.map(([, , , , , tokens]) => (count += tokens));
    const times = bursts.map(([, , , , entered]) => entered);
    const colour = (name: string) => (): string => this.colour(name);
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    this.plot = new uPlot(
      {
        ...this.size(),
        padding: [8, 8, 0, 0],
        // Above the tokens there is room for the lanes.
        scales: { x: { time: false }, y: { range: [0, 1.5 * count] } },
        legend: { show: false },
        axes: [
          { ...axis, values: (_, ticks) => ticks.map((tick) => `${tick} ms`) },
          { ...axis, size: 44, values: (_, ticks) => ticks.map((tick) => (tick > count ? "" : String(tick))) },
        ],
        series: [
          {},
          { stroke: colour("--accent"), width: 2, points: { show: false }, paths: uPlot.paths.stepped!({ align: 1 }) },
        ],
        hooks: { draw: [(plot) => this.drawLanes(plot)] },
      },
      [
        [0, ...times],
        [0, ...counts],
      ],
      this.box,
    );
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(200, this.box.clientWidth), height: PLOT_PX };
  }

  /** A colour of demo.css as a canvas takes it. */
  private colour(name: string): string {
    this.probe.style.color = `var(${name})`;
    return getComputedStyle(this.probe).color;
  }

  /** A row for each of those whose time a burst takes, at the top of the plot. */
  private drawLanes({ ctx, bbox, valToPos }: uPlot): void {
    const scale = devicePixelRatio;
    LANES.forEach(({ colour }, lane) => {
      ctx.fillStyle = this.colour(colour);
      for (const [begin, end] of spans(this.bursts, lane)) {
        const from = Math.max(bbox.left, valToPos(begin, "x", true));
        const to = Math.min(bbox.left + bbox.width, Math.max(from + 1, valToPos(end, "x", true)));
        ctx.fillRect(from, bbox.top + scale * (2 + lane * (LANE_PX + 2)), to - from, scale * LANE_PX);
      }
    });
  }

  // Shows the operations of a decode step.

  showOperations({ operations, note, capture, tape_passes }: OperationsResult): void {
    const passes = Object.entries(tape_passes).flatMap(([name, did]) => [made("dt", "", name), made("dd", "", did)]);
    element("tape-passes", HTMLElement).replaceChildren(...passes);
    const strip = element("tape-strip", HTMLElement);
    const rows = element("tape-rows", HTMLTableSectionElement);
    strip.replaceChildren();
    rows.replaceChildren();
    element("tape-table", HTMLTableElement).hidden = !operations?.length;
    if (!operations) {
      say("tape-note", `The steps run with capture ${capture}. ${note ?? ""}`);
      return;
    }
    const whole = operations.reduce((sum, { microseconds }) => sum + microseconds, 0);
    say(
      "tape-note",
      `${operations.length} operations, in the order in which the GPU carries them out: ${time(whole)}.`,
    );
    const kinds = new Map<string, { count: number; microseconds: number; bytes: number; colour: number }>();
    for (const { label, microseconds, bytes: moved } of operations) {
      const kind = kinds.get(label) ?? { count: 0, microseconds: 0, bytes: 0, colour: kinds.size % KINDS };
      kind.count++;
      kind.microseconds += microseconds;
      kind.bytes += moved;
      kinds.set(label, kind);
      const piece = made("span", `piece kind-${kind.colour}`);
      // If a browser rounds all times to 0, all pieces have the same width.
      piece.style.flexGrow = String(whole > 0 ? Math.max(microseconds, whole / 500) : 1);
      piece.title = `${label}: ${time(microseconds)}`;
      strip.append(piece);
    }
    for (const [label, kind] of [...kinds].sort(([, one], [, other]) => other.microseconds - one.microseconds)) {
      const head = [made("span", `swatch kind-${kind.colour}`), label];
      const moved = kind.bytes ? bytes(kind.bytes) : UNKNOWN;
      rows.append(tableRow(head, String(kind.count), time(kind.microseconds), moved));
    }
  }

  // Shows the live memory.

  showMemory({ bytes: all, entries }: MemoryResult): void {
    const categories = new Map<string, { bytes: number; buffers: number; owners: Set<string> }>();
    for (const { device, category, owner, bytes: size, buffers } of entries) {
      const name = `${category}, ${device}`;
      const known = categories.get(name) ?? { bytes: 0, buffers: 0, owners: new Set() };
      known.bytes += size;
      known.buffers += buffers;
      known.owners.add(owner);
      categories.set(name, known);
    }
    say("memory-note", all ? `${bytes(all)} in all.` : "Nothing is live: no model is loaded on a GPU.");
    const rows = [...categories].sort(([, one], [, other]) => other.bytes - one.bytes);
    element("memory-table", HTMLTableElement).hidden = rows.length === 0;
    element("memory-rows", HTMLTableSectionElement).replaceChildren(
      ...rows.map(([name, { bytes: size, buffers, owners }]) => {
        const head = made("span", "", name);
        head.title = [...owners].join("\n");
        const bar = document.createElement("meter");
        bar.value = size / all;
        bar.setAttribute("aria-label", `Share of ${name}`);
        return tableRow([head], bar, bytes(size), String(buffers));
      }),
    );
  }
}

/** From when to when each burst takes the time of a lane's. */
function spans(bursts: readonly BurstTimes[], lane: number): [number, number][] {
  return bursts.map(([encoded, submitted, done, readable, entered], index) => {
    if (lane === 0) return [encoded, submitted];
    // The GPU begins with a burst when it has done with the one before.
    if (lane === 1) return [Math.max(submitted, bursts[index - 1]?.[2] ?? 0), done];
    if (lane === 2) return [done, readable];
    return [readable, entered];
  });
}

/** The same in words. */
function told(bursts: readonly BurstTimes[]): string {
  if (bursts.length === 0) return "Nothing has run yet; ask something, and look again.";
  const [first, last] = [bursts[0]!, bursts.at(-1)!];
  const tokens = bursts.reduce((sum, burst) => sum + burst[5], 0);
  const took = last[4] - first[0];
  const shares = LANES.map(({ name }, lane) => {
    const spent = spans(bursts, lane).reduce((sum, [begin, end]) => sum + Math.max(0, end - begin), 0);
    return `${name}: ${spent.toFixed(1)} ms`;
  });
  return `${tokens} tokens in ${bursts.length} bursts, ${took.toFixed(1)} ms. ${shares.join("; ")}.`;
}

function time(microseconds: number): string {
  return microseconds < 1000 ? `${microseconds.toFixed(1)} µs` : `${(microseconds / 1000).toFixed(2)} ms`;
}
