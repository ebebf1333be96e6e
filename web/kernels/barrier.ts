// Threads wait for one another between the operations of a program.

/** The addresses of two numbers: the threads that have arrived, and the rounds that are over. */
const ARRIVED: usize = 64;
const ROUND: usize = 128;
/** A thread looks so often before it sleeps. */
const LOOKS: i32 = 20000;

export function barrier(threads: i32): void {
  if (!ASC_FEATURE_THREADS || threads == 1) return;
  const round = atomic.load<i32>(ROUND);
  if (atomic.add<i32>(ARRIVED, 1) == threads - 1) {
    atomic.store<i32>(ARRIVED, 0);
    atomic.add<i32>(ROUND, 1);
    atomic.notify(ROUND, threads);
    return;
  }
  for (let look = 0; look < LOOKS; look++) if (atomic.load<i32>(ROUND) != round) return;
  while (atomic.load<i32>(ROUND) == round) atomic.wait<i32>(ROUND, round, -1);
}
