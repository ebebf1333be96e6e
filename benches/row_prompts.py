"""Time to the first tokens of batches whose prompts share runs, and of the same prompts one after another. It runs in
the page:

usage: python3 build.py exec benches/row_prompts.py --model FOLDER -- [--rows N,...] [--prompt N,...] [--rounds N]

Each line of JSON: rows and tokens of a prompt, the milliseconds to the first tokens of all rows together and apart (the
median of the rounds), how often the first is in the second, whether both have the same ids, and what the decoder says
of its prompts. The first two rounds of each, in which tapes are recorded, are left out.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace

import capstan
from capstan.tape import PASSES

MORE = 8
"""Tokens whose ids are compared."""


async def rounds_of(model, prompts, rounds):
    """Milliseconds to the first tokens by round, the ids behind the prompts, and what is said of these."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, batch_size=len(prompts), max_length=len(prompts[0]) + MORE)
    spent = []
    for _ in range(rounds + 2):
        async with capstan.Generator(model, params) as generator:
            # Buffers and the step's tape are no part of a prompt.
            await generator.prepare_async()
            began = time.perf_counter()
            generator.append_tokens(prompts)
            await generator.generate_next_token_async()
            spent.append(1e3 * (time.perf_counter() - began))
            while not generator.is_done():
                await generator.generate_next_token_async()
            ids = [generator.get_sequence(row)[len(prompts[0]) :] for row in range(len(prompts))]
            said = generator.tape_passes.get("prompts", "one after another")
    return spent[2:], ids, said


async def main(folder):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="2,8,32")
    parser.add_argument("--prompt", default="24,100")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    rows, lengths = ([int(number) for number in text.split(",")] for text in (args.rows, args.prompt))
    ways = [PASSES, [name for name in PASSES if name != "prompts"]]
    models = [await capstan.Model.load(folder, device="webgpu", passes=passes) for passes in ways]
    for model in models:
        # No id ends a sequence.
        model.search = replace(model.search, eos_token_ids=())
    vocabulary = models[0].config.vocab_size
    for count in rows:
        for length in lengths:
            prompts = [
                [100 + (7919 * (place + 1000 * number)) % (vocabulary - 200) for place in range(length)]
                for number in range(count)
            ]
            found = [await rounds_of(model, prompts, args.rounds) for model in models]
            (together, ids, said), (apart, others, _) = found
            medians = [round(statistics.median(spent), 2) for spent in (together, apart)]
            told = {"rows": count, "prompt": length, "ms together": medians[0], "ms apart": medians[1]}
            told |= {"times": round(medians[1] / medians[0], 2), "same ids": ids == others, "said": said}
            print(json.dumps(told), flush=True)
            # The rows of a number are kept for the next ones.
            for model in models:
                await model.trim()
    for model in models:
        await model.aclose()


await main(next(iter(models.values())))  # noqa: F704, F821  # given to scripts of the page
