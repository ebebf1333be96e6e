// Calls of tools in what a model writes.

export interface ToolCall {
  id: string;
  type: "function";
  function: {
    name: string;
    /** JSON. */
    arguments: string;
  };
}

/**
 * The place of tool calls: none, between <tool_call> and </tool_call> in the text, as models of the Hermes and Qwen
 * families write them, or the whole text is one, as a grammar made it.
 */
export type ToolSource = "none" | "text" | "whole";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";

/** Takes a text in parts and tells calls from the rest. A text that only looks like a call stays in the text. */
export class ToolCalls {
  readonly calls: ToolCall[] = [];
  private held = "";
  private inside = false;

  /** From the call after `most` on they stay in the text. */
  constructor(
    private readonly source: ToolSource,
    private readonly most = Infinity,
  ) {}

  /** The text in `part` and before that is certainly no call; what may become one is held back. */
  push(part: string): string {
    if (this.source === "none") return part;
    this.held += part;
    if (this.source === "whole") return "";
    let content = "";
    for (;;) {
      const mark = this.inside ? CLOSE : OPEN;
      const at = this.held.indexOf(mark);
      if (at < 0) break;
      const before = this.held.slice(0, at);
      this.held = this.held.slice(at + mark.length);
      content += this.inside && !this.take(before) ? OPEN + before + CLOSE : this.inside ? "" : before;
      this.inside = !this.inside;
    }
    if (this.inside) return content;
    const free = this.held.length - beginning(this.held, OPEN);
    content += this.held.slice(0, free);
    this.held = this.held.slice(free);
    return content;
  }

  /** The text that was held back and is no call. */
  end(): string {
    const rest = this.held;
    this.held = "";
    if ((this.inside || this.source === "whole") && this.take(rest)) return "";
    return (this.inside ? OPEN : "") + rest;
  }

  /** Note a call; whether it was one. */
  private take(text: string): boolean {
    if (this.calls.length >= this.most) return false;
    let told: unknown;
    try {
      told = JSON.parse(text);
    } catch {
      return false;
    }
    if (typeof told !== "object" || told === null || !("name" in told) || typeof told.name !== "string") return false;
    // Some models call them parameters.
    const given = "arguments" in told ? told.arguments : "parameters" in told ? told.parameters : {};
    const called = { name: told.name, arguments: typeof given === "string" ? given : JSON.stringify(given) };
    this.calls.push({ id: `call_${crypto.randomUUID()}`, type: "function", function: called });
    return true;
  }
}

/** How many of the last characters of a text may be the first ones of a mark. */
function beginning(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return length;
  return 0;
}

/** The schema of a call of one of these functions. */
export function schemaOfCalls(functions: readonly { name: string; parameters?: Record<string, unknown> }[]): object {
  const schemas = functions.map(({ name, parameters = { type: "object" } }) => ({
    type: "object",
    properties: { name: { const: name }, arguments: parameters },
    required: ["name", "arguments"],
    additionalProperties: false,
  }));
  return schemas.length === 1 ? schemas[0]! : { anyOf: schemas };
}
