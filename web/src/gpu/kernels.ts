// Our fused decode kernels: WGSL made from a template and constants, with one pipeline for each distinct text.
//
// A template is WGSL with lines `#if NAME`, `#else` and `#endif` (NAME is a boolean constant, HALF or SUBGROUPS),
// `#repeat i COUNT` and `#end` (unrolled with subgroups; the software adapter takes too long to compile that), and
// `@binding(next)` where the lines that are left decide the number. Its header is generated: `element` (f16 or f32),
// LANES, and a constant for each number. Which kernel runs where is decided in Python (capstan.tape); shapes are
// constants, so there are no uniforms to upload.

import { EngineError } from "../errors";
import attention from "../shaders/attention.wgsl";
import attentionJoin from "../shaders/attention_join.wgsl";
import matmulQ4 from "../shaders/matmul_q4.wgsl";
import matvecDense from "../shaders/matvec_dense.wgsl";
import matvecQ4 from "../shaders/matvec_q4.wgsl";
import quantizeRows from "../shaders/quantize_rows.wgsl";
import { declaredBindings } from "./recorder";

/** WGSL templates by name. */
const TEMPLATES: Readonly<Record<string, string>> = {
  attention,
  attention_join: attentionJoin,
  matmul_q4: matmulQ4,
  matvec_dense: matvecDense,
  matvec_q4: matvecQ4,
  quantize_rows: quantizeRows,
};

export interface KernelText {
  /** Name of a template. */
  shader: string;
  /** Numbers become WGSL constants, f32 if listed in `floats`; booleans choose lines. */
  constants: Record<string, number | boolean>;
  /** Names of the constants that are f32 in WGSL. */
  floats: string[];
  /** Whether activations are float16. */
  half: boolean;
  /** The adapter's one subgroup size, 0 if subgroup operations are not to be used. */
  lanes: number;
}

/** The lines of a template that the conditions leave. */
export function chosenLines(template: string, conditions: Readonly<Record<string, boolean>>): string {
  const kept: string[] = [];
  /** Of each open #if: whether its lines count, and whether those around it do. */
  const open: { taken: boolean; outer: boolean }[] = [];
  let active = true;
  for (const line of template.split("\n")) {
    const directive = /^\s*#(if|else|endif)\s*(\w*)\s*$/.exec(line);
    if (!directive) {
      if (active) kept.push(line);
      continue;
    }
    const [, word, name] = directive;
    if (word === "if") {
      const condition = conditions[name!];
      if (condition === undefined)
        throw new EngineError("TapeError", `a kernel asks for the unknown condition ${name}`);
      open.push({ taken: condition, outer: active });
      active = active && condition;
      continue;
    }
    const innermost = open.at(-1);
    if (!innermost) throw new EngineError("TapeError", `a kernel has an #${word} without #if`);
    if (word === "else") active = innermost.outer && !innermost.taken;
    else active = open.pop()!.outer;
  }
  if (open.length) throw new EngineError("TapeError", "a kernel has an #if without #endif");
  return kept.join("\n");
}

/**
 * The text with each `#repeat i COUNT` to `#end`, COUNT a number or the name of one, as a loop; or, `unrolled`, as so
 * many blocks in which `i` is a constant, so that arrays indexed by it are registers.
 */
export function repeated(text: string, numbers: Readonly<Record<string, number>>, unrolled: boolean): string {
  const lines = text.split("\n");
  let at = 0;
  const block = (nested: boolean): string[] => {
    const kept: string[] = [];
    for (; at < lines.length; at++) {
      const [, word, index, name] = /^\s*#(repeat|end)\b\s*(\w*)\s*(\w*)\s*$/.exec(lines[at]!) ?? [];
      if (word === undefined) {
        kept.push(lines[at]!);
      } else if (word === "end") {
        if (!nested) throw new EngineError("TapeError", "a kernel has an #end without #repeat");
        return kept;
      } else {
        const count = /^\d+$/.test(name!) ? Number(name) : numbers[name!];
        if (count === undefined) throw new EngineError("TapeError", `a kernel repeats lines ${name} times; how many?`);
        at++;
        const body = block(true);
        if (unrolled) for (let i = 0; i < count; i++) kept.push(`{ const ${index} = ${i}u;`, ...body, "}");
        else kept.push(`for (var ${index} = 0u; ${index} < ${count}u; ${index}++) {`, ...body, "}");
      }
    }
    if (nested) throw new EngineError("TapeError", "a kernel has a #repeat without #end");
    return kept;
  };
  return block(false).join("\n");
}

/** The whole WGSL of a kernel. */
export function kernelCode({ shader, constants, floats, half, lanes }: KernelText): string {
  const conditions: Record<string, boolean> = { HALF: half, SUBGROUPS: lanes > 0 };
  const numbers: Record<string, number> = {};
  const header = [
    ...(half ? ["enable f16;"] : []),
    ...(lanes > 0 ? ["enable subgroups;"] : []),
    `alias element = ${half ? "f16" : "f32"};`,
    `const LANES: u32 = ${lanes}u;`,
  ];
  for (const [name, value] of Object.entries(constants)) {
    if (typeof value === "boolean") conditions[name] = value;
    else if (floats.includes(name)) header.push(`const ${name}: f32 = ${value.toExponential()}f;`);
    else {
      header.push(`const ${name}: u32 = ${value}u;`);
      numbers[name] = value;
    }
  }
  const template = TEMPLATES[shader];
  if (template === undefined) throw new EngineError("TapeError", `there is no kernel '${shader}'`);
  let binding = 0;
  const lines = repeated(chosenLines(template, conditions), numbers, lanes > 0);
  const body = lines.replace(/@binding\(next\)/g, () => `@binding(${binding++})`);
  return `${header.join("\n")}\n${body}`;
}

export interface FusedPipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
  /** Of each binding, in order: 'read' or 'read_write'. */
  access: string[];
}

/** The fused pipelines of one device, compiled once for each text. */
export class FusedPipelines {
  private readonly made = new Map<string, Promise<FusedPipeline>>();

  constructor(private readonly device: GPUDevice) {}

  /** Throws TapeError with the compiler's words if the kernel does not compile here. */
  get(text: KernelText): Promise<FusedPipeline> {
    const code = kernelCode(text);
    let found = this.made.get(code);
    if (!found) {
      found = this.compile(text.shader, code);
      this.made.set(code, found);
    }
    return found;
  }

  private async compile(label: string, code: string): Promise<FusedPipeline> {
    const access = declaredBindings(code).map(([, , kind]) => kind);
    // What is wrong with the kernel must not count as a fault of the device.
    this.device.pushErrorScope("validation");
    const layout = this.device.createBindGroupLayout({
      label,
      entries: access.map((kind, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: kind === "read" ? "read-only-storage" : "storage" },
      })),
    });
    const module = this.device.createShaderModule({ label, code });
    const pipelineLayout = this.device.createPipelineLayout({ label, bindGroupLayouts: [layout] });
    const refused = this.device.popErrorScope().catch(() => null);
    try {
      const compute = { module, entryPoint: "main" };
      const pipeline = await this.device.createComputePipelineAsync({ label, layout: pipelineLayout, compute });
      return { pipeline, layout, access };
    } catch (error) {
      const { messages } = await module.getCompilationInfo();
      const said = messages.map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join("; ");
      const why = said || (await refused)?.message || String(error);
      throw new EngineError("TapeError", `kernel ${label} does not compile on this adapter: ${why}`);
    }
  }
}
