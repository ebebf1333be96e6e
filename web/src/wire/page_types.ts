// Types of requests that Python does not define: picked folders, pictures, and the values that chat templates take.

/** A folder that the user picked, the files of one, or a GGUF file. The worker gives it an address before Python sees it. */
export type PickedFolder = FileSystemDirectoryHandle | File[] | File;

/**
 * A picture: a file's content, pixels, or an address (data:, blob:, http: or https:). A canvas is read when the message is
 * sent.
 */
export type Picture =
  Blob | ImageBitmap | HTMLCanvasElement | OffscreenCanvas | ImageData | ArrayBuffer | Uint8Array | URL | string;

/** A part of a message's content. A picture may also stand there by itself, without an object around it. */
export type ContentPart =
  | { type: "text"; text: string }
  | { type: "image"; image: Picture }
  | { type: "image_url"; image_url: string | { url: string; detail?: string } }
  | { type: "file"; data: Picture; mediaType: string };

/** A message of a conversation, as the model's chat template takes it. */
export interface Message {
  role: string;
  /** Parts may be pictures, if the model sees. */
  content: string | readonly (ContentPart | Picture)[];
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
