// The adapter's best rates, measured on a separate device: evaluated by Python, and resolves to {copy_bytes_per_s,
// empty_us, bytes}.
(async () => {
  const REPEATS = [16, 64];
  const ROUNDS = 5;
  const EMPTY = 32;
  // vec4s that a thread copies.
  const EACH = 4;
  const adapter = await navigator.gpu.requestAdapter();
  const software = adapter.info.isFallbackAdapter === true || /swiftshader/i.test(adapter.info.description);
  // Larger than any cache.
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  const bytes = Math.min(software ? 2 ** 24 : 2 ** 29, maxBufferSize, maxStorageBufferBindingSize);
  const features = adapter.features.has("timestamp-query") ? ["timestamp-query"] : [];
  const device = await adapter.requestDevice({
    requiredFeatures: features,
    requiredLimits: { maxBufferSize, maxStorageBufferBindingSize },
  });
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const pipelineOf = async (code) => {
    const module = device.createShaderModule({ code });
    return device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  };
  try {
    // By a kernel: copies of buffers may run on an engine of their own, on an H200 at a fifth of what kernels reach.
    const pipeline = await pipelineOf(`
      const STRIDE = ${bytes / (16 * EACH)}u;
      @group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
      @group(0) @binding(1) var<storage, read_write> target_: array<vec4<f32>>;
      @compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        for (var i = 0u; i < ${EACH}u; i++) { target_[i * STRIDE + id.x] = source[i * STRIDE + id.x]; }
      }`);
    const [source, target] = [0, 1].map(() => device.createBuffer({ size: bytes, usage: GPUBufferUsage.STORAGE }));
    const entries = [source, target].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const copies = async (count) => {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      for (let i = 0; i < count; i++) pass.dispatchWorkgroups(bytes / (16 * EACH * 256));
      pass.end();
      const start = performance.now();
      device.queue.submit([encoder.finish()]);
      await device.queue.onSubmittedWorkDone();
      return performance.now() - start;
    };
    await copies(REPEATS[1]);
    const times = { [REPEATS[0]]: [], [REPEATS[1]]: [] };
    for (let round = 0; round < ROUNDS; round++) for (const count of REPEATS) times[count].push(await copies(count));
    // The difference of two lengths, so that what a submit costs is not in it. A copy reads and writes.
    const ms = median(times[REPEATS[1]]) - median(times[REPEATS[0]]);
    const copy_bytes_per_s = (1000 * 2 * bytes * (REPEATS[1] - REPEATS[0])) / ms;

    let empty_us = null;
    if (features.length) {
      const empty = await pipelineOf("@compute @workgroup_size(1) fn main() {}");
      const querySet = device.createQuerySet({ type: "timestamp", count: 2 * EMPTY });
      const resolved = device.createBuffer({
        size: 16 * EMPTY,
        usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC,
      });
      const read = device.createBuffer({ size: 16 * EMPTY, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      const encoder = device.createCommandEncoder();
      for (let i = 0; i < EMPTY; i++) {
        const timestampWrites = { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
        const pass = encoder.beginComputePass({ timestampWrites });
        pass.setPipeline(empty);
        pass.dispatchWorkgroups(1);
        pass.end();
      }
      encoder.resolveQuerySet(querySet, 0, 2 * EMPTY, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, read, 0, 16 * EMPTY);
      device.queue.submit([encoder.finish()]);
      await read.mapAsync(GPUMapMode.READ);
      const stamps = new BigUint64Array(read.getMappedRange());
      empty_us = median(Array.from({ length: EMPTY }, (_, i) => Number(stamps[2 * i + 1] - stamps[2 * i]) / 1000));
    }
    return { copy_bytes_per_s, empty_us, bytes };
  } finally {
    device.destroy();
  }
})();
