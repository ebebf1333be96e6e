// Types of requests that Python does not define: picked folders, and the values that chat templates take.

/** A folder that the user picked, the files of one, or a GGUF file. The worker gives it an address before Python sees it. */
export type PickedFolder = FileSystemDirectoryHandle | File[] | File;

/** A message of a conversation, as the model's chat template takes it. */
export interface Message {
  role: string;
  content: string;
  /** Others that the template knows: tool_calls, tool_call_id, name. */
  [field: string]: unknown;
}

/** A tool that a model may call, as its chat template takes it. */
export type Tool = object;
