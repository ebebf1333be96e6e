// Remembers every WebAssembly memory by its maker, and counts the bytes that cross between host and GPU, at the
// prototypes of WebGPU. Runs in a worker (put before its script by page_memory.py) or in a page, before anything else.
(() => {
  if (globalThis.pageMemory) return;
  /** [who, WeakRef of the memory] */
  const memories = [];
  const counts = {
    host_to_device_bytes: 0,
    device_to_host_bytes: 0,
    create_buffer: 0,
    create_buffer_bytes: 0,
    submits: 0,
    readbacks: 0,
  };
  globalThis.pageMemory = {
    /** Bytes of the wasm heaps, by their makers. */
    heaps: () => {
      const sizes = {};
      for (const [who, ref] of memories) {
        const memory = ref.deref();
        if (memory) sizes[who] = (sizes[who] ?? 0) + memory.buffer.byteLength;
      }
      return sizes;
    },
    counts: () => ({ ...counts }),
  };

  const note = (memory) => {
    if (!(memory instanceof WebAssembly.Memory) || memories.some(([, ref]) => ref.deref() === memory)) return;
    const stack = new Error().stack ?? "";
    const who = /pyodide/.test(stack) ? "pyodide" : /ort[-.]/.test(stack) ? "onnxruntime" : "other";
    memories.push([who, new WeakRef(memory)]);
  };
  const wrap = (holder, name, around) => {
    const original = holder[name];
    holder[name] = function (...args) {
      return around.call(this, (...given) => original.apply(this, given), args);
    };
  };
  WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
    construct: (target, args) => {
      const memory = Reflect.construct(target, args);
      note(memory);
      return memory;
    },
  });
  for (const name of ["instantiate", "instantiateStreaming"]) {
    wrap(WebAssembly, name, async (instantiate, args) => {
      const made = await instantiate(...args);
      for (const exported of Object.values((made.instance ?? made).exports)) note(exported);
      return made;
    });
  }

  if (!globalThis.GPUQueue) return;
  const writtenBytes = (data, offset = 0, size) => {
    const width = ArrayBuffer.isView(data) ? (data.BYTES_PER_ELEMENT ?? 1) : 1;
    return size === undefined ? data.byteLength - offset * width : size * width;
  };
  wrap(GPUQueue.prototype, "writeBuffer", (write, args) => {
    counts.host_to_device_bytes += writtenBytes(args[2], args[3], args[4]);
    return write(...args);
  });
  wrap(GPUQueue.prototype, "submit", (submit, args) => {
    counts.submits++;
    return submit(...args);
  });
  wrap(GPUDevice.prototype, "createBuffer", (create, args) => {
    counts.create_buffer++;
    counts.create_buffer_bytes += args[0].size;
    // The other way up: a buffer that is born mapped, for the host to fill.
    if (args[0].mappedAtCreation) counts.host_to_device_bytes += args[0].size;
    return create(...args);
  });
  wrap(GPUBuffer.prototype, "mapAsync", function (map, args) {
    const [mode, offset = 0, size = this.size - offset] = args;
    if (mode === GPUMapMode.READ) {
      counts.readbacks++;
      counts.device_to_host_bytes += size;
    } else {
      counts.host_to_device_bytes += size;
    }
    return map(...args);
  });
})();
