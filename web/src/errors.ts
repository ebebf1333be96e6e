/** An error with the name of the Python exception class (capstan.errors) it becomes on the other side. */
export class EngineError extends Error {
  constructor(
    readonly code: EngineErrorCode,
    message: string,
  ) {
    super(message);
    this.name = "EngineError";
  }
}

export type EngineErrorCode =
  | "BindingError"
  | "ModelFileError"
  | "UnsupportedModelError"
  | "OptionError"
  /** Its message is what xgrammar said; see refusal in py_src/capstan/guidance/matcher.py. */
  | "GuidanceError"
  | "ClosedError"
  | "DeviceUnavailableError"
  | "DeviceLostError"
  | "OutOfMemoryError"
  | "ValidationError"
  | "TapeError"
  | "TapeCheckError"
  | "StorageError"
  | "WeightsChangedError"
  /** Of capstan.storage: a download that may be tried again. */
  | "BrokenDownloadError";
