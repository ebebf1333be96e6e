// The demo page: one form, one worker, one request at a time.

import {
  type CapstanEvent,
  Client,
  type GenerateRequest,
  type ModelsRequest,
  type ModelsResult,
  type RemoteError,
  type StoredFile,
} from "capstan-webgpu";
import { type AdapterSummary, requestAdapter, summarize } from "../src/gpu/adapter";

/** What `build.py run --json` prints, and a finished generate request answers. */
interface Result {
  token_ids: number[];
  finish_reason: string;
  device: string;
  adapter: string;
  capture: string;
  capture_note: string | null;
  tape_passes: Record<string, string>;
  tokens_per_second: number | null;
  time_to_first_token_ms: number | null;
  counters: Record<string, number>;
}

/** What this page saw of the run that is under way, until the worker's own numbers arrive. */
interface Run {
  stopped: boolean;
  generating: number;
  first: number;
  last: number;
  tokens: number;
}

const COUNTERS: Record<string, string> = {
  steps: "decode steps",
  submits: "queue submits",
  readbacks: "readbacks",
  readback_bytes: "bytes read back",
  create_buffer: "buffers created",
  create_bind_group: "bind groups created",
  write_buffer: "buffer writes",
  python_crossings: "entries into Python",
};
const BUNDLED = { name: "bundled", url: "models/bundled/" };
const UNKNOWN = "–";
/** Pyodide waits without end for a file of its own that cannot be loaded. */
const SLOW_START_MS = 20_000;

function element<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`index.html has no ${type.name} #${id}`);
  return found;
}

const form = element("form", HTMLFormElement);
const prompt = element("prompt", HTMLTextAreaElement);
const runButton = element("run", HTMLButtonElement);
const stopButton = element("stop", HTMLButtonElement);
const progress = element("progress", HTMLProgressElement);
const output = element("output", HTMLPreElement);
const models = element("model", HTMLSelectElement);
const device = element("device-choice", HTMLSelectElement);
const capture = element("capture-choice", HTMLSelectElement);
const search = element("search", HTMLSelectElement);
const stored = element("stored", HTMLDetailsElement);
const storedTable = element("stored-table", HTMLTableElement);

let worker: Promise<Client> | null = null;
let current: Run | null = null;
let adapter: AdapterSummary | null = null;

function say(id: string, text: string): void {
  element(id, HTMLElement).textContent = text;
}

function milliseconds(value: number): string {
  return value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`;
}

function bytes(count: number): string {
  return count < 1e6 ? `${(count / 1e3).toFixed(0)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

// Starting.

/** The worker; one that failed is replaced by a new one at the next run. */
function start(): Promise<Client> {
  worker ??= Client.start({ onEvent: show }).catch((error: unknown) => {
    worker = null;
    throw error;
  });
  return worker;
}

async function boot(): Promise<void> {
  await Promise.all([findAdapter(), findModels()]);
  const slow = setTimeout(() => {
    say("status", "Python has not started yet; if it never does, a file of capstan/pyodide/ cannot be loaded");
  }, SLOW_START_MS);
  try {
    const capstan = await start().finally(() => clearTimeout(slow));
    if (!current) say("status", `Ready: Python started in ${milliseconds(capstan.readiness.ready_ms)}`);
  } catch (error) {
    if (!current) fail(startFailure(error));
  }
}

async function findAdapter(): Promise<void> {
  try {
    const found = await requestAdapter();
    adapter = found && summarize(found);
  } catch {
    adapter = null;
  }
  if (adapter) {
    const name = [adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" ");
    say("adapter", `${name} (${adapter.software ? "software" : "hardware"})`);
  } else {
    say("adapter", "none: this browser offers no WebGPU adapter");
  }
  forecast();
}

/** Say what the chosen device will come to on this machine; `auto` goes by the adapter (capstan.Model). */
function forecast(): void {
  const notice = element("notice", HTMLParagraphElement);
  const wanted = device.value;
  let chosen = wanted;
  let why = "";
  notice.hidden = true;
  if (wanted === "auto") {
    chosen = adapter && !adapter.software ? "webgpu" : "wasm";
    why = adapter
      ? `auto: the WebGPU adapter is ${adapter.software ? "software" : "hardware"}`
      : "auto: there is no WebGPU here";
  } else if (wanted === "wasm") {
    why = "chosen; the CPU, without a GPU";
  } else if (!adapter) {
    notice.hidden = false;
    notice.textContent = "This browser offers no WebGPU adapter: choose the device wasm, or use a browser with WebGPU.";
  } else if (adapter.software) {
    notice.hidden = false;
    notice.textContent =
      "WebGPU is software here: the CPU does the GPU's work. It shows that the tape runs, not how fast it is on a GPU.";
  }
  say("device", chosen);
  say("device-note", why);
}

async function findModels(): Promise<void> {
  let offered = [BUNDLED];
  try {
    const response = await fetch("./models/index.json");
    if (response.ok) offered = (await response.json()) as typeof offered;
  } catch {
    // A site without a list has the bundled model only.
  }
  models.replaceChildren(...offered.map(({ name, url }) => new Option(name, new URL(url, document.baseURI).href)));
  const bundled = [...models.options].find((option) => option.text === BUNDLED.name);
  if (bundled) bundled.selected = true;
}

// Reading the form.

class FormError extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message);
  }
}

/** A number field's value, null when empty. What the number may be is Python's to say; here it must only be one. */
function number(name: string): number | null {
  const input = form.elements.namedItem(name) as HTMLInputElement;
  if (input.validity.badInput) throw new FormError(name, `${name} is not a number; correct it or leave it empty`);
  if (input.value === "") return null;
  const value = Number(input.value);
  if (input.step === "1" && !Number.isSafeInteger(value)) {
    throw new FormError(name, `${name} is ${input.value}; it must be a whole number`);
  }
  return value;
}

function text(name: string): string {
  return (form.elements.namedItem(name) as HTMLInputElement).value.trim();
}

/** The model chosen: one that the site offers, or a hub's. What id and address may be is Python's to say. */
function chosenModel(): GenerateRequest["model"] {
  const repository = text("repository");
  if (repository) {
    return { repository, hub: text("hub"), revision: text("revision") || null, token: text("token") || null };
  }
  if (!models.value) {
    throw new FormError("model", "this site offers no model; start it with build.py serve --model DIR");
  }
  return models.value;
}

function readForm(): GenerateRequest {
  const model = chosenModel();
  const options: GenerateRequest["search"] = { do_sample: search.value === "sample" };
  if (options["do_sample"]) {
    for (const name of ["temperature", "top_k", "top_p", "random_seed"]) {
      const value = number(name);
      if (value !== null) options[name] = value;
    }
  }
  const stop = (form.elements.namedItem("stop_strings") as HTMLInputElement).value.replaceAll("\\n", "\n");
  if (stop) options["stop_strings"] = [stop];
  return {
    kind: "generate",
    model,
    dtype: text("dtype") || null,
    device: device.value as GenerateRequest["device"],
    capture: capture.value as GenerateRequest["capture"],
    run_ahead: number("run_ahead"),
    prompt: prompt.value,
    prompt_ids: null,
    max_new_tokens: number("max_new_tokens"),
    search: options,
  };
}

// Running.

async function run(): Promise<void> {
  if (current) return;
  clear();
  let request: GenerateRequest;
  try {
    request = readForm();
  } catch (error) {
    if (!(error instanceof FormError)) throw error;
    fail({ type: "OptionError", message: error.message, traceback: "" }, error.field);
    return;
  }
  const mine: Run = { stopped: false, generating: 0, first: 0, last: 0, tokens: 0 };
  current = mine;
  busy(true);
  say("echo", request.prompt ?? "");
  say("capture", request.capture);
  say("capture-note", "asked for; what is used is told once the decode step is prepared");
  say("status", "Starting Python");
  try {
    const capstan = await start();
    if (mine.stopped) return stopped(mine);
    const reply = await capstan.request(request);
    if (reply.ok) finished(reply.result as Result);
    else if (reply.error.type === "KeyboardInterrupt") stopped(mine);
    else fail(reply.error, fieldOf(reply.error));
  } catch (error) {
    failed(error);
  } finally {
    current = null;
    busy(false);
    if (stored.open) void lookAfterStored("list", null);
  }
}

function stop(): void {
  if (!current || current.stopped) return;
  current.stopped = true;
  stopButton.disabled = true;
  say("status", "Stopping");
  // Before the worker has booted there is nothing to cancel: `run` sees the flag.
  void worker?.then((capstan) => capstan.request({ kind: "cancel" })).catch(() => undefined);
}

function busy(on: boolean): void {
  runButton.disabled = on;
  stopButton.disabled = !on;
  for (const button of storedTable.querySelectorAll("button")) button.disabled = on;
  output.setAttribute("aria-busy", String(on));
  if (!on) progress.hidden = true;
}

// Showing.

function clear(): void {
  for (const id of ["echo", "text", "capture-note"]) say(id, "");
  for (const id of ["speed", "first", "tokens", "finish", "capture"]) say(id, UNKNOWN);
  element("error", HTMLElement).hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  forecast();
}

function show(event: CapstanEvent): void {
  if (event.kind === "status") {
    progress.hidden = true;
    if (current && event.text === "generating") current.generating = performance.now();
    if (!current?.stopped) say("status", event.text.charAt(0).toUpperCase() + event.text.slice(1));
  } else if (event.kind === "progress") {
    progress.hidden = false;
    const { what, done, total } = event;
    // A server need not say how long a file is.
    if (total > 0) {
      progress.max = total;
      progress.value = done;
    } else progress.removeAttribute("value");
    if (!current?.stopped) say("status", `Loading ${what}: ${bytes(done)}${total > 0 ? ` of ${bytes(total)}` : ""}`);
  } else if (event.kind === "ready") {
    showHow(event);
  } else if (event.kind === "text" && current) {
    addText(event, current);
  }
}

/** How the decode steps of a run are computed. */
function showHow(how: Extract<CapstanEvent, { kind: "ready" }> | Result): void {
  say("device", how.device);
  if (how.device === "webgpu") say("adapter", `${how.adapter} (${adapter?.software ? "software" : "hardware"})`);
  say("capture", how.capture);
  say("capture-note", how.capture_note ?? leftOut(how.tape_passes));
}

/** What of the decode step is not computed by fused kernels because a check failed, and why; empty if nothing. */
function leftOut({ fused, "left out": left }: Record<string, string>): string {
  if (left) return `in part as recorded: ${left}`;
  return fused?.startsWith("not used") ? `fused kernels are ${fused}` : "";
}

function addText(event: { text: string; token_id: number }, seen: Run): void {
  const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
  element("text", HTMLElement).append(event.text);
  if (atEnd) output.scrollTop = output.scrollHeight;
  if (event.token_id < 0) return;
  seen.last = performance.now();
  seen.first ||= seen.last;
  seen.tokens++;
  showPace(seen);
}

/** The pace as this page sees it; a finished run shows Python's numbers instead. */
function showPace({ generating, first, last, tokens }: Run): void {
  say("tokens", String(tokens));
  if (tokens === 1) say("first", milliseconds(first - generating));
  if (tokens > 1 && last > first) say("speed", ((1000 * (tokens - 1)) / (last - first)).toFixed(1));
}

function finished(result: Result): void {
  const { token_ids, tokens_per_second, time_to_first_token_ms } = result;
  say("status", "Done");
  say("tokens", String(token_ids.length));
  say("speed", tokens_per_second === null ? UNKNOWN : tokens_per_second.toFixed(1));
  say("first", time_to_first_token_ms === null ? UNKNOWN : milliseconds(time_to_first_token_ms));
  say("finish", result.finish_reason === "eos" ? "end of text" : result.finish_reason);
  showHow(result);
  const steps = result.counters["steps"] ?? 0;
  element("counter-rows", HTMLTableSectionElement).replaceChildren(
    ...Object.entries(COUNTERS).map(([name, label]) => counterRow(label, result.counters[name] ?? 0, steps)),
  );
}

function counterRow(label: string, total: number, steps: number): HTMLTableRowElement {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = label;
  row.append(head);
  row.insertCell().textContent = String(total);
  row.insertCell().textContent = steps > 0 ? String(Number((total / steps).toFixed(2))) : UNKNOWN;
  return row;
}

function stopped({ tokens }: Run): void {
  say("status", "Stopped; the figures are this page's own");
  say("tokens", String(tokens));
  say("finish", "stop");
}

function fail({ type, message, traceback }: RemoteError, field = ""): void {
  say("status", "");
  if (current) {
    // What was asked for has not come to be.
    say("capture", UNKNOWN);
    say("capture-note", "");
  }
  say("error-title", type);
  say("error-message", message || "no message was given");
  say("error-traceback", traceback);
  element("error-details", HTMLDetailsElement).hidden = !traceback;
  element("error", HTMLElement).hidden = false;
  const input = field && form.elements.namedItem(field);
  if (input instanceof HTMLElement) {
    input.setAttribute("aria-invalid", "true");
    input.focus();
  }
}

/** The form field that an option's or prompt's error is about: its message begins with the option's name. */
function fieldOf({ type, message }: RemoteError): string {
  if (type === "PromptError") return "prompt";
  return type === "OptionError" ? (/^\w+/.exec(message)?.[0] ?? "") : "";
}

/** A request has no reply. */
function failed(error: unknown): void {
  const { code, message } = error as { code?: string; message: string };
  // Capstan starts another worker where one died.
  if (code === "WorkerLostError") return fail({ type: code, message, traceback: "" });
  // The next run starts one.
  worker = null;
  fail(startFailure(error));
}

function startFailure(error: unknown): RemoteError {
  // A worker whose script is missing fails without a message of its own.
  const message = String(error instanceof Error ? error.message : error).replace(
    /undefined$/,
    "its script could not be loaded",
  );
  const advice = "Reload the page; if that does not help, the folder capstan/ of this site is incomplete.";
  return { type: "The worker is not running", message: `${message}. ${advice}`, traceback: "" };
}

// Stored weights.

const KEPT = {
  opfs: "Kept in this origin's private file system.",
  cache: "Kept in the Cache API, since this browser has no private file system.",
  memory: "This browser keeps nothing: weights are fetched for each visit.",
};

async function lookAfterStored(action: ModelsRequest["action"], which: string | null): Promise<void> {
  say("stored-note", { list: "Looking", verify: "Verifying", evict: "Removing" }[action]);
  try {
    const reply = await (await start()).request({ kind: "models", action, which });
    if (reply.ok) showStored(action, which, reply.result as ModelsResult);
    else say("stored-note", `${reply.error.type}: ${reply.error.message}`);
  } catch (error) {
    failed(error);
  }
}

function showStored(
  action: ModelsRequest["action"],
  which: string | null,
  { store, files, freed }: ModelsResult,
): void {
  const about = files.find((file) => keyOf(file) === which);
  let done = "";
  if (action === "evict") done = `${bytes(freed)} removed. `;
  if (action === "verify" && about)
    done = about.suspect.length ? "Damage was found. " : "Every byte is as it was stored. ";
  say("stored-note", `${done}${KEPT[store]}${files.length === 0 && store !== "memory" ? " Nothing is stored." : ""}`);
  storedTable.hidden = files.length === 0;
  element("stored-rows", HTMLTableSectionElement).replaceChildren(...files.map(storedRow));
}

/** What names a file to the store: its content, or the address of an unfinished download. */
function keyOf(file: StoredFile): string {
  return file.content ?? file.sources[0] ?? "";
}

function storedRow(file: StoredFile): HTMLTableRowElement {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  const name = (file.sources[0] ?? file.content ?? "").split("/").slice(-2).map(decodeURIComponent).join("/");
  head.textContent = file.sources.length > 1 ? `${name} and ${file.sources.length - 1} more` : name;
  head.title = [...file.sources, file.content ? `content ${file.content}` : ""].join("\n").trim();
  row.append(head);
  row.insertCell().textContent = bytes(file.size);
  row.insertCell().textContent = stateOf(file);
  const actions = row.insertCell();
  if (file.content) actions.append(storedButton("Verify", "verify", file, name));
  actions.append(storedButton("Remove", "evict", file, name));
  return row;
}

function stateOf({ content, size, stored_bytes, suspect }: StoredFile): string {
  if (!content) return `${Math.floor((100 * stored_bytes) / Math.max(1, size))} % downloaded`;
  return suspect.length ? `${suspect.length} damaged, fetched again at the next load` : "complete";
}

function storedButton(
  text: string,
  action: ModelsRequest["action"],
  file: StoredFile,
  name: string,
): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.setAttribute("aria-label", `${text} ${name}`);
  button.disabled = current !== null;
  button.addEventListener("click", () => void lookAfterStored(action, keyOf(file)));
  return button;
}

// Wiring.

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run();
});
stopButton.addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    void run();
  } else if (event.key === "Escape") stop();
});
device.addEventListener("change", forecast);
stored.addEventListener("toggle", () => {
  if (stored.open && !current) void lookAfterStored("list", null);
});
const showSampling = (): void => {
  element("sampling", HTMLElement).hidden = search.value !== "sample";
};
search.addEventListener("change", showSampling);
showSampling();
void boot();
