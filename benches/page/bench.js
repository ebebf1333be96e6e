// Runs the steps of plan.json one after the other, each by the contender it names, and posts how each went.
import { Client } from "/capstan/capstan.js";
import { framesDuring } from "./frames.js";

const post = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body) });
const text = async (path) => (await fetch(path)).text();

/** A contender in a module worker of its own. */
class WorkerContender {
  static async start(file) {
    const contender = new WorkerContender();
    contender.worker = new Worker(`/bench/${file}`, { type: "module" });
    contender.pending = new Map();
    contender.worker.onmessage = ({ data }) => {
      const { resolve, reject } = contender.pending.get(data.id);
      if (data.ok) resolve(data.result);
      else reject(new Error(data.error));
    };
    contender.worker.onerror = (event) => {
      for (const { reject } of contender.pending.values()) reject(new Error(`${file}: ${event.message}`));
    };
    contender.about = await new Promise((resolve, reject) => contender.pending.set(0, { resolve, reject }));
    return contender;
  }

  call(name, args) {
    const id = this.pending.size;
    const reply = new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
    this.worker.postMessage({ id, name, args });
    return reply;
  }

  end() {
    this.worker.terminate();
  }
}

/** Capstan, asked by scripts in its worker. */
class CapstanContender {
  static async start() {
    const contender = new CapstanContender();
    contender.printed = { stdout: "", stderr: "" };
    contender.capstan = await Client.start({
      onEvent: (event) => {
        if (event.kind in contender.printed) contender.printed[event.kind] += event.text;
      },
    });
    contender.told = () => contender.printed.stderr.slice(-80);
    [contender.source, contender.module] = await Promise.all([text("/bench/call.py"), text("/bench/in_page.py")]);
    contender.about = { pyodide_ms: contender.capstan.readiness.ready_ms };
    return contender;
  }

  async call(name, args) {
    const argv = ["call.py", this.module, JSON.stringify([name, args ?? {}])];
    const request = { kind: "exec", source: this.source, filename: "call.py", argv, models: {}, files: {} };
    const { reply, stdout, stderr } = await this.request(request);
    if (!reply.ok) throw new Error(`${reply.error.type}: ${reply.error.message}\n${reply.error.traceback}`);
    if (reply.result.status) throw new Error(`${stderr.trim().split("\n").at(-1)}\n${stderr}`);
    return JSON.parse(stdout);
  }

  /** Any request of the protocol; its reply and what it printed. */
  async request(request) {
    this.printed.stdout = this.printed.stderr = "";
    const reply = await this.capstan.request(request);
    return { reply, ...this.printed };
  }

  end() {
    this.capstan.close();
  }
}

const MAKERS = {
  capstan: () => CapstanContender.start(),
  transformers_js: () => WorkerContender.start("transformers_worker.js"),
  wllama: () => WorkerContender.start("wllama_worker.js"),
  eager: () => WorkerContender.start("eager_worker.js"),
};

export function startContender(name) {
  return MAKERS[name]();
}

const WARM_UP_MS = 500;
const contenders = new Map();

/** The contender with its worker, started when it is first wanted. */
function contender(name) {
  if (!contenders.has(name)) contenders.set(name, startContender(name));
  return contenders.get(name);
}

const ACTIONS = {
  /** The result of a contender's function. If the plan has `warm_up` tokens, untimed calls for as many precede it: one
   * that ends all preparations, then others until the GPU's clock is up. */
  call: async ({ contender: name, function: called, args, warm_up: tokens }) => {
    const called_upon = await contender(name);
    if (tokens) {
      const warmUp = () => called_upon.call(called, { ...args, tokens });
      await warmUp();
      const begun = performance.now();
      do await warmUp();
      while (performance.now() - begun < WARM_UP_MS);
    }
    return called_upon.call(called, args);
  },
  /** The same beside a page that draws; without a function it draws alone, for `alone` ms. */
  frames: async ({ contender: name, function: called, args, draws, alone }) => {
    const { told, call } = await contender(name).then((found) => ({ told: found.told, call: found.call.bind(found) }));
    const work = called ? () => call(called, args) : () => new Promise((resolve) => setTimeout(resolve, alone));
    return framesDuring(draws, work, told);
  },
  /** A correctness case: any request of the protocol. */
  request: async ({ request }) => (await contender("capstan")).request(request),
  /** End the contenders' workers, so that what follows finds the GPU free. */
  end: async () => {
    const started = await Promise.allSettled(contenders.values());
    contenders.clear();
    // One that did not start has nothing to end; each of its steps said so.
    for (const { value } of started) value?.end();
    return {};
  },
  /** A page of its own, from its navigation to its first token; the page posts what it found to this one. */
  start: ({ contender: name, args }) =>
    new Promise((resolve, reject) => {
      const frame = document.createElement("iframe");
      const query = new URLSearchParams({ contender: name, args: JSON.stringify(args) });
      window.onmessage = ({ data }) => {
        frame.remove();
        if (data.ok) resolve(data.result);
        else reject(new Error(data.error));
      };
      frame.src = `/bench/start.html?${query}`;
      document.body.append(frame);
    }),
  adapter: async () => {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) throw new Error(navigator.gpu ? "requestAdapter() gave none" : "there is no navigator.gpu");
    const { vendor, architecture, description, device } = adapter.info;
    const software = adapter.info.isFallbackAdapter === true || /swiftshader/i.test(architecture + description);
    return { vendor, architecture, device, description, software, features: [...adapter.features] };
  },
};

/** Play the plan. The server ends a browser whose step takes too long, and a new one goes on with the next. */
export async function play() {
  for (const step of await (await fetch("/bench/plan.json")).json()) {
    await post("/bench/begin", { id: step.id });
    let outcome;
    try {
      outcome = { id: step.id, ok: true, data: await ACTIONS[step.action](step) };
    } catch (error) {
      outcome = { id: step.id, ok: false, error: String(error?.stack ?? error) };
    }
    await post("/bench/result", outcome);
  }
  await post("/bench/end", {});
}
