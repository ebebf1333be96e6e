// One run of an agent: the model answers, its calls are made, and it answers again, until it calls no more.

import type { CapstanError, Chat, ChatOptions, RunEnd, RunPart, RunResult } from "capstan-webgpu";
import { answerMessage } from "../page/answer_message";
import { type AgentCall, asPages, failure, type Toolbox, type Tools } from "./agent_tools";
import type { Message } from "../wire/protocol";

/** One answer of the model, and the calls that it made. */
export interface AgentStep {
  /** From 1. */
  step: number;
  /** The messages that the model had not answered before: the user's, or results of calls. */
  asked: readonly Message[];
  /** The model's answer. */
  answer: RunResult;
  calls: readonly AgentCall[];
  /** Milliseconds of the answer and the calls, confirmations included. */
  ms: number;
}

/** A part of the model's answer, or the result of a call. */
export type AgentPart =
  (RunPart & { step: number }) | { kind: "result"; text: string; step: number; result: AgentCall };

export interface AgentResult {
  /** The text of the last answer. */
  text: string;
  /** That of the last answer; "tool_calls" if `maxSteps` ended the run, "abort" also if a call was ended. */
  finishReason: RunEnd;
  steps: readonly AgentStep[];
  /** The whole conversation, without the instructions: add a message, and give it to the next run. */
  messages: readonly Message[];
}

export interface StepOptions {
  chat: Chat;
  options: ChatOptions;
  instructions: string | undefined;
  maxSteps: number;
}

/** A failure; a schema that cannot be held may be another server's, which its remedy has to suit. */
function explained(error: unknown): unknown {
  const { code, message } = (error ?? {}) as Partial<CapstanError>;
  if (code !== "GuidanceError") return asPages(error);
  return failure(code, `${message}; change the schema, or leave out a server's tool by mcp: [{ url, tools: [names] }]`);
}

/** A run under way. Iterate over it for its steps, or over `split()` for all parts as they come; leaving a loop ends it. */
export class AgentRun implements AsyncIterable<AgentStep> {
  /** Rejects with a CapstanError, or with what `confirm` throws. */
  readonly result: Promise<AgentResult>;
  /** The steps that have ended. */
  readonly steps: AgentStep[] = [];
  private readonly parts: AgentPart[] = [];
  private readonly own = new AbortController();
  private ended = false;
  private waiting: (() => void)[] = [];

  constructor(
    private readonly given: StepOptions,
    private readonly tools: Toolbox,
    messages: readonly Message[],
    signal: AbortSignal | undefined,
  ) {
    if (signal?.aborted) this.own.abort();
    const abort = (): void => this.own.abort();
    signal?.addEventListener("abort", abort, { once: true });
    this.result = this.perform([...messages]).finally(() => {
      signal?.removeEventListener("abort", abort);
      this.ended = true;
      this.wake();
    });
    // Loops and awaits of the run get a failure.
    this.result.catch(() => undefined);
  }

  /** End the run now; its result has the steps until then. */
  abort(): void {
    this.own.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<AgentStep, AgentResult, undefined> {
    yield* this.follow(this.steps);
    return await this.result;
  }

  /** The parts of all answers, as those of `Run.split`, and the results of calls. */
  async *split(): AsyncGenerator<AgentPart, void, undefined> {
    yield* this.follow(this.parts);
    await this.result;
  }

  private async *follow<T>(list: readonly T[]): AsyncGenerator<T, void, undefined> {
    try {
      for (let next = 0; ;) {
        if (next < list.length) yield list[next++]!;
        else if (this.ended) return;
        else await new Promise<void>((resolve) => this.waiting.push(resolve));
      }
    } finally {
      this.abort();
    }
  }

  private wake(): void {
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  private show(part: AgentPart): void {
    this.parts.push(part);
    this.wake();
  }

  private async perform(messages: Message[]): Promise<AgentResult> {
    const { signal } = this.own;
    let asked: readonly Message[] = [...messages];
    let end: RunEnd = "abort";
    try {
      const ofServers = await this.tools.ofServers(signal);
      for (let step = 1; !signal.aborted; step++) {
        const begun = performance.now();
        const tools = await this.tools.all(ofServers, signal);
        const answer = await this.answer(messages, tools, step);
        messages.push(answerMessage(answer));
        const calls: AgentCall[] = [];
        const results: Message[] = [];
        for (const call of answer.toolCalls) {
          const result = await this.tools.perform(call, tools, signal);
          calls.push(result);
          results.push({ role: "tool", tool_call_id: result.id, name: result.name, content: result.result });
          this.show({ kind: "result", text: result.result, step, result });
        }
        messages.push(...results);
        this.steps.push({ step, asked, answer, calls, ms: performance.now() - begun });
        this.wake();
        if (!signal.aborted || answer.finishReason === "stop") end = answer.finishReason;
        if (end !== "tool_calls" || step === this.given.maxSteps) break;
        end = "abort";
        asked = results;
      }
    } catch (error) {
      if (!signal.aborted) throw explained(error);
    }
    return { text: this.steps.at(-1)?.answer.answer ?? "", finishReason: end, steps: this.steps, messages };
  }

  private async answer(messages: readonly Message[], tools: Tools, step: number): Promise<RunResult> {
    const { chat, options, instructions } = this.given;
    const { toolChoice, ...others } = options;
    const described = [...tools.values()].map(({ name, description, parameters }) => ({
      type: "function",
      function: { name, description, parameters },
    }));
    const system = instructions === undefined ? [] : [{ role: "system", content: instructions }];
    const run = chat([...system, ...messages], {
      ...others,
      ...(tools.size ? { tools: described, strictTools: true } : {}),
      ...(step === 1 && toolChoice !== undefined ? { toolChoice } : {}),
      signal: this.own.signal,
    });
    for await (const part of run.split()) this.show({ ...part, step });
    return await run.result;
  }
}
