import type { PythonErrorCode } from "./error_codes";

/** An error with the name of the Python exception class (capstan.errors) it becomes on the other side. */
export class EngineError extends Error {
  constructor(
    readonly code: EngineErrorCode,
    message: string,
    /** The seconds that the server asks clients to wait before the next try; only in a BrokenDownloadError. */
    readonly retryAfter?: number,
  ) {
    // Those of onnxruntime-web that are quoted may have several lines.
    super(message.replace(/\s*[\r\n]\s*/g, " "));
    this.name = "EngineError";
  }
}

export type EngineErrorCode =
  | PythonErrorCode
  /** Raised by the page, not by Python: the worker died, and is being replaced. */
  | "WorkerLostError"
  /** Python or the worker did not start. */
  | "StartError"
  /** An MCP server of an agent cannot be reached, or does not list its tools. */
  | "ToolServerError"
  /** An error of capstan.host.storage_interface: a download that may be tried again. */
  | "BrokenDownloadError";

/** The classes of capstan.errors by their names, and any other exception's name. */
export type CapstanErrorCode = EngineErrorCode | (string & {});

/** An error in the worker, as the page receives it. `code` is the name of the class in Python. */
export class CapstanError extends Error {
  readonly code: CapstanErrorCode;
  /** The traceback in Python; empty if the error came from elsewhere. */
  readonly traceback: string;
  /** The request that failed, 0 for the start; null if nothing was sent. */
  readonly requestId: number | null;

  constructor(error: { type: string; message: string; traceback?: string }, requestId: number | null = null) {
    super(error.message);
    this.name = "CapstanError";
    this.code = error.type;
    this.traceback = error.traceback ?? "";
    this.requestId = requestId;
  }
}

/** The longest message of a refusal, which may show what a page gave. */
const MOST_CHARACTERS = 1500;

/** The error for a call whose options are invalid. */
export function refused(message: string): CapstanError {
  return new CapstanError({ type: "OptionError", message: oneLine(message) });
}

/** A message of one line, which a page's value in it makes neither longer nor more. */
export function oneLine(message: string): string {
  return message.replace(/\s*[\r\n\u2028\u2029]\s*/g, " ").slice(0, MOST_CHARACTERS);
}

/** The text of anything that was thrown, even if it has none. */
export function told(thrown: unknown): string {
  try {
    return (thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown)).slice(0, 200);
  } catch {
    return "an error without a text";
  }
}

/** Anything thrown, as a CapstanError. */
export function asCapstanError(error: unknown, requestId: number | null = null): CapstanError {
  if (error instanceof CapstanError) return error;
  const type = error instanceof EngineError ? error.code : error instanceof Error ? error.name : "Error";
  return new CapstanError({ type, message: error instanceof Error ? error.message : told(error) }, requestId);
}
