// A model's answer as a message of the conversation.

import type { Message } from "../wire/protocol";
import type { RunChoice } from "./run";

/** The message that an answer adds to its conversation; with `begun` it takes the place of that message, which it continues. */
export function answerMessage({ answer, reasoning, toolCalls }: RunChoice, begun?: Message): Message {
  // A model that goes on after its calls goes on from what it thought before them.
  const thought = reasoning ? { reasoning_content: reasoning } : {};
  const calls = toolCalls.length ? { tool_calls: toolCalls, ...thought } : {};
  const { content } = begun ?? { content: "" };
  const whole = typeof content === "string" ? content + answer : [...content, { type: "text" as const, text: answer }];
  return { role: "assistant", ...begun, content: whole, ...calls };
}
