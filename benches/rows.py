"""Tokens a second of generators with several rows: batches, and beams of one prompt. It runs in the page:

usage: python3 build.py exec benches/rows.py --model FOLDER -- [--rows N,...] [--beams N,...] [--prompt N] [--tokens N]

Each line of JSON: the search, the tokens a second of all its rows together (for beams, steps a second times beams),
the milliseconds of a step, and how often that is of one row's tokens a second. The first run of each, which records
the step, is left out; of the others the median counts.
"""

import argparse
import json
import statistics
import time

import onnxruntime_genai as og


def generated(model, prompts, options, tokens):
    """Seconds of the steps after the first one."""
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompts[0]) + tokens, do_sample=False, **options)
    generator = og.Generator(model, params)
    generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
    generator.generate_next_token()
    began = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    generator.get_sequence(0)
    return time.perf_counter() - began


def main(folder):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,2,4,8,16,32")
    parser.add_argument("--beams", default="2,4,8")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    config = og.Config(folder)
    config.overlay(json.dumps({"model": {"eos_token_id": []}}))
    model = og.Model(config)
    vocabulary = model.capstan.config.vocab_size
    rows, beams = ([int(number) for number in text.split(",") if number] for text in (args.rows, args.beams))
    prompts = [
        [100 + (7919 * (place + 1000 * number)) % (vocabulary - 200) for place in range(args.prompt)]
        for number in range(max(rows))
    ]
    searches = [("batch", number, prompts[:number], {"batch_size": number}) for number in rows]
    searches += [("beams", number, prompts[:1], {"num_beams": number}) for number in beams]
    single = None
    for name, number, given, options in searches:
        seconds = [generated(model, given, options, args.tokens) for _ in range(1 + args.rounds)][1:]
        step = statistics.median(seconds) / (args.tokens - 1)
        single = single or 1 / step
        told = {name: number, "tokens/s": round(number / step, 1), "ms a step": round(1e3 * step, 3)}
        print(json.dumps({**told, "times": round(number / step / single, 2)}), flush=True)


main(next(iter(models.values())))  # noqa: F821  # given to scripts of the page
