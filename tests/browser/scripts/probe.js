// Counts and stamps at the prototypes of WebGPU what the worker asks of its devices, independently of Capstan's own
// counters. Loaded once into the worker by probe.py, before any device is made.
(() => {
  if (globalThis.capstanProbe) return;
  const counts = {
    create_buffer: 0,
    create_bind_group: 0,
    write_buffer: 0,
    submits: 0,
    readbacks: 0,
    readback_bytes: 0,
    shader_modules: 0,
    devices: 0,
    pipelines: 0,
  };
  const live = new Map();
  const pipelines = [];
  const devices = [];
  const probe = { counts, errors: [], lost: [], bound: new Set() };
  const stamped = ["finished", "submitted", "work", "mapped", "ranged"];
  for (const name of stamped) probe[name] = [];
  globalThis.capstanProbe = probe;
  probe.counted = () => JSON.stringify(counts);
  probe.faults = () => JSON.stringify([...probe.errors, ...probe.lost]);
  probe.forget = () => {
    for (const name of stamped) probe[name].length = 0;
  };
  probe.forgive = () => {
    probe.errors.length = probe.lost.length = 0;
  };
  /**
   * Stamps since `forget`: when an encoder's finish and queue.submit were called, when queue.onSubmittedWorkDone had
   * resolved for the probe right before it did for the caller and right after, when mapAsync was called and had resolved,
   * and when getMappedRange was called.
   */
  probe.stamps = () => JSON.stringify(Object.fromEntries(stamped.map((name) => [name, probe[name]])));
  /** Ids, by the engine, of the buffers in bind groups made since `forgetBound`. */
  probe.forgetBound = () => probe.bound.clear();
  probe.boundIds = (engine) =>
    JSON.stringify([...probe.bound].map((buffer) => engine.watched.buffers.get(buffer)?.id ?? 0));
  /**
   * Ids of the buffers that a tape uses and that the engine did not make: its captured session's, or its own. A restored
   * tape names its buffers by the ids of an earlier recording; these are the ids that they have now.
   */
  probe.privateIds = (engine, tape) => {
    const ours = new Set([...engine.buffers.all()].map((buffer) => engine.watched.info(buffer).id));
    const used = [...engine.tapes.tapes.get(tape).objects.infos.values()].map(({ id }) => id);
    return JSON.stringify(used.filter((id) => !ours.has(id)));
  };
  /** The kinds of a tape's operations, in order. */
  probe.played = (engine, tape) => JSON.stringify(engine.tapes.tapes.get(tape).ops.map((op) => op.kind));
  /** Devices not destroyed. */
  probe.devices = () => live.size;
  /** Labels of buffers not destroyed, on devices not destroyed. */
  probe.live = () =>
    JSON.stringify([...live.values()].flatMap((buffers) => [...buffers].map((buffer) => buffer.label)));

  /** Bytes of each buffer not destroyed. */
  probe.sizes = () =>
    JSON.stringify([...live.values()].flatMap((buffers) => [...buffers].map((buffer) => buffer.size)));

  /** How many compute pipelines and devices somebody still holds, or were not collected yet. */
  probe.held = () => {
    const count = (made) => made.filter((ref) => ref.deref()).length;
    return JSON.stringify({ pipelines: count(pipelines), devices: count(devices) });
  };

  const wrap = (prototype, name, around) => {
    const original = prototype[name];
    prototype[name] = function (...args) {
      return around.call(this, (...given) => original.apply(this, given), args);
    };
  };
  const queues = new WeakSet();
  wrap(GPUAdapter.prototype, "requestDevice", async function (request, args) {
    const device = await request(...args);
    counts.devices++;
    devices.push(new WeakRef(device));
    live.set(device, new Set());
    queues.add(device.queue);
    device.addEventListener("uncapturederror", (event) => probe.errors.push(event.error.message));
    void device.lost.then((info) => {
      if (info.reason !== "destroyed") probe.lost.push(`lost: ${info.message}`);
      live.delete(device);
    });
    return device;
  });
  wrap(GPUDevice.prototype, "destroy", function (destroy) {
    live.delete(this);
    return destroy();
  });
  wrap(GPUDevice.prototype, "createBuffer", function (create, args) {
    counts.create_buffer++;
    const buffer = create(...args);
    const buffers = live.get(this);
    buffers?.add(buffer);
    buffer.capstanProbeBuffers = buffers;
    return buffer;
  });
  wrap(GPUBuffer.prototype, "destroy", function (destroy) {
    this.capstanProbeBuffers?.delete(this);
    return destroy();
  });
  wrap(GPUDevice.prototype, "createBindGroup", (create, args) => {
    counts.create_bind_group++;
    for (const { resource } of args[0].entries) probe.bound.add(resource.buffer ?? resource);
    return create(...args);
  });
  wrap(GPUDevice.prototype, "createShaderModule", (create, args) => {
    counts.shader_modules++;
    return create(...args);
  });
  wrap(GPUDevice.prototype, "createComputePipeline", (create, args) => {
    const made = create(...args);
    counts.pipelines++;
    pipelines.push(new WeakRef(made));
    return made;
  });
  wrap(GPUDevice.prototype, "createComputePipelineAsync", async (create, args) => {
    const made = await create(...args);
    counts.pipelines++;
    pipelines.push(new WeakRef(made));
    return made;
  });
  wrap(GPUQueue.prototype, "writeBuffer", (write, args) => {
    counts.write_buffer++;
    return write(...args);
  });
  wrap(GPUCommandEncoder.prototype, "finish", (finish, args) => {
    probe.finished.push(performance.now());
    return finish(...args);
  });
  wrap(GPUQueue.prototype, "submit", (submit, args) => {
    counts.submits++;
    probe.submitted.push(performance.now());
    return submit(...args);
  });
  wrap(GPUQueue.prototype, "onSubmittedWorkDone", (done) => {
    const stamps = [];
    probe.work.push(stamps);
    const note = () => stamps.push(performance.now());
    done().then(note);
    const asked = done();
    done().then(note);
    return asked;
  });
  wrap(GPUBuffer.prototype, "mapAsync", async function (map, args) {
    const [, offset = 0, size = this.size - offset] = args;
    counts.readbacks++;
    counts.readback_bytes += size;
    const called = performance.now();
    await map(...args);
    probe.mapped.push([called, performance.now()]);
  });
  wrap(GPUBuffer.prototype, "getMappedRange", (range, args) => {
    probe.ranged.push(performance.now());
    return range(...args);
  });
})();
