// A conversation of the Prompt API over a session of Capstan: turns in order, tools, and room in the context.

import {
  type Capstan,
  CapstanError,
  type ChatOptions,
  type Message,
  type Session,
  type ToolCall,
} from "capstan-webgpu";
import { asException, exception, quotaExceeded } from "./prompt_errors";
import type { Constraint, Prompt } from "./prompt_input";
import { withText } from "./prompt_input";
import type { PromptTool } from "./prompt_types";

/** The parts that all clones of a session share. */
export interface Setting {
  llm: Capstan;
  /** Options of each answer. */
  options: ChatOptions;
  tools: readonly PromptTool[];
  /** Messages at the beginning that stay. */
  initial: number;
}

export class PromptSession {
  /** Tokens of the conversation. */
  usage = 0;
  /** Called after messages were left out. */
  overflowed = (): void => {};
  private readonly options: ChatOptions;
  private last: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly setting: Setting,
    private talk: Session,
  ) {
    const tools = setting.tools.map(({ name, description, inputSchema: parameters }) => {
      return { type: "function", function: { name, description, parameters } };
    });
    this.options = { ...setting.options, ...(tools.length ? { tools } : {}) };
  }

  /** Begin a conversation. */
  static async begin(
    setting: Omit<Setting, "initial">,
    prompt: Prompt | null,
    signal: AbortSignal,
  ): Promise<PromptSession> {
    const initial = prompt && !prompt.empty ? prompt.messages.length : 0;
    const begun = new PromptSession({ ...setting, initial }, setting.llm.session());
    if (prompt) await begun.append(Promise.resolve(prompt), signal);
    return begun;
  }

  get window(): number {
    return this.setting.options.maxLength ?? this.setting.llm.stats().maxLength;
  }

  /** How the model samples where the session does not say. */
  get picking(): { topK: number; temperature: number } {
    const { do_sample: draws, top_k: topK, temperature } = this.setting.llm.stats().model.search;
    return draws ? { topK, temperature } : { topK: 1, temperature: 0 };
  }

  /** Answer a prompt; `show` gets the parts of the answer. Rejects with an exception of the API, or that of a tool. */
  ask(
    reading: Promise<Prompt>,
    constraint: Constraint | null,
    signal: AbortSignal,
    show: (text: string) => void,
  ): Promise<string> {
    return this.inOrder(signal, async () => {
      const { messages, continues } = await this.taken(reading);
      const asked = withText(messages, constraint?.text ?? "");
      const first = continues ? { continueFinalMessage: true } : {};
      return this.kept(asked, async () => {
        let answer = "";
        for (let said = asked; ;) {
          const own = said === asked ? first : {};
          const run = this.talk.send(said, { ...this.options, ...constraint?.options, ...own, signal });
          for await (const { kind, text } of run.split()) {
            if (kind !== "answer" || signal.aborted) continue;
            answer += text;
            show(text);
          }
          const { toolCalls, promptTokens, tokenIds, finishReason } = await run.result;
          signal.throwIfAborted();
          this.usage = promptTokens! + tokenIds.length;
          if (toolCalls.length === 0) {
            if (!constraint || constraint.fits(answer)) return answer;
            const full = finishReason === "length" ? "; the answer is as long as it may be" : "";
            throw exception("SyntaxError", `the response does not fit responseConstraint${full}`);
          }
          said = await Promise.all(toolCalls.map((call) => this.call(call)));
          signal.throwIfAborted();
        }
      });
    });
  }

  /** Add messages, and run the model on them. */
  append(reading: Promise<Prompt>, signal: AbortSignal): Promise<void> {
    return this.inOrder(signal, async () => {
      const { messages, continues, empty } = await this.taken(reading);
      if (continues)
        throw exception("NotSupportedError", "prefix is true in messages without an answer; give it to prompt");
      if (empty) return;
      await this.kept(messages, async () => {
        const length = this.talk.messages.length + messages.length;
        // Templates may refuse a conversation without a user.
        if (!hasUser([...this.talk.messages, ...messages])) {
          this.replace([...this.talk.messages, ...messages]);
          this.usage = await this.count(this.talk.messages);
          return;
        }
        const { promptTokens } = await this.talk.send(messages, { ...this.options, maxTokens: 1, signal }).result;
        signal.throwIfAborted();
        this.talk.rewind(length);
        this.usage = promptTokens!;
      });
    });
  }

  /** The tokens of messages. */
  async count(messages: readonly Message[], continues = false): Promise<number> {
    const { tokenizer } = this.setting.llm;
    if (hasPictures(messages))
      throw exception("NotSupportedError", "the tokens of pictures are known after they were seen: leave them out");
    const { tools = [], thinking, chatTemplateKwargs } = this.options;
    const more = { ...(tools.length ? { tools } : {}), ...(continues ? { continueFinalMessage: true } : {}) };
    const given = { thinking, chatTemplateKwargs, ...more };
    const options = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    try {
      if (hasUser(messages)) return await tokenizer.count(messages, options);
      return await tokenizer.count(messages.map(({ content }) => content).join("\n"));
    } catch (error) {
      throw asException(error, "UnknownError");
    }
  }

  /** Another conversation with the same messages, after what is under way. */
  clone(signal: AbortSignal): Promise<PromptSession> {
    return this.inOrder(signal, async () => {
      const clone = new PromptSession(this.setting, this.talk.fork());
      clone.usage = this.usage;
      return clone;
    });
  }

  /** Give back what was computed. */
  close(): void {
    this.talk.close().catch(() => undefined);
  }

  private inOrder<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const done = this.last.then(() => {
      signal.throwIfAborted();
      return work();
    });
    this.last = done.catch(() => undefined);
    return done;
  }

  private async taken(reading: Promise<Prompt>): Promise<Prompt> {
    const prompt = await reading;
    if (prompt.messages[0]?.role === "system" && this.talk.messages.length)
      throw new TypeError('the role of the first message is "system", but the session has messages: leave it out');
    return prompt;
  }

  /** Do work that adds messages; if it fails, the conversation is what it was before. */
  private async kept<T>(messages: readonly Message[], work: () => Promise<T>): Promise<T> {
    const { usage } = this;
    await this.makeRoom(messages);
    const before = this.talk.messages;
    for (;;) {
      const { length } = this.talk.messages;
      try {
        const done = await work();
        if (length < before.length) this.overflowed();
        return done;
      } catch (error) {
        const unsent = this.talk.messages.length === length;
        const shorter = unsent && this.isTooLong(error, messages) ? this.withoutOldest(this.talk.messages) : null;
        if (shorter) {
          this.replace(shorter);
          continue;
        }
        if (length < before.length) this.replace(before);
        else if (!unsent) this.talk.rewind(length);
        this.usage = usage;
        throw asException(error, "UnknownError");
      }
    }
  }

  /** Whether a conversation with pictures, whose tokens cannot be counted before, has too many. */
  private isTooLong(error: unknown, messages: readonly Message[]): boolean {
    return (
      error instanceof CapstanError && error.code === "PromptError" && hasPictures([...this.talk.messages, ...messages])
    );
  }

  /** Leave out the oldest turns until the messages fit. Rejects with QuotaExceededError if they are too long. */
  private async makeRoom(messages: readonly Message[]): Promise<void> {
    let rest = this.talk.messages;
    if (hasPictures([...rest, ...messages])) return;
    const { window } = this;
    const requested = await this.count([...rest, ...messages]);
    // An answer needs a token of its own.
    for (let needed = requested; needed >= window; needed = await this.count([...rest, ...messages])) {
      const shorter = this.withoutOldest(rest);
      if (!shorter)
        throw quotaExceeded(`the conversation has ${requested} tokens; it may have ${window}: shorten the input`, {
          ...{ requested, quota: window },
        });
      rest = shorter;
    }
    if (rest.length === this.talk.messages.length) return;
    this.replace(rest);
    this.overflowed();
  }

  /** Messages without the oldest turn: from a message of the user to the next one. Null if none can go. */
  private withoutOldest(messages: readonly Message[]): Message[] | null {
    const from = this.setting.initial || (messages[0]?.role === "system" ? 1 : 0);
    if (messages.length <= from) return null;
    const next = messages.findIndex(({ role }, at) => at > from && role === "user");
    return [...messages.slice(0, from), ...(next < 0 ? [] : messages.slice(next))];
  }

  private replace(messages: readonly Message[]): void {
    this.close();
    this.talk = this.setting.llm.session(messages);
  }

  /** The message with the result of a tool. */
  private async call({ id, function: { name, arguments: given } }: ToolCall): Promise<Message> {
    const tool = this.setting.tools.find((tool) => tool.name === name)!;
    const content = String(await tool.execute(JSON.parse(given)));
    return { role: "tool", tool_call_id: id, name, content };
  }
}

function hasPictures(messages: readonly Message[]): boolean {
  return messages.some(({ content }) => typeof content !== "string");
}

function hasUser(messages: readonly Message[]): boolean {
  return messages.some(({ role }) => role === "user");
}
