// The progress of a load, out of the worker's events: how much of all of it is there, and how long the rest takes.

import type { CapstanEvent } from "../wire/protocol";

/** The progress of a load. */
export interface LoadProgress {
  /** The present phase, as text for people. */
  status: string;
  /** The file that is being read, null between files. */
  file: string | null;
  /** Bytes of it; `total` is 0 if the server did not report it. */
  loaded: number;
  total: number;
  /** The part of the whole load that is done, from 0 to 1; it never goes back. */
  fraction: number;
  /** Bytes that came of Python, onnxruntime-web and the weights together, as their servers send them. */
  bytes: number;
  /** All that will come; null until the sizes of the model's files are known. */
  totalBytes: number | null;
  /** How long the rest of them takes at the pace of the last seconds; null while that is unknown. */
  secondsLeft: number | null;
}

/** The pace is measured over this number of milliseconds. */
const RECENT_MS = 8000;
/** It is reported after this many milliseconds: the first ones are not typical. */
const LEAST_MS = 3000;
/** The share of the bar that the runtime takes while the model's size is unknown. */
const RUNTIME_SHARE = 0.5;

export class LoadMeter {
  private progress: LoadProgress = {
    ...{ status: "starting", file: null, loaded: 0, total: 0 },
    ...{ fraction: 0, bytes: 0, totalBytes: null, secondsLeft: null },
  };
  /** When how many bytes were there. */
  private recent: [when: number, bytes: number][] = [];

  /** The progress after an event; null if the event has none. */
  take(event: CapstanEvent, now = performance.now()): LoadProgress | null {
    const { progress } = this;
    if (event.kind === "status") Object.assign(progress, { status: event.text, file: null, loaded: 0, total: 0 });
    else if (event.kind === "progress") {
      const { what: file, done: loaded, total } = event;
      Object.assign(progress, { status: `reading ${file}`, file, loaded, total });
    } else if (event.kind === "bytes") this.measure(event.done, event.total, event.whole, now);
    else return null;
    return { ...progress };
  }

  /** The progress at the end. */
  ended(): LoadProgress {
    const { bytes } = this.progress;
    return {
      ...this.progress,
      ...{ status: "ready", file: null, loaded: 0, total: 0 },
      fraction: 1,
      secondsLeft: 0,
      bytes,
    };
  }

  private measure(done: number, total: number, whole: boolean, now: number): void {
    const { progress, recent } = this;
    const fraction = total > 0 ? (whole ? 1 : RUNTIME_SHARE) * (done / total) : 0;
    recent.push([now, done]);
    while (recent.length > 2 && now - recent[1]![0] >= RECENT_MS) recent.shift();
    const [began, before] = recent[0]!;
    const pace = now - began >= LEAST_MS ? (done - before) / (now - began) : 0;
    const left = whole && pace > 0 && done < total ? (total - done) / pace / 1000 : null;
    Object.assign(progress, {
      fraction: Math.max(progress.fraction, Math.min(fraction, 1)),
      bytes: done,
      totalBytes: whole ? total : null,
      secondsLeft: left,
    });
  }
}

/** A progress for people: what came of what, and the time that is left, or the phase once everything is there. */
export function loadStatus({ status, bytes, totalBytes, secondsLeft }: LoadProgress): string {
  if (!bytes || (totalBytes !== null && bytes >= totalBytes)) return status.charAt(0).toUpperCase() + status.slice(1);
  const there = totalBytes === null ? megabytes(bytes) : `${megabytes(bytes, totalBytes)} of ${megabytes(totalBytes)}`;
  return `Loading: ${there}${secondsLeft === null ? "" : `, ${shownSeconds(secondsLeft)} left`}`;
}

/** In the unit that suits the larger number. */
function megabytes(count: number, beside = count): string {
  if (beside < 1e9) return beside === count ? `${(count / 1e6).toFixed(0)} MB` : (count / 1e6).toFixed(0);
  return beside === count ? `${(count / 1e9).toFixed(2)} GB` : (count / 1e9).toFixed(2);
}

function shownSeconds(seconds: number): string {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : "more than an hour";
}
