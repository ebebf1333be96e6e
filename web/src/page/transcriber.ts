// `Capstan.loadTranscriber`: speech to text by a model in a worker of its own.

import type { Client } from "./client";
import { read } from "./kinds";
import { type Blocks, blocks as blocksKind, liveCaptions, LISTEN_KINDS, type ListenOptions } from "./live_captions";
import { loadOneModel, type OneModelOptions } from "./one_model";
import { readOptions } from "./arguments";
import { Turns } from "./run";
import { type Sound, sound as soundKind } from "./sound_samples";
import { TRANSCRIBE_KINDS, type TranscribeOptions, TranscriptionRun } from "./transcription_run";
import { type Transcriptions, transcriptions } from "./transcriptions";
import type { Caption, LoadTranscriberResult, ModelFolder } from "../wire/protocol";

export interface TranscriberOptions extends OneModelOptions {}

/** A speech model in one worker. Runs wait for one another, in the order of their calls. */
export class Transcriber {
  /** OpenAI's `audio.transcriptions.create` and `audio.translations.create`. */
  readonly audio: { transcriptions: Transcriptions; translations: Transcriptions };
  private readonly turns = new Turns();

  private constructor(
    private readonly client: Client,
    private readonly about: LoadTranscriberResult,
  ) {
    const made = (task: "transcribe" | "translate"): Transcriptions =>
      transcriptions(task, (sound, options) => this.transcribe(sound, options));
    this.audio = { transcriptions: made("transcribe"), translations: made("translate") };
  }

  static async load(model: ModelFolder, given: TranscriberOptions = {}): Promise<Transcriber> {
    const { client, about } = await loadOneModel(model, given, {}, (fields) => {
      return { kind: "load_transcriber", ...fields };
    });
    return new Transcriber(client, about as LoadTranscriberResult);
  }

  /** The device that computes, and the codes of the languages; none for a model of English only. */
  get stats(): { device: string; languages: string[] } {
    return { ...this.about, languages: [...this.about.languages] };
  }

  /**
   * The text of a sound of up to 4 hours, as it comes: a file's content, which the browser decodes, or samples of one channel
   * at 16,000 Hz. The caller's own arrays do not change.
   */
  transcribe(sound: Sound, given: TranscribeOptions = {}): TranscriptionRun {
    const options = readOptions("the options", given, TRANSCRIBE_KINDS);
    return new TranscriptionRun(this.client, this.turns, read("the sound", sound, soundKind) as Sound, options);
  }

  /**
   * Captions of a sound while it comes: of a microphone, or of any source of samples of one channel at 16,000 Hz. A
   * detector of speech cuts it in pauses. During speech the text so far comes about once a second, and the whole one
   * (`final`) at the end. The iteration ends with the sound; leaving it lets the microphone go on.
   */
  listen(sound: Blocks, given: ListenOptions = {}): AsyncGenerator<Caption, void, undefined> {
    const options = readOptions("the options", given, LISTEN_KINDS);
    return liveCaptions(this.client, this.turns, read("the sound", sound, blocksKind) as Blocks, options);
  }

  /** End the worker and give its memory back; runs under way reject with ClosedError. */
  close(): void {
    this.client.close();
  }
}
