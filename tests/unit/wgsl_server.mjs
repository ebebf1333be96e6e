// Answers what web/src/worker/gpu makes of kernel texts, one JSON line each way, for shader_declarations.py: of a fused
// kernel its module, its bindings and the names of those that an operation may lack, of a program of the sampler all
// modules that it may take.

import { createInterface } from "node:readline";
import { kernelCode, template } from "../../web/src/worker/gpu/kernels.ts";
import { dispatchesOf, SamplerPipelines, textOf } from "../../web/src/worker/gpu/sampler_program.ts";
import { SpanPipelines } from "../../web/src/worker/gpu/span_pipelines.ts";
import { declaredBindings, expanded } from "../../web/src/worker/gpu/wgsl.ts";

globalThis.GPUShaderStage = { COMPUTE: 4 };

/** The modules that `make` creates on a device. */
function modules(make) {
  const codes = [];
  make({
    createBindGroupLayout: () => ({}),
    createPipelineLayout: () => ({}),
    createComputePipeline: () => ({}),
    createShaderModule: ({ code }) => {
      codes.push(code);
      return {};
    },
  });
  return { codes };
}

const DRAFTS = ["draft", "drafterStart", "drafterPair", "drafterPicks"];

/** `has` names optional bindings that this operation has; `written` is a template outside of the rooms. */
function answered({ sampler, spans, written, bitcasts = true, has = [], ...text }) {
  if (written) return { code: expanded(written, text) };
  if (spans) return modules((device) => spans.forEach((kernel) => new SpanPipelines(device).get(kernel)));
  if (sampler) {
    const kernels = [...dispatchesOf(sampler).map(({ kernel }) => kernel), ...(sampler.drafts ? DRAFTS : [])];
    return modules((device) =>
      kernels.forEach((kernel) => SamplerPipelines.of(device).get(kernel, 1000, false, textOf(kernel, sampler))),
    );
  }
  const known = [...template(text.shader).matchAll(/^#(?:reads|writes) (\w+)(\??):/gm)];
  const [optional, required] = ["?", ""].map((mark) => known.filter((each) => each[2] === mark).map((each) => each[1]));
  const bindings = text.bindings ?? Object.fromEntries([...required, ...has].map((name) => [name, null]));
  const code = kernelCode({ ...text, bindings }, bitcasts);
  return { code, bindings: declaredBindings(code), optional };
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = answered(JSON.parse(line));
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
