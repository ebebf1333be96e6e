// A `Run`: one answer that a page asked for, from its wait for requests before it, by its stream of text, to its result.

import type { Client } from "./client";
import { asCapstanError, CapstanError } from "../wire/errors";
import type { Reading } from "./pictures";
import type {
  AnswerPart,
  CapstanEvent,
  ChatRequest,
  GenerateRequest,
  LogProbability,
  Reply,
  RestoredSession,
  TokenLogProbability,
  ToolCall,
} from "../wire/protocol";

/**
 * The reason why a run ended: "stop" (the model or a stop text ended it), "length" (maxTokens or maxLength was reached),
 * "tool_calls" (a chat's answer calls tools), "time" (the search option max_time), "abort" (the signal or `break`).
 */
export type RunEnd = "stop" | "length" | "tool_calls" | "time" | "abort";

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

/** One answer of a run. */
export interface RunChoice {
  /** All that was generated; a chat's reasoning stands between `<think>` and `</think>`, in place of the model's marks. */
  text: string;
  /** Parts of a chat's answer: the model's reasoning, its text, and its calls of tools. */
  reasoning: string;
  answer: string;
  toolCalls: ToolCall[];
  tokenIds: number[];
  /** For each token of the text, if the run asked for `logprobs`, else null. A token that a grammar forced has none. */
  logprobs: TokenLogprob[] | null;
  finishReason: RunEnd;
  /** Whether maxLength or the model's context is full; false if maxTokens ended the run. */
  contextFull: boolean;
}

/** How a run ended; of several answers the first one is its own. */
export interface RunResult extends RunChoice {
  /** All answers: as many as the option `n`, else one. */
  choices: RunChoice[];
  /** Tokens of the prompt, and how many of them an earlier run had computed already; null if the run was aborted early. */
  promptTokens: number | null;
  keptTokens: number | null;
  /**
   * With the option `keep` of a chat: the number of `keptTokens` that came from the browser's storage, or the `reason` why
   * the stored cache could not be used. Null without `keep`.
   */
  restored: Omit<RestoredSession, "messages"> | null;
  tokensPerSecond: number | null;
  timeToFirstTokenMs: number | null;
  /** The time in which the device computed tokens, and the time in which their ids were copied to the page's memory. */
  waitingMs: number | null;
  copyingMs: number | null;
  /**
   * A completion's decode steps after their recording, by capstan.Generator.counters' names: steps, submits, readback_bytes,
   * create_buffer ...; null for a chat, whose generator goes on from one answer to the next, and for an aborted run.
   */
  counters: Record<string, number> | null;
  /** The request's id, which its events carry; null if it was aborted before its turn. */
  requestId: number | null;
}

/** The fields of an answer in the worker's replies to chat and generate requests. */
interface AnswerChoice {
  text: string;
  /** A chat's. */
  reasoning?: string;
  answer?: string;
  tool_calls?: ToolCall[];
  token_ids: number[];
  finish_reason: RunEnd;
  context_full?: boolean;
}

/** The fields that those replies share. */
interface Answer extends AnswerChoice {
  /** Set if there are several answers. */
  choices?: AnswerChoice[];
  prompt_tokens?: number;
  prompt_ids?: number[];
  kept_tokens?: number;
  restored?: Omit<RestoredSession, "messages"> | null;
  tokens_per_second: number | null;
  time_to_first_token_ms: number | null;
  waiting_ms: number;
  copying_ms: number;
  counters?: Record<string, number>;
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

/** A part of a run's answer. */
export interface RunPart extends AnswerPart {
  /** The answer's place among several, from 0. */
  choice: number;
}

/** The part of an answer that came so far. */
class Growing {
  text = "";
  reasoning = "";
  answer = "";
  readonly toolCalls: ToolCall[] = [];
  readonly tokenIds: number[] = [];
  readonly logprobs: TokenLogprob[] = [];
}

/**
 * A run under way. Iterate over it for the text as it comes (leaving the loop ends the run), or await `result`. A run
 * that is aborted ends its loop without an error and keeps what it generated. With the option `n` the iteration is over
 * the first answer's text; `split()` has the parts of all.
 */
export class Run implements AsyncIterable<string> {
  /** How it ended; rejects with a CapstanError. */
  readonly result: Promise<RunResult>;
  private readonly growing: Growing[];
  private readonly parts: { choice: number; text: string; parts: AnswerPart[] }[] = [];
  private ended = false;
  private waiting: (() => void)[] = [];
  private readonly own = new AbortController();
  private id: number | null = null;

  constructor(
    private readonly client: Client,
    turns: Turns,
    private readonly request: ChatRequest | GenerateRequest,
    signal: AbortSignal | undefined,
    private readonly pictures: readonly Reading[] = [],
  ) {
    const count = request.search?.["num_return_sequences"];
    this.growing = Array.from({ length: typeof count === "number" && count > 1 ? count : 1 }, () => new Growing());
    if (signal?.aborted) this.own.abort();
    const abort = (): void => this.own.abort();
    signal?.addEventListener("abort", abort, { once: true });
    this.result = this.perform(turns.take(), request).finally(() => {
      signal?.removeEventListener("abort", abort);
      this.wake();
    });
    // Loops and awaits of the run get a failure.
    this.result.catch(() => undefined);
  }

  /** The number of answers. */
  get count(): number {
    return this.growing.length;
  }

  /** End the run now; its result holds what was generated. */
  abort(): void {
    this.own.abort();
  }

  /** The log probabilities that came so far of the first answer, or of another one; see RunResult. */
  logprobs(choice = 0): readonly TokenLogprob[] {
    return this.growing[choice]?.logprobs ?? [];
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, RunResult, undefined> {
    for await (const { choice, text } of this.pieces()) if (choice === 0 && text) yield text;
    return await this.result;
  }

  /** As the iteration over the run, with a chat's reasoning and calls apart from its answer, and of all answers. */
  async *split(): AsyncGenerator<RunPart, void, undefined> {
    for await (const { choice, parts } of this.pieces()) for (const part of parts) yield { ...part, choice };
    await this.result;
  }

  private async *pieces(): AsyncGenerator<{ choice: number; text: string; parts: AnswerPart[] }, void, undefined> {
    try {
      for (let next = 0; ;) {
        if (next < this.parts.length) yield this.parts[next++]!;
        else if (this.ended) return;
        else await new Promise<void>((resolve) => this.waiting.push(resolve));
      }
    } finally {
      this.abort();
    }
  }

  private async perform(
    turn: { begun: Promise<void>; end: () => void },
    request: ChatRequest | GenerateRequest,
  ): Promise<RunResult> {
    const { signal } = this.own;
    const aborted = new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
    let reply: Promise<Reply | null> = Promise.resolve(null);
    const reading = this.pictures.length ? Promise.all(this.pictures.map(async (read) => read(signal))) : null;
    reading?.catch(() => undefined);
    try {
      await Promise.race([turn.begun, ...(signal.aborted ? [] : [aborted])]);
      const attached = reading && !signal.aborted ? await Promise.race([reading, aborted]) : null;
      if (signal.aborted) return this.partial();
      reply = this.client.request(request, (event, id) => this.show(event, id), attached || null);
      const given = aborted.then(() => {
        if (this.ended) return null;
        this.client.request({ kind: "cancel" }).catch(() => undefined);
        // A worker in the midst of a long step on the CPU hears of it after that.
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
    if (event.kind !== "text" || this.ended) return;
    const choice = event.row ?? 0;
    const growing = this.growing[choice]!;
    if (event.token_id >= 0) growing.tokenIds.push(event.token_id);
    if (event.log_probability) growing.logprobs.push(logprobOf(event.log_probability));
    const { text } = event;
    const parts = event.parts ?? (text ? [{ kind: "answer" as const, text }] : []);
    for (const part of parts) {
      if (part.call) growing.toolCalls.push(part.call);
      else if (part.kind !== "call") growing[part.kind] += part.text;
    }
    if (!text && !parts.length) return;
    growing.text += text;
    this.parts.push({ choice, text, parts });
    this.wake();
  }

  private read(reply: Reply): RunResult {
    if (!reply.ok) {
      if (this.own.signal.aborted && reply.error.type === "KeyboardInterrupt") return this.partial();
      throw new CapstanError(reply.error, this.id);
    }
    const answer = reply.result as Answer;
    const choices = (answer.choices ?? [answer]).map((told, place) => {
      const { text, token_ids: tokenIds, finish_reason: reason } = told;
      const parts = { reasoning: told.reasoning ?? "", answer: told.answer ?? text, toolCalls: told.tool_calls ?? [] };
      return this.told(place, { text, ...parts, tokenIds, contextFull: told.context_full ?? false }, reason);
    });
    return {
      ...choices[0]!,
      choices,
      promptTokens: answer.prompt_tokens ?? answer.prompt_ids?.length ?? null,
      keptTokens: answer.kept_tokens ?? 0,
      restored: answer.restored ?? null,
      tokensPerSecond: answer.tokens_per_second,
      timeToFirstTokenMs: answer.time_to_first_token_ms,
      waitingMs: answer.waiting_ms,
      copyingMs: answer.copying_ms,
      counters: answer.counters ?? null,
      requestId: this.id,
    };
  }

  private told(place: number, choice: Omit<RunChoice, "logprobs" | "finishReason">, finishReason: RunEnd): RunChoice {
    const logprobs = this.request.log_probabilities == null ? null : [...this.logprobs(place)];
    return { ...choice, logprobs, finishReason };
  }

  private partial(): RunResult {
    const choices = this.growing.map(({ text, reasoning, answer, toolCalls, tokenIds }, place) =>
      this.told(
        place,
        { text, reasoning, answer, toolCalls: [...toolCalls], tokenIds: [...tokenIds], contextFull: false },
        "abort",
      ),
    );
    return {
      ...choices[0]!,
      choices,
      promptTokens: null,
      keptTokens: null,
      restored: null,
      tokensPerSecond: null,
      timeToFirstTokenMs: null,
      waitingMs: null,
      copyingMs: null,
      counters: null,
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
