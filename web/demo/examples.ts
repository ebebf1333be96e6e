// The welcome of the conversation, with examples of what can be asked of the chosen model.

import type { CapstanChat } from "../src/chat/chat";
import { button, element, say } from "./elements";
import { chosenModel } from "./models";
import { FormError } from "./settings";

const COMPLETION = {
  kind: "completion",
  label: "Text to go on with",
  note: (title: string) => `${title}. It goes on with a text, such as Python. Click a beginning:`,
  examples: [
    "def fibonacci(n):",
    'def read_lines(path):\n    """Return the lines of a file."""\n',
    "class Point:\n    def __init__(self, x, y):\n",
  ],
};
/** The first chat model of a visitor, SmolLM2-135M-Instruct, answers these well. */
const CHAT = {
  kind: "chat",
  label: "Message",
  note: (title: string) => `${title}. Ask it something:`,
  examples: ["What is the capital of Japan?", "What is a web browser?", "Give me three tips for a good night's sleep."],
};

/** For a model of which nothing is known yet: it may chat or not. */
const UNKNOWN = {
  kind: "unknown",
  label: "Message or text",
  note: (title: string) => `${title}. Write to it, or begin a text:`,
  examples: ["What can you do?", "Write a short poem about the sea.", "The three largest oceans are"],
};

/** Offer the examples that suit the chosen model. */
export function offerExamples(chat: CapstanChat): void {
  let chats: boolean | null = null;
  let model = "No model";
  try {
    ({ chat: chats, title: model } = chosenModel());
  } catch (error) {
    if (!(error instanceof FormError)) throw error;
  }
  const { kind, label, note, examples } = chats === null ? UNKNOWN : chats ? CHAT : COMPLETION;
  say("kind-note", note(model));
  const box = element("examples", HTMLElement);
  // A field that is left by a click on an example reports its change between the button's press and release: another
  // button in its place would not be clicked.
  if (box.dataset["kind"] === kind) return;
  box.replaceChildren(...examples.map((example) => button(example.trimEnd(), () => void chat.send(example))));
  box.dataset["kind"] = kind;
  chat.setAttribute("label", label);
}
