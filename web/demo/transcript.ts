// The conversation as it stands on the page: what was asked, and what came.

import type { Message } from "capstan-webgpu";
import { button, element, made, say } from "./elements";

/** A chat answers a message; a completion goes on with a text. */
export type Kind = "chat" | "completion";

const EXAMPLES: Record<Kind, string[]> = {
  completion: [
    "def fibonacci(n):",
    'def read_lines(path):\n    """Return the lines of a file."""\n',
    "class Point:\n    def __init__(self, x, y):\n",
    "import json\n\ndef load_config(path):\n",
  ],
  chat: [
    "Why is the sky blue?",
    "Write a haiku about a graphics card.",
    "Explain recursion to a child.",
    "Give me three names for a cat, and say why.",
  ],
};
const NOTES: Record<Kind, string> = {
  completion: "This model goes on with Python source. Click a beginning:",
  chat: "Ask it something:",
};

/** One question and its answer. */
export class Turn {
  readonly element = made("article", "turn");
  answer = "";
  private readonly echo = made("span", "echo");
  private readonly text = made("span", "text");
  private readonly about = made("p", "about");

  constructor(
    readonly asked: string,
    readonly kind: Kind,
    actions: { edit: (turn: Turn) => void; again: (turn: Turn) => void },
  ) {
    this.echo.textContent = asked;
    this.be(kind);
    const said = made("div", "said");
    said.append(this.echo, this.text);
    const copy = button("Copy", () => void this.copy(copy));
    const row = made("div", "turn-actions");
    row.append(
      this.about,
      button("Edit", () => actions.edit(this)),
      button("Again", () => actions.again(this), "Answer again"),
      copy,
    );
    this.element.append(said, row);
  }

  /** Whether it is a chat's is known only once the model is loaded. */
  be(kind: Kind): void {
    (this as { kind: Kind }).kind = kind;
    this.element.classList.toggle("chat", kind === "chat");
    this.element.classList.toggle("completion", kind === "completion");
    this.element.setAttribute("aria-label", kind === "chat" ? "Message and answer" : "Text and completion");
  }

  append(part: string): void {
    this.answer += part;
    this.text.append(part);
  }

  set busy(on: boolean) {
    this.element.setAttribute("aria-busy", String(on));
    for (const button of this.element.querySelectorAll("button")) button.disabled = on;
  }

  /** How it went, in a line. */
  tell(about: string): void {
    this.about.textContent = about;
  }

  private async copy(button: HTMLButtonElement): Promise<void> {
    const whole = this.kind === "chat" ? this.answer : this.asked + this.answer;
    try {
      await navigator.clipboard.writeText(whole);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
}

export class Transcript {
  readonly turns: Turn[] = [];
  private readonly box = element("conversation", HTMLElement);
  private readonly list = element("turns", HTMLElement);
  private readonly welcome = element("welcome", HTMLElement);

  /** The welcome, with examples of a kind, each of which `take` is called with. */
  offer(kind: Kind, take: (example: string) => void): void {
    const examples = element("examples", HTMLElement);
    // A field that is left by a click on an example tells of its change between the button's press and release: another
    // button in its place would not be clicked.
    if (examples.dataset["kind"] === kind) return;
    say("kind-note", NOTES[kind]);
    const buttons = EXAMPLES[kind].map((example) => button(example.trimEnd(), () => take(example)));
    examples.replaceChildren(...buttons);
    examples.dataset["kind"] = kind;
    const chat = kind === "chat";
    say("prompt-label", chat ? "Message" : "Text to go on with");
  }

  add(turn: Turn): void {
    this.turns.push(turn);
    this.list.append(turn.element);
    this.welcome.hidden = true;
    this.box.scrollTop = this.box.scrollHeight;
  }

  /** Take a turn away, and those after it. */
  removeFrom(turn: Turn): void {
    const at = this.turns.indexOf(turn);
    if (at < 0) return;
    for (const gone of this.turns.splice(at)) gone.element.remove();
    this.welcome.hidden = this.turns.length > 0;
  }

  /** Mark the turns that a new one will replace; null marks none. */
  markFrom(turn: Turn | null): void {
    const at = turn ? this.turns.indexOf(turn) : Infinity;
    this.turns.forEach(({ element }, index) => element.classList.toggle("replaced", index >= at));
  }

  clear(): void {
    if (this.turns[0]) this.removeFrom(this.turns[0]);
  }

  /** The messages of a chat, its last answer left out while it is empty. */
  messages(): Message[] {
    return this.turns.flatMap(({ asked, answer }) => [
      { role: "user", content: asked },
      ...(answer ? [{ role: "assistant", content: answer }] : []),
    ]);
  }

  /** Show what came, and keep its end in sight for whoever looks at the end. */
  append(turn: Turn, part: string): void {
    const { box } = this;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    turn.append(part);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  set busy(on: boolean) {
    this.box.setAttribute("aria-busy", String(on));
    for (const button of this.box.querySelectorAll("button")) button.disabled = on;
  }
}
