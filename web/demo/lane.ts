// A lane of the race: its engine, the result, and the speed.

import { made } from "./elements";

/** One who runs: a device and how its decode steps are computed. */
export interface Runner {
  name: string;
  device: "webgpu" | "wasm";
  capture: "tape" | "ort" | "off";
  /** Not Capstan at all; see transformers_worker.ts. */
  elsewhere?: true;
}

export class Lane {
  readonly element = made("li", "lane");
  private readonly text = made("p", "lane-text");
  private readonly note = made("p", "help");
  private readonly pace = made("strong", "lane-pace");
  private readonly bar = document.createElement("meter");
  /** The text as it came. */
  private parts: string[] = [];
  private perSecond = 0;

  constructor(readonly runner: Runner) {
    const head = made("div", "lane-head");
    head.append(made("span", "", runner.name), this.pace);
    this.bar.min = 0;
    this.bar.setAttribute("aria-label", `Tokens per second of ${runner.name}`);
    this.element.append(head, this.bar, this.text, this.note);
    this.clear();
  }

  clear(): void {
    this.pace.textContent = "–";
    this.text.textContent = "";
    this.note.textContent = "";
    this.bar.value = 0;
    this.parts = [];
    this.perSecond = 0;
  }

  append(part: string): void {
    this.parts.push(part);
    this.text.append(part);
  }

  /** All of the text so far. */
  show(text: string): void {
    this.parts.push(text.slice(this.parts.join("").length));
    this.text.textContent = text;
  }

  /** Show what was there so many seconds after the first token, at the pace that was measured; whether that was all. */
  showAt(seconds: number): boolean {
    const there = Math.min(this.parts.length, 1 + Math.floor(seconds * this.perSecond));
    const text = this.parts.slice(0, there).join("");
    if (this.text.textContent !== text) this.text.textContent = text;
    return there === this.parts.length || !this.perSecond;
  }

  tell(note: string): void {
    this.note.textContent = note;
  }

  showPace(perSecond: number, fastest: number): void {
    this.perSecond = perSecond;
    this.pace.textContent = `${perSecond.toFixed(1)} tokens/s`;
    this.bar.max = fastest;
    this.bar.value = perSecond;
  }
}
