// The buffer that one shard after the other passes through, and streams that fill it.

import { hex, sha256 } from "../../wire/sha256";
import { using } from "../../wire/in_use";

/** Fills memory from an offset of a file; returns the number of bytes read, fewer at the end of what is there. */
export type ReadAt = (into: Uint8Array<ArrayBuffer>, at: number) => number | Promise<number>;

/** Bytes that are read from a stream at a time outside of chunks. */
const PIECE = 1 << 16;

/** `capacity` bytes that are used again and again; what is in them is valid until the next fill. */
export class Chunk {
  private buffer: ArrayBuffer;

  constructor(readonly capacity: number) {
    this.buffer = new ArrayBuffer(capacity);
  }

  /** Its first bytes, in place. */
  view(length: number, start = 0): Uint8Array<ArrayBuffer> {
    // A stream that failed in the middle of a read keeps the buffer it was given.
    if (this.buffer.byteLength !== this.capacity) this.buffer = new ArrayBuffer(this.capacity);
    return new Uint8Array(this.buffer, start, length);
  }

  /** A read transfers the buffer to the stream and back. */
  giveBack(buffer: ArrayBuffer): void {
    this.buffer = buffer;
  }

  /** SHA-256 of its first bytes, as hex. */
  async sha256(length: number): Promise<string> {
    return hex(await sha256(this.view(length)));
  }

  /** Copy bytes from `start` on; returns how many. */
  copy(into: Uint8Array, start: number): number {
    into.set(this.view(into.length, start));
    return into.length;
  }
}

/** Reads a stream into chunks: without allocating where the stream can fill a given buffer. */
export class ByteReader {
  private readonly byob: ReadableStreamBYOBReader | null = null;
  private readonly plain: ReadableStreamDefaultReader<Uint8Array> | null = null;
  /** Bytes that arrived and were not taken yet. */
  private readonly held: Uint8Array[] = [];
  private reading: Promise<void> | null = null;
  /** The next piece that is read ahead; null once there is no further one. */
  private coming: Promise<Uint8Array | null> | null = null;
  private asked = false;

  /** `came` is called with the number of bytes of each piece. */
  constructor(
    stream: ReadableStream<Uint8Array>,
    private readonly came: (count: number) => void = () => {},
  ) {
    try {
      this.byob = stream.getReader({ mode: "byob" });
    } catch {
      this.plain = stream.getReader();
    }
  }

  /** Fill the chunk from its start; fewer bytes than `length` only at the stream's end. */
  async fill(chunk: Chunk, length: number): Promise<number> {
    let filled = 0;
    while (filled < length) {
      const read = await this.read(chunk, filled, length);
      if (read === 0) break;
      filled += read;
    }
    return filled;
  }

  /** Read up to `most` bytes into memory, until a reader wants some. */
  readAhead(most: number): void {
    const reading = async (): Promise<void> => {
      for (let left = most; left > 0 && !this.asked;) {
        const piece = await (this.coming = this.piece());
        if (!piece) break;
        this.held.push(piece);
        left -= piece.length;
      }
    };
    this.reading = reading().finally(() => (this.coming = null));
    // The reader gets a failure.
    this.reading.catch(() => undefined);
  }

  /**
   * Copy bytes that have come ahead of the reader, from `start` of the stream on; the reader still gets them. Returns
   * how many bytes were copied: none once the stream is being read.
   */
  async peek(chunk: Chunk, start: number, length: number): Promise<number> {
    const end = start + length;
    const there = (): number => this.held.reduce((sum, piece) => sum + piece.length, 0);
    while (!this.asked && this.coming && there() < end) await this.within(this.coming);
    if (this.asked) return 0;
    let at = 0;
    let found = 0;
    for (const piece of this.held) {
      const part = piece.subarray(Math.max(0, start - at), Math.max(0, end - at));
      chunk.view(part.length, found).set(part);
      found += part.length;
      at += piece.length;
    }
    return found;
  }

  /** Wait for a piece. */
  protected within<T>(piece: Promise<T>): Promise<T> {
    return piece;
  }

  /** Some bytes into the chunk from `filled` on, up to `length`; 0 at the stream's end. */
  async read(chunk: Chunk, filled: number, length: number): Promise<number> {
    this.asked = true;
    await this.reading;
    return this.byob && !this.held.length ? this.direct(chunk, filled, length) : this.copied(chunk, filled, length);
  }

  /** The next bytes, as many as come at once; null at the stream's end. */
  async next(): Promise<Uint8Array | null> {
    this.asked = true;
    await this.reading;
    return this.held.shift() ?? this.piece();
  }

  private async piece(): Promise<Uint8Array | null> {
    const { byob, plain } = this;
    const read = byob
      ? await using(byob, (reader) => reader.read(new Uint8Array(PIECE)))
      : await using(plain!, (reader) => reader.read());
    if (read.done || !read.value) return null;
    this.came(read.value.length);
    return read.value;
  }

  cancel(): void {
    (this.byob ?? this.plain)!.cancel().catch(() => undefined);
  }

  private async direct(chunk: Chunk, filled: number, length: number): Promise<number> {
    const into = chunk.view(length - filled, filled);
    const { done, value } = await using(this.byob!, (reader) => reader.read(into));
    if (value) chunk.giveBack(value.buffer);
    if (done || !value) return 0;
    this.came(value.length);
    return value.length;
  }

  private async copied(chunk: Chunk, filled: number, length: number): Promise<number> {
    while (!this.held[0]?.length) {
      this.held.shift();
      const piece = await this.piece();
      if (!piece) return 0;
      this.held.push(piece);
    }
    const [first] = this.held;
    const part = first.subarray(0, length - filled);
    chunk.view(part.length, filled).set(part);
    if (part.length < first.length) this.held[0] = first.subarray(part.length);
    else this.held.shift();
    return part.length;
  }
}
