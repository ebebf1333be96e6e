// `Capstan.loadEmbedder`: text embeddings by an encoder in a worker of its own.

import type { Client } from "./client";
import { asCapstanError, refused } from "../wire/errors";
import { either, type Kinds, listOf, oneOf, read, shown, text, whole } from "./kinds";
import { ask } from "./load_in_worker";
import { loadOneModel, type OneModelOptions } from "./one_model";
import { reading, readOptions } from "./arguments";
import type { EmbedResult, LoadEmbedderResult, ModelFolder } from "../wire/protocol";

export interface EmbedderOptions extends OneModelOptions {
  /**
   * How one vector is made of a text's tokens. Unless given it is as the model's files say (1_Pooling/config.json, or the
   * graph's output sentence_embedding), else "mean".
   */
  pooling?: "mean" | "cls" | "last";
}

const KINDS: Kinds = { pooling: oneOf("mean", "cls", "last") };

/** Parameters of OpenAI's embeddings; all others are refused. */
export interface EmbeddingParams {
  input: string | readonly string[];
  /** Named in the result. */
  model?: string;
  encoding_format?: "float" | "base64" | null;
  /** The number of elements of each vector, scaled to length 1 again: for models trained for it (Matryoshka). */
  dimensions?: number | null;
  /** It identifies the caller to OpenAI's servers, and has no effect here. */
  user?: string | null;
}

export interface Embedding {
  object: "embedding";
  index: number;
  /** With `encoding_format: "base64"` a text, which OpenAI's types leave out, too. */
  embedding: number[];
}

export interface EmbeddingResponse {
  object: "list";
  model: string;
  data: Embedding[];
  usage: { prompt_tokens: number; total_tokens: number };
}

const texts = listOf("texts", text);
const PARAMETERS: Kinds = {
  ...{
    input: either(text, texts),
    model: text,
    encoding_format: oneOf("float", "base64"),
    dimensions: whole(1, 2 ** 31 - 1),
    user: text,
  },
};

/** An encoder of texts in one worker, which answers calls in their order. */
export class Embedder {
  /** OpenAI's `embeddings.create`. */
  readonly embeddings: { create(params: EmbeddingParams): Promise<EmbeddingResponse> };

  private constructor(
    private readonly client: Client,
    private readonly about: LoadEmbedderResult,
  ) {
    this.embeddings = { create: (params) => this.create(params) };
  }

  static async load(model: ModelFolder, given: EmbedderOptions = {}): Promise<Embedder> {
    const { client, about } = await loadOneModel(model, given, KINDS, (fields, { pooling }) => {
      return { kind: "load_embedder", pooling: pooling ?? null, ...fields };
    });
    return new Embedder(client, about as LoadEmbedderResult);
  }

  /** The device that computes, how a vector is made of tokens, and the tokens of the longest text. */
  get stats(): { device: string; pooling: string; maxTokens: number } {
    const { device, pooling, max_tokens: maxTokens } = this.about;
    return { device, pooling, maxTokens };
  }

  /**
   * A vector of length 1 for each text; their products are cosines. A text that is too long is cut. Prefixes that a model
   * was trained with, as "query: " of e5, are yours to write.
   */
  async embed(texts: readonly string[]): Promise<Float32Array[]> {
    return (await this.vectors(texts)).vectors;
  }

  /** End the worker and give its memory back. */
  close(): void {
    this.client.close();
  }

  private async vectors(given: readonly string[]): Promise<{ vectors: Float32Array[]; tokens: number[] }> {
    const asked = reading("texts", () => read("texts", given, texts) as string[]);
    try {
      const answer = await ask(this.client, { kind: "embed", texts: asked });
      const { vectors, dimensions, tokens } = answer as EmbedResult;
      const bytes = Uint8Array.from(atob(vectors), (letter) => letter.charCodeAt(0));
      const numbers = new Float32Array(bytes.buffer);
      const each = (_: string, place: number): Float32Array =>
        numbers.slice(place * dimensions, (place + 1) * dimensions);
      return { vectors: asked.map(each), tokens };
    } catch (error) {
      throw asCapstanError(error);
    }
  }

  private async create(asked: EmbeddingParams): Promise<EmbeddingResponse> {
    const { input, model = "", encoding_format: format, dimensions } = readOptions("the parameters", asked, PARAMETERS);
    const { vectors, tokens } = await this.vectors(typeof input === "string" ? [input] : input);
    const most = vectors[0]?.length ?? Infinity;
    if (dimensions != null && !(Number.isInteger(dimensions) && dimensions >= 1 && dimensions <= most))
      throw refused(`dimensions is ${shown(dimensions)}; it must be a whole number from 1 to ${most}`);
    const told = vectors.map((vector) => (dimensions == null ? vector : shortened(vector, dimensions)));
    const data = told.map((vector, index) => {
      const embedding = format === "base64" ? (base64(vector) as unknown as number[]) : [...vector];
      return { object: "embedding" as const, index, embedding };
    });
    const total_tokens = tokens.reduce((sum, count) => sum + count, 0);
    return { object: "list", model, data, usage: { prompt_tokens: total_tokens, total_tokens } };
  }
}

function shortened(vector: Float32Array, dimensions: number): Float32Array {
  const part = vector.slice(0, dimensions);
  const length = Math.hypot(...part);
  return length ? part.map((number) => number / length) : part;
}

function base64(vector: Float32Array): string {
  const bytes = new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
