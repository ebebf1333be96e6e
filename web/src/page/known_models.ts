// The list of models that are known to fit; the Python package has its data, and capstan.KnownModel says more of them.

import { models } from "../../../py_src/capstan/model_files/known_models.json";

/** A model of the Hugging Face hub. */
export interface KnownModel {
  /** Its id, with the file if it is a GGUF file, as OWNER/NAME:FILE.gguf. */
  id: string;
  /** Which graph of a repository, the option `dtype` of a load; undefined for a GGUF file. */
  dtype?: string;
  /** Bytes of its graph and weights; undefined where they are not known for sure. */
  bytes?: number;
  /** Its architecture, as `model.type` in genai_config.json names it. */
  family: string;
  /** The most tokens of a sequence. */
  contextLength: number;
  /** Bytes of the key/value cache for a token of a sequence, in float16; in float32 twice as many. */
  cacheBytesPerToken: number;
  /** The SPDX identifier. */
  licence: string;
  /** Whether the GPU must have shader-f16. */
  needsF16: boolean;
  /** True if this very file was run; the others resemble such files. */
  tried: boolean;
  /** Its name, as its makers write it. */
  name: string;
  /** The number of its parameters. */
  parameters: number;
  /** Search options for it where neither the caller nor its files say how to sample. */
  search: Record<string, boolean | number>;
}

export function knownModels(): KnownModel[] {
  return models.map(({ id, dtype, bytes, family, licence, tried, name, parameters, search, ...rest }) => ({
    id,
    ...(dtype === null ? {} : { dtype }),
    ...(bytes === null ? {} : { bytes }),
    family,
    contextLength: rest.context_length,
    cacheBytesPerToken: rest.cache_bytes_per_token,
    licence,
    needsF16: rest.needs_f16,
    tried,
    name,
    parameters,
    search,
  }));
}
