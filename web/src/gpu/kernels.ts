// Our fused kernels: WGSL made from a template and constants, with one pipeline for each distinct text.
//
// Which kernel runs where is decided in Python (capstan.tape); shapes are constants, so there are no uniforms to upload.

import { EngineError } from "../errors";
import attention from "../shaders/attention.wgsl";
import attentionAppend from "../shaders/attention_append.wgsl";
import attentionJoin from "../shaders/attention_join.wgsl";
import attentionSubgroups from "../shaders/attention_subgroups.wgsl";
import attentionWorkgroup from "../shaders/attention_workgroup.wgsl";
import behindProduct from "../shaders/behind_product.wgsl";
import denseColumns from "../shaders/dense_columns.wgsl";
import fewRowsDense from "../shaders/few_rows_dense.wgsl";
import fewRowsQ4 from "../shaders/few_rows_q4.wgsl";
import gatherRows from "../shaders/gather_rows.wgsl";
import judge from "../shaders/judge.wgsl";
import matmulMatrices from "../shaders/matmul_matrices.wgsl";
import matmulQ4 from "../shaders/matmul_q4.wgsl";
import matvecDense from "../shaders/matvec_dense.wgsl";
import matvecQ4 from "../shaders/matvec_q4.wgsl";
import normRows from "../shaders/norm_rows.wgsl";
import packedWeights from "../shaders/packed_weights.wgsl";
import prefillAttention from "../shaders/prefill_attention.wgsl";
import quantizeRows from "../shaders/quantize_rows.wgsl";
import rows from "../shaders/rows.wgsl";
import truthAttention from "../shaders/truth_attention.wgsl";
import truthGemv from "../shaders/truth_gemv.wgsl";
import { declaredBindings, expanded, type TemplateValues } from "./wgsl";

/** WGSL templates by name. */
const TEMPLATES: Readonly<Record<string, string>> = {
  attention: `${attention}#if SHUFFLED\n${attentionSubgroups}#else\n${attentionWorkgroup}#endif\n`,
  attention_append: `${attention}${attentionAppend}`,
  attention_join: attentionJoin,
  few_rows_dense: `${denseColumns}${behindProduct}${fewRowsDense}`,
  few_rows_q4: `${packedWeights}${behindProduct}${fewRowsQ4}`,
  gather_rows: gatherRows,
  judge,
  matmul_matrices: matmulMatrices,
  matmul_q4: matmulQ4,
  matvec_dense: `${denseColumns}${behindProduct}${matvecDense}`,
  matvec_q4: `${packedWeights}${behindProduct}${matvecQ4}`,
  norm_rows: normRows,
  prefill_attention: prefillAttention,
  quantize_rows: quantizeRows,
  rows,
  truth_attention: truthAttention,
  truth_gemv: truthGemv,
};

export interface KernelText extends TemplateValues {
  /** Name of a template. */
  shader: string;
}

/** The whole WGSL of a kernel; see `expanded` for `bitcasts`. */
export function kernelCode(text: KernelText, bitcasts = true): string {
  const template = TEMPLATES[text.shader];
  if (template === undefined) throw new EngineError("TapeError", `there is no kernel '${text.shader}'`);
  return expanded(template, text, bitcasts);
}

export interface FusedPipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
  /** The WGSL name of each binding, in order. */
  names: string[];
}

/** The fused pipelines of one device, compiled once for each text. */
export class FusedPipelines {
  private readonly made = new Map<string, Promise<FusedPipeline>>();
  private bitcasts: Promise<boolean> | null = null;

  constructor(private readonly device: GPUDevice) {}

  /** Throws TapeError with the compiler's words if the kernel does not compile here. */
  async get(text: KernelText): Promise<FusedPipeline> {
    // Asked for by the first that needs it: a refusal is on the browser's console.
    const code = kernelCode(text, !text.half || (await (this.bitcasts ??= castsHalves(this.device))));
    let found = this.made.get(code);
    if (!found) {
      found = this.compile(text.shader, code);
      this.made.set(code, found);
    }
    return found;
  }

  private async compile(label: string, code: string): Promise<FusedPipeline> {
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
