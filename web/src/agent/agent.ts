/**
 * `capstan-webgpu/agent`: a model that calls tools until it has an answer.
 *
 * @module agent
 */

import type { Capstan, ChatOptions } from "capstan-webgpu";
import { readOptions } from "../page/arguments";
import {
  anything,
  callable,
  either,
  fields,
  flag,
  type Kinds,
  listOf,
  object,
  read,
  shown,
  signal as signalKind,
  text,
  whole,
} from "../page/kinds";
import { refused } from "../wire/errors";
import type { Message } from "../wire/protocol";
import { AgentRun } from "./agent_run";
import { asPages, Toolbox, type ToolOptions } from "./agent_tools";

export { AgentRun } from "./agent_run";
export type { AgentPart, AgentResult, AgentStep } from "./agent_run";
export type { AgentCall, AgentTool, AskedCall, McpServer, PageTool, PageTools, ToolAnnotations } from "./agent_tools";

/** Options of `llm.chat` that an agent sets itself, or that suit no loop of answers. */
const NOT_OF_AGENTS = [
  ...(["signal", "continueFinalMessage", "strictTools", "parallelToolCalls", "n"] as const),
  ...(["jsonSchema", "regex", "larkGrammar", "ebnf"] as const),
];
type Sampling = Omit<ChatOptions, (typeof NOT_OF_AGENTS)[number] | "tools">;

/** The options of an agent, and those of `llm.chat` for each of its answers; `toolChoice` is that of a run's first one. */
export interface AgentOptions extends Sampling, Partial<ToolOptions> {
  /** The system message of each run. */
  instructions?: string;
  /** The most answers of the model in one run, 8 unless given. Calls of the last one are made, too. */
  maxSteps?: number;
  /** Milliseconds for a call, and for each exchange with a server, 30,000 unless given. Confirmations have no limit. */
  toolTimeout?: number;
  /** Bytes of a result that the model reads, 16,384 unless given; the model reads that the rest is missing. */
  maxResultBytes?: number;
}

const SERVER = fields(
  { url: text, headers: fields({}, { others: text }), tools: listOf("names", text) },
  { needed: ["url"] },
);
const TOOL = fields(
  { name: text, description: text, parameters: object, execute: callable, readOnly: flag },
  { needed: ["name", "execute"] },
);
const PAGE = {
  words: "document.modelContext of WebMCP, with getTools and executeTool",
  is: (value: unknown): boolean =>
    ["getTools", "executeTool"].every((name) => typeof (value as Record<string, unknown>)[name] === "function"),
};
const KINDS: Kinds = {
  ...{ instructions: text, maxSteps: whole(1, 1000), toolTimeout: whole(1, 2 ** 31 - 1) },
  ...{ maxResultBytes: whole(1, 1 << 24), confirm: callable, page: PAGE },
  ...{ tools: listOf("tools", TOOL), mcp: listOf("addresses or servers", either(text, SERVER)) },
};
/**
 * A model with tools: those in code, those of MCP servers, and those that the page registered by WebMCP. A grammar holds each
 * call to the parameters of its tool, in the form of the model's family. Calls of tools that are not marked read-only wait
 * for `confirm`. Results of tools are data: control tokens in them have no effect.
 */
export class Agent {
  private readonly toolbox: Toolbox;
  private readonly maxSteps: number;
  private readonly instructions: string | undefined;
  private readonly options: ChatOptions;

  /** Throws OptionError. */
  constructor(
    private readonly llm: Pick<Capstan, "chat">,
    given: AgentOptions = {},
  ) {
    try {
      if (typeof llm?.chat !== "function") throw refused("the model is not one that Capstan.load gave");
      const chatNames = Object.keys(given).filter((name) => !(name in KINDS) && !isNotOfAgents(name));
      const others = Object.fromEntries(chatNames.map((name) => [name, anything]));
      const options = readOptions("the options of the agent", given, { ...KINDS, ...others });
      const {
        tools,
        mcp,
        page,
        confirm,
        instructions,
        maxSteps = 8,
        toolTimeout = 30_000,
        maxResultBytes = 16_384,
      } = options;
      this.options = Object.fromEntries(chatNames.map((name) => [name, options[name as keyof AgentOptions]]));
      this.toolbox = new Toolbox({
        ...(tools ? { tools } : {}),
        ...(mcp ? { mcp: mcp.map(absolute) } : {}),
        ...(page ? { page } : {}),
        ...(confirm ? { confirm } : {}),
        ...{ toolTimeout, maxResultBytes },
      });
      this.maxSteps = maxSteps;
      this.instructions = instructions;
    } catch (error) {
      throw asPages(error);
    }
  }

  /** Answer a text of the user, or a conversation's last message. `signal` ends the run; its result has what came until then. */
  run(asked: string | readonly Message[], given: { signal?: AbortSignal } = {}): AgentRun {
    try {
      const { signal } = readOptions("the options of the run", given, { signal: signalKind });
      const messages = typeof asked === "string" ? [{ role: "user", content: asked }] : asked;
      read("messages", messages, listOf("objects with role and content", object));
      const { options, instructions, maxSteps } = this;
      return new AgentRun({ chat: this.llm.chat, options, instructions, maxSteps }, this.toolbox, messages, signal);
    } catch (error) {
      throw asPages(error);
    }
  }

  /** End the connections to servers; a later run connects again. */
  close(): Promise<void> {
    return this.toolbox.close();
  }
}

function isNotOfAgents(name: string): boolean {
  return (NOT_OF_AGENTS as readonly string[]).includes(name);
}

/** A server with its whole address. */
function absolute(server: NonNullable<AgentOptions["mcp"]>[number]): NonNullable<AgentOptions["mcp"]>[number] {
  const { url, ...rest } = typeof server === "string" ? { url: server } : server;
  const whole = URL.parse(url, location.href);
  if (!whole || !/^https?:$/.test(whole.protocol))
    throw refused(`mcp: ${shown(url)} is no http address; give that of a server with Streamable HTTP`);
  return { url: whole.href, ...rest };
}
