// Answers what web/src/gpu makes of kernel texts, one JSON line each way, for shader_declarations.py.

import { createInterface } from "node:readline";
import { kernelCode } from "../../web/src/gpu/kernels.ts";
import { declaredBindings } from "../../web/src/gpu/wgsl.ts";

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const code = kernelCode(JSON.parse(line));
    answer = { code, bindings: declaredBindings(code) };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
