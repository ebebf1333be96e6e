// The types of the element's events, attributes and answers.

import type { Capstan, CapstanError, Message } from "capstan-webgpu";
import type { ChatTurn } from "./chat_turn";

/** Answers a turn: appends the text to it as it comes, until the signal aborts. May resolve to the finish reason. */
export type Answer = (turn: ChatTurn, signal: AbortSignal) => Promise<string | void>;

/** The events of the element, for the page that holds it. */
export interface CapstanChatEvents {
  /** The model is there; `detail` is the Capstan. */
  "capstan-load": CustomEvent<Capstan>;
  /** An answer ended, or was stopped; `detail` has all messages. */
  "capstan-answer": CustomEvent<{ messages: readonly Message[]; finishReason: string }>;
  "capstan-error": CustomEvent<CapstanError>;
  /** Whether something is under way, so that nothing can be sent. */
  "capstan-busy": CustomEvent<boolean>;
  /** Turns came, went, or took the place of others. */
  "capstan-turns": CustomEvent<null>;
  /** The user began a new conversation. */
  "capstan-clear": CustomEvent<null>;
}

/** The attributes of the element, in markup. */
export interface CapstanChatAttributes {
  /** The model's address or id. */
  model?: string;
  /** Options of Capstan.load, as JSON. */
  options?: string;
  /** Options of each answer, as JSON. */
  "run-options"?: string;
  system?: string;
  placeholder?: string;
  label?: string;
  /** Messages take files: pictures, texts, code and PDF files. */
  attachments?: boolean | "";
  /** The name under which this browser keeps the conversation over reloads. */
  storage?: string;
  /** The model that hears questions at the microphone, by its address or id. */
  transcriber?: string;
  /** The model that reads answers aloud, by its address or id. */
  voice?: string;
  /** Answers are shown as they come, not as Markdown. */
  plain?: boolean | "";
}

/** Listeners of the events as properties of an element in JSX: `oncapstan-load` and the like. */
export type CapstanChatHandlers = {
  [Name in keyof CapstanChatEvents as `on${Name}`]?: (event: CapstanChatEvents[Name]) => void;
};
