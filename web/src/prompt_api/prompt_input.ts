// Reads what a page gives to LanguageModel, as Web IDL converts it and as the specification validates it.

import type { ChatOptions, ContentPart, Message, Picture } from "capstan-webgpu";
import { shown } from "../page/kinds";
import { exception } from "./prompt_errors";
import type { CoreOptions, PromptOptions, PromptTool, SamplingMode } from "./prompt_types";

/** The limits of `topK` and `temperature`; the defaults are those of Capstan's search options. */
export const PARAMS = { defaultTopK: 50, maxTopK: 128, defaultTemperature: 1, maxTemperature: 2 } as const;
/** The temperature of each mode; "balanced" samples as the model's makers recommend. */
const MODES: Readonly<Record<SamplingMode, number | null>> = {
  ...{ "most-predictable": 0, predictable: 0.3, "slightly-predictable": 0.5, balanced: null },
  ...{ "slightly-creative": 0.9, creative: 1.1, "most-creative": 1.4 },
};
const ROLES = ["system", "user", "assistant"];
const TYPES = ["text", "image", "audio", "tool-call", "tool-response"];
const DRAWN = ["HTMLImageElement", "SVGImageElement", "HTMLVideoElement", "VideoFrame"];
const PICTURES = [...DRAWN, ...["ImageBitmap", "HTMLCanvasElement", "OffscreenCanvas", "ImageData", "Blob", "File"]];

/** The messages of a prompt. */
export interface Prompt {
  messages: Message[];
  /** Whether the answer continues the last message. */
  continues: boolean;
  /** Whether the page gave an empty list. */
  empty: boolean;
}

export interface Sampling {
  topK?: number;
  temperature?: number;
  mode: SamplingMode | null;
}

export interface Core {
  sampling: Sampling;
  /** The types of inputs. */
  inputs: Set<string>;
  outputs: Set<string>;
  tools: PromptTool[];
}

function typeError(place: string, value: unknown, words: string): TypeError {
  return new TypeError(`${place} is ${shown(value)}; it must be ${words}`);
}

function nameOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}

/** A dictionary of Web IDL. */
export function dictionary<T extends object>(place: string, value: unknown): Partial<T> {
  if (value === undefined || value === null) return {};
  if (!isObject(value)) throw typeError(place, value, "an object");
  return value as Partial<T>;
}

function sequence(place: string, value: unknown): unknown[] {
  if (!isObject(value) || typeof (value as { [Symbol.iterator]?: unknown })[Symbol.iterator] !== "function")
    throw typeError(place, value, "a list");
  return [...(value as Iterable<unknown>)];
}

function oneOf<T extends string>(place: string, value: unknown, texts: readonly T[]): T {
  if (!texts.includes(String(value) as T)) throw typeError(place, value, `one of ${texts.join(", ")}`);
  return String(value) as T;
}

export function signalIn(options: { signal?: unknown }): AbortSignal[] {
  const { signal } = options;
  if (signal === undefined) return [];
  if (nameOf(signal) !== "AbortSignal") throw typeError("signal", signal, "an AbortSignal");
  return [signal as AbortSignal];
}

/** The options that `create` and `availability` share. Throws TypeError, RangeError. */
export function readCore(options: Partial<CoreOptions>): Core {
  const { thinking } = options as { thinking?: { effort?: string; includeThoughts?: boolean } };
  if (thinking?.includeThoughts || (thinking?.effort ?? "none") !== "none")
    throw exception(
      "NotSupportedError",
      "thinking is set by install({ runOptions: { thinking: true } }): leave it out",
    );
  return {
    sampling: readSampling(options),
    inputs: readExpected("expectedInputs", options.expectedInputs),
    outputs: readExpected("expectedOutputs", options.expectedOutputs),
    tools: options.tools === undefined ? [] : readTools(sequence("tools", options.tools)),
  };
}

function readSampling({ topK, temperature, samplingMode }: Partial<CoreOptions>): Sampling {
  if (samplingMode === undefined && topK === undefined && temperature === undefined) return { mode: "balanced" };
  if (samplingMode !== undefined) {
    const mode = oneOf("samplingMode", samplingMode, Object.keys(MODES) as SamplingMode[]);
    if (topK !== undefined || temperature !== undefined)
      throw new TypeError(`samplingMode is "${mode}" beside topK or temperature; give one or the other`);
    const least = MODES[mode];
    return { mode, ...(least === null ? {} : { temperature: least }) };
  }
  return {
    mode: null,
    topK: within("topK", topK, 1, PARAMS.maxTopK, PARAMS.defaultTopK, Math.trunc),
    temperature: within("temperature", temperature, 0, PARAMS.maxTemperature, PARAMS.defaultTemperature),
  };
}

/** A number from `least` on; what is above `most` becomes that. */
function within(
  name: string,
  given: unknown,
  least: number,
  most: number,
  or: number,
  whole: (value: number) => number = Number,
): number {
  if (given === undefined) return or;
  const value = whole(Number(given));
  if (Number.isNaN(value)) throw typeError(name, given, "a number");
  if (value < least) throw new RangeError(`${name} is ${shown(given)}; it must be at least ${least}`);
  return Math.min(value, most);
}

function readExpected(place: string, given: unknown): Set<string> {
  const types = new Set<string>();
  for (const [at, each] of (given === undefined ? [] : sequence(place, given)).entries()) {
    const { type, languages } = dictionary<{ type: unknown; languages: unknown }>(`${place}[${at}]`, each);
    types.add(oneOf(`${place}[${at}].type`, type, TYPES));
    // Throws RangeError for what is no tag. Which languages a model knows is in none of its files.
    if (languages !== undefined) Intl.getCanonicalLocales(sequence(`${place}[${at}].languages`, languages).map(String));
  }
  return types;
}

function readTools(given: readonly unknown[]): PromptTool[] {
  const tools = given.map((each, at) => {
    const { name, description, inputSchema, execute } = dictionary<PromptTool>(`tools[${at}]`, each);
    for (const [field, text] of Object.entries({ name, description }))
      if (text === undefined || String(text) === "") throw typeError(`tools[${at}].${field}`, text, "a text");
    if (!isObject(inputSchema)) throw typeError(`tools[${at}].inputSchema`, inputSchema, "a JSON Schema");
    const schema = JSON.parse(JSON.stringify(inputSchema)) as Record<string, unknown>;
    const { type, properties = {}, required = [] } = schema;
    if (type !== "object" || nameOf(properties) !== "Object" || !Array.isArray(required))
      throw typeError(`tools[${at}].inputSchema`, schema, 'a JSON Schema of type "object"');
    if (typeof execute !== "function")
      throw typeError(`tools[${at}].execute`, execute, "a function: the page's own calls of tools are not supported");
    return { name: String(name), description: String(description), inputSchema: schema, execute };
  });
  const names = tools.map(({ name }) => name);
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  if (twice !== undefined) throw new TypeError(`tools: two have the name ${shown(twice)}; give each its own`);
  return tools;
}

/** The messages of a prompt; `types` are those of inputs. Rejects with TypeError or a DOMException. */
export async function readPrompt(input: unknown, types: ReadonlySet<string>): Promise<Prompt> {
  const listed = isObject(input) && typeof (input as { [Symbol.iterator]?: unknown })[Symbol.iterator] === "function";
  if (!listed) return { messages: [{ role: "user", content: String(input) }], continues: false, empty: false };
  return readMessages("the prompt", input, types);
}

/** As readPrompt, of a list. */
export async function readMessages(place: string, given: unknown, types: ReadonlySet<string>): Promise<Prompt> {
  const list = sequence(place, given).map((each, at) => readMessage(`${place}[${at}]`, each));
  if (!list.length) return { messages: [{ role: "user", content: "" }], continues: false, empty: true };
  for (const [at, { role, prefix }] of list.entries()) {
    if (prefix && (role !== "assistant" || at !== list.length - 1))
      throw exception("SyntaxError", `${place}[${at}].prefix is true; only the last message, of the assistant, has it`);
    if (role === "system" && at > 0) throw new TypeError(`${place}[${at}].role is "system"; only the first one may be`);
  }
  // Canvases and buffers may change later, so all parts are read now.
  const read = list.map(({ role, content }, at) => readContent(`${place}[${at}]`, role, content, types));
  const messages = list.map(({ role }, at) => ({ role, content: read[at]! }));
  const whole = await Promise.all(messages.map(async ({ role, content }) => ({ role, content: await content })));
  return { messages: whole, continues: list.at(-1)!.prefix, empty: false };
}

interface Given {
  role: string;
  content: { type: string; value: unknown }[];
  prefix: boolean;
}

function readMessage(place: string, given: unknown): Given {
  const { role, content, prefix } = dictionary<Record<keyof Given, unknown>>(place, given);
  const read = { role: oneOf(`${place}.role`, role, ROLES), prefix: Boolean(prefix) };
  if (content === undefined) throw typeError(`${place}.content`, content, "a text or a list of parts");
  if (!isObject(content)) return { ...read, content: [{ type: "text", value: String(content) }] };
  const parts = sequence(`${place}.content`, content).map((each, at) => {
    const where = `${place}.content[${at}]`;
    const { type, value } = dictionary<{ type: unknown; value: unknown }>(where, each);
    if (value === undefined) throw typeError(`${where}.value`, value, "there");
    return { type: oneOf(`${where}.type`, type, TYPES), value };
  });
  return { ...read, content: parts };
}

/** A text, or the parts of a message with pictures; texts side by side are one. */
async function readContent(
  place: string,
  role: string,
  parts: Given["content"],
  types: ReadonlySet<string>,
): Promise<string | ContentPart[]> {
  const read: (string | Promise<Picture>)[] = [];
  for (const [at, { type, value }] of parts.entries()) {
    const where = `${place}.content[${at}]`;
    if (type === "text") {
      if (typeof value !== "string") throw typeError(`${where}.value`, value, "a text");
      const last = read.at(-1);
      if (typeof last === "string") read[read.length - 1] = last + value;
      else read.push(value);
      continue;
    }
    if (role === "assistant")
      throw exception("NotSupportedError", `${where}.type is "${type}"; a message of the assistant has texts alone`);
    if (type !== "image" || !types.has("image"))
      throw exception("NotSupportedError", `${where}.type is "${type}", which is not in expectedInputs`);
    read.push(pictureOf(`${where}.value`, value));
  }
  if (read.every((part) => typeof part === "string")) return read.join("");
  const whole = await Promise.all(read);
  return whole.map((part) =>
    typeof part === "string" ? { type: "text", text: part } : { type: "image", image: part },
  );
}

/** A picture as Capstan takes it. */
async function pictureOf(where: string, value: unknown): Promise<Picture> {
  if (value instanceof ArrayBuffer) return value.slice(0);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice();
  const name = nameOf(value);
  if (!PICTURES.includes(name)) throw typeError(where, value, "an ImageBitmapSource or a BufferSource");
  if (name === "Blob" || name === "File") return value as Blob;
  return createImageBitmap(value as ImageBitmapSource);
}

/** A constraint of the response. */
export interface Constraint {
  options: Pick<ChatOptions, "jsonSchema" | "regex">;
  /** Its description for the model; empty if the page leaves it out. */
  text: string;
  /** Whether a whole response is as it demands. */
  fits(response: string): boolean;
}

/** Throws TypeError, a NotSupportedError for flags. */
export function readConstraint(options: Partial<PromptOptions>): Constraint | null {
  const { responseConstraint: given, omitResponseConstraintInput: omitted } = options;
  if (given === undefined) {
    if (omitted) throw new TypeError("omitResponseConstraintInput is true without a responseConstraint; give one");
    return null;
  }
  if (!isObject(given)) throw typeError("responseConstraint", given, "a JSON Schema or a RegExp");
  if (nameOf(given) === "RegExp") return ofExpression(given as RegExp, Boolean(omitted));
  if (nameOf(given) !== "Object") throw typeError("responseConstraint", given, "a JSON Schema or a RegExp");
  const schema = JSON.stringify(given);
  return {
    options: { jsonSchema: schema },
    text: omitted ? "" : `Answer in JSON that fits this JSON Schema: ${schema}`,
    fits: isJson,
  };
}

function ofExpression({ source, flags }: RegExp, omitted: boolean): Constraint {
  // The others say how a text is searched.
  const meant = [...flags].filter((flag) => !"dgyu".includes(flag)).join("");
  if (/[^is]/.test(meant))
    throw exception("NotSupportedError", `responseConstraint has the flags "${flags}"; leave out all but i, s and u`);
  const whole = new RegExp(source, flags.replace(/[gy]/g, ""));
  return {
    options: { regex: meant ? `(?${meant}:${source})` : source },
    text: omitted ? "" : `Answer with a text that matches this regular expression: ${source}`,
    fits: (response) => whole.test(response),
  };
}

function isJson(response: string): boolean {
  try {
    JSON.parse(response);
    return true;
  } catch {
    return false;
  }
}

/** The messages with a text at the end of the user's last one; without such a message it is one. */
export function withText(messages: readonly Message[], text: string): Message[] {
  const at = messages.findLastIndex(({ role }) => role === "user");
  if (!text) return [...messages];
  if (at < 0) return [...messages, { role: "user", content: text }];
  const { content } = messages[at]!;
  const longer =
    typeof content === "string"
      ? `${content}\n\n${text}`
      : [...content, { type: "text" as const, text: `\n\n${text}` }];
  return messages.with(at, { role: "user", content: longer });
}
