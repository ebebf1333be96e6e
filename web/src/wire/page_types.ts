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

/** A call of a tool in an answer. */
export interface ToolCall {
  id: string;
  type: "function";
  function: {
    name: string;
    /** JSON. */
    arguments: string;
  };
}

/** A piece of a chat's answer. */
export interface AnswerPart {
  kind: "reasoning" | "answer" | "call";
  /** As it stands in the answer's whole text; of several calls that the model wrote as one, the first has all of it. */
  text: string;
  /** The call, if it is one. */
  call?: ToolCall;
}
