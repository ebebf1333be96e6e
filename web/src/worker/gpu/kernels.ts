// Our fused kernels: WGSL made from a template and constants, with one pipeline for each distinct kernel.
//
// Which kernel runs where is decided in Python (capstan.tape); shapes are constants, so there are no uniforms to upload.

import { EngineError } from "../../wire/errors";
import { declaredBindings, expanded, included, type KernelText } from "./wgsl";

/** Rooms of web/src/worker/shaders with our kernels; a file's name is in one of them. */
const ROOMS = ["products", "attention", "states", "truth"];

/** A file of a room; esbuild brings all files that this may name. */
function file(name: string): string {
  for (const room of ROOMS) {
    try {
      return require(`../shaders/${room}/${name}.wgsl`);
    } catch {
      // It may be in the next room.
    }
  }
  throw new EngineError("TapeError", `there is no kernel '${name}'`);
}

/** A kernel's template, whole. */
export function template(shader: string): string {
  return included(shader, file);
}

/** The whole WGSL of a kernel; see `expanded` for `bitcasts`. */
export function kernelCode(text: KernelText, bitcasts = true): string {
  return expanded(template(text.shader), text, bitcasts);
}

export interface FusedPipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
  /** The WGSL name of each binding, in order. */
  names: string[];
}

/** The fused pipelines of one device, compiled once for each kernel with its arguments. */
export class FusedPipelines {
  private readonly made = new Map<string, Promise<FusedPipeline>>();
  private bitcasts: Promise<boolean> | null = null;

  constructor(private readonly device: GPUDevice) {}

  /** Throws TapeError with the compiler's words if the kernel does not compile here. */
  get(text: KernelText): Promise<FusedPipeline> {
    const { shader, constants, floats, half, lanes, bindings } = text;
    // A step has a hundred operations of a dozen kernels: none is written again to find that it is there.
    const key = JSON.stringify([shader, constants, floats, half, lanes, Object.keys(bindings)]);
    let found = this.made.get(key);
    if (!found) this.made.set(key, (found = this.compile(text)));
    return found;
  }

  private async compile(text: KernelText): Promise<FusedPipeline> {
    const label = text.shader;
    // Asked for by the first that needs it: a refusal is on the browser's console.
    const code = kernelCode(text, !text.half || (await (this.bitcasts ??= castsHalves(this.device))));
    const declared = declaredBindings(code);
    // An error in the kernel must not count as a fault of the device.
    this.device.pushErrorScope("validation");
    const layout = this.device.createBindGroupLayout({
      label,
      entries: declared.map(({ access }, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: access === "read" ? "read-only-storage" : "storage" },
      })),
    });
    const module = this.device.createShaderModule({ label, code });
    const pipelineLayout = this.device.createPipelineLayout({ label, bindGroupLayouts: [layout] });
    const refused = this.device.popErrorScope().catch(() => null);
    try {
      const compute = { module, entryPoint: "main" };
      const pipeline = await this.device.createComputePipelineAsync({ label, layout: pipelineLayout, compute });
      return { pipeline, layout, names: declared.map(({ name }) => name) };
    } catch (error) {
      // The device's own fault is none of the kernel's.
      if (error instanceof EngineError) throw error;
      const { messages } = await module.getCompilationInfo();
      const said = messages.map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join("; ");
      const why = said || (await refused)?.message || String(error);
      throw new EngineError("TapeError", `kernel ${label} does not compile on this adapter: ${why}`);
    }
  }
}

/** Whether the device's compiler casts two f16 to a word by their bits: Firefox's naga does not, though WGSL says so. */
async function castsHalves(device: GPUDevice): Promise<boolean> {
  device.pushErrorScope("validation");
  device.createShaderModule({
    label: "bitcasts of f16",
    code: "enable f16; fn halves_of(word: u32) -> vec2<f16> { return bitcast<vec2<f16>>(word); }",
  });
  return (await device.popErrorScope().catch(() => null)) === null;
}
