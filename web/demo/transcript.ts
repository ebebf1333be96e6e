// The conversation as it stands on the page: what was asked, and what came.

import type { ChatRequest, GenerateRequest, Message } from "capstan-webgpu";
import { button, element, made, say } from "./elements";
import type { Chosen } from "./models";
import { type Token, TokenView } from "./tokens";

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

/** The actions on a chat turn. */
export interface Actions {
  edit: (turn: Turn) => void;
  again: (turn: Turn) => void;
  /** Look at the tokens of its answer, or no longer. */
  look: (turn: Turn) => void;
  /** Continue from a token of its answer, with another token in its place or with a new pick. */
  from: (turn: Turn, place: number, instead: Token | null) => void;
}

/** One question and its answer. */
export class Turn {
  readonly element = made("article", "turn");
  /** The tokens of the answer as they came. */
  readonly tokens: Token[] = [];
  /** The text that was held back at the end of the answer. */
  private rest = "";
  /** The request that produced it, once there is one. */
  request: ChatRequest | GenerateRequest | null = null;
  view: TokenView | null = null;
  private readonly echo = made("span", "echo");
  private readonly text = made("span", "text");
  private readonly about = made("p", "about");
  private readonly looking = button("Tokens", () => this.actions.look(this));

  constructor(
    readonly asked: string,
    readonly kind: Kind,
    private readonly actions: Actions,
    readonly model: Chosen,
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
      this.looking,
      copy,
    );
    this.looking.setAttribute("aria-pressed", "false");
    this.element.append(said, row);
  }

  /** Whether it is a chat's is known only once the model is loaded. */
  be(kind: Kind): void {
    (this as { kind: Kind }).kind = kind;
    this.element.classList.toggle("chat", kind === "chat");
    this.element.classList.toggle("completion", kind === "completion");
    this.element.setAttribute("aria-label", kind === "chat" ? "Message and answer" : "Text and completion");
  }

  get answer(): string {
    return this.tokens.map(({ text }) => text).join("") + this.rest;
  }

  /** Adds a token's text to the answer; an id below 0 stands for the text that was held back at its end. */
  append(part: string, id: number): void {
    if (id < 0) this.rest += part;
    else this.tokens.push({ id, text: part });
    this.text.append(part);
  }

  /** Show the answer token by token. */
  look(): TokenView {
    this.view = new TokenView(this.tokens, (place, instead) => this.actions.from(this, place, instead));
    this.text.replaceChildren(this.view.element);
    this.element.querySelector(".said")!.after(this.view.panel);
    this.looking.setAttribute("aria-pressed", "true");
    return this.view;
  }

  /** Let the answer end before one of its tokens. */
  endAt(place: number): void {
    this.tokens.length = place;
    this.rest = "";
    this.lookAway();
    this.tell(`${place} tokens, ended by hand`);
  }

  /** Show it as a text again. */
  lookAway(): void {
    this.view?.panel.remove();
    this.view = null;
    this.text.replaceChildren(this.answer);
    this.looking.setAttribute("aria-pressed", "false");
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

  /** Shows the welcome with examples of a kind; a click on one calls `take` with it. */
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

  /** Take the turns after one away. */
  removeAfter(turn: Turn): void {
    const next = this.turns[this.turns.indexOf(turn) + 1];
    if (next) this.removeFrom(next);
  }

  /** Mark the turns that a new one will replace; null marks none. */
  markFrom(turn: Turn | null): void {
    const at = turn ? this.turns.indexOf(turn) : Infinity;
    this.turns.forEach(({ element }, index) => element.classList.toggle("replaced", index >= at));
  }

  clear(): void {
    if (this.turns[0]) this.removeFrom(this.turns[0]);
  }

  /** The messages of a chat up to what its last turn asks. */
  messages(): Message[] {
    return this.turns.flatMap(({ asked, answer }, index) => [
      { role: "user", content: asked },
      ...(answer && index < this.turns.length - 1 ? [{ role: "assistant", content: answer }] : []),
    ]);
  }

  /** Show what came, and keep its end in sight for whoever looks at the end. */
  append(turn: Turn, part: string, id: number): void {
    const { box } = this;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    turn.append(part, id);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  set busy(on: boolean) {
    this.box.setAttribute("aria-busy", String(on));
    for (const button of this.box.querySelectorAll("button")) button.disabled = on;
  }
}
