// The drawer for those who want to look inside: when the bursts of the last run came and whose time they took, what the
// tape of a decode step is made of, and the memory that is live. Loaded when it is opened for the first time.

import type { BurstTimes, MemoryResult, OperationsResult } from "capstan-webgpu";
import uPlot from "uplot";
import uPlotStyle from "uplot/dist/uPlot.min.css";
import { Bursts } from "./bursts";
import { bytes, element, made, say, tableRow, UNKNOWN } from "./elements";

/** The height of the rows above the axis: whose time each draws. */
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
  private bursts = new Bursts([], "");

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
  showBursts(times: readonly BurstTimes[], device: string): void {
    const bursts = (this.bursts = new Bursts(times, device));
    this.plot?.destroy();
    this.plot = null;
    this.box.replaceChildren(this.probe);
    say("timeline-note", bursts.words);
    const legend = bursts.lanes.map(({ name, swatch }) => {
      const item = made("li", "");
      item.append(made("span", `swatch ${swatch}`), name);
      return item;
    });
    element("timeline-legend", HTMLUListElement).replaceChildren(...legend);
    const count = bursts.counts.at(-1);
    if (count === undefined) return;
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
        [0, ...bursts.times],
        [0, ...bursts.counts],
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
    this.bursts.lanes.forEach((each, lane) => {
      ctx.fillStyle = this.colour(each.colour);
      for (const [begin, end] of this.bursts.spans(each)) {
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

function time(microseconds: number): string {
  return microseconds < 1000 ? `${microseconds.toFixed(1)} µs` : `${(microseconds / 1000).toFixed(2)} ms`;
}
