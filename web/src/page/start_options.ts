// The options of Client.start.

import { callable, either, fields, flag, type Kinds, milliseconds, millisecondsAboveZero, oneOf } from "./kinds";
import { signal, text } from "./kinds";
import { reading } from "./arguments";
import type { CapstanEvent, Device, Expected, HubRepository } from "../wire/protocol";
import { modelAddress } from "../wire/model_address";

export interface StartOptions {
  /**
   * URL of the folder that holds worker.js, python.json, ort/, pyodide/ and wheels/; default: the folder of this
   * module.
   */
  base?: string;
  /** Whether Python may start from its memory snapshot (default), which is faster. */
  snapshot?: boolean;
  /**
   * The model that will be requested first, a folder's URL or a hub's repository, and for which device ("auto" unless
   * given): its small files are fetched and the GPU is opened while Python starts. The graph of a repository is among
   * them if `dtype` names it.
   */
  expected?: { model: string | HubRepository; dtype?: string; device?: "webgpu" | "wasm" | "auto" };
  /**
   * Milliseconds that a request has to end after `cancel`, 10 seconds unless given. Then the worker is ended, the
   * request is answered as stopped, and another worker is started. Infinity never stops waiting.
   */
  cancelDeadline?: number;
  /**
   * Milliseconds without a request, 5 seconds unless given, until weights that were loaded from the browser's storage are
   * compared with their digests, each file once. The next request stops that at once. Infinity is never.
   */
  verifyAfter?: number;
  /** See WorkerOptions. */
  crossOriginStorage?: boolean;
  /** Take a trace, from the worker's start on, until TraceRequest ends it. */
  trace?: boolean;
  /** Have events of the kind `bytes` come, of the start and of loads, until the worker is replaced. */
  bytes?: boolean;
  /**
   * Share the worker of this name with other pages of the origin, which give the same options: for models on this
   * device ("auto" unless given). A page that cannot share it has a separate worker, and gets the event `unshared`.
   */
  shared?: { name: string; device?: Device };
  /** Called for each event of the start (id 0) and of every request, with the request's id. */
  onEvent?: (event: CapstanEvent, id: number) => void;
  /** Gives a script the next line of its input, with its line break, null at the end; without it there is no input. */
  onInput?: () => Promise<string | null>;
  /** Ends the start: the worker is terminated and the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

const device = oneOf("webgpu", "wasm", "auto");
const repository = fields(
  { repository: text, hub: text, revision: text, token: text },
  { needed: ["repository", "hub"] },
);
export const START_KINDS: Kinds = {
  ...{ base: text, snapshot: flag, cancelDeadline: millisecondsAboveZero, verifyAfter: milliseconds },
  ...{ crossOriginStorage: flag, trace: flag, bytes: flag, onEvent: callable, onInput: callable, signal },
  expected: fields({ model: either(text, repository), dtype: text, device }, { needed: ["model"] }),
  shared: fields({ name: text, device }, { needed: ["name"] }),
};

/** The model of the first request as the worker knows it. */
export function expectedModel(given: NonNullable<StartOptions["expected"]>): Expected {
  const { model, dtype = null, device = "auto" } = given;
  if (typeof model === "string")
    return reading("the expected model", () => {
      return { model: new URL(modelAddress(model), location.href).href, dtype, device };
    });
  const { repository, hub, revision = null, token = null } = model;
  return { model: { repository, hub, revision, token }, dtype, device };
}
