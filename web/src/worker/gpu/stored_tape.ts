// A tape as data, which names no object of a session: from it a tape can be made again over other buffers, in this page
// or a later one, without recording anything.

import { EngineError } from "../../wire/errors";
import { Allocations } from "./allocations";
import type { WatchedDevice } from "./device";
import type { FusedSpec } from "./fused";
import { kernelCode } from "./kernels";
import type { PlayedOp } from "./player";
import type { RecordingObjects } from "./recorder";
import type { Staging } from "./staging";
import { declaredBindings } from "./wgsl";

/** Ids are those of the tape's recording. */
export interface StoredTape {
  played: PlayedOp[];
  fused: FusedSpec;
  /** Buffers that others may write between replays. */
  written: number[];
  /** Workgroup counts by sequence length, u32 [length + 1, 3] each, in base64. */
  tables: string[];
  pipelines: Record<number, StoredPipeline>;
  groups: Record<number, StoredGroup>;
  /** Buffers of the tape's own. */
  buffers: Record<number, StoredBuffer>;
  /** All others. */
  given: number[];
}

interface StoredPipeline {
  label: string;
  code: string;
  entryPoint: string | null;
  constants: Record<string, number>;
  /** The layout of each bind group: [binding, access]; access is read, read_write or uniform. */
  layouts: [number, string][][];
}

interface StoredGroup {
  pipeline: number;
  index: number;
  /** [binding, buffer, offset, bytes] */
  entries: [number, number, number, number][];
}

interface StoredBuffer {
  label: string;
  size: number;
  usage: number;
  /** The contents before the first step: [offset, base64]; zeros elsewhere. */
  content: [number, string][];
}

/** The source of a tape. */
export interface TapeSource {
  objects: RecordingObjects;
  played: PlayedOp[];
  fused: FusedSpec;
  written: number[];
  tables: Uint32Array<ArrayBuffer>[];
}

/** Constants that are read back to be stored: small ones only. */
const MOST_CONSTANTS = 1 << 20;

/**
 * A tape as data. `given` are the recorded ids of the buffers that its next maker has to give. Throws TapeError if
 * there is something in the tape that cannot be stored.
 */
export async function storedTape(
  staging: Staging,
  source: TapeSource,
  given: ReadonlySet<number>,
): Promise<StoredTape> {
  const { objects, played, fused } = source;
  const stored: StoredTape = {
    played,
    fused,
    written: source.written,
    tables: source.tables.map((table) => base64(new Uint8Array(table.buffer, table.byteOffset, table.byteLength))),
    pipelines: {},
    groups: {},
    buffers: {},
    given: [],
  };
  const used = new Set<number>();
  const changed = new Set<number>();
  for (const op of played) {
    if (op[0] === "dispatch" || op[0] === "indirect" || op[0] === "table") {
      const [, pipeline, groups] = op;
      const entries = groups.map((group) => storedEntries(objects, group));
      const made = (stored.pipelines[pipeline] ??= storedPipeline(objects, pipeline, entries));
      groups.forEach((group, index) => {
        stored.groups[group] = { pipeline, index, entries: entries[index]! };
        const access = new Map(made.layouts[index]);
        for (const [binding, buffer] of entries[index]!) {
          used.add(buffer);
          if (access.get(binding) !== "read" && access.get(binding) !== "uniform") changed.add(buffer);
        }
      });
    }
    if (op[0] === "indirect") used.add(op[3]);
    if (op[0] === "copy") for (const buffer of [op[1], op[3]]) used.add(buffer);
    if (op[0] === "copy") changed.add(op[3]);
    if (op[0] === "clear") for (const set of [used, changed]) set.add(op[1]);
  }
  for (const kernel of fused.kernels) {
    for (const { name, access } of declaredBindings(kernelCode(kernel))) {
      const binding = kernel.bindings[name]!;
      if (binding[0] !== "recorded") continue;
      used.add(binding[1]);
      if (access === "read_write") changed.add(binding[1]);
    }
  }
  let constants = 0;
  for (const id of used) {
    if (given.has(id)) {
      stored.given.push(id);
      continue;
    }
    const info = objects.infos.get(id);
    const buffer = objects.buffers.get(id);
    if (!info || !buffer) throw new EngineError("TapeError", `the tape names buffer ${id}, which was not recorded`);
    const { label, size, usage } = info;
    const entry: StoredBuffer = { label, size, usage, content: [] };
    stored.buffers[id] = entry;
    // The step writes such a value before it reads it; the tape's check proved that.
    if (changed.has(id)) continue;
    if (usage & GPUBufferUsage.COPY_SRC) {
      constants += size;
      if (constants > MOST_CONSTANTS)
        throw new EngineError("TapeError", `the step reads more than ${MOST_CONSTANTS} bytes of constants`);
      await staging.read([{ buffer, offset: 0, bytes: size }], ([bytes]) => entry.content.push([0, base64(bytes!)]));
      continue;
    }
    const writes = objects.writes.get(id);
    if (!writes)
      throw new EngineError("TapeError", `buffer ${id} has content that can neither be read nor was uploaded`);
    for (const { offset, bytes } of writes) entry.content.push([offset, base64(bytes)]);
  }
  return stored;
}

type Entries = StoredGroup["entries"];

function storedPipeline(objects: RecordingObjects, id: number, groups: Entries[]): StoredPipeline {
  const info = objects.pipelineInfos.get(id);
  if (!info?.code) throw new EngineError("TapeError", `pipeline ${id} was not made from WGSL`);
  const { label, code, entryPoint, constants } = info;
  const declared = new Map(declaredBindings(code).map(({ group, binding, access }) => [`${group} ${binding}`, access]));
  const layouts = groups.map((entries, group) =>
    entries.map(([binding]): [number, string] => {
      const access = declared.get(`${group} ${binding}`);
      if (!access) throw new EngineError("TapeError", `kernel ${label} is bound to what its WGSL does not declare`);
      return [binding, access];
    }),
  );
  return { label, code, entryPoint, constants, layouts };
}

function storedEntries(objects: RecordingObjects, id: number): Entries {
  const entries = objects.groupInfos.get(id)?.entries;
  if (!entries) throw new EngineError("TapeError", `the tape names bind group ${id}, which was not recorded`);
  return entries.map((entry) => [entry.binding, entry.buffer.id, entry.offset, entry.size]);
}

const BUFFER_TYPES: Readonly<Record<string, GPUBufferBindingType>> = {
  read: "read-only-storage",
  read_write: "storage",
  uniform: "uniform",
};

interface MadePipeline {
  pipeline: GPUComputePipeline;
  layouts: GPUBindGroupLayout[];
}

/** onnxruntime-web's pipelines made again, once for each device. */
export class RecordedPipelines {
  private readonly made = new Map<string, Promise<MadePipeline>>();

  constructor(private readonly device: GPUDevice) {}

  get(stored: StoredPipeline): Promise<MadePipeline> {
    const key = JSON.stringify([stored.code, stored.entryPoint, stored.constants, stored.layouts]);
    let found = this.made.get(key);
    if (!found) {
      found = this.compile(stored);
      this.made.set(key, found);
      // The next request tries again.
      found.catch(() => this.made.delete(key));
    }
    return found;
  }

  private async compile(stored: StoredPipeline): Promise<MadePipeline> {
    const { label, code, entryPoint, constants } = stored;
    // An error in it must not count as a fault of the device.
    this.device.pushErrorScope("validation");
    const layouts = stored.layouts.map((bindings) =>
      this.device.createBindGroupLayout({
        label,
        entries: bindings.map(([binding, access]) => ({
          binding,
          visibility: GPUShaderStage.COMPUTE,
          buffer: { type: BUFFER_TYPES[access]! },
        })),
      }),
    );
    const module = this.device.createShaderModule({ label, code });
    const layout = this.device.createPipelineLayout({ label, bindGroupLayouts: layouts });
    const refused = this.device.popErrorScope().catch(() => null);
    const compute = { module, constants, ...(entryPoint === null ? {} : { entryPoint }) };
    try {
      return { pipeline: await this.device.createComputePipelineAsync({ label, layout, compute }), layouts };
    } catch (error) {
      // The device's own fault is none of the kernel's.
      if (error instanceof EngineError) throw error;
      const why = (await refused)?.message ?? String(error);
      throw new EngineError("TapeError", `the stored kernel ${label} does not compile on this adapter: ${why}`);
    }
  }
}

/**
 * Makes the objects that a stored tape names, as if they had been recorded; returns them, and those that the tape alone
 * owns. `given` has the buffers that are not the tape's own, by recorded id. Nothing stays allocated on failure: throws
 * TapeError, and OutOfMemoryError, which is no fault of the device.
 */
export async function restoredObjects(
  watched: WatchedDevice,
  pipelines: RecordedPipelines,
  stored: StoredTape,
  given: ReadonlyMap<number, GPUBuffer>,
  owner: string,
): Promise<{ objects: RecordingObjects; owned: GPUBuffer[] }> {
  const objects: RecordingObjects = {
    pipelines: new Map(),
    bindGroups: new Map(),
    buffers: new Map(given),
    infos: new Map(),
    pipelineInfos: new Map(),
    groupInfos: new Map(),
    writes: new Map(),
  };
  const layouts = new Map<number, GPUBindGroupLayout[]>();
  const compiling = Object.entries(stored.pipelines).map(async ([id, pipeline]) => {
    const made = await pipelines.get(pipeline);
    objects.pipelines.set(Number(id), made.pipeline);
    layouts.set(Number(id), made.layouts);
  });
  await Promise.all(compiling);
  const owned: GPUBuffer[] = [];
  const allocations = new Allocations(watched);
  const make = (): void => {
    for (const [id, { label, size, usage, content }] of Object.entries(stored.buffers)) {
      const descriptor = { label, size, usage: usage | GPUBufferUsage.COPY_DST };
      const buffer = watched.buffer("scratch", owner, descriptor);
      owned.push(buffer);
      objects.buffers.set(Number(id), buffer);
      for (const [offset, bytes] of content) watched.write(buffer, offset, fromBase64(bytes));
    }
    for (const [id, { pipeline, index, entries }] of Object.entries(stored.groups)) {
      const layout = layouts.get(pipeline)?.[index];
      if (!layout)
        throw new EngineError("TapeError", `the stored tape names pipeline ${pipeline}, which it does not have`);
      const group = watched.device.createBindGroup({
        layout,
        entries: entries.map(([binding, buffer, offset, size]) => {
          const bound = objects.buffers.get(buffer);
          if (!bound) throw new EngineError("TapeError", `the stored tape names buffer ${buffer}, which was not given`);
          return { binding, resource: { buffer: bound, offset, size } };
        }),
      });
      objects.bindGroups.set(Number(id), group);
    }
    for (const [id, buffer] of objects.buffers) objects.infos.set(id, watched.info(buffer));
  };
  try {
    watched.attribute("scratch", owner, () => allocations.during(make));
    await allocations.require("the buffers of a stored tape");
    return { objects, owned };
  } catch (error) {
    for (const buffer of owned) buffer.destroy();
    throw error;
  }
}

function base64(bytes: Uint8Array): string {
  let text = "";
  // String.fromCharCode takes as many arguments as fit the stack.
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** The bytes of a text in base64. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
