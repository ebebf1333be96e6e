// The tools of an agent: those in code, those that the page registered by WebMCP, and those of MCP servers. A call of any
// of them has the same limits.

import { CapstanError, type ToolCall } from "capstan-webgpu";
import { oneLine, told } from "../wire/errors";
import type { ServerConnection } from "./mcp";
import { within } from "./within";

/** A tool in code. */
export interface AgentTool {
  name: string;
  description?: string;
  /** JSON schema of an object; a grammar holds the arguments to it. Without it there are no arguments. */
  parameters?: Record<string, unknown>;
  /** Its result is a text, a value of JSON, or a promise of one. */
  execute: (given: Record<string, unknown>, options: { signal: AbortSignal }) => unknown;
  /** Whether calls change nothing, and so need no confirmation. */
  readOnly?: boolean;
}

/** An MCP server over Streamable HTTP. */
export interface McpServer {
  url: string;
  /** Headers of each request, such as Authorization. */
  headers?: Record<string, string>;
  /** The names of the tools that the model may call; all of the server's unless given. */
  tools?: readonly string[];
}

/** A tool's hints about itself, in the words of MCP and WebMCP. */
export interface ToolAnnotations {
  readOnlyHint?: boolean | undefined;
  [hint: string]: unknown;
}

/** A tool as WebMCP lists it. */
export interface PageTool {
  name: string;
  description: string;
  inputSchema?: object | undefined;
  annotations?: ToolAnnotations | undefined;
}

/** `document.modelContext` of WebMCP. */
export interface PageTools {
  getTools(): Promise<readonly PageTool[]>;
  executeTool(tool: never, given: object, options: { signal: AbortSignal }): Promise<string | null>;
}

/** A call that is to be confirmed. */
export interface AskedCall {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
  /** "code", "page" or the URL of the server. */
  source: string;
  description: string;
  annotations: ToolAnnotations;
}

/** A call, and how it ended. */
export interface AgentCall extends Omit<AskedCall, "description" | "annotations"> {
  /** "refused" by `confirm`; "failed" if the tool or its server did, or if there is no such tool. */
  outcome: "returned" | "failed" | "refused";
  /** The result as the model reads it. */
  result: string;
  /** Milliseconds from the confirmation to the result. */
  ms: number;
}

export interface ToolOptions {
  tools?: readonly AgentTool[];
  mcp?: readonly (string | McpServer)[];
  /** Undefined in browsers without WebMCP. */
  page?: PageTools | undefined;
  confirm?: (call: AskedCall, options: { signal: AbortSignal }) => boolean | Promise<boolean>;
  toolTimeout: number;
  maxResultBytes: number;
}

interface Tool {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  annotations: ToolAnnotations;
  source: string;
  call: (given: Record<string, unknown>, signal: AbortSignal) => unknown;
}

export type Tools = ReadonlyMap<string, Tool>;

/** The longest time of a timer, in milliseconds: 24 days. */
const NO_LIMIT = 2 ** 31 - 1;
/** The parts of a prompt that describe tools grow with them. */
const MOST_TOOLS = 128;

/** A result that its tool calls a failure. */
class Failure extends Error {}

export function failure(type: string, message: string): CapstanError {
  return new CapstanError({ type, message: oneLine(message) });
}

/** An error as an instance of the page's own class: this module has another copy of the class. */
export function asPages(error: unknown): unknown {
  if (error instanceof CapstanError || (error as Error | null)?.name !== "CapstanError") return error;
  const { code, message } = error as CapstanError;
  return failure(code, message);
}

export class Toolbox {
  private readonly connections = new Map<McpServer, Promise<ServerConnection>>();
  private readonly servers: readonly McpServer[];
  /** Connections that are being closed. */
  private readonly ending = new Set<Promise<void>>();

  constructor(private readonly given: ToolOptions) {
    this.servers = (given.mcp ?? []).map((server) => (typeof server === "string" ? { url: server } : server));
  }

  /** The tools of the servers, as they list them now. Rejects with ToolServerError. */
  async ofServers(signal: AbortSignal): Promise<Tool[]> {
    return (await Promise.all(this.servers.map((server) => this.ofServer(server, signal)))).flat();
  }

  /** All tools by name. Rejects with OptionError for a name that two tools have, and for a missing `confirm`. */
  async all(ofServers: readonly Tool[], signal: AbortSignal): Promise<Tools> {
    const found = new Map<string, Tool>();
    for (const tool of [...this.inCode(), ...(await this.ofPage(signal)), ...ofServers]) {
      const other = found.get(tool.name);
      if (other)
        throw failure(
          "OptionError",
          `two tools are named ${JSON.stringify(tool.name)}: one of ${other.source}, one of ${tool.source}; rename one, or ` +
            "choose those of a server by mcp: [{ url, tools: [names] }]",
        );
      if (!this.given.confirm && !readsOnly(tool))
        throw failure(
          "OptionError",
          `confirm is missing, but ${JSON.stringify(tool.name)} of ${tool.source} is not marked read-only; give confirm, ` +
            "which returns whether a call may be made, or mark the tool by readOnly: true (readOnlyHint elsewhere)",
        );
      found.set(tool.name, tool);
    }
    if (found.size > MOST_TOOLS)
      throw failure(
        "OptionError",
        `there are ${found.size} tools; an agent has at most ${MOST_TOOLS}: choose those of a server by ` +
          "mcp: [{ url, tools: [names] }]",
      );
    return found;
  }

  /** Make a call, if it is confirmed. Rejects only with an error of `confirm`. */
  async perform(asked: ToolCall, tools: Tools, signal: AbortSignal): Promise<AgentCall> {
    const { id, function: called } = asked;
    const { name } = called;
    const tool = tools.get(name);
    const given = parsed(called.arguments);
    const call = { id, name, arguments: given ?? {}, source: tool?.source ?? "none" };
    const failed = (result: string, ms = 0): AgentCall => ({
      ...call,
      outcome: "failed",
      result: this.cut(result),
      ms,
    });
    if (!tool)
      return failed(`There is no tool ${JSON.stringify(name)}. The tools are: ${[...tools.keys()].join(", ")}.`);
    if (!given) return failed(`The arguments are no JSON object: ${called.arguments.slice(0, 80)}`);
    if (!readsOnly(tool)) {
      const { description, annotations } = tool;
      const asks = this.given.confirm!;
      const shown = { ...call, arguments: structuredClone(given), description, annotations };
      try {
        const allowed = await within(NO_LIMIT, signal, (inner) => asks(shown, { signal: inner }));
        if (allowed !== true) return { ...call, outcome: "refused", result: "The user refused this call.", ms: 0 };
      } catch (error) {
        if (signal.aborted) return failed("The run was ended.");
        throw error;
      }
    }
    const begun = performance.now();
    try {
      const value = await within(this.given.toolTimeout, signal, (inner) => tool.call(given, inner));
      return { ...call, outcome: "returned", result: this.cut(textOf(value)), ms: performance.now() - begun };
    } catch (error) {
      const why = error instanceof Failure ? error.message : `The call failed: ${told(error)}`;
      return failed(signal.aborted ? "The run was ended." : why, performance.now() - begun);
    }
  }

  /** End the connections to servers. */
  async close(): Promise<void> {
    this.servers.forEach((server) => this.disconnect(server));
    await Promise.all(this.ending);
  }

  private disconnect(server: McpServer): void {
    const connection = this.connections.get(server);
    if (!this.connections.delete(server)) return;
    // One that failed has nothing to close.
    const end = connection!.then((open) => open.close()).catch(() => undefined);
    this.ending.add(end);
    void end.then(() => this.ending.delete(end));
  }

  private inCode(): Tool[] {
    return (this.given.tools ?? []).map(({ name, description = "", parameters, readOnly = false, execute }) => ({
      ...{ name, description, parameters: parameters ?? NOTHING, source: "code" },
      annotations: { readOnlyHint: readOnly },
      call: (given, signal) => execute(given, { signal }),
    }));
  }

  private async ofPage(signal: AbortSignal): Promise<Tool[]> {
    const { page, toolTimeout } = this.given;
    if (!page) return [];
    try {
      const listed = await within(toolTimeout, signal, () => page.getTools());
      if (!Array.isArray(listed)) throw new TypeError("getTools gave no array");
      return [...(listed as readonly PageTool[])].map((tool) => ({
        ...{ name: `${tool.name}`, description: `${tool.description}`, source: "page" },
        annotations: { ...tool.annotations },
        parameters: JSON.parse(JSON.stringify(tool.inputSchema ?? NOTHING)) as Record<string, unknown>,
        call: (given, signal) => page.executeTool(tool as never, given, { signal }),
      }));
    } catch (error) {
      if (signal.aborted) throw error;
      throw failure(
        "ToolServerError",
        `the page did not give its tools (${told(error)}); leave out page, or mend what it registered by WebMCP`,
      );
    }
  }

  private async ofServer(server: McpServer, signal: AbortSignal): Promise<Tool[]> {
    try {
      // Another run may wait for the same connection.
      const connection = await within(NO_LIMIT, signal, () => this.connected(server));
      const listed = await connection.list(signal);
      const missing = (server.tools ?? []).filter((name) => listed.every((tool) => tool.name !== name));
      if (missing.length)
        throw failure(
          "OptionError",
          `the MCP server ${server.url} has no tool ${missing.join(", ")}; it has ${listed.map(({ name }) => name).join(", ")}`,
        );
      const chosen = listed.filter(({ name }) => server.tools?.includes(name) ?? true);
      return chosen.map(({ name, description = "", parameters, annotations }) => ({
        ...{ name, description, parameters, annotations, source: server.url },
        async call(given, inner) {
          const { text, failed } = await connection.call(name, given, inner);
          if (failed) throw new Failure(text || "The call failed.");
          return text;
        },
      }));
    } catch (error) {
      if (signal.aborted || error instanceof CapstanError) throw error;
      this.disconnect(server);
      throw failure(
        "ToolServerError",
        `the MCP server ${server.url} did not give its tools (${told(error)}); check its address (Streamable HTTP), that it ` +
          "runs, and that it allows this page by CORS",
      );
    }
  }

  private connected(server: McpServer): Promise<ServerConnection> {
    let found = this.connections.get(server);
    if (!found) {
      found = import("./mcp.js").then(({ connect }) =>
        connect(server.url, server.headers ?? {}, this.given.toolTimeout),
      );
      this.connections.set(server, found);
    }
    return found;
  }

  /** A text, or its beginning with what was left out. */
  private cut(text: string): string {
    const { maxResultBytes: most } = this.given;
    const bytes = new TextEncoder().encode(text.slice(0, most + 1));
    if (bytes.length <= most && text.length <= most) return text;
    const kept = new TextDecoder().decode(bytes.subarray(0, most), { stream: true });
    return `${kept}\n[The result is cut here: it has ${text.length} characters, the limit is ${most} bytes. Ask for less.]`;
  }
}

const NOTHING = { type: "object", properties: {}, additionalProperties: false };

function readsOnly({ annotations }: Tool): boolean {
  return annotations.readOnlyHint === true;
}

/** A result as text: JSON of anything but texts. */
function textOf(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "null");
}

function parsed(json: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === "object" && !Array.isArray(value) ? (value as Record<string, unknown> | null) : null;
  } catch {
    return null;
  }
}
