// Splits the text of a chat's answer into its reasoning, between <think> and </think> at the beginning, and the rest. The
// worker writes these tags in place of the model's own marks.

const OPEN = "<think>";
const CLOSE = "</think>";
/** A tag between backticks is a word of the text. */
const ENDS = /(`?)<\/think>(`?)/g;

/** The parts of a text so far; both only grow at their ends while the text grows. */
export interface SplitText {
  reasoning: string;
  answer: string;
  /** Whether the reasoning has not ended. */
  open: boolean;
}

export interface SplitOptions {
  /** Whether the text begins inside, without a tag. */
  begun?: boolean;
  /** Whether more comes: half a tag at the end is then in neither part. */
  growing?: boolean;
}

/** Split a text, or its beginning. Later blocks are part of the answer, as is a `<think>` after other words. */
export function splitReasoning(text: string, { begun = false, growing = false }: SplitOptions = {}): SplitText {
  const lead = text.trimStart();
  const opened = lead.startsWith(OPEN);
  if (growing && !opened && OPEN.startsWith(lead)) return { reasoning: "", answer: "", open: begun };
  const inside = opened ? lead.slice(OPEN.length) : lead;
  if (!opened && !begun) return { reasoning: "", answer: text, open: false };
  const close = closeIn(inside, growing);
  if (close >= 0) {
    const answer = inside.slice(close + CLOSE.length).trimStart();
    return { reasoning: inside.slice(0, close).trim(), answer, open: false };
  }
  const reasoning = growing ? inside.slice(0, inside.length - halfTag(inside)) : inside;
  return { reasoning: reasoning.trim(), answer: "", open: true };
}

/** The place of the tag that ends the reasoning, below 0 if there is none. */
function closeIn(text: string, growing: boolean): number {
  for (const { index, 0: tag, 1: before, 2: after } of text.matchAll(ENDS))
    if (!before || !(after || (growing && index + tag.length === text.length))) return index + before!.length;
  return -1;
}

/** The length of `</think>`, or of its beginning, at the end of a text. */
function halfTag(text: string): number {
  let length = CLOSE.length;
  while (!text.endsWith(CLOSE.slice(0, length))) length--;
  return length;
}
