// Headings of errors in <capstan-chat>: what went wrong, in words.

import type { CapstanErrorCode } from "../wire/errors";

const HEADINGS: Partial<Record<CapstanErrorCode, string>> = {
  ArgumentTypeError: "This is not what was asked for",
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
  UnsupportedModelError: "This model cannot run here",
  UncomputedError: "This model cannot run here",
  VersionError: "The versions do not fit",
  WeightsChangedError: "The model's files have changed",
  WorkerLostError: "The model ended, and starts again",
};

export function headingOf(code: CapstanErrorCode): string {
  return HEADINGS[code] ?? "Something went wrong";
}
