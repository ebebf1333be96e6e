// Unpacks the memory snapshot in a worker of its own. A browser inflates a DecompressionStream in the thread that reads it,
// which would keep everything waiting that this thread starts, other workers' scripts included: a quarter of a second. A
// SharedWorker can start none, and unpacks it itself.

import { type Assets, startWorker } from "../wire/assets";
import type { ToWorker } from "../wire/protocol";

type GzipStream = ReadableWritablePair<Uint8Array, Uint8Array>;
type Answer = { memory: Uint8Array<ArrayBuffer> } | { reason: string };

/** Unpack a gzipped stream into exactly this number of bytes; `url` is named in errors. */
export async function unpackBeside(
  assets: Assets,
  packed: ReadableStream<Uint8Array>,
  url: string,
  bytes: number,
): Promise<Uint8Array> {
  if (typeof Worker === "undefined") {
    const memory = new Uint8Array(bytes);
    await fill(memory, packed.pipeThrough(new DecompressionStream("gzip") as GzipStream), url);
    return memory;
  }
  const helper = startWorker(assets);
  const { port1: pieces, port2 } = new MessageChannel();
  const answer = new Promise<Uint8Array>((resolve, reject) => {
    pieces.onmessage = ({ data }: MessageEvent<Answer>) =>
      "memory" in data ? resolve(data.memory) : reject(new Error(data.reason));
    helper.onerror = () => reject(new Error(`${url} cannot be unpacked: its worker did not start`));
  });
  // The reader of the stream gets its failure first.
  answer.catch(() => undefined);
  try {
    helper.postMessage({ tag: "unpack", url, bytes, pieces: port2 } satisfies ToWorker, [port2]);
    await eachPiece(packed, url, (piece) => pieces.postMessage(piece, [piece.buffer]));
    pieces.postMessage(null);
    return await answer;
  } finally {
    pieces.close();
    helper.terminate();
  }
}

/** In that worker: answer with what the pieces hold, or with the reason why not. */
export async function unpackPieces(pieces: MessagePort, url: string, bytes: number): Promise<void> {
  const { readable, writable } = new DecompressionStream("gzip");
  const packed = writable.getWriter();
  pieces.onmessage = ({ data }: MessageEvent<Uint8Array<ArrayBuffer> | null>) => {
    // The reader of the other side gets a failure.
    (data ? packed.write(data) : packed.close()).catch(() => undefined);
  };
  try {
    const memory = new Uint8Array(bytes);
    await fill(memory, readable, url);
    pieces.postMessage({ memory } satisfies Answer, [memory.buffer]);
  } catch (error) {
    pieces.postMessage({ reason: (error as Error).message } satisfies Answer);
  }
}

/** Fill `memory` with a stream, which must hold exactly as much. */
export async function fill(memory: Uint8Array, stream: ReadableStream<Uint8Array>, url: string): Promise<void> {
  let filled = 0;
  await eachPiece(stream, url, (piece) => {
    const end = filled + piece.length;
    if (end > memory.length) throw new Error(`${url} holds more than ${memory.length} bytes`);
    memory.set(piece, filled);
    filled = end;
  });
  if (filled < memory.length) throw new Error(`${url} holds ${filled} bytes, expected ${memory.length}`);
}

async function eachPiece(
  stream: ReadableStream<Uint8Array>,
  url: string,
  take: (piece: Uint8Array) => void,
): Promise<void> {
  const reader = stream.getReader();
  const read = async (): Promise<ReadableStreamReadResult<Uint8Array>> => {
    try {
      return await reader.read();
    } catch (error) {
      throw new Error(`${url} cannot be unpacked: ${String(error)}`);
    }
  };
  for (let part = await read(); !part.done; part = await read()) take(part.value);
}
