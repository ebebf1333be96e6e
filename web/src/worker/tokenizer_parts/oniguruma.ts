// Regular expressions of Oniguruma's as far as @huggingface/tokenizers, which makes JavaScript's of them, passes over
// what they say: atomic groups, possessive repetitions, and characters beyond ASCII in groups without case.

const ATOM = /\\[pPxu]\{[^{}]*\}|\\[\s\S]|[\s\S]/uy;
const QUANTIFIER = /[*?]|\+|\{(?:\d+(?:,\d*)?|,\d+)\}/y;
const OPENING = /\((?:\?(?:<[=!]|<[A-Za-z_]\w*>|[a-z]*-?[a-z]*:|[=!>]))?/y;
/** Pairs of letters that match one character, such as ß, in a group without case. */
const LIGATURES = /ss|f[fil]|st/i;

/** The same expression in what the library translates rightly; throws SyntaxError for what it cannot say. */
export function spelledOut(source: string): string {
  return new Rewriter(source).whole();
}

class Rewriter {
  private at = 0;
  private groups = 0;

  constructor(private readonly source: string) {}

  whole(): string {
    const made = this.alternatives(false);
    if (this.at < this.source.length) throw new SyntaxError(`Unmatched ")" at index ${this.at}`);
    return made;
  }

  private alternatives(folded: boolean): string {
    let made = "";
    let letters = "";
    while (this.at < this.source.length && this.source[this.at] !== ")") {
      const start = this.at;
      const atom = this.atom(folded);
      letters = folded && this.at === start + 1 ? letters + this.source[start]! : "";
      if (LIGATURES.test(letters))
        throw new SyntaxError(`${letters}, also a ligature, cannot be in a group without case, at index ${start}`);
      made += this.repeated(atom);
    }
    return made;
  }

  /** An atom with its repetition; a possessive one becomes a look ahead, which is entered once, and what it found. */
  private repeated(atom: string): string {
    const quantifier = this.take(QUANTIFIER);
    if (quantifier === "") return atom;
    if (this.source[this.at] !== "+" || quantifier.startsWith("{")) return atom + quantifier;
    this.at += 1;
    return this.atomic(atom + quantifier);
  }

  private atomic(content: string): string {
    const name = `atomic${this.groups++}`;
    return `(?=(?<${name}>${content}))\\k<${name}>`;
  }

  private atom(folded: boolean): string {
    const character = this.source[this.at]!;
    if (character === "[") return this.set(folded);
    if (character === "(") return this.group(folded);
    const token = this.take(ATOM);
    if (!folded || token.length > 1) {
      if (folded && /^\\[pP]/.test(token)) throw new SyntaxError(`${token} cannot be in a group without case`);
      return token;
    }
    if (/s/i.test(token)) return "[sSſ]";
    if (/k/i.test(token)) return "[kK\u212a]";
    if (token > "\x7f" && token.toLowerCase() !== token.toUpperCase())
      throw new SyntaxError(`${token} cannot be in a group without case`);
    return token;
  }

  private group(folded: boolean): string {
    const opening = this.take(OPENING);
    const flags = /^\(\?([a-z]*-?[a-z]*):$/.exec(opening)?.[1] ?? "";
    if (flags !== "" && flags !== "i") throw new SyntaxError(`a group has the unsupported flags ${flags}`);
    const content = this.alternatives(folded || flags === "i");
    if (this.source[this.at] !== ")") throw new SyntaxError("Unterminated group");
    this.at += 1;
    return opening === "(?>" ? this.atomic(content) : `${opening}${content})`;
  }

  /** A set, with the sets in it. */
  private set(folded: boolean): string {
    const start = this.at;
    let depth = 0;
    do {
      const token = this.take(/\[\^?\]?|\\[\s\S]|[\s\S]/uy);
      if (token === "") throw new SyntaxError(`Unterminated character class at index ${start}`);
      if (token.startsWith("[")) {
        const named = this.source.slice(this.at - token.length).match(/^\[:\^?\w+:\]/)?.[0];
        if (named) this.at += named.length - token.length;
        else depth += 1;
      } else if (token === "]") depth -= 1;
    } while (depth > 0);
    const set = this.source.slice(start, this.at);
    if (!folded) return set;
    if (/[^\x20-\x7e]|\\[pP]|\[\^|^.+[[&]/.test(set)) throw new SyntaxError(`${set} cannot be in a group without case`);
    const holds = new RegExp(set, "i");
    return set.slice(0, -1) + (holds.test("s") ? "ſ" : "") + (holds.test("k") ? "\u212a" : "") + "]";
  }

  private take(expression: RegExp): string {
    expression.lastIndex = this.at;
    const found = expression.exec(this.source)?.[0] ?? "";
    this.at += found.length;
    return found;
  }
}
