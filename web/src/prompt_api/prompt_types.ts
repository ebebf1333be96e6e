// The types of the Prompt API, as the specification of the W3C's Web Machine Learning community group has them
// (webmachinelearning/prompt-api). Values that @types/dom-chromium-ai describes are of these types, too.

export type Availability = "unavailable" | "downloadable" | "downloading" | "available";
export type SamplingMode =
  | "most-predictable"
  | "predictable"
  | "slightly-predictable"
  | "balanced"
  | "slightly-creative"
  | "creative"
  | "most-creative";

export interface Params {
  readonly defaultTopK: number;
  readonly maxTopK: number;
  readonly defaultTemperature: number;
  readonly maxTemperature: number;
}

/** A tool, which is called by `execute` when the model asks for it, with its arguments as one object. */
export interface PromptTool {
  name: string;
  description: string;
  /** The JSON Schema of the arguments, of type "object". */
  inputSchema: object;
  execute: (...given: any[]) => Promise<string>;
}

export interface Expected {
  type: string;
  languages?: readonly string[];
}

export interface PromptContent {
  type: string;
  value: ImageBitmapSource | AudioBuffer | BufferSource | string;
}

export interface PromptMessage {
  role: "system" | "user" | "assistant";
  content: string | readonly PromptContent[];
  /** The model continues this message, the last one and the assistant's. */
  prefix?: boolean;
}

export type PromptInput = string | readonly PromptMessage[];

/** A target of `downloadprogress` events, whose `loaded` is from 0 to 1. */
export interface Monitor extends EventTarget {
  ondownloadprogress: ((event: ProgressEvent) => any) | null;
  addEventListener(
    type: "downloadprogress",
    listener: (event: ProgressEvent) => any,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export interface CoreOptions {
  topK?: number;
  temperature?: number;
  samplingMode?: SamplingMode;
  expectedInputs?: readonly Expected[];
  expectedOutputs?: readonly Expected[];
  tools?: readonly PromptTool[];
}

export interface CreateOptions extends CoreOptions {
  signal?: AbortSignal;
  monitor?: (monitor: Monitor) => void;
  initialPrompts?: readonly PromptMessage[];
}

export interface AppendOptions {
  signal?: AbortSignal;
}

export interface PromptOptions extends AppendOptions {
  /** A JSON Schema, or a RegExp. */
  responseConstraint?: object;
  omitResponseConstraintInput?: boolean;
}
