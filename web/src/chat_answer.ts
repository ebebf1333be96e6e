// The text of an answer in <capstan-chat>: as Markdown, drawn once a frame at most, or plain.

import { rendered } from "./markdown";

/** Drawing takes at most one part in this many of the time while an answer grows. */
const SHARE = 4;

export class AnswerText {
  private source = "";
  private isPlain = false;
  /** Whether the text on the page is that of an answer which grows. */
  private growing = false;
  private frame = 0;
  /** When it may be drawn again, in milliseconds. */
  private next = 0;

  constructor(
    private readonly place: HTMLElement,
    /** Called around each growth of what is seen. */
    private readonly grow: (add: () => void) => void,
  ) {}

  get text(): string {
    return this.source;
  }

  set text(text: string) {
    this.source = text;
    this.draw(false);
  }

  get plain(): boolean {
    return this.isPlain;
  }

  set plain(on: boolean) {
    if (on === this.isPlain) return;
    this.isPlain = on;
    this.draw(this.growing);
  }

  append(part: string): void {
    this.source += part;
    if (this.isPlain) this.grow(() => this.place.append(part));
    else this.frame ||= requestAnimationFrame(() => this.drawInTime());
  }

  /** No more comes. */
  finish(): void {
    if (this.growing || this.frame) this.draw(false);
  }

  private drawInTime(): void {
    this.frame = 0;
    const begun = performance.now();
    if (begun < this.next) this.frame = requestAnimationFrame(() => this.drawInTime());
    else {
      this.draw(true);
      const end = performance.now();
      this.next = end + (SHARE - 1) * (end - begun);
    }
  }

  private draw(growing: boolean): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.growing = growing && !this.isPlain;
    this.grow(() => this.replace(this.nodes()));
  }

  private nodes(): ChildNode[] {
    if (!this.isPlain)
      try {
        const { childNodes } = rendered(this.source, this.growing);
        return [...childNodes].filter((node) => node.nodeType !== Node.TEXT_NODE || node.textContent!.trim());
      } catch (error) {
        // A policy of the page for trusted types may refuse the parser.
        console.warn("an answer is shown without its Markdown:", error);
      }
    return this.source ? [new Text(this.source)] : [];
  }

  /** Nodes that stay as they were keep the reader's selection. */
  private replace(nodes: ChildNode[]): void {
    const shown = [...this.place.childNodes];
    const differs = shown.findIndex((node, index) => !nodes[index]?.isEqualNode(node));
    const same = differs < 0 ? shown.length : differs;
    for (const node of shown.slice(same)) node.remove();
    this.place.append(...nodes.slice(same));
  }
}
