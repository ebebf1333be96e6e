// An answer token by token: how probable each was, what else could have come, and going on from there.

import type { Alternative } from "capstan-webgpu";
import { button, made } from "./elements";

/** A token of an answer, and the text that it completed. */
export interface Token {
  id: number;
  text: string;
}

/** The facts about the token at one place. */
interface Known {
  token: Alternative;
  best: Alternative[];
}

const INCOMPLETE = "\ufffd";

export class TokenView {
  readonly element = made("span", "tokens");
  readonly panel = made("div", "token-panel");
  private readonly items: HTMLElement[];
  private readonly known: (Known | undefined)[];
  private chosen = -1;

  constructor(
    private readonly tokens: readonly Token[],
    private readonly goOn: (place: number, instead: Token | null) => void,
  ) {
    this.known = tokens.map(() => undefined);
    this.items = tokens.map((token, place) => this.item(token, place));
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Tokens of the answer");
    this.element.append(...this.items);
    this.element.addEventListener("keydown", (event) => this.move(event));
    this.panel.setAttribute("role", "region");
    this.panel.setAttribute("aria-label", "The chosen token");
    this.panel.append(made("p", "help", "Choose a token. The darker its ground, the less probable it was."));
    if (this.items[0]) this.items[0].tabIndex = 0;
  }

  /** Takes in the model's probabilities for a token. */
  learn(place: number, known: Known): void {
    this.known[place] = known;
    const item = this.items[place];
    if (!item) return;
    item.style.setProperty("--doubt", `${Math.round(60 * (1 - known.token.probability))}%`);
    item.setAttribute("aria-label", `${shown(this.tokens[place]!.text)}, ${percent(known.token.probability)}`);
    if (this.chosen === place) this.show(place);
  }

  private item({ text }: Token, place: number): HTMLElement {
    const item = made("span", text ? "token" : "token blank", text || "\u00b7");
    item.setAttribute("role", "button");
    item.setAttribute("aria-pressed", "false");
    item.setAttribute("aria-label", shown(text));
    item.tabIndex = -1;
    item.addEventListener("click", () => this.show(place));
    return item;
  }

  /** Arrows, Home and End move among the tokens; Enter and the space bar choose one. */
  private move(event: KeyboardEvent): void {
    const at = this.items.indexOf(event.target as HTMLElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.items.length - 1 }[event.key];
    if (to !== undefined) this.items[to]?.focus();
    else if (event.key === "Enter" || event.key === " ") this.show(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private show(place: number): void {
    this.items.forEach((item, index) => {
      item.setAttribute("aria-pressed", String(index === place));
      item.tabIndex = index === place ? 0 : -1;
    });
    this.chosen = place;
    const known = this.known[place];
    const { text } = this.tokens[place]!;
    const where = `token ${place + 1} of ${this.tokens.length}`;
    const told = known ? percent(known.token.probability) : "not looked at yet";
    const title = made("p", "token-title", `${shown(text)}, ${where}: ${told}`);
    title.setAttribute("role", "status");
    const list = made("ul", "alternatives");
    for (const other of known?.best ?? []) list.append(this.alternative(place, other));
    const again = button("Pick again from here", () => this.goOn(place, null));
    const note = made("p", "help", "Probabilities are the model's own, before temperature and cuts.");
    this.panel.replaceChildren(title, list, again, note);
  }

  private alternative(place: number, { token_id, text, probability, ends }: Alternative): HTMLElement {
    const line = document.createElement("li");
    const told = percent(probability);
    const what = ends ? "end of text" : shown(text);
    if (token_id === this.tokens[place]!.id) {
      line.append(made("span", "taken", `${what} (taken)`));
    } else {
      // An incomplete character is not shown until it is whole.
      const instead = { id: token_id, text: text.endsWith(INCOMPLETE) ? "" : text };
      const go = (): void => this.goOn(place, ends ? { id: -1, text: "" } : instead);
      line.append(button(what, go, ends ? "End the answer here" : `Go on with ${what}, ${told}`));
    }
    const bar = document.createElement("meter");
    bar.value = probability;
    bar.setAttribute("aria-label", `Probability of ${what}`);
    line.append(bar, made("span", "share", told));
    return line;
  }
}

/** A token's text so that spaces and line breaks can be seen. */
function shown(text: string): string {
  return text
    ? `\u201c${text.replaceAll(" ", "\u2423").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5")}\u201d`
    : "no text";
}

function percent(probability: number): string {
  const share = 100 * probability;
  return share >= 10 ? `${share.toFixed(0)} %` : share >= 0.1 ? `${share.toFixed(1)} %` : "below 0.1 %";
}
