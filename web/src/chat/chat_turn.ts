// A turn of <capstan-chat>: what was asked, its answer, and the buttons for both.

import type { Message } from "capstan-webgpu";
import { AnswerText } from "./chat_answer";
import { type Attachment, chipOf, contentOf } from "./attachments";
import { copied } from "./chat_code";
import { button, iconButton, made, sends } from "./chat_parts";

/** The places of a turn for elements of the page: instead of the answer's text, below it, among the buttons. */
export type TurnPlace = "answer" | "below" | "actions";

/** The element's part in a turn. */
export interface TurnActions {
  /** Read the answer of a turn aloud. */
  read: (turn: ChatTurn) => void;
  /** Send a text in place of what a turn asked. */
  send: (turn: ChatTurn, text: string) => void;
  /** Show a turn in place of this one. */
  choose: (turn: ChatTurn) => void;
  /** Called around each growth of the answer. */
  grow: (add: () => void) => void;
}

let count = 0;

/** One question and its answer. */
export class ChatTurn {
  readonly element = made("article", { part: "turn", className: "turn" });
  private readonly number = ++count;
  private readonly brought = new Set<HTMLElement>();
  private readonly text = made("span", { part: "message assistant", className: "text" });
  private readonly words: AnswerText;
  private readonly about = made("p", { part: "note", className: "about" });
  private readonly versions = made("span", { part: "versions", className: "versions", hidden: true });
  private readonly reader = iconButton("speak", "Read aloud", () => this.actions.read(this));
  private readonly echo = made("span", { part: "message user", className: "echo" });
  /** The field in place of what was asked, while it is edited. */
  private editor: HTMLFormElement | null = null;
  /** The page's own, stored with the turn. */
  data: unknown;
  private disabled = false;
  private continuing = false;

  constructor(
    readonly asked: string,
    private readonly host: HTMLElement,
    private readonly actions: TurnActions,
    /** The files of the question. */
    readonly attached: readonly Attachment[] = [],
  ) {
    this.echo.append(...attached.map(chipOf), asked);
    const said = made("div", { className: "said" });
    const place = made("slot", { name: `answer-${this.number}` });
    this.words = new AnswerText(place, (add) => actions.grow(add));
    this.text.append(place);
    // The page's own element has no mark at its end.
    place.addEventListener("slotchange", () => this.text.classList.toggle("brought", place.assignedNodes().length > 0));
    said.append(
      made("span", { className: "who", textContent: "You: " }),
      this.echo,
      made("span", { className: "who", textContent: "Model: " }),
      this.text,
    );
    const row = made("div", { className: "turn-actions" });
    const copy = iconButton(
      "copy",
      "Copy",
      () => void copied(copy, this.continues ? this.asked + this.reply : this.reply),
    );
    row.append(
      copy,
      iconButton("edit", "Edit", () => this.edit()),
      this.reader,
      iconButton("again", "Answer again", () => actions.send(this, asked)),
      made("slot", { name: `actions-${this.number}` }),
      this.versions,
      this.about,
    );
    this.element.append(said, made("slot", { name: `below-${this.number}` }), row);
    this.continues = false;
  }

  /** The model's text so far, with its reasoning. */
  get answer(): string {
    return this.words.text;
  }

  set answer(text: string) {
    this.words.text = text;
  }

  /** The question and its files, as the content of a message. */
  get content(): Message["content"] {
    return contentOf(this.asked, this.attached);
  }

  append(part: string): void {
    this.words.append(part);
  }

  /** The reasoning in the answer, between `<think>` and `</think>`. */
  get reasoning(): string {
    return this.words.split.reasoning;
  }

  /** The answer without its reasoning, as later turns get it. */
  get reply(): string {
    return this.words.split.answer;
  }

  /** Whether the answer begins within its reasoning, without `<think>`; false unless the page sets it. */
  get reasons(): boolean {
    return this.words.reasons;
  }

  set reasons(on: boolean) {
    this.words.reasons = on;
  }

  /** A line below the answer, about it. */
  get note(): string {
    return this.about.textContent ?? "";
  }

  set note(text: string) {
    this.about.textContent = text;
  }

  /** Whether the answer continues the text, as a model without a chat template does; the two then stand as one text. */
  get continues(): boolean {
    return this.continuing;
  }

  set continues(on: boolean) {
    this.continuing = on;
    this.element.classList.toggle("completion", on);
    this.element.classList.toggle("chat", !on);
    this.element.setAttribute("aria-label", on ? "Text and completion" : "Message and answer");
    for (const who of this.element.querySelectorAll<HTMLElement>(".who")) who.hidden = on;
    this.chooseForm();
  }

  /** For the element: show Markdown as such, unless the answer continues a text or the element is `plain`. */
  chooseForm(): void {
    this.reader.hidden = !this.host.hasAttribute("voice");
    this.words.form = this.continuing ? "source" : this.host.hasAttribute("plain") ? "plain" : "markdown";
    this.text.classList.toggle("markdown", this.words.form === "markdown");
  }

  /** For the element: offer the turns of which this is one, the others beside it. */
  showBeside(turns: readonly ChatTurn[]): void {
    const at = turns.indexOf(this);
    this.versions.hidden = turns.length < 2;
    if (this.versions.hidden) return;
    const step = (text: string, to: ChatTurn | undefined, label: string): HTMLButtonElement => {
      const found = button(text, () => to && this.actions.choose(to), label);
      found.ariaDisabled = to ? null : "true";
      return found;
    };
    this.versions.replaceChildren(
      step("‹", turns[at - 1], "Earlier version"),
      made("span", { textContent: `${at + 1} / ${turns.length}` }),
      step("›", turns[at + 1], "Later version"),
    );
  }

  /** Let the user change what was asked, in its place. */
  edit(text = this.asked): void {
    if (this.editor) return;
    const form = (this.editor = made("form", { part: "edit", className: "editor" }));
    const field = made("textarea", { part: "input", rows: 1, enterKeyHint: "send", ariaLabel: "What was asked" });
    field.value = text;
    form.append(
      field,
      button("Cancel", () => this.keep()),
      made("button", { className: "primary", textContent: "Send" }),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { value } = field;
      if (this.disabled || !value.trim()) return field.focus();
      this.keep();
      this.actions.send(this, value);
    });
    field.addEventListener("keydown", (event) => {
      if (!sends(event)) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.echo.replaceWith(form);
    field.focus();
  }

  /** End the editing without a change; false if nothing is edited. */
  keep(): boolean {
    this.editor?.replaceWith(this.echo);
    const edited = this.editor !== null;
    this.editor = null;
    return edited;
  }

  /** Show an element of the page in this turn; it goes with the turn, or by its own `remove()`. */
  bring(place: TurnPlace, element: HTMLElement): void {
    element.slot = `${place}-${this.number}`;
    this.brought.add(element);
    this.host.append(element);
    disable(element, this.disabled);
  }

  /** For the element: while anything is under way no button of a turn works; `own` is an answer of this turn. */
  setBusy(on: boolean, own: boolean): void {
    this.disabled = on;
    if (!own) this.words.finish();
    this.element.setAttribute("aria-busy", String(own));
    for (const root of [this.element, ...this.brought]) disable(root, on);
  }

  /** For the element: the turn does not come back. */
  discard(): void {
    for (const element of this.brought) element.remove();
  }
}

function disable(root: HTMLElement, on: boolean): void {
  for (const element of [root, ...root.querySelectorAll("*")])
    if (element instanceof HTMLButtonElement && !element.closest(".code")) element.disabled = on;
}
