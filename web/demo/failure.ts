// The errors of this page: finds the form field of an error, and describes a worker that does not run.

import { CapstanError, type CapstanErrorCode } from "capstan-webgpu";
import { FormError } from "./settings";

/** The form field of an error: the message of an OptionError begins with the option's name. */
export function fieldOf(error: CapstanError): string {
  if (error instanceof FormError) return error.field;
  if (error.code === "GuidanceError") return "schema";
  if (error.code === "ProcessorError") return "processor";
  return error.code === "OptionError" ? (/^\w+/.exec(error.message)?.[0] ?? "") : "";
}

const OF_MODELS: CapstanErrorCode[] = [
  ...(["BrokenDownloadError", "ConfigError", "DeviceLostError", "DeviceUnavailableError", "ModelFileError"] as const),
  ...(["OutOfMemoryError", "UncomputedError", "UnsupportedModelError", "WeightsChangedError"] as const),
];

/** Whether another model may do what this one could not. */
export function isOfModel({ code }: CapstanError): boolean {
  return OF_MODELS.includes(code);
}

/** The worker did not start, or is of no use any more. */
export function startFailure(error: unknown): CapstanError {
  // A worker whose script is missing fails without a message of its own.
  const message = String(error instanceof Error ? error.message : error).replace(
    /undefined$/,
    "its script could not be loaded",
  );
  const advice = "Reload the page; if that does not help, the folder capstan/ of this site is incomplete.";
  return new CapstanError({ type: "StartError", message: `${message}. ${advice}` });
}
