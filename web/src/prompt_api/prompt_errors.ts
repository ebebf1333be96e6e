// The exceptions of the Prompt API.

import { CapstanError } from "capstan-webgpu";
import { oneLine } from "../wire/errors";

/** The names of exceptions for codes of CapstanError. */
const NAMES: Readonly<Record<string, string>> = {
  ...{ GuidanceError: "NotSupportedError", UnsupportedModelError: "NotSupportedError" },
  ...{ UncomputedError: "NotSupportedError", ConfigError: "NotSupportedError", PictureError: "EncodingError" },
  ...{ ModelFileError: "NetworkError", StartError: "NetworkError", BrokenDownloadError: "NetworkError" },
};

export function exception(name: string, message: string): DOMException {
  return new DOMException(oneLine(message), name);
}

/** The exception for anything that a load or a run threw: `other` is its name for failures without a name of their own. */
export function asException(error: unknown, other: "OperationError" | "UnknownError"): unknown {
  if (!(error instanceof CapstanError)) return error;
  if (error.code === "PromptError") return quotaExceeded(error.message);
  return Object.assign(exception(NAMES[error.code] ?? other, error.message), { cause: error });
}

interface Quota {
  requested: number;
  quota: number;
}

/** A QuotaExceededError, which is a class of its own in newer browsers. */
export function quotaExceeded(message: string, limits?: Quota): DOMException {
  const { QuotaExceededError: Own } = globalThis as {
    QuotaExceededError?: new (message: string, limits?: Quota) => DOMException;
  };
  if (Own) return new Own(oneLine(message), limits);
  return Object.assign(exception("QuotaExceededError", message), limits ?? { requested: null, quota: null });
}

/** The error for an invalid option of `install`. */
export function refused(message: string): CapstanError {
  return new CapstanError({ type: "OptionError", message: oneLine(message) });
}
