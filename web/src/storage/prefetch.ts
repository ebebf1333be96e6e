// The small files of a model folder, asked for before Python is there to ask.

import { absolute, fetched } from "./source";

/** Those that are read whole; where a folder has others, they are fetched when they are asked for. */
const FILES = ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

const ahead = new Map<string, Promise<Response>>();

/** Fetch the small files of a folder, whose address ends in a slash; each serves the first read of it. */
export function prefetch(folder: string): void {
  for (const name of FILES) {
    const url = absolute(folder + name);
    const response = fetched(url, "ModelFileError");
    // Whoever reads it hears of a failure.
    response.catch(() => undefined);
    ahead.set(url, response);
  }
}

/** A file's response, the one that was asked for ahead if nobody took that yet. */
export function fetchedOnce(url: string): Promise<Response> {
  const name = absolute(url);
  const response = ahead.get(name) ?? fetched(url, "ModelFileError");
  ahead.delete(name);
  return response;
}
