// Lets a worker that computes for long take messages.

/** Messages wait no longer than this and a step. */
const BREATH_MS = 25;

let breathed = 0;

/**
 * Let the worker take messages. Python's tasks follow one another through a MessageChannel; where each computes for some
 * time, Chromium keeps the worker's messages and timers waiting for twenty of them and more, so that a cancel comes too
 * late. After a timer they have their turn.
 */
export async function breathe(): Promise<void> {
  if (performance.now() - breathed < BREATH_MS) return;
  await new Promise((resolve) => setTimeout(resolve));
  breathed = performance.now();
}
