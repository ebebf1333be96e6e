// Counts at WebGPU's prototypes what a worker asks of its devices, alike for every contender, once `install` was called.
// Loaded as a classic script or evaluated by Python; `globalThis.benchCounts` is what it leaves.
(() => {
  if (globalThis.benchCounts) return;
  const names = [
    "submits",
    "readbacks",
    "create_buffer",
    "create_bind_group",
    "write_buffer",
    "bytes_up",
    "bytes_down",
  ];
  let counts = null;
  let installed = false;
  const memory = { live: 0, peak: 0, buffers: new Map() };

  const wrap = (prototype, name, before) => {
    const original = prototype[name];
    prototype[name] = function (...args) {
      if (counts) before.call(this, args);
      return original.apply(this, args);
    };
  };
  const written = ([, , data, offset = 0, size]) => {
    const unit = ArrayBuffer.isView(data) ? (data.BYTES_PER_ELEMENT ?? 1) : 1;
    return size === undefined ? data.byteLength - offset * unit : size * unit;
  };

  /** Keep account of the bytes of GPU buffers, for as long as the worker lives. */
  const watchMemory = () => {
    const create = GPUDevice.prototype.createBuffer;
    const free = (buffer) => {
      memory.live -= memory.buffers.get(buffer) ?? 0;
      memory.buffers.delete(buffer);
    };
    GPUDevice.prototype.createBuffer = function (descriptor) {
      const buffer = create.call(this, descriptor);
      memory.buffers.set(buffer, descriptor.size);
      memory.live += descriptor.size;
      memory.peak = Math.max(memory.peak, memory.live);
      return buffer;
    };
    const destroy = GPUBuffer.prototype.destroy;
    GPUBuffer.prototype.destroy = function () {
      free(this);
      return destroy.call(this);
    };
    const end = GPUDevice.prototype.destroy;
    GPUDevice.prototype.destroy = function () {
      for (const buffer of [...memory.buffers.keys()]) free(buffer);
      return end.call(this);
    };
  };

  globalThis.benchCounts = {
    /** Wrap the prototypes, before a device is made; without this call nothing costs anything. */
    install() {
      if (installed) return;
      installed = true;
      wrap(GPUQueue.prototype, "submit", () => counts.submits++);
      wrap(GPUQueue.prototype, "writeBuffer", (args) => {
        counts.write_buffer++;
        counts.bytes_up += written(args);
      });
      wrap(GPUDevice.prototype, "createBuffer", ([{ size, mappedAtCreation }]) => {
        counts.create_buffer++;
        if (mappedAtCreation) counts.bytes_up += size;
      });
      wrap(GPUDevice.prototype, "createBindGroup", () => counts.create_bind_group++);
      wrap(GPUBuffer.prototype, "mapAsync", function ([mode, offset = 0, size = this.size - offset]) {
        if (!(mode & GPUMapMode.READ)) return;
        counts.readbacks++;
        counts.bytes_down += size;
      });
      watchMemory();
    },
    /** Count from 0. */
    start() {
      if (!installed) throw new Error("nothing is counted here: install() comes before a device is made");
      counts = Object.fromEntries(names.map((name) => [name, 0]));
    },
    /** The counts since `start`. */
    counted: () => ({ ...counts }),
    /** Bytes of the live GPU buffers, and their peak. */
    memory: () => ({ live_bytes: memory.live, peak_bytes: memory.peak }),
  };
})();
