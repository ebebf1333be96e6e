// A `Run`: one answer that a page asked for, from its wait for requests before it, by its stream of text, to its result.

import type { Client } from "./client";
import { asCapstanError, CapstanError } from "./errors";
import type {
  CapstanEvent,
  ChatRequest,
  GenerateRequest,
  LogProbability,
  Reply,
  TokenLogProbability,
} from "./protocol";
import { type ReasoningPart, splitParts, splitReasoning } from "./reasoning";

/**
 * Why a run ended: "eos" or "stop" (the model or a stop text ended it), "length" (maxLength was reached),
 * "max_new_tokens" (maxTokens was reached), "time" (the search option max_time), "abort" (the signal or `break`).
 */
export type RunEnd = "eos" | "stop" | "length" | "max_new_tokens" | "time" | "abort";

/** A token that could come next, and the natural logarithm of its probability by the logits as the model gave them. */
export interface LikelyToken {
  tokenId: number;
  token: string;
  logprob: number;
  /** The token's text in UTF-8; null for a part of a character. */
  bytes: number[] | null;
}

/** A token that came, and the most probable ones in its place, the most probable first. */
export interface TokenLogprob extends LikelyToken {
  topLogprobs: LikelyToken[];
}

/** How a run ended. */
export interface RunResult {
  /** All that was generated. */
  text: string;
  /** Its two parts: what stood in `<think>` of a chat's answer, and the rest. */
  reasoning: string;
  answer: string;
  tokenIds: number[];
  /** For each token of the text, if the run was asked for `logprobs`, else null. A token that a grammar forced has none. */
  logprobs: TokenLogprob[] | null;
  finishReason: RunEnd;
  /** Tokens of the prompt, and how many of them an earlier run had computed already; null if the run was aborted early. */
  promptTokens: number | null;
  keptTokens: number | null;
  tokensPerSecond: number | null;
  timeToFirstTokenMs: number | null;
  /** The time in which the device computed tokens, and the time in which their ids were copied to the page's memory. */
  waitingMs: number | null;
  copyingMs: number | null;
  /** The request's id, which its events carry; null if it was aborted before its turn. */
  requestId: number | null;
}

/** The fields that the worker's answers to chat and generate requests share. */
interface Answer {
  text: string;
  token_ids: number[];
  finish_reason: Exclude<RunEnd, "abort"> | "cancel";
  prompt_tokens?: number;
  prompt_ids?: number[];
  kept_tokens?: number;
  tokens_per_second: number | null;
  time_to_first_token_ms: number | null;
  waiting_ms: number;
  copying_ms: number;
}

/** An aborted run has its result after this many milliseconds, even if its worker is busy. */
const ABORT_MS = 50;

/** Requests that wait for one another. */
export class Turns {
  private last: Promise<void> = Promise.resolve();

  /** A turn: `begun` settles when it has come, `end` lets the next one come. */
  take(): { begun: Promise<void>; end: () => void } {
    const begun = this.last;
    let end = (): void => {};
    this.last = new Promise((resolve) => (end = resolve));
    return { begun, end: () => void begun.then(end) };
  }
}

/**
 * A run under way. Iterate over it for the text as it comes (leaving the loop ends the run), or await `result`. A run
 * that is aborted ends its loop without an error and keeps what it generated.
 */
export class Run implements AsyncIterable<string> {
  /** How it ended; rejects with a CapstanError. */
  readonly result: Promise<RunResult>;
  /** Those that came so far; see RunResult. */
  readonly logprobs: TokenLogprob[] = [];
  private readonly parts: string[] = [];
  private begun = false;
  private readonly tokenIds: number[] = [];
  private ended = false;
  private waiting: (() => void)[] = [];
  private readonly own = new AbortController();
  private id: number | null = null;

  constructor(
    private readonly client: Client,
    turns: Turns,
    private readonly request: ChatRequest | GenerateRequest,
    signal: AbortSignal | undefined,
  ) {
    if (signal?.aborted) this.own.abort();
    const abort = (): void => this.own.abort();
    signal?.addEventListener("abort", abort, { once: true });
    this.result = this.perform(turns.take(), request).finally(() => {
      signal?.removeEventListener("abort", abort);
      this.wake();
    });
    // Whoever iterates or awaits hears of a failure.
    this.result.catch(() => undefined);
  }

  /** End the run now; its result holds what was generated. */
  abort(): void {
    this.own.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, RunResult, undefined> {
    try {
      for (let next = 0; ;) {
        if (next < this.parts.length) yield this.parts[next++]!;
        else if (this.ended) return await this.result;
        else await new Promise<void>((resolve) => this.waiting.push(resolve));
      }
    } finally {
      this.abort();
    }
  }

  /** Whether the prompt ended within the model's reasoning, so that the text begins there; known with its first part. */
  get reasons(): boolean {
    return this.begun;
  }

  /** As the iteration over the run, with a chat's reasoning apart from its answer. */
  split(): AsyncGenerator<ReasoningPart, void, undefined> {
    return splitParts(this, () => this.begun);
  }

  private async perform(
    turn: { begun: Promise<void>; end: () => void },
    request: ChatRequest | GenerateRequest,
  ): Promise<RunResult> {
    const { signal } = this.own;
    const aborted = new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
    let reply: Promise<Reply | null> = Promise.resolve(null);
    try {
      await Promise.race([turn.begun, ...(signal.aborted ? [] : [aborted])]);
      if (signal.aborted) return this.partial();
      reply = this.client.request(request, (event, id) => this.show(event, id));
      const given = aborted.then(() => {
        if (this.ended) return null;
        this.client.request({ kind: "cancel" }).catch(() => undefined);
        // A worker in the midst of a long step on the CPU hears of it behind that.
        return new Promise<null>((resolve) => setTimeout(resolve, ABORT_MS, null));
      });
      const answer = await Promise.race([reply, given]);
      return answer ? this.read(answer) : this.partial();
    } catch (error) {
      throw asCapstanError(error, this.id);
    } finally {
      // Before the next run is sent: an abort from now on is not meant for that one.
      this.ended = true;
      void reply.then(turn.end, turn.end);
    }
  }

  private wake(): void {
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  private show(event: CapstanEvent, id: number): void {
    this.id = id;
    if (event.kind === "reasoning") this.begun = true;
    if (event.kind !== "text" || this.ended) return;
    if (event.token_id >= 0) this.tokenIds.push(event.token_id);
    if (event.log_probability) this.logprobs.push(logprobOf(event.log_probability));
    if (!event.text) return;
    this.parts.push(event.text);
    this.wake();
  }

  private read(reply: Reply): RunResult {
    if (!reply.ok) {
      if (this.own.signal.aborted && reply.error.type === "KeyboardInterrupt") return this.partial();
      throw new CapstanError(reply.error, this.id);
    }
    const answer = reply.result as Answer;
    return {
      ...this.told(answer.text),
      tokenIds: answer.token_ids,
      finishReason: answer.finish_reason === "cancel" ? "abort" : answer.finish_reason,
      promptTokens: answer.prompt_tokens ?? answer.prompt_ids?.length ?? null,
      keptTokens: answer.kept_tokens ?? 0,
      tokensPerSecond: answer.tokens_per_second,
      timeToFirstTokenMs: answer.time_to_first_token_ms,
      waitingMs: answer.waiting_ms,
      copyingMs: answer.copying_ms,
      requestId: this.id,
    };
  }

  private told(text: string): Pick<RunResult, "text" | "reasoning" | "answer" | "logprobs"> {
    const { kind, log_probabilities: asked } = this.request;
    const { reasoning, answer } =
      kind === "chat" ? splitReasoning(text, { begun: this.begun }) : { reasoning: "", answer: text };
    return { text, reasoning, answer, logprobs: asked == null ? null : [...this.logprobs] };
  }

  private partial(): RunResult {
    return {
      ...this.told(this.parts.join("")),
      tokenIds: [...this.tokenIds],
      finishReason: "abort",
      promptTokens: null,
      keptTokens: null,
      tokensPerSecond: null,
      timeToFirstTokenMs: null,
      waitingMs: null,
      copyingMs: null,
      requestId: this.id,
    };
  }
}

function logprobOf({ top, ...own }: LogProbability): TokenLogprob {
  return { ...likely(own), topLogprobs: top.map(likely) };
}

function likely({ token_id, text, log_probability }: TokenLogProbability): LikelyToken {
  const bytes = text.includes("\ufffd") ? null : [...new TextEncoder().encode(text)];
  return { tokenId: token_id, token: text, logprob: log_probability, bytes };
}
