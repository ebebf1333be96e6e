// Shows errors where the user reads, and at the field that caused them.

import type { RemoteError } from "capstan-webgpu";
import { element, say } from "./elements";
import { RequestError } from "./engine";
import { FormError, pointOut, pointOutNothing } from "./settings";

export function showNoFailure(): void {
  element("error", HTMLElement).hidden = true;
  pointOutNothing();
}

/** Show an error; true if the worker is of no use any more and has to be started anew. */
export function showFailure(error: unknown): boolean {
  if (error instanceof FormError) show({ type: "OptionError", message: error.message, traceback: "" }, error.field);
  else if (error instanceof RequestError) show(error.remote, fieldOf(error.remote));
  else {
    const { code, message } = error as { code?: string; message: string };
    // The client starts another worker where one died.
    if (code === "WorkerLostError") show({ type: code, message, traceback: "" });
    else {
      show(startFailure(error));
      return true;
    }
  }
  return false;
}

function show({ type, message, traceback }: RemoteError, field = ""): void {
  say("status", "");
  say("error-title", type);
  say("error-message", message || "no message was given");
  say("error-traceback", traceback);
  element("error-details", HTMLDetailsElement).hidden = !traceback;
  element("error", HTMLElement).hidden = false;
  pointOut(field);
}

/** The form field that an option's or prompt's error is about: its message begins with the option's name. */
function fieldOf({ type, message }: RemoteError): string {
  if (type === "PromptError") return "prompt";
  if (type === "GuidanceError") return "schema";
  if (type === "ProcessorError") return "processor";
  return type === "OptionError" ? (/^\w+/.exec(message)?.[0] ?? "") : "";
}

function startFailure(error: unknown): RemoteError {
  // A worker whose script is missing fails without a message of its own.
  const message = String(error instanceof Error ? error.message : error).replace(
    /undefined$/,
    "its script could not be loaded",
  );
  const advice = "Reload the page; if that does not help, the folder capstan/ of this site is incomplete.";
  return { type: "The worker is not running", message: `${message}. ${advice}`, traceback: "" };
}
