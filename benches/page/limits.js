// What the adapter can do at best, measured on a device of its own: evaluated by Python, and resolves to
// {copy_bytes_per_s, empty_us, bytes}.
(async () => {
  const REPEATS = [16, 64];
  const ROUNDS = 5;
  const EMPTY = 32;
  const adapter = await navigator.gpu.requestAdapter();
  const software = adapter.info.isFallbackAdapter === true || /swiftshader/i.test(adapter.info.description);
  // Larger than any cache.
  const bytes = Math.min(software ? 2 ** 24 : 2 ** 29, adapter.limits.maxBufferSize);
  const features = adapter.features.has("timestamp-query") ? ["timestamp-query"] : [];
  const device = await adapter.requestDevice({
    requiredFeatures: features,
    requiredLimits: { maxBufferSize: Math.max(bytes, 2 ** 28) },
  });
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  try {
    const usage = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const [source, target] = [0, 1].map(() => device.createBuffer({ size: bytes, usage }));
    const copies = async (count) => {
      const encoder = device.createCommandEncoder();
      for (let i = 0; i < count; i++) encoder.copyBufferToBuffer(source, 0, target, 0, bytes);
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
      const module = device.createShaderModule({ code: "@compute @workgroup_size(1) fn main() {}" });
      const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
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
        pass.setPipeline(pipeline);
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
