// The client of one MCP server over Streamable HTTP. A module of its own, since it brings the protocol's SDK: agents
// import it for their first server.

import { Client, type ContentBlock, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { config } from "zod/v4/core";
import { within } from "./within";

// The SDK's checks are made of no text, which a page's security policy may refuse.
config({ jitless: true });

/** A tool as its server lists it. */
export interface ServerTool {
  name: string;
  description?: string;
  parameters: Record<string, unknown>;
  annotations: Annotations;
}

/** As MCP names them; a server may send others. */
type Annotations = { readOnlyHint?: boolean | undefined };

/** The result of a call: its text, and whether the server calls it a failure. */
export interface ServerResult {
  text: string;
  failed: boolean;
}

export interface ServerConnection {
  list(signal: AbortSignal): Promise<ServerTool[]>;
  call(name: string, given: Record<string, unknown>, signal: AbortSignal): Promise<ServerResult>;
  close(): Promise<void>;
}

/** Bytes of one answer of a server. */
export const MOST_BYTES = 4 << 20;
const MOST_PAGES = 16;
const MOST_STREAMS = 16;
const NEVER = new AbortController().signal;

/**
 * Connect to a server. `timeout` is in milliseconds, for each exchange. Rejects with what the SDK throws, or with an error
 * that names the limit.
 */
export async function connect(
  url: string,
  headers: Record<string, string>,
  timeout: number,
): Promise<ServerConnection> {
  const overflows = new Set<(error: Error) => void>();
  const closed = new AbortController();
  const counted = countedFetch(closed.signal, (error) => overflows.forEach((stop) => stop(error)));
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers }, fetch: counted });
  const client = new Client(
    { name: "capstan", version: "1" },
    { versionNegotiation: { mode: "auto" }, listMaxPages: MOST_PAGES },
  );
  /** The work, unless its time or the bytes of an answer end it first. */
  async function limited<T>(outer: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const over = new AbortController();
    const stop = (error: Error): void => over.abort(error);
    overflows.add(stop);
    try {
      return await within(timeout, AbortSignal.any([outer, over.signal]), work);
    } finally {
      overflows.delete(stop);
    }
  }
  try {
    await limited(NEVER, (inner) => client.connect(transport, { timeout, signal: inner }));
  } catch (error) {
    await client.close().catch(() => undefined);
    closed.abort();
    throw error;
  }
  return {
    async list(outer) {
      const { tools } = await limited(outer, (inner) => client.listTools(undefined, { timeout, signal: inner }));
      return tools.map(({ name, description, inputSchema, annotations = {} }) => ({
        ...{ name, parameters: inputSchema, annotations },
        ...(description === undefined ? {} : { description }),
      }));
    },
    async call(name, given, outer) {
      const asked = { name, arguments: given };
      const result = await limited(outer, (inner) => client.callTool(asked, { timeout, signal: inner }));
      const { content = [], structuredContent: structured, isError: failed = false } = result;
      const text = content.map(shown).join("\n") || (structured === undefined ? "" : JSON.stringify(structured));
      return { text, failed };
    },
    async close() {
      await within(timeout, NEVER, () => transport.terminateSession()).catch(() => undefined);
      await client.close();
      // The SDK leaves answers open, and asks for streams again.
      closed.abort();
    },
  };
}

/** A part of a result as text; a model reads no other. */
function shown(part: ContentBlock): string {
  if (part.type === "text") return part.text;
  if (part.type === "resource" && "text" in part.resource) return part.resource.text;
  const about = part.type === "resource" ? part.resource.uri : part.type === "resource_link" ? part.uri : part.mimeType;
  return `[${part.type}: ${about}; only texts are read]`;
}

/**
 * A fetch until `closed`, whose answers have at most MOST_BYTES; one that has more is ended, and `over` is called. A server
 * may have a stream opened again MOST_STREAMS times after each request.
 */
function countedFetch(closed: AbortSignal, over: (error: Error) => void): typeof fetch {
  let streams = 0;
  return async (input, init) => {
    streams = init?.method === "GET" ? streams + 1 : 0;
    // As from a server without streams.
    if (streams > MOST_STREAMS) return new Response(null, { status: 405 });
    const signal = AbortSignal.any([closed, ...(init?.signal ? [init.signal] : [])]);
    const response = await fetch(input, { ...init, signal });
    if (!response.body) return response;
    let count = 0;
    const counted = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        count += chunk.byteLength;
        if (count <= MOST_BYTES) return controller.enqueue(chunk);
        const error = new RangeError(`an answer of the server has more than ${MOST_BYTES} bytes`);
        over(error);
        controller.error(error);
      },
    });
    const limited = new Response(response.body.pipeThrough(counted), response);
    // The SDK looks where a redirect led.
    const { url, redirected } = response;
    return Object.defineProperties(limited, { url: { value: url }, redirected: { value: redirected } });
  };
}
