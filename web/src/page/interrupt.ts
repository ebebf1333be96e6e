// Interrupts Python in a worker as by Ctrl-C, by a byte that Pyodide reads.

/** Milliseconds until a script that never waits is interrupted. */
const INTERRUPT_AFTER_MS = 500;
/** A signal to Pyodide is lost now and then, so it is sent again this often until the request ends. */
const INTERRUPT_EVERY_MS = 100;
const SIGINT = 2;

/** Interrupt Python until its script has ended, should it not end by itself; what runs after it is left alone. */
export function interruptUntil(ended: () => boolean, signal: Uint8Array): void {
  const send = (): void => {
    if (ended()) {
      signal[0] = 0;
      return;
    }
    signal[0] = SIGINT;
    setTimeout(send, INTERRUPT_EVERY_MS);
  };
  setTimeout(send, INTERRUPT_AFTER_MS);
}
