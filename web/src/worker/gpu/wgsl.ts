// WGSL as text: what a module declares, and templates made into modules. Nothing here needs a device.
//
// A template is WGSL with these lines:
// - `#include NAME`: the text of another file of web/src/worker/shaders.
// - `#reads NAME: TYPE` and `#writes NAME: TYPE`: a storage buffer, which the operation in Python binds by this name;
//   `NAME?` is declared if the operation has it. The declaration is made here, and the number of the binding is its
//   place among those that are declared.
// - `#if NAME` or `#if !NAME`, `#else` and `#endif`, NAME a boolean constant, HALF, SUBGROUPS, or a binding that an
//   operation may lack: whether it has it.
// - `#repeat i COUNT` and `#end`: unrolled with subgroups; the software adapter takes too long to compile that.
// Its header is generated: `element` (f16 or f32), LANES, a constant for each number, subgroup matrices enabled where
// the template has some, and for f16 the functions of HALVES.

import { EngineError } from "../../wire/errors";

/** One of our kernels: a template and its arguments. */
export interface KernelText {
  /** Name of the template. */
  shader: string;
  /** Numbers become WGSL constants, f32 if listed in `floats`; booleans choose lines. */
  constants: Readonly<Record<string, number | boolean>>;
  /** Names of the constants that are f32 in WGSL. */
  floats: readonly string[];
  /** Whether activations are float16. */
  half: boolean;
  /** The adapter's one subgroup size, 0 if subgroup operations are not to be used. */
  lanes: number;
  /** The operation's bindings by their names. */
  bindings: Readonly<Record<string, unknown>>;
}

/** A buffer binding that a module declares. */
export interface DeclaredBinding {
  group: number;
  binding: number;
  access: "read" | "read_write" | "uniform";
  name: string;
}

const BINDING = /@group\((\d+)\)\s*@binding\((\d+)\)\s*var<\s*(storage|uniform)\s*(?:,\s*(\w+)\s*)?>\s*(\w+)/g;

/** The buffer bindings of a module, in the order of its text. */
export function declaredBindings(code: string): DeclaredBinding[] {
  return [...code.matchAll(BINDING)].map(([, group, binding, space, access, name]) => ({
    group: Number(group),
    binding: Number(binding),
    access: space === "uniform" ? "uniform" : access === "read_write" ? "read_write" : "read",
    name: name!,
  }));
}

/** Two or four f16 as the words that hold them, and back, by bitcasts. */
const HALVES = `
fn halves_of(word: u32) -> vec2<f16> { return bitcast<vec2<f16>>(word); }
fn as_word(halves: vec2<f16>) -> u32 { return bitcast<u32>(halves); }
fn quad_of(words: vec2<u32>) -> vec4<f16> { return bitcast<vec4<f16>>(words); }
fn as_words(quad: vec4<f16>) -> vec2<u32> { return bitcast<vec2<u32>>(quad); }`;

/** The same numbers by conversions, which are exact, for compilers that have no such bitcasts (naga). */
const CONVERTED_HALVES = `
fn halves_of(word: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(word)); }
fn as_word(halves: vec2<f16>) -> u32 { return pack2x16float(vec2<f32>(halves)); }
fn quad_of(words: vec2<u32>) -> vec4<f16> { return vec4<f16>(halves_of(words.x), halves_of(words.y)); }
fn as_words(quad: vec4<f16>) -> vec2<u32> { return vec2<u32>(as_word(quad.xy), as_word(quad.zw)); }`;

const INCLUDE = /^#include (\w+)$/gm;
const DECLARED = /^#(reads|writes) (\w+)(\??): (.*)$/gm;

/** A file of the shaders with those that it includes. */
export function included(name: string, file: (name: string) => string): string {
  return file(name).replace(INCLUDE, (_, other: string) => included(other, file).trimEnd());
}

/** The whole module of a template; `bitcasts` says whether f16 may be cast to words by their bits. Throws TapeError for a template that does not parse, or asks for what is not given. */
export function expanded(
  template: string,
  { shader, constants, floats, half, lanes, bindings }: KernelText,
  bitcasts = true,
): string {
  const conditions: Record<string, boolean> = { HALF: half, SUBGROUPS: lanes > 0 };
  for (const [, , name, optional] of template.matchAll(DECLARED)) if (optional) conditions[name!] = name! in bindings;
  const numbers: Record<string, number> = {};
  const header = [
    ...(half ? ["enable f16;"] : []),
    ...(lanes > 0 ? ["enable subgroups;"] : []),
    ...(template.includes("subgroup_matrix_") ? ["enable chromium_experimental_subgroup_matrix;"] : []),
    `alias element = ${half ? "f16" : "f32"};`,
    `const LANES: u32 = ${lanes}u;`,
    ...(half ? [bitcasts ? HALVES : CONVERTED_HALVES] : []),
  ];
  for (const [name, value] of Object.entries(constants)) {
    if (typeof value === "boolean") conditions[name] = value;
    else if (floats.includes(name)) header.push(`const ${name}: f32 = ${value.toExponential()}f;`);
    else {
      header.push(`const ${name}: u32 = ${value}u;`);
      numbers[name] = value;
    }
  }
  const lines = repeated(chosenLines(template, conditions), numbers, lanes > 0);
  return `${header.join("\n")}\n${bound(lines, shader, Object.keys(bindings))}`;
}

/** The text with the bindings declared that are given, each required one among them. */
function bound(text: string, shader: string, given: readonly string[]): string {
  const declared: string[] = [];
  const whole = text.replace(DECLARED, (_, way: string, name: string, optional: string, type: string) => {
    if (optional && !given.includes(name)) return "";
    const access = way === "reads" ? "read" : "read_write";
    return `@group(0) @binding(${declared.push(name) - 1}) var<storage, ${access}> ${name}: ${type};`;
  });
  const missing = declared.filter((name) => !given.includes(name));
  const unknown = given.filter((name) => !declared.includes(name));
  if (missing.length || unknown.length)
    throw new EngineError(
      "TapeError",
      `kernel ${shader} declares ${declared.join(", ")}; not given: ${missing.join(", ") || "none"}; ` +
        `given and not declared: ${unknown.join(", ") || "none"}`,
    );
  return whole;
}

/** The lines of a template that the conditions leave. */
function chosenLines(template: string, conditions: Readonly<Record<string, boolean>>): string {
  const kept: string[] = [];
  /** For each open #if, whether its lines count, and whether the surrounding ones do so. */
  const open: { taken: boolean; outer: boolean }[] = [];
  let active = true;
  for (const line of template.split("\n")) {
    const directive = /^#(if|else|endif) ?(!?)(\w*)$/.exec(line);
    if (!directive) {
      if (active) kept.push(line);
      continue;
    }
    const [, word, not, name] = directive;
    if (word === "if") {
      const condition = conditions[name!];
      if (active && condition === undefined)
        throw new EngineError("TapeError", `a kernel asks for the unknown condition ${name}`);
      const taken = not ? !condition : condition === true;
      open.push({ taken, outer: active });
      active = active && taken;
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
 * The text with each `#repeat i COUNT` to `#end`, COUNT a number or the name of one, as a loop; or, `unrolled`, as
 * COUNT blocks in which `i` is a constant, so that arrays indexed by it are registers.
 */
function repeated(text: string, numbers: Readonly<Record<string, number>>, unrolled: boolean): string {
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
        if (count === undefined)
          throw new EngineError("TapeError", `a kernel repeats lines ${name} times, which is unknown`);
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
