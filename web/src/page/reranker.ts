// `Capstan.loadReranker`: documents in the order of how well they answer a query, by a model in a worker of its own.

import { reading, readOptions } from "./arguments";
import type { Client } from "./client";
import { flag, type Kinds, listOf, read, text, whole } from "./kinds";
import { ask } from "./load_in_worker";
import { loadOneModel, type OneModelOptions } from "./one_model";
import { asCapstanError, refused } from "../wire/errors";
import type { LoadRerankerResult, ModelFolder, RankedDocument } from "../wire/protocol";

export interface RerankerOptions extends OneModelOptions {}

export interface RerankOptions {
  /** The number of results, at most that of the documents; all unless given. */
  topN?: number;
  /** Whether each result has its document. */
  returnDocuments?: boolean;
  /** Replaces the instruction in Qwen3-Reranker's prompt; other models take none. */
  instruction?: string;
}

export interface RerankResult {
  /** The document's place in the given list. */
  index: number;
  /** From 0 to 1, or any number if the model's config.json says Identity. */
  score: number;
  /** The document, with `returnDocuments`. */
  document?: string;
}

const texts = listOf("texts", text);
const RERANK_KINDS: Kinds = { topN: whole(1, 2 ** 31 - 1), returnDocuments: flag, instruction: text };

/** A reranker in one worker, which answers calls in their order. */
export class Reranker {
  private constructor(
    private readonly client: Client,
    private readonly about: LoadRerankerResult,
  ) {}

  static async load(model: ModelFolder, given: RerankerOptions = {}): Promise<Reranker> {
    const { client, about } = await loadOneModel(model, given, {}, (fields) => {
      return { kind: "load_reranker", ...fields };
    });
    return new Reranker(client, about as LoadRerankerResult);
  }

  /** The device that computes, and the most tokens of a query and a document together. */
  get stats(): { device: string; maxTokens: number } {
    return { device: this.about.device, maxTokens: this.about.max_tokens };
  }

  /** The documents that answer the query best, the best first. Pairs of more than `maxTokens` are cut. */
  async rerank(query: string, documents: readonly string[], given: RerankOptions = {}): Promise<RerankResult[]> {
    const { topN, returnDocuments, instruction } = readOptions("the options", given, RERANK_KINDS);
    const asked = reading("the query", () => read("the query", query, text) as string);
    const all = reading("documents", () => read("documents", documents, texts) as string[]);
    if (all.length === 0) throw refused("documents is an empty list; give 1 document or more");
    if (topN !== undefined && topN > all.length)
      throw refused(`topN is ${topN}; it must be from 1 to ${all.length}, the number of documents`);
    try {
      const request = { kind: "rerank", query: asked, documents: all, instruction: instruction ?? null } as const;
      const ranked = (await ask(this.client, request)) as RankedDocument[];
      return ranked.slice(0, topN).map(({ index, score }) => {
        return { index, score, ...(returnDocuments ? { document: all[index]! } : {}) };
      });
    } catch (error) {
      throw asCapstanError(error);
    }
  }

  /** End the worker and give its memory back. */
  close(): void {
    this.client.close();
  }
}
