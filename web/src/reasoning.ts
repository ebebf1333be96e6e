// Splits a model's text into its reasoning, between <think> and </think> at the beginning, and its answer.

const OPEN = "<think>";
const CLOSE = "</think>";
/** A tag between backticks is a word of the text. */
const TAGS = /(`?)<(\/?)think>(`?)/g;

/** The parts of a text so far; both only grow at their ends while the text grows, if it is known how the text begins. */
export interface SplitText {
  reasoning: string;
  answer: string;
  /** Whether the reasoning has not ended. */
  open: boolean;
}

export interface SplitOptions {
  /**
   * Whether the prompt ended with `<think>`, so that the text begins inside. If that is left out, a `</think>` without a
   * `<think>` before it ends the reasoning, too.
   */
  begun?: boolean;
  /** Whether more comes: half a tag at the end is then in neither part. */
  growing?: boolean;
}

/** Split a text, or its beginning. Later blocks are part of the answer, as is a `<think>` behind other words. */
export function splitReasoning(text: string, { begun, growing = false }: SplitOptions = {}): SplitText {
  const lead = text.trimStart();
  const opened = lead.startsWith(OPEN);
  if (growing && !opened && OPEN.startsWith(lead)) return { reasoning: "", answer: "", open: begun === true };
  const inside = opened ? lead.slice(OPEN.length) : lead;
  const known = opened || begun === true;
  const close = known || begun === undefined ? closeIn(inside, !known, growing) : -1;
  if (close >= 0) {
    const answer = inside.slice(close + CLOSE.length).trimStart();
    return { reasoning: inside.slice(0, close).trim(), answer, open: false };
  }
  if (!known) return { reasoning: "", answer: text, open: false };
  const reasoning = growing ? inside.slice(0, inside.length - halfTag(inside)) : inside;
  return { reasoning: reasoning.trim(), answer: "", open: true };
}

/** The place of the tag that ends the reasoning, below 0 if there is none; with `alone` none may open it before. */
function closeIn(text: string, alone: boolean, growing: boolean): number {
  for (const { index, 0: tag, 1: before, 2: slash, 3: after } of text.matchAll(TAGS)) {
    if (before && (after || (growing && index + tag.length === text.length))) continue;
    if (slash) return index + before!.length;
    if (alone) return -1;
  }
  return -1;
}

/** The length of `</think>`, or of its beginning, at the end of a text. */
function halfTag(text: string): number {
  let length = CLOSE.length;
  while (!text.endsWith(CLOSE.slice(0, length))) length--;
  return length;
}

/** A piece of a growing text: of its reasoning, or of its answer. */
export interface ReasoningPart {
  kind: "reasoning" | "answer";
  text: string;
}

/** Splits a text that comes in parts. */
export class Splitter {
  private whole = "";
  private readonly told = { reasoning: 0, answer: 0 };

  /** `begun` is as in SplitOptions, asked for with the first part. */
  constructor(private readonly begun: () => boolean) {}

  push(part: string): ReasoningPart[] {
    this.whole += part;
    return this.fresh(true);
  }

  /** The parts that were held back. */
  end(): ReasoningPart[] {
    return this.fresh(false);
  }

  private fresh(growing: boolean): ReasoningPart[] {
    const found = splitReasoning(this.whole, { begun: this.begun(), growing });
    return (["reasoning", "answer"] as const).flatMap((kind) => {
      const text = found[kind].slice(this.told[kind]);
      this.told[kind] += text.length;
      return text ? [{ kind, text }] : [];
    });
  }
}
