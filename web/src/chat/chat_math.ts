// Formulas in a model's Markdown: `$x$` and `\(x\)` within a line, `$$x$$` and `\[x\]` as blocks.

import DOMPurify from "dompurify";
import type { TokenizerAndRendererExtension, Tokens } from "marked";

/** A longer formula stays as it is written. */
const LONGEST = 2000;
/** As pandoc reads them, so that "$5 and $6" is no formula. */
const INLINE =
  /^(?:\$\$([^$]+)\$\$|\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<!\s)\$(?!\d)|\\\(([^\n]+?)\\\)|\\\[([^\n]+?)\\\])/;
const BLOCK = /^ {0,3}(?:\$\$([^$]+)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;

/** A formula of a text. */
export interface Formula {
  tex: string;
  display: boolean;
  /** As it is written. */
  raw: string;
}

let katex: typeof import("./math") | null = null;
let loading: Promise<void> | null = null;

/** marked's extensions, which give each formula to `found` and leave an empty `<samp>` in its place. */
export function formulas(found: (formula: Formula) => void): TokenizerAndRendererExtension[] {
  const place = (token: Tokens.Generic): string => {
    found({ tex: String(token["tex"]), display: Boolean(token["display"]), raw: token.raw.trim() });
    return "<samp></samp>";
  };
  const token = (name: string, [raw, ...texts]: RegExpExecArray, display: boolean): Tokens.Generic | undefined => {
    const tex = texts.find(Boolean)!.trim();
    return raw.length > LONGEST ? undefined : { type: name, raw, tex, display };
  };
  return [
    {
      name: "formula",
      level: "inline",
      start: (text) => /\$|\\[([]/.exec(text)?.index,
      tokenizer: (text) => {
        const match = INLINE.exec(text);
        return match ? token("formula", match, Boolean(match[1] ?? match[4])) : undefined;
      },
      renderer: place,
    },
    {
      name: "formulaBlock",
      level: "block",
      start: (text) => /(?:^|\n) {0,3}(?:\$\$|\\\[)/.exec(text)?.index,
      tokenizer: (text) => {
        const match = BLOCK.exec(text);
        return match ? token("formulaBlock", match, true) : undefined;
      },
      renderer: place,
    },
  ];
}

/** The nodes of a formula, or its source if KaTeX cannot read it; `again` is called once KaTeX is loaded. */
export function formulaNodes({ tex, display, raw }: Formula, again: () => void): Node {
  const made = katex?.mathMl(tex, display);
  if (made) return DOMPurify.sanitize(made, { RETURN_DOM_FRAGMENT: true, USE_PROFILES: { mathMl: true } });
  if (!katex) void (loading ??= load()).then(() => katex && again());
  return new Text(raw);
}

async function load(): Promise<void> {
  try {
    katex = await import("./math.js");
  } catch (error) {
    console.warn("formulas are shown as they are written:", error);
  }
}
