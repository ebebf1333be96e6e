// Completes a page's options, with their shorter names, to the whole requests of protocol.ts.

import { refused } from "../wire/errors";
import {
  either,
  fields,
  flag,
  ids,
  type Kind,
  type Kinds,
  listOf,
  number,
  object,
  oneOf,
  orNull,
  plain,
  read,
} from "./kinds";
import { shown, signal, text, whole } from "./kinds";
import { type ModelPageOptions, PAGE_KINDS } from "./model_options";
import { GENERATOR_KINDS, type GeneratorOptions, PICK_KINDS, type PickOptions } from "./run_options";
import { TEMPLATE_KINDS, type TemplateOptions } from "./run_options";
import { pickedFolder, reading, readOptions } from "./arguments";
import type {
  AdaptedOptions,
  ChatRequest,
  GenerateRequest,
  Guidance,
  HubRepository,
  LoadRequest,
  Message,
  ModelFolder,
  ModelRequest,
  PickOptions as AskedPick,
  ScoreRequest,
  TemplateOptions as AskedTemplate,
  TokenizerRequest,
} from "../wire/protocol";
import { DRAWING, SEARCH_NAMES, type SearchOptions } from "../wire/search_options";
import { isGguf, modelAddress } from "../wire/model_address";

/** The place of a model, and the way it is computed; options that are left out have their defaults. */
export interface ModelOptions extends ModelPageOptions, GeneratorOptions {
  /**
   * The address of the hub where a model's id is, as OWNER/NAME or OWNER/NAME:FILE.gguf; https://huggingface.co unless
   * given. With null no hub is used: an id is refused.
   */
  hub?: string | null;
  /** A branch, a tag or a commit of the hub's repository. */
  revision?: string;
  /** For a hub's private repositories; it goes to the hub alone. */
  token?: string;
  /**
   * A smaller model of the same vocabulary: a hub's id, or the address of a folder or file. It drafts tokens, of which the
   * model verifies several in one step; the answers are those of the model alone.
   */
  draftModel?: string | HubRepository;
  /**
   * Tokens that the longest conversation may have, prompt and answer together; runs have no more unless they say so. A load
   * whose caches have no room for them is refused before any weight is fetched.
   */
  maxLength?: number;
}

/** How tokens are picked and when a run ends. Options that are left out follow the model's own configuration. */
export interface RunOptions extends SearchOptions, PickOptions {
  /** Ends the run; what was generated until then is its result, with the finish reason "abort". */
  signal?: AbortSignal;
  /** Texts before which the answer ends. */
  stop?: string | string[];
  /** Tokens of this answer. */
  maxTokens?: number;
  /**
   * The number of answers, up to 32, sampled side by side as rows of one batch: the result has them as `choices`. The
   * first one is what comes with the same seed without `n`. A session takes 1 only.
   */
  n?: number;
  /** Tokens of prompt and answer together. */
  maxLength?: number;
  /** A constraint of the output; docs/guidance.md lists the supported features. At most one of the four. */
  jsonSchema?: object | string;
  regex?: string;
  larkGrammar?: string;
  ebnf?: string;
  /** Give each token's log probability in the result; each token then waits for its logits. */
  logprobs?: boolean;
  /** With `logprobs`: the number of most probable tokens that are given besides each token, 0 to 20; 0 unless given. */
  topLogprobs?: number;
  /** Any other search option, by its name in capstan.SearchOptions. */
  search?: Record<string, unknown>;
}

export interface ChatOptions extends RunOptions, TemplateOptions {
  /** Whether the answer has to be a call: of one of the tools ("required"), or of the function of that name. */
  toolChoice?: "auto" | "required" | { name: string };
  /** With false only the first call of an answer is a call; others stay in its text. */
  parallelToolCalls?: boolean;
  /**
   * With toolChoice "auto": the answer may end with a call, which a grammar holds to the parameters of its tool. Nothing
   * else is a call, so that an answer has at most one; models of families without a form of calls write it as JSON.
   */
  strictTools?: boolean;
  /**
   * Keep what is computed for this conversation under this id in the browser's storage, in unused time, and begin with what
   * is kept there: a reloaded page need not compute the prompt again. docs/saved_conversations.md has the limits.
   */
  keep?: string;
}

const SEARCH = { n: "num_return_sequences", ...SEARCH_NAMES } as const;
const GRAMMARS = { jsonSchema: "json_schema", regex: "regex", larkGrammar: "lark_grammar", ebnf: "ebnf" } as const;
/** OpenAI's limit. */
const MOST_LOGPROBS = 20;
/** MAX_ROWS of py_src/capstan/stages/search.py. */
export const MOST_ANSWERS = 32;
export const answers = whole(1, MOST_ANSWERS);
export const topLogprobs = whole(0, MOST_LOGPROBS);
export const stops = either(text, listOf("strings", text));
/** The answers of a run are made by their number here; Python checks all other options of a search. */
const search = fields({ num_return_sequences: answers }, { others: plain });
const RUN_KINDS: Kinds = {
  ...{ signal, ...Object.fromEntries(Object.keys(SEARCH_NAMES).map((name) => [name, number])), n: answers },
  ...{ stop: stops, maxTokens: number, maxLength: number, logprobs: flag, topLogprobs, ...PICK_KINDS, search },
  ...{ jsonSchema: either(object, text), regex: text, larkGrammar: text, ebnf: text },
};
/** The kinds of the options of the calls that an answer may make. */
const CALL_KINDS: Kinds = {
  ...{ toolChoice: either(oneOf("auto", "required"), object), parallelToolCalls: flag, strictTools: flag },
};
/** The longest id, in characters. */
const MOST_ID = 1000;
/** The id of a stored conversation. */
export const storedId: Kind = {
  words: `a string of 1 to ${MOST_ID} characters`,
  is: (value) => typeof value === "string" && value.length >= 1 && value.length <= MOST_ID,
};
/** Python has the fields of messages. */
export const messageList = listOf("objects with role and content", object);
/** The kinds of the options of a model's place. */
export const PLACE_KINDS = { hub: orNull(text), revision: text, token: text };
export const DRAFT_KIND = either(text, object);
/** The kinds of ModelOptions. */
export const MODEL_KINDS: Kinds = {
  ...{ ...PLACE_KINDS, ...PAGE_KINDS, ...GENERATOR_KINDS, maxLength: number, draftModel: DRAFT_KIND },
};
const REPOSITORY = /^[\w.-]+\/[\w.-]+(:[^?#]+\.gguf)?$/i;
/** The hub of ids without another, as capstan.model_files.hub.HUGGING_FACE. */
export const HUGGING_FACE = "https://huggingface.co";

/** Whether a text is a repository's id, and no address: a folder's has a slash before or after, a file's no colon. */
function isId(model: string): boolean {
  return REPOSITORY.test(model) && !/^\.{1,2}\//.test(model) && (model.includes(":") || !isGguf(model));
}

/** A model as the worker knows it: a hub's repository by its id, else the absolute address of a folder or file. */
export function modelFolder(model: ModelFolder, options: ModelOptions, page: string): ModelFolder {
  if (!model || !["string", "object"].includes(typeof model))
    throw refused(`the model is ${shown(model)}; it must be an address, a hub's id, or what was picked`);
  if (typeof model !== "string") {
    const picked = pickedFolder(model);
    if (typeof picked === "object" && picked !== null) return picked as ModelFolder;
    throw refused(`the model is ${shown(picked)}; it must be an address, a hub's id, or what was picked`);
  }
  const { hub = HUGGING_FACE, revision = null, token = null } = options;
  const named = options.hub !== undefined && options.hub !== null;
  const id = named ? REPOSITORY.test(model) : isId(model);
  if (id && hub === null)
    throw refused(
      `${JSON.stringify(model)} reads as the id of a hub's repository, and hub is null, so that no hub is asked: ` +
        `leave hub out, or write ${JSON.stringify(`./${model}/`)} for a folder beside this page`,
    );
  if (id) return { repository: model, hub: address(hub!, "hub", page), revision, token } satisfies HubRepository;
  if (named)
    throw refused(
      `the model is ${JSON.stringify(model)}; a hub's repository is named OWNER/NAME, a GGUF file of it ` +
        "OWNER/NAME:FILE.gguf",
    );
  if (revision !== null || token !== null)
    throw refused(`revision and token are a hub's, but ${JSON.stringify(model)} is the address of a folder or file`);
  return modelAddress(address(model, "the model", page));
}

/** The draft model as the worker knows it; its id is of the model's hub, on the main branch. */
export function draftFolder({ draftModel, hub }: ModelOptions, page: string): string | HubRepository {
  const folder = reading("draftModel", () => modelFolder(draftModel!, hub === undefined ? {} : { hub }, page));
  if (typeof folder === "string" || "repository" in folder) return folder;
  throw refused("draftModel was picked; it must be an address or a hub's id");
}

/** An address of http: or https:, from the page's; throws OptionError for any other. */
export function address(text: string, what: string, page: string): string {
  let found: URL;
  try {
    found = new URL(text, page);
  } catch {
    throw refused(`${what} is ${JSON.stringify(text)}; it must be a URL`);
  }
  // A browser extension's pages, and those of apps around a web view, read their own files.
  const own = new URL(page).protocol;
  if (!["http:", "https:", own].includes(found.protocol) || found.protocol === "file:")
    throw refused(
      `${what} is ${JSON.stringify(text)}; a page can only read http: and https: addresses, so serve the files`,
    );
  return found.href;
}

type Shared = Omit<GenerateRequest, "kind" | "prompt" | "prompt_ids">;

/** The options that a table has, by the names of requests. */
export function requested<Asked>(options: object, kinds: Kinds): Asked {
  const given = Object.entries(options).filter(([name, value]) => Object.hasOwn(kinds, name) && value !== undefined);
  const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(given.map(([name, value]) => [snake(name), value])) as Asked;
}

function modelRequest(model: ModelFolder, options: ModelOptions): ModelRequest {
  const { draftModel } = options;
  const draft = draftModel === undefined ? {} : { draft_model: draftModel };
  return { model, ...draft, ...requested<AdaptedOptions>(options, { ...PAGE_KINDS, ...GENERATOR_KINDS }) };
}

function shared(model: ModelFolder, options: ModelOptions, run: RunOptions): Shared {
  return {
    ...modelRequest(model, options),
    ...requested<AskedPick>(run, PICK_KINDS),
    ...logprobs(run),
    max_new_tokens: run.maxTokens ?? null,
    search: searchOf(run),
    guidance: guidance(run),
  };
}

function logprobs({ logprobs: asked, topLogprobs: top = 0 }: RunOptions): Pick<Shared, "log_probabilities"> {
  if (top && !asked) throw refused(`topLogprobs is ${top} without logprobs; set logprobs to true`);
  return asked ? { log_probabilities: top } : {};
}

function searchOf(run: RunOptions): Record<string, unknown> {
  const given: Record<string, unknown> = {};
  for (const [name, theirs] of Object.entries(SEARCH)) {
    const value = run[name as keyof typeof SEARCH];
    if (value !== undefined) given[theirs] = value;
  }
  // A caller that sets a sampling option, or wants several answers, wants tokens sampled, whatever the model's own
  // configuration says.
  if (DRAWING.some((name) => run[name] !== undefined) || (run.n ?? 1) > 1) given["do_sample"] = true;
  // One answer is requested as without `n`, so that a conversation goes on from what was computed.
  if (run.n === 1) delete given["num_return_sequences"];
  if (run.temperature === 0) {
    given["do_sample"] = false;
    delete given["temperature"];
  }
  if (run.stop !== undefined) given["stop_strings"] = typeof run.stop === "string" ? [run.stop] : run.stop;
  return { ...given, ...run.search };
}

function guidance(run: RunOptions): Guidance | null {
  const given = Object.entries(GRAMMARS).filter(([name]) => run[name as keyof typeof GRAMMARS] !== undefined);
  if (given.length > 1) throw refused(`${given.map(([name]) => name).join(" and ")}: a run has one grammar; give one`);
  const [first] = given;
  if (!first) return null;
  const data = run[first[0] as keyof typeof GRAMMARS]!;
  return { type: first[1], data: typeof data === "string" ? data : JSON.stringify(data) };
}

/** The request that loads a model. */
export function loadRequest(model: ModelFolder, options: ModelOptions): LoadRequest {
  return { kind: "load", ...shared(model, options, {}), max_length: options.maxLength ?? null };
}

/** The request that answers a conversation; without messages it makes the model ready for one. */
export function chatRequest(
  model: ModelFolder,
  options: ModelOptions,
  messages: readonly Message[],
  given: ChatOptions,
): ChatRequest {
  const run = readOptions("the options", given, { ...RUN_KINDS, ...TEMPLATE_KINDS, ...CALL_KINDS, keep: storedId });
  return reading("messages and options", () => ({
    kind: "chat",
    ...shared(model, options, run),
    messages: read("messages", messages, messageList) as Message[],
    max_length: run.maxLength ?? options.maxLength ?? null,
    ...requested<AskedTemplate>(run, TEMPLATE_KINDS),
    ...called(run),
    ...(run.keep === undefined ? {} : { keep: run.keep }),
    ...(run.parallelToolCalls === false ? { most_calls: 1 } : {}),
  }));
}

type Called = Pick<ChatRequest, "called" | "call_optional">;

/** The functions that the answer must call, or may call. */
function called({ tools = [], toolChoice: choice = "auto", strictTools }: ChatOptions): Partial<Called> {
  if (choice === "auto" && !strictTools) return {};
  if (choice === "auto" || choice === "required") {
    const functions = tools.map((tool) => ("function" in tool ? tool.function : tool) as { name?: unknown });
    const names = functions.map(({ name }) => String(name));
    return { called: names, ...(choice === "auto" ? { call_optional: true } : {}) };
  }
  const name = typeof choice === "object" ? choice?.name : null;
  if (typeof name !== "string")
    throw refused(`toolChoice is ${shown(choice)}; it must be "auto", "required" or { name: a function's name }`);
  return { called: [name] };
}

/** The request that the model's tokenizer encodes a text, decodes ids, or renders messages. */
export function tokenizerRequest(
  model: ModelFolder,
  options: ModelOptions,
  action: TokenizerRequest["action"],
  given: Omit<TokenizerRequest, "kind" | "action" | keyof ModelRequest>,
): TokenizerRequest {
  return { kind: "tokenizer", ...modelRequest(model, options), action, ...given };
}

/** The request that scores a text after a context. */
export function scoreRequest(
  model: ModelFolder,
  options: ModelOptions,
  text: string,
  context: string | null,
  maxLength: number | null,
): ScoreRequest {
  const sequences = [{ text, context }];
  return { kind: "score", ...modelRequest(model, options), sequences, max_length: maxLength, token_texts: true };
}

/** The request that completes a text, or goes on from token ids. */
export function completeRequest(
  model: ModelFolder,
  options: ModelOptions,
  prompt: string | readonly number[],
  given: RunOptions,
): GenerateRequest {
  const run = readOptions("the options", given, RUN_KINDS);
  return reading("prompt and options", () => {
    const request = shared(model, options, run);
    if (options.maxLength !== undefined) request.search = { max_length: options.maxLength, ...request.search };
    if (run.maxLength !== undefined) request.search = { ...request.search, max_length: run.maxLength };
    const given = read("the prompt", prompt, either(text, ids)) as string | number[];
    const [prompt_text, prompt_ids] = typeof given === "string" ? [given, null] : [null, given];
    return { kind: "generate", ...request, prompt: prompt_text, prompt_ids };
  });
}
