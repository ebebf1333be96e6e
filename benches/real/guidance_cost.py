"""What a grammar costs a decode step. It runs in the page:

usage: python3 build.py exec guidance_cost.py --model FOLDER -- [--device webgpu|wasm] [--tokens N] [--rounds N]

Interleaved rounds of greedy generations after one prompt: without a grammar, the same with one pick a burst
(run_ahead=1), and under grammars. One line of JSON for each: milliseconds a token, the median of the rounds, and for
grammars those a mask takes alone.
"""

import argparse
import json
import statistics
import sys
import time

import capstan

PROMPT = "<|im_start|>user\nDescribe a person as JSON.<|im_end|>\n<|im_start|>assistant\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 8, "maxItems": 12},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {"schema": ("json_schema", json.dumps(SCHEMA)), "any text": ("regex", r"(?s).+")}


async def generation(model, ids, tokens, grammar, run_ahead):
    """Milliseconds a token from the first to the last one, their number, and the ids."""
    params = capstan.GeneratorParams(model, run_ahead=run_ahead)
    params.set_search_options(do_sample=False, max_length=len(ids) + tokens)
    if grammar:
        params.set_guidance(*GRAMMARS[grammar])
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(ids)
        found = [await generator.generate_next_token_async()]
        began = time.perf_counter()
        async for token in generator:
            found.append(token)
        spent = time.perf_counter() - began
    return 1e3 * spent / max(1, len(found) - 1), found


async def masks(model, grammar, ids):
    """Milliseconds of each mask along an output, and of the compilation."""
    params = capstan.GeneratorParams(model)
    params.set_guidance(*GRAMMARS[grammar])
    grammars = await model.grammars()
    began = time.perf_counter()
    matcher = await grammars.compile(params.guidance.text)
    compiled = time.perf_counter() - began
    times = []
    for token in ids:
        began = time.perf_counter()
        await matcher.mask()
        times.append(1e3 * (time.perf_counter() - began))
        if not matcher.accept(token):
            break
    matcher.close()
    return times, 1e3 * compiled


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    [folder] = folders.values()
    async with await capstan.Model.load(folder, device=args.device) as model:
        ids = capstan.Tokenizer(model).encode(PROMPT)
        began = time.perf_counter()
        await model.grammars()
        print(json.dumps({"library and vocabulary, ms": round(1e3 * (time.perf_counter() - began), 1)}), flush=True)
        subjects = {
            "free": (None, None),
            "free, one pick a burst": (None, 1),
            **{f"under {name}": (name, None) for name in GRAMMARS},
        }
        times = {name: [] for name in subjects}
        outputs = {}
        for number in range(args.rounds + 1):
            for name, (grammar, run_ahead) in subjects.items():
                spent, outputs[name] = await generation(model, ids, args.tokens, grammar, run_ahead)
                if number:
                    times[name].append(spent)
        for name, (grammar, _) in subjects.items():
            told = {
                "subject": name,
                "ms a token": round(statistics.median(times[name]), 3),
                "tokens": len(outputs[name]),
            }
            if grammar:
                alone, compiled = await masks(model, grammar, outputs[name])
                told |= {"mask, median ms": round(statistics.median(alone), 3), "mask, largest": round(max(alone), 3)}
                told |= {"compiled in ms": round(compiled, 1)}
            print(json.dumps(told), flush=True)
        print(f"{model.adapter}", file=sys.stderr)


await main(models)  # noqa: F704, F821  # given to scripts of the page
