// A block of code in an answer of <capstan-chat>: its language, a button that copies it, its colours.

import DOMPurify from "dompurify";
import { button } from "./chat_parts";
import { type Language, languageOf, nameIn } from "./languages";

/** Longer code stays in one colour. */
const LONGEST = 20_000;
/** The number of coloured blocks that are kept, since a growing answer is drawn often. */
const KEPT = 50;
/** The Copy button shows its result for this many milliseconds. */
const SHOWN_MS = 1500;

let colours: typeof import("./highlight") | null = null;
let loading: Promise<void> | null = null;
const kept = new Map<string, DocumentFragment>();

/** Put a block around a `<pre>`, whose fence has the words `info`; `again` is called when there are colours for it. */
export function codeBlock(pre: HTMLPreElement, info: string, again: () => void): void {
  const box = Object.assign(document.createElement("div"), { className: "code" });
  const head = Object.assign(document.createElement("div"), { className: "code-head" });
  const copy: HTMLButtonElement = button(
    "Copy",
    () => void copied(copy, box.querySelector("pre")!.textContent!),
    "Copy this code",
  );
  const name = Object.assign(document.createElement("span"), { textContent: nameIn(info) });
  const [code] = pre.children as unknown as [HTMLElement];
  head.append(name, copy);
  pre.replaceWith(box);
  // The keyboard reaches boxes that scroll.
  pre.tabIndex = 0;
  box.append(head, pre);
  const language = languageOf(info);
  if (!language || code.textContent!.length > LONGEST) return;
  if (colours) code.replaceChildren(coloured(code.textContent!, language));
  else void (loading ??= load()).then(() => colours && again());
}

async function load(): Promise<void> {
  try {
    colours = await import("./highlight.js");
  } catch (error) {
    console.warn("code is shown without colours:", error);
  }
}

function coloured(text: string, language: Language): Node {
  const key = `${language}\n${text}`;
  let found = kept.get(key);
  if (!found) {
    const html = colours!.highlighted(text, language);
    found = DOMPurify.sanitize(html, { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] });
  }
  // The last that was used is the last to go.
  kept.delete(key);
  kept.set(key, found);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value!);
  return found.cloneNode(true);
}

/** Copy a text, and show the result on a button. */
export async function copied(button: HTMLButtonElement, text: string): Promise<void> {
  const { ariaLabel } = button;
  const usual = [...button.childNodes];
  let told = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    told = "Not allowed";
  }
  if (button.ariaLabel !== ariaLabel || button.textContent === told) return;
  button.textContent = button.ariaLabel = told;
  setTimeout(() => {
    button.replaceChildren(...usual);
    button.ariaLabel = ariaLabel;
  }, SHOWN_MS);
}
