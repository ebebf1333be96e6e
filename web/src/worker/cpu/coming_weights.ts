// Packs the weights of a program while their files come: each one once all of its pieces are there, so that beside the
// packed weights there are the pieces of one or two.

import type { ReadAt } from "../storage/chunk";
import type { Target } from "../storage/weight_load";
import type { CpuMemory } from "./cpu_memory";
import { type CpuWeight, placesOf, writeWeight } from "./packed_weights";

/** Bytes of a data file for a weight. */
interface Piece {
  readonly of: Coming;
  readonly location: string;
  readonly start: number;
  readonly length: number;
  /** Its bytes, from the first of them on until the weight is packed. */
  bytes: Uint8Array<ArrayBuffer> | null;
}

interface Coming {
  readonly weight: CpuWeight;
  readonly pieces: Piece[];
  missing: number;
}

export class ComingWeights {
  private readonly pieces: Piece[] = [];

  constructor(
    weights: readonly CpuWeight[],
    private readonly memory: CpuMemory,
  ) {
    for (const weight of weights) {
      const of: Coming = { weight, pieces: [], missing: 0 };
      for (const [location, start, length] of placesOf(weight))
        of.pieces.push({ of, location, start, length, bytes: null });
      of.missing = of.pieces.length;
      this.pieces.push(...of.pieces);
      if (!of.missing) this.pack(of);
    }
  }

  /** Takes a data file. */
  target(location: string): WeightTarget {
    return new WeightTarget(
      this.pieces.filter((piece) => piece.location === location),
      (of) => this.pack(of),
    );
  }

  private pack({ weight, pieces }: Coming): void {
    const none = new Uint8Array();
    const get = (location: string): { subarray: (start: number) => Uint8Array } => ({
      subarray: (start) => pieces.find((each) => each.location === location && each.start === start)?.bytes ?? none,
    });
    writeWeight(weight, { get }, this.memory.buffer);
    for (const piece of pieces) piece.bytes = null;
  }
}

export class WeightTarget implements Target {
  closed = false;
  /** Those that have not come whole. */
  private pieces: Piece[];

  constructor(
    pieces: Piece[],
    private readonly whole: (of: Coming) => void,
  ) {
    this.pieces = pieces;
  }

  wants(start: number, length: number): boolean {
    return this.pieces.some((piece) => start < piece.start + piece.length && piece.start < start + length);
  }

  async put(start: number, length: number, read: ReadAt): Promise<boolean> {
    const end = start + length;
    const coming = this.pieces.filter((piece) => piece.start < end);
    for (const piece of coming) {
      piece.bytes ??= new Uint8Array(piece.length);
      const from = Math.max(start, piece.start);
      const part = piece.bytes.subarray(from - piece.start, end - piece.start);
      if ((await read(part, from)) !== part.length) return false;
    }
    this.pieces = this.pieces.filter((piece) => piece.start + piece.length > end);
    for (const { of, ...piece } of coming) if (piece.start + piece.length <= end && --of.missing === 0) this.whole(of);
    return true;
  }

  finish(): Promise<void> {
    return Promise.resolve();
  }

  close(): void {
    this.closed = true;
  }
}
