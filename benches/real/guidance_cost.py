"""Measures the cost of a grammar per decode step. It runs in the page:

usage: python3 build.py exec guidance_cost.py --model FOLDER -- [--device webgpu|wasm] [--tokens N] [--rounds N]
       [--held]

Interleaved rounds of generations after one prompt, greedy and drawn: without a grammar, under grammars, and under one
where each pick waits for its mask (enable_ff_tokens). One line of JSON for each: milliseconds a token, the median of
the rounds, and how many times the same without a grammar that is; decode steps and waits for ids for each token; of
grammars what their automaton takes, and what a mask on the CPU takes alone, with its share of a token's time. Whether
outputs fit the automaton says. `--held` measures only the grammar of strictTools: any text, which a call may end.
"""

import argparse
import json
import statistics
import sys
import time

import capstan
from capstan.generation.answer import forced_call
from capstan.guidance import Masks

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
TOOLS = [{"type": "function", "function": {"name": "describe", "parameters": SCHEMA}}]
HELD = "text that a call may end"


SEARCHES = {
    "greedy": {"do_sample": False},
    "drawn": {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.9, "random_seed": 7},
}


async def generation(model, ids, tokens, search, grammar, waits):
    """Milliseconds a token from the first to the last one, the ids, and the device's counters."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + tokens, **SEARCHES[search])
    if grammar:
        params.set_guidance(*GRAMMARS[grammar], waits)
    async with capstan.Generator(model, params) as generator:
        await generator.prepare_async()
        generator.append_tokens(ids)
        found = [await generator.generate_next_token_async()]
        began = time.perf_counter()
        async for token in generator:
            found.append(token)
        spent = time.perf_counter() - began
        counters = generator.counters
    return 1e3 * spent / max(1, len(found) - 1), found, counters


def masks(model, grammar, ids):
    """Milliseconds of each mask along an output, of the walks' start, and whether the output fits."""
    params = capstan.GeneratorParams(model)
    params.set_guidance(*GRAMMARS[grammar])
    found, tokens = params.guidance.automaton(), model.vocabulary.token_bytes()
    began = time.perf_counter()
    model.vocabulary.token_walks()
    started = time.perf_counter() - began
    made = Masks(found, model.token_walks, tokens.stop)
    times, position = [], found.start
    for token in ids:
        began = time.perf_counter()
        made.mask(position)
        times.append(1e3 * (time.perf_counter() - began))
        position = found.after(position, tokens[token])
    made.close()
    return times, 1e3 * started, bool(position)


def automaton(model, grammar):
    """Milliseconds to make the automaton, and its size."""
    params = capstan.GeneratorParams(model)
    params.set_guidance(*GRAMMARS[grammar])
    began = time.perf_counter()
    tokens = model.vocabulary.token_bytes()
    bytes_found = time.perf_counter()
    found = params.guidance.automaton()
    table = found.table(tokens)
    made = time.perf_counter()
    return {
        "bytes of the vocabulary, ms": round(1e3 * (bytes_found - began), 1),
        "automaton, ms": round(1e3 * (made - bytes_found), 1),
        "states": len(found.steps),
        "words, the vocabulary's among them": len(table.words),
    }


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--held", action="store_true")
    args = parser.parse_args()
    [folder] = folders.values()
    async with await capstan.Model.load(folder, device=args.device) as model:
        tokenizer = capstan.Tokenizer(model)
        ids = tokenizer.encode(PROMPT)
        GRAMMARS[HELD] = "lark_grammar", forced_call(tokenizer, PROMPT, TOOLS, ["describe"], optional=True)
        if args.held:
            for name in [*GRAMMARS][:-1]:
                del GRAMMARS[name]
        for name in GRAMMARS:
            print(json.dumps({"grammar": name} | automaton(model, name)), flush=True)
        subjects = {
            f"{search}, {name}": (search, grammar, waits)
            for search in SEARCHES
            for name, grammar, waits in (
                ("free", None, False),
                *((f"under {grammar}", grammar, False) for grammar in GRAMMARS),
                *(
                    (("under any text, each pick waits", "any text", True),)
                    if search == "greedy" and not args.held
                    else ()
                ),
            )
        }
        times = {name: [] for name in subjects}
        outputs = {}
        for number in range(args.rounds + 1):
            for name, given in subjects.items():
                spent, *outputs[name] = await generation(model, ids, args.tokens, *given)
                if number:
                    times[name].append(spent)
        for name, (search, grammar, _) in subjects.items():
            found, counters = outputs[name]
            told = {
                "subject": name,
                "ms a token": round(statistics.median(times[name]), 3),
                "times free": round(statistics.median(times[name]) / statistics.median(times[f"{search}, free"]), 3),
                "tokens": len(found),
                "steps a token": round(counters["steps"] / len(found), 2),
                "waits a token": round(counters["python_crossings"] / len(found), 2),
            }
            if grammar:
                alone, started, fits = masks(model, grammar, found)
                told |= {"fits": fits, "mask on the CPU, median ms": round(statistics.median(alone), 3)}
                told |= {"share of masks": round(statistics.mean(alone) / statistics.median(times[name]), 3)}
                told |= {"the first, ms": round(alone[0], 1), "the longest, ms": round(max(alone), 1)}
                told |= {"the vocabulary's start, ms": round(started, 1)}
            print(json.dumps(told), flush=True)
        print(f"{model.adapter}", file=sys.stderr)


await main(models)  # noqa: F704, F821  # given to scripts of the page
