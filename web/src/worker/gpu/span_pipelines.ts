// Pipelines of the kernels on spans, each made when it is first needed.

import castSource from "../shaders/memory/cast.wgsl";
import copyBytesSource from "../shaders/memory/copy_bytes.wgsl";
import halfSource from "../shaders/memory/half.wgsl";
import maskSource from "../shaders/memory/mask.wgsl";
import positionsSource from "../shaders/memory/positions.wgsl";
import sharedSource from "../shaders/memory/spans.wgsl";

const SOURCES = { bytes: copyBytesSource, cast: halfSource + castSource, mask: maskSource, positions: positionsSource };

export type SpanKernel = keyof typeof SOURCES;

/** Kernels that read a source. */
const READERS: readonly SpanKernel[] = ["bytes", "cast"];

export class SpanPipelines {
  private readonly fillLayout: GPUBindGroupLayout;
  private readonly readLayout: GPUBindGroupLayout;
  private readonly made = new Map<SpanKernel, GPUComputePipeline>();

  constructor(private readonly device: GPUDevice) {
    const entry = (binding: number, buffer: GPUBufferBindingLayout): GPUBindGroupLayoutEntry => ({
      binding,
      visibility: GPUShaderStage.COMPUTE,
      buffer,
    });
    const fill = [entry(0, { type: "storage" }), entry(1, { type: "uniform", hasDynamicOffset: true })];
    this.fillLayout = device.createBindGroupLayout({ label: "spans fill", entries: fill });
    this.readLayout = device.createBindGroupLayout({
      label: "spans read",
      entries: [...fill, entry(2, { type: "read-only-storage" })],
    });
  }

  layout(kernel: SpanKernel): GPUBindGroupLayout {
    return READERS.includes(kernel) ? this.readLayout : this.fillLayout;
  }

  get(kernel: SpanKernel): GPUComputePipeline {
    let pipeline = this.made.get(kernel);
    if (!pipeline) {
      const label = `spans ${kernel}`;
      const module = this.device.createShaderModule({ label, code: sharedSource + SOURCES[kernel] });
      pipeline = this.device.createComputePipeline({
        label,
        layout: this.device.createPipelineLayout({ label, bindGroupLayouts: [this.layout(kernel)] }),
        compute: { module, entryPoint: "main" },
      });
      this.made.set(kernel, pipeline);
    }
    return pipeline;
  }
}
