"""Weights in parts, as on phones: ids and times on an adapter as it is, and with limits. It runs in the page:

usage: python3 build.py exec benches/small_adapter.py --model FOLDER -- MODE [LARGEST] [MAX_LENGTH]

MODE is whole, least (every limit of the device is WebGPU's default, 128 MiB a binding among them), parts (the
adapter's own limits, and no weight or cache above LARGEST bytes, 128 MiB unless given), or disk (embedding tables on
disk). With MAX_LENGTH the model is loaded for sequences of so many tokens, so that caches of that length are in parts,
too. A line of JSON: the bytes of weights, those in parts, the reported parts and steps down, how steps are made, and
for each run the prompt's tokens, milliseconds to the first token and a token after it, and a digest of the ids, which
is the same in every mode.
"""

import hashlib
import json
import sys
import time
from importlib import import_module

from pyodide.code import run_js

import capstan
from capstan.fallback import fallbacks

LEAST = {
    "maxBufferSize": 1 << 28,
    "maxStorageBufferBindingSize": 1 << 27,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupsPerDimension": 65535,
    "maxStorageBuffersPerShaderStage": 8,
}
WITH_LIMITS = """limits => {
  const wanted = JSON.parse(limits);
  const { requestAdapter } = GPU.prototype;
  GPU.prototype.requestAdapter = async function (...given) {
    const adapter = await requestAdapter.apply(this, given);
    const value = new Proxy(adapter.limits, { get: (found, name) => wanted[name] ?? found[name] });
    return Object.defineProperty(adapter, "limits", { value });
  };
}"""
RUNS = ((5, 64), (64, 64), (512, 64), (5, 256), (5, 256), (5, 256))
"""Tokens of the prompt, and picked."""


def with_largest(largest):
    """Have weights of more bytes in parts."""
    page_host = import_module("capstan._js.page_host")
    original = page_host.binding_limits

    async def limits():
        return (await original())[0], largest

    page_host.binding_limits = limits


async def timed(model, place, length, count):
    """One greedy run."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=length + count + 8)
    prompt = [100 + (7919 * (17 * place + i)) % (model.config.vocab_size - 200) for i in range(length)]
    async with capstan.Generator(model, params) as generator:
        await generator.prepare_async()
        begun = time.perf_counter()
        generator.append_tokens(prompt)
        ids = [await generator.generate_next_token_async()]
        first = time.perf_counter()
        while len(ids) < count and not generator.is_done():
            ids.append(await generator.generate_next_token_async())
        took = 1e3 * (time.perf_counter() - first) / max(len(ids) - 1, 1)
        digest = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
        run = {
            "prompt": length,
            "first_ms": round(1e3 * (first - begun), 2),
            "ms_a_token": round(took, 4),
            "ids": digest,
        }
        return run, generator.capture, dict(generator.tape_passes or {})


async def main(folder, mode, largest=1 << 27, max_length=0):
    if mode == "least":
        run_js(WITH_LIMITS)(json.dumps(LEAST))
    if mode == "parts":
        with_largest(int(largest))
    options = {"max_length": int(max_length) or None, "embedding_tables": "disk" if mode == "disk" else "memory"}
    async with await capstan.Model.load(folder, device="webgpu", **options) as model:
        need = model.query_memory_requirements()
        split = [[each.name, each.bytes, each.parts] for each in need.split]
        runs = [await timed(model, place, *run) for place, run in enumerate(RUNS)]
        _, capture, passes = runs[-1]
        told = {
            "mode": mode,
            "adapter": model.adapter,
            "weights": need.weights.bytes,
            "split": split,
            "told": list(fallbacks()),
            "capture": capture,
            "fused": passes.get("fused"),
        }
        print(json.dumps({**told, "runs": [run for run, *_ in runs]}))


await main(next(iter(models.values())), *sys.argv[1:])  # noqa: F704, F821  # given to scripts of the page
