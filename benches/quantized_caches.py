"""The quality over quantized key/value caches. It runs in the page, on a GPU (a software adapter takes hours):

usage: python3 build.py exec benches/quantized_caches.py --model FOLDER -- [START] [COUNT]

A text is forced on the model: START tokens (1500) as a prompt, then COUNT (300) one at a time. For each type of the
caches, a line of JSON: the KL divergence of the next token's probabilities from those over float caches, mean and
largest; how often the likeliest token is the same; the perplexity. Eager runs over float caches tell the share of
other kernels. The text is the source code of Capstan, docstrings and all.
"""

import inspect
import json
import math
import sys

import numpy as np

import capstan
from capstan.generation import flight, generator, loop, plain_policy, row, row_loop, run_ahead, speculation

MODULES = speculation, run_ahead, row, flight, loop, row_loop, plain_policy, generator
TEXT = "".join(map(inspect.getsource, MODULES))
WAYS = {
    "float": {"kv_cache_dtype": "float"},
    "float, eager": {"kv_cache_dtype": "float", "capture": "off"},
    "int8": {"kv_cache_dtype": "int8"},
    "int4": {"kv_cache_dtype": "int4"},
}


async def log_probabilities(model, ids, start):
    """A row for the token after each of ids[start:]."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(ids) + 8)
    rows = []
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(ids[:start])
        for token in ids[start:]:
            logits = np.array(await generator.get_logits_async(), np.float64)
            logits -= logits.max()
            rows.append(logits - math.log(np.exp(logits).sum()))
            generator.append_tokens([token])
    return np.array(rows)


async def main(folder, start=1500, count=300):
    base = None
    for way, options in WAYS.items():
        async with await capstan.Model.load(folder, device="webgpu", **options) as model:
            ids = [int(token) for token in capstan.Tokenizer(model).encode(TEXT)][: start + count]
            rows = await log_probabilities(model, ids, start)
            adapter = model.adapter
        base = rows if base is None else base
        divergence = (np.exp(base) * (base - rows)).sum(axis=1)
        told = {
            "caches": way,
            "adapter": adapter,
            "mean": round(float(divergence.mean()), 5),
            "largest": round(float(divergence.max()), 4),
            "same": round(float((base.argmax(1) == rows.argmax(1)).mean()), 4),
            "perplexity": round(math.exp(-np.mean(rows[np.arange(len(rows)), ids[start:]])), 4),
            "tokens": len(rows),
        }
        print(json.dumps(told))


await main(next(iter(models.values())), *map(int, sys.argv[1:]))  # noqa: F704, F821  # given to scripts of the page
