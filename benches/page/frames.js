// Draws by requestAnimationFrame and keeps when each frame began, and the long tasks of the page's thread meanwhile.

const SIZE = 256;

/** A pattern that moves, on a 2D canvas. */
function canvasPainter(canvas) {
  const context = canvas.getContext("2d");
  return async () => (frame) => {
    context.clearRect(0, 0, SIZE, SIZE);
    context.fillStyle = `hsl(${frame % 360} 80% 50%)`;
    for (let i = 0; i < 16; i++) context.fillRect((frame * 3 + 16 * i) % SIZE, 16 * i, 24, 12);
  };
}

/** The same canvas filled with a colour by WebGPU, on a device of the page's own. */
function webgpuPainter(canvas) {
  return async () => {
    const device = await (await navigator.gpu.requestAdapter()).requestDevice();
    const context = canvas.getContext("webgpu");
    context.configure({ device, format: navigator.gpu.getPreferredCanvasFormat() });
    return (frame) => {
      const encoder = device.createCommandEncoder();
      const view = context.getCurrentTexture().createView();
      const clearValue = [(frame % 64) / 64, 0.5, 0.5, 1];
      encoder.beginRenderPass({ colorAttachments: [{ view, loadOp: "clear", storeOp: "store", clearValue }] }).end();
      device.queue.submit([encoder.finish()]);
    };
  };
}

const PAINTERS = { canvas: canvasPainter, webgpu: webgpuPainter };
const painters = new Map();

/** The function that draws a frame in this way, and the text under it; each way has a canvas that stays in the page. */
function painter(draws) {
  if (!painters.has(draws)) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = SIZE;
    const shown = document.createElement("p");
    document.body.append(canvas, shown);
    painters.set(
      draws,
      PAINTERS[draws](canvas)().then((draw) => ({ draw, shown })),
    );
  }
  return painters.get(draws);
}

/**
 * Draw in one of the ways while `work` is under way, with the text that `told` gives. Returns what `work` resolves to,
 * when the frames were drawn, in ms of the wall clock, and the ms of tasks of the page's thread over 50 ms.
 */
export async function framesDuring(draws, work, told) {
  const { draw, shown } = await painter(draws);
  const frames = [];
  const long_tasks = [];
  const observer = new PerformanceObserver((list) =>
    long_tasks.push(...list.getEntries().map(({ duration }) => duration)),
  );
  observer.observe({ entryTypes: ["longtask"] });
  let drawing = true;
  const frame = () => {
    if (!drawing) return;
    frames.push(performance.timeOrigin + performance.now());
    draw(frames.length);
    shown.textContent = told();
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  try {
    const found = await work();
    // The frame after the end closes the last gap.
    await new Promise((resolve) => requestAnimationFrame(() => resolve()));
    return { ...found, frames, long_tasks };
  } finally {
    drawing = false;
    observer.disconnect();
  }
}
