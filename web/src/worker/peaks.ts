// The largest logits, which spare Python a search through the vocabulary.

/** Logits with one peak: capstan.stages.sampling has the same number. */
const PEAK = 64;

/** Logits, and the largest of each 64 of them; a NaN among these gives NaN. */
export function withPeaks(logits: Float32Array): [logits: Float32Array, peaks: Float32Array] {
  const peaks = new Float32Array(Math.ceil(logits.length / PEAK));
  for (let i = 0, at = 0; at < logits.length; i++) {
    let peak = -Infinity;
    for (const end = Math.min(at + PEAK, logits.length); at < end; at++) peak = Math.max(peak, logits[at]!);
    peaks[i] = peak;
  }
  return [logits, peaks];
}
