// A microphone as a source of samples at 16,000 Hz, which are kept until they are taken.

import { CapstanError, told } from "../wire/errors";
import { type Kinds, text } from "./kinds";
import { readOptions } from "./arguments";
import { samplesOf } from "./sound_samples";

export interface MicrophoneOptions {
  /** Which one, by `navigator.mediaDevices.enumerateDevices()`; by default the browser's choice. */
  deviceId?: string;
}

const KINDS: Kinds = { deviceId: text };

const RATE = 16_000;
/** Seconds of a block, and of what the filter of another rate hears before it. */
const BLOCK = 0.05;
const BEFORE = 0.1;

/** The worklet posts the first channel of each block. */
const WORKLET = `registerProcessor("capstan-microphone", class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
});`;

/**
 * An open microphone: iterate over blocks of samples until it is closed or unplugged, or `take` the samples since the last
 * time. `close` lets the device go.
 */
export class Microphone implements AsyncIterable<Float32Array> {
  private blocks: Float32Array[] = [];
  private wake = (): void => {};
  /** The last tenth of a second before `blocks`: the filter of another rate hears it, so that blocks join without a seam. */
  private before = new Float32Array();

  private constructor(
    private readonly stream: MediaStream,
    private readonly context: AudioContext,
    worklet: AudioWorkletNode,
  ) {
    worklet.port.onmessage = ({ data }: MessageEvent<Float32Array>) => {
      this.blocks.push(data);
      if (this.seconds >= BLOCK) this.wake();
    };
    for (const track of stream.getTracks()) track.addEventListener("ended", () => this.wake());
  }

  /** Ask for a microphone. Rejects with a SoundError if there is none, or the user or the page's policy refuses it. */
  static async open(given: MicrophoneOptions = {}): Promise<Microphone> {
    const { deviceId } = readOptions("the options", given, KINDS);
    let stream: MediaStream | null = null;
    let context: AudioContext | null = null;
    try {
      if (!navigator.mediaDevices) throw new Error("a page needs https:// or localhost for it");
      const audio = { channelCount: 1, ...(deviceId === undefined ? {} : { deviceId: { exact: deviceId } }) };
      stream = await navigator.mediaDevices.getUserMedia({ audio });
      // Some browsers connect a microphone only at its own rate.
      let source: MediaStreamAudioSourceNode;
      try {
        context = new AudioContext({ sampleRate: RATE });
        source = context.createMediaStreamSource(stream);
      } catch {
        void context?.close();
        context = new AudioContext();
        source = context.createMediaStreamSource(stream);
      }
      const code = URL.createObjectURL(new Blob([WORKLET], { type: "text/javascript" }));
      await context.audioWorklet.addModule(code).finally(() => URL.revokeObjectURL(code));
      const worklet = new AudioWorkletNode(context, "capstan-microphone", { numberOfOutputs: 0 });
      source.connect(worklet);
      // A browser may wait for a click before it lets sound flow.
      void context.resume();
      return new Microphone(stream, context, worklet);
    } catch (error) {
      for (const track of stream?.getTracks() ?? []) track.stop();
      void context?.close();
      const message = `the microphone cannot be heard (${told(error)}); allow it for this page, and plug one in`;
      throw new CapstanError({ type: "SoundError", message });
    }
  }

  /** Whether it was closed, unplugged, or is no longer allowed. Earlier samples can still be taken. */
  get ended(): boolean {
    return this.stream.getTracks().every(({ readyState }) => readyState === "ended");
  }

  /** Seconds that were heard and not taken yet. */
  get seconds(): number {
    return this.blocks.reduce((sum, { length }) => sum + length, 0) / this.context.sampleRate;
  }

  /** The samples since the last call, at 16,000 Hz, as `transcribe` takes them; there may be none. */
  async take(): Promise<Float32Array> {
    if (!this.blocks.length) return new Float32Array();
    const { sampleRate } = this.context;
    const blocks = [this.before, ...this.blocks.splice(0)];
    const length = blocks.reduce((sum, block) => sum + block.length, 0);
    const buffer = new AudioBuffer({ length, numberOfChannels: 1, sampleRate });
    let at = 0;
    for (const block of blocks) {
      buffer.copyToChannel(block as Float32Array<ArrayBuffer>, 0, at);
      at += block.length;
    }
    const heard = Math.round((this.before.length * RATE) / sampleRate);
    this.before = buffer.getChannelData(0).slice(sampleRate === RATE ? length : -Math.round(sampleRate * BEFORE));
    return (await samplesOf(buffer)).slice(heard);
  }

  /** Blocks of a twentieth of a second or more. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Float32Array, void, undefined> {
    while (true) {
      if (this.seconds < BLOCK && !this.ended) await new Promise<void>((resolve) => (this.wake = resolve));
      const samples = await this.take();
      if (samples.length) yield samples;
      else if (this.ended) return;
    }
  }

  /** Let the device go. Samples can still be taken. */
  async close(): Promise<void> {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") await this.context.close();
    this.wake();
  }
}
