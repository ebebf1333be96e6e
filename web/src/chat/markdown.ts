// A model's Markdown as elements of the page. An answer is untrusted: its HTML is shown as text, images are not loaded, links
// lead to web pages and mail addresses only.

import DOMPurify, { type Config } from "dompurify";
import {
  getDefaults,
  Lexer,
  Marked,
  type MarkedOptions,
  Parser,
  Renderer,
  type Token,
  Tokenizer,
  type Tokens,
} from "marked";
import { codeBlock } from "./chat_code";
import { type Formula, formulaNodes, formulas } from "./chat_math";

/** Deeper quotes, lists, links and emphasis stay as they are written. */
const DEPTH = 8;
/** A longer paragraph stays as it is written: emphasis takes time by the square of the length. */
const LONGEST = 10_000;
/** Marks that may become a heading, a list, a rule, a fence or a table once more of their line is there. */
const MARKS = /(?:^|\n)[ \t]*(?:[-=*_+#>`~|:]+|\d{1,9}[.)]?)[ \t]*$/;
const SANITIZER: Config & { RETURN_DOM_FRAGMENT: true } = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    ...[
      "a",
      "blockquote",
      "br",
      "code",
      "del",
      "em",
      "h2",
      "h3",
      "h4",
      "h5",
      "h6",
      "hr",
      "li",
      "ol",
      "p",
      "pre",
      "samp",
    ],
    ...["strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["align", "href", "start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
};

class Shallow extends Tokenizer {
  private depth = 0;

  // Neither of these two is Markdown here.
  override html(): undefined {}

  override tag(): undefined {}

  override blockquote(text: string): Tokens.Blockquote | undefined {
    return this.nested(() => super.blockquote(text));
  }

  override list(text: string): Tokens.List | undefined {
    return this.nested(() => super.list(text));
  }

  override link(text: string): Tokens.Link | Tokens.Image | undefined {
    return this.nested(() => super.link(text));
  }

  override emStrong(text: string, masked: string, before?: string): Tokens.Em | Tokens.Strong | undefined {
    return this.nested(() => super.emStrong(text, masked, before));
  }

  override del(text: string, masked: string, before?: string): Tokens.Del | undefined {
    return this.nested(() => super.del(text, masked, before));
  }

  private nested<Found>(find: () => Found): Found | undefined {
    if (this.depth >= DEPTH) return undefined;
    this.depth++;
    const found = find();
    this.depth--;
    return found;
  }
}

class ShortLexer extends Lexer {
  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    if (text.length <= LONGEST) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text, escaped: false });
    return tokens;
  }
}

class AnswerRenderer extends Renderer {
  /** The words after the fences of all code blocks, and whether each list item is a task, in the order of their elements. */
  readonly fences: string[] = [];
  readonly tasks: boolean[] = [];
  readonly formulas: Formula[] = [];
  /** marked's options with the formulas of this text. */
  readonly settings: MarkedOptions = new Marked({
    extensions: formulas((formula) => this.formulas.push(formula)),
  }).defaults;

  /** The first level is the page's own. */
  override heading(token: Tokens.Heading): string {
    return super.heading({ ...token, depth: Math.min(token.depth + 1, 6) });
  }

  override code(token: Tokens.Code): string {
    this.fences.push(token.lang ?? "");
    return super.code({ ...token, lang: "" });
  }

  override listitem(item: Tokens.ListItem): string {
    this.tasks.push(item.task);
    return super.listitem(item);
  }

  override image({ raw, text, href }: Tokens.Image): string {
    return this.text({ type: "text", raw, text: text ? `${text} (${href})` : href, escaped: false });
  }

  override checkbox({ checked }: Tokens.Checkbox): string {
    return checked ? "\u2611 " : "\u2610 ";
  }
}

/**
 * The elements of a text. With `growing` more of it comes: what is open at its end looks as if it were closed. `again` is
 * called once more of it can be shown, as colours of code are loaded when they are needed first.
 */
export function rendered(text: string, growing = false, again: () => void = () => {}): DocumentFragment {
  const renderer = new AnswerRenderer();
  const settings = { ...getDefaults(), ...renderer.settings };
  const html = new Parser({ ...settings, renderer }).parse(blocks(text, growing, settings));
  const fragment = DOMPurify.sanitize(html, SANITIZER);
  for (const link of fragment.querySelectorAll("a"))
    if (link.hasAttribute("href")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
    else link.replaceWith(...link.childNodes);
  for (const [place, item] of fragment.querySelectorAll("li").entries())
    if (renderer.tasks[place]) item.className = "task";
  for (const [place, code] of fragment.querySelectorAll("pre").entries())
    codeBlock(code, renderer.fences[place]!, again);
  for (const [place, formula] of fragment.querySelectorAll("samp").entries())
    formula.replaceWith(formulaNodes(renderer.formulas[place]!, again));
  // The keyboard reaches boxes that scroll.
  for (const table of fragment.querySelectorAll("table")) {
    const box = Object.assign(document.createElement("div"), { className: "table", tabIndex: 0 });
    box.role = "group";
    box.ariaLabel = "Table";
    table.replaceWith(box);
    box.append(table);
  }
  return fragment;
}

function blocks(text: string, growing: boolean, settings: MarkedOptions): Token[] {
  const lexed = (text: string): Token[] =>
    new ShortLexer({ ...settings, breaks: true, tokenizer: new Shallow() }).lex(text);
  const found = lexed(text);
  if (!growing || lastBlock(found)?.type === "code") return found;
  const shown = text.replace(MARKS, "").trimEnd();
  const unfinished = unclosed(shown.slice(shown.lastIndexOf("\n\n") + 1));
  return unfinished || shown !== text ? lexed(shown + unfinished) : found;
}

function lastBlock(tokens: Token[]): Token | undefined {
  const last = tokens.at(-1) as Tokens.Generic | undefined;
  const inside: Token[] | undefined = last?.type === "paragraph" ? [] : (last?.items ?? last?.tokens);
  return inside?.length ? lastBlock(inside) : last;
}

/** The marks that close the code or the strong emphasis that a paragraph leaves open. */
function unclosed(paragraph: string): string {
  const outside = paragraph.replace(/`[^`]*`/g, "");
  if (outside.includes("`")) return "`";
  const parts = outside.split("**");
  if (parts.length % 2 || !/^\S/.test(parts.at(-1)!)) return "";
  return outside.endsWith("*") ? "*" : "**";
}
