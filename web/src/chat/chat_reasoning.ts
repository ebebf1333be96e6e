// The reasoning of an answer in <capstan-chat>: closed, with the time that it took.

import { made } from "./chat_parts";

export class FoldedReasoning {
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

  /** Tell how it stands: whether the reasoning has not ended, and the answer grows. Returns whether there is any. */
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
