// Sounds as speech models hear them: samples of one channel at 16,000 Hz, decoded by the browser.

import { CapstanError, told } from "../wire/errors";
import type { Kind } from "./kinds";

/** A file's content in any format that the browser decodes, decoded sound, or samples of one channel at 16,000 Hz. */
export type Sound = Blob | ArrayBuffer | AudioBuffer | Float32Array;

const RATE = 16_000;

export function isA(name: string, value: unknown): boolean {
  return Object.prototype.toString.call(value) === `[object ${name}]`;
}

export const sound: Kind = {
  words: "a Blob, a File, an ArrayBuffer, an AudioBuffer or a Float32Array of samples at 16000 Hz",
  is: (value) => ["Blob", "File", "ArrayBuffer", "AudioBuffer", "Float32Array"].some((name) => isA(name, value)),
};

/** The samples, in an array of their own. Rejects with a SoundError for none, and a file that the browser does not decode. */
export async function samplesOf(given: Sound): Promise<Float32Array> {
  const samples = await decoded(given);
  if (!samples.length) throw soundError("the sound has no samples; give a sound that is longer than 0 seconds");
  return samples;
}

async function decoded(given: Sound): Promise<Float32Array> {
  if (isA("Float32Array", given)) return (given as Float32Array).slice();
  if (isA("AudioBuffer", given)) return mixed(await atRate(given as AudioBuffer));
  // The decoder takes the bytes: the caller keeps a copy.
  const bytes = isA("ArrayBuffer", given) ? (given as ArrayBuffer).slice(0) : await (given as Blob).arrayBuffer();
  if (!bytes.byteLength) throw soundError("the sound has no bytes; give the content of a sound file");
  try {
    return mixed(await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes));
  } catch (error) {
    throw soundError(`the sound is no file that this browser decodes (${told(error)}); give WAV, MP3, M4A or Ogg`);
  }
}

async function atRate(buffer: AudioBuffer): Promise<AudioBuffer> {
  if (buffer.sampleRate === RATE) return buffer;
  const { numberOfChannels } = buffer;
  const context = new OfflineAudioContext(numberOfChannels, Math.ceil(buffer.duration * RATE), RATE);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  source.start();
  return context.startRendering();
}

/** The mean of the channels. */
function mixed(buffer: AudioBuffer): Float32Array {
  const { numberOfChannels: channels } = buffer;
  const sum = buffer.getChannelData(0).slice();
  if (channels === 1) return sum;
  for (let channel = 1; channel < channels; channel++) {
    const other = buffer.getChannelData(channel);
    for (let place = 0; place < sum.length; place++) sum[place]! += other[place]!;
  }
  return sum.map((sample) => sample / channels);
}

function soundError(message: string): CapstanError {
  return new CapstanError({ type: "SoundError", message });
}
