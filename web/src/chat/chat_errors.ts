// Failures in <capstan-chat>: a heading that says what went wrong, and the box that shows it.

import { CapstanError } from "capstan-webgpu";
import type { CapstanErrorCode } from "../wire/errors";
import type { Parts } from "./chat_parts";

const HEADINGS: Partial<Record<CapstanErrorCode, string>> = {
  ArgumentTypeError: "This is not what was requested",
  BrokenDownloadError: "The download broke off",
  ClosedError: "The model was closed",
  ConfigError: "The model's configuration cannot be used",
  DeviceLostError: "The GPU was lost",
  DeviceUnavailableError: "This device is not there",
  GuidanceError: "The form of the answer cannot be used",
  LogitsError: "The model gave no token",
  ModelFileError: "The model's files cannot be read",
  OptionError: "An option cannot be used",
  OutOfMemoryError: "There is not enough memory",
  ProcessorError: "The logits processor failed",
  PromptError: "This cannot be sent",
  StartError: "Capstan did not start",
  StorageError: "The browser's storage failed",
  UnsupportedModelError: "This model cannot do that",
  UncomputedError: "This model cannot run here",
  VersionError: "The versions do not fit",
  WeightsChangedError: "The model's files have changed",
  WorkerLostError: "The model ended, and starts again",
};

function headingOf(code: CapstanErrorCode): string {
  return HEADINGS[code] ?? "Something went wrong";
}

/** Show a failure in its box; null hides the box. */
export function showFailure(parts: Parts, error: unknown): CapstanError | null {
  const { prompt, error: box, heading, code, message, traceback } = parts;
  prompt.removeAttribute("aria-invalid");
  box.hidden = error === null;
  if (error === null) return null;
  const told = asCapstanError(error);
  heading.textContent = headingOf(told.code);
  code.textContent = told.code;
  message.textContent = sentence(told.message || "no message was given", told.code);
  traceback.textContent = told.traceback;
  traceback.parentElement!.hidden = !told.traceback;
  if (told.code === "PromptError") {
    prompt.setAttribute("aria-invalid", "true");
    prompt.focus();
  }
  return told;
}

/** The refusal of a value that a page or a user gave. */
export function refused(message: string): CapstanError {
  return new CapstanError({ type: "OptionError", message });
}

/** The failure of the browser's storage as the user reads it. */
export function unstored(error: unknown): CapstanError {
  const { name, message } = error as Error;
  const why = name === "QuotaExceededError" ? "the browser's storage is full; delete something" : message;
  return new CapstanError({ type: "StorageError", message: `the conversation is not kept: ${why}` });
}

/** A message as a sentence; one of an option begins with its name. */
function sentence(message: string, code: CapstanErrorCode): string {
  if (code === "OptionError" || !/^[a-z]+ /.test(message)) return message;
  return message.charAt(0).toUpperCase() + message.slice(1);
}

function asCapstanError(error: unknown): CapstanError {
  if (error instanceof CapstanError) return error;
  const { code, name, message } = error as Error & { code?: string };
  return new CapstanError({ type: code ?? name, message });
}
