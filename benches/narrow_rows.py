"""How close a model stays after its saved rows were narrowed to 8 and to 4 bits. It runs on CPython, on the CPU:

usage: PYTHONPATH=py_src .venv/bin/python benches/narrow_rows.py FOLDER_OR_GGUF [START] [COUNT]

The state of START tokens (1000) of a text is saved in each number of bits and restored; then COUNT tokens (200) are
forced. For each a line of JSON: the KL divergence of the next token's probabilities from those without narrowing, mean
and largest; how often the likeliest token is the same; the perplexity; the bytes. The text is Capstan's source code.
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


def main(folder, start=1000, count=200):
    model = capstan.Model(folder)
    ids = [int(token) for token in capstan.Tokenizer(model).encode(TEXT)][: start + count]
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(ids) + 8)
    with capstan.Generator(model, params) as first:
        first.append_tokens(ids[:start])
        states = {bits: first.save_state(bits=bits) for bits in (0, 8, 4)}
    base = None
    for bits, state in states.items():
        rows = []
        with capstan.Generator(model, params) as restored:
            restored.restore_state(state)
            for token in ids[start:]:
                logits = np.array(restored.get_logits(), np.float64)
                logits -= logits.max()
                rows.append(logits - math.log(np.exp(logits).sum()))
                restored.append_tokens([token])
        found = np.array(rows)
        base = found if base is None else base
        divergence = (np.exp(base) * (base - found)).sum(axis=1)
        told = {
            "bits": bits,
            "bytes": len(state),
            "mean": round(float(divergence.mean()), 6),
            "largest": round(float(divergence.max()), 5),
            "same": round(float((base.argmax(1) == found.argmax(1)).mean()), 4),
            "perplexity": round(math.exp(-found[np.arange(len(found)), ids[start:]].mean()), 3),
        }
        print(json.dumps(told), flush=True)


main(sys.argv[1], *map(int, sys.argv[2:]))
