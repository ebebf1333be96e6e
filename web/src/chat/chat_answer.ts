// The text of an answer in <capstan-chat>: its reasoning folded, the rest as Markdown or plain; drawn once a frame at most.

import { made } from "./chat_parts";
import { rendered } from "./markdown";
import { splitReasoning, type SplitText } from "./reasoning";

/** While an answer grows, drawing takes at most this fraction (1 / N) of the time. */
const SHARE = 4;

/** Markdown; the text with its reasoning folded; or all of the text. */
export type AnswerForm = "markdown" | "plain" | "source";

export class AnswerText {
  private source = "";
  private shownAs: AnswerForm = "markdown";
  private begun = false;
  private readonly folded = new FoldedReasoning(() => this.draw(this.growing));
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

  /** The whole text, with the tags around its reasoning. */
  get text(): string {
    return this.source;
  }

  set text(text: string) {
    this.source = text;
    this.draw(false);
  }

  get form(): AnswerForm {
    return this.shownAs;
  }

  set form(form: AnswerForm) {
    if (form === this.shownAs) return;
    this.shownAs = form;
    this.draw(this.growing);
  }

  /** Whether the text begins inside the reasoning, without a tag. */
  get reasons(): boolean {
    return this.begun;
  }

  set reasons(on: boolean) {
    if (on === this.begun) return;
    this.begun = on;
    this.draw(this.growing);
  }

  get split(): SplitText {
    return this.parts(false);
  }

  append(part: string): void {
    this.source += part;
    if (this.shownAs === "source") this.grow(() => this.place.append(part));
    else this.frame ||= requestAnimationFrame(() => this.drawInTime());
  }

  /** The text is complete. */
  finish(): void {
    if (this.growing || this.frame) this.draw(false);
  }

  private parts(growing: boolean): SplitText {
    if (this.shownAs === "source") return { reasoning: "", answer: this.source, open: false };
    return splitReasoning(this.source, { growing, begun: this.begun });
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
    this.growing = growing && this.shownAs !== "source";
    const { reasoning, answer, open } = this.parts(growing);
    const { folded } = this;
    const folds = folded.show(open, growing, Boolean(reasoning));
    this.grow(() => {
      if (folded.isOpen) replace(folded.body, this.nodes(reasoning, open && growing));
      const nodes = this.nodes(answer, growing);
      replace(this.place, folds ? [folded.element, ...nodes] : nodes);
    });
  }

  private nodes(text: string, growing: boolean): ChildNode[] {
    if (this.shownAs === "markdown")
      try {
        const { childNodes } = rendered(text, growing, () => this.draw(this.growing));
        return [...childNodes].filter((node) => node.nodeType !== Node.TEXT_NODE || node.textContent!.trim());
      } catch (error) {
        // A policy of the page for trusted types may refuse the parser.
        console.warn("an answer is shown without its Markdown:", error);
      }
    return text ? [new Text(text)] : [];
  }
}

/** Unchanged nodes keep the focus and the reader's selection, also if only their end grew. */
function replace(place: HTMLElement, nodes: ChildNode[]): void {
  const shown = [...place.childNodes];
  const differs = shown.findIndex((node, index) => !nodes[index]?.isEqualNode(node));
  let same = differs < 0 ? shown.length : differs;
  const [before, now] = [shown[same], nodes[same]];
  if (before instanceof Text && now instanceof Text && now.data.startsWith(before.data)) {
    before.appendData(now.data.slice(before.length));
    same++;
  } else if (before instanceof HTMLElement && now && before.cloneNode(false).isEqualNode(now.cloneNode(false))) {
    replace(before, [...now.childNodes]);
    same++;
  }
  for (const node of shown.slice(same)) node.remove();
  place.append(...nodes.slice(same));
}

/** The reasoning: closed, with the time that it took. */
class FoldedReasoning {
  readonly element = made("details", { part: "reasoning", className: "reasoning" });
  readonly body = made("div", { className: "thoughts" });
  private readonly label = made("summary", {});
  private begun = 0;
  private took = 0;
  private clock: ReturnType<typeof setInterval> | undefined;

  constructor(onToggle: () => void) {
    this.element.append(this.label, this.body);
    this.element.addEventListener("toggle", onToggle);
  }

  /** Whether the reader opened it; its text is drawn only then. */
  get isOpen(): boolean {
    return this.element.open;
  }

  /** Set the state: whether the reasoning has not ended, and the answer grows. Returns whether there is any. */
  show(open: boolean, growing: boolean, some: boolean): boolean {
    const thinking = open && growing;
    if (thinking && !this.clock) {
      this.begun = performance.now();
      this.clock = setInterval(() => (this.element.isConnected ? this.tell(true, true) : this.stop()), 1000);
    } else if (!thinking && this.clock) {
      this.took = performance.now() - this.begun;
      this.stop();
    }
    this.tell(thinking, open);
    return some || thinking;
  }

  private stop(): void {
    clearInterval(this.clock);
    this.clock = undefined;
  }

  private tell(thinking: boolean, open: boolean): void {
    const seconds = Math.round((thinking ? performance.now() - this.begun : this.took) / 1000);
    const minutes = Math.floor(seconds / 60);
    const time = minutes ? `${minutes} min ${seconds % 60} s` : seconds ? `${seconds} s` : "";
    const what = thinking ? "Thinking…" : open ? "Reasoning, not finished" : "Reasoning";
    const text = !time ? what : thinking ? `${what} ${time}` : `${what} (${time})`;
    if (this.label.textContent !== text) this.label.textContent = text;
  }
}
