"""Tokens a second of scores, of prompts and of log probabilities that are asked for step by step. It runs in the page:

usage: python3 build.py exec benches/scores.py --model FOLDER -- [--device webgpu|wasm] [--context N] [--tokens N,...]
       [--steps N] [--rounds N]

For each number of tokens behind a context of N: one line of JSON with the median milliseconds and the tokens a second
of a score behind a rewind, of a prompt as long (its first token), and of `log_probabilities_async` for each of a few
tokens; the largest difference of scores and steps; how scores ran. The first three rounds, in which tapes are recorded
and checked, are left out.
"""

import argparse
import json
import statistics
import sys
import time

import capstan

WARM = 3


def prompt_of(vocabulary, start, length):
    """Tokens of no meaning, all ids far from the special ones."""
    return [100 + (7919 * (start + place)) % (vocabulary - 200) for place in range(length)]


async def timed(rounds, begin, action):
    """The median milliseconds of `action`, and its last result."""
    spent = []
    for _ in range(rounds + WARM):
        begin()
        began = time.perf_counter()
        result = await action()
        spent.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spent[WARM:]), result


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", default="1,5,32,256,1024")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    lengths = [int(each) for each in args.tokens.split(",")]
    [folder] = folders.values()
    model = await capstan.Model.load(folder, device=args.device)
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=args.context + max(lengths) + 1)
    whole = prompt_of(model.config.vocab_size, 0, args.context + max(lengths))
    context = whole[: args.context]
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(context)
        await generator.prepare_async()
        for count in lengths:
            tokens = whole[args.context : args.context + count]

            def again():
                generator.rewind_to(args.context)

            async def scored(tokens=tokens):
                return await generator.score_async(tokens)

            async def prompted(tokens=tokens):
                generator.append_tokens(tokens)
                await generator.generate_next_token_async()

            async def stepped(tokens=tokens):
                found = []
                for token in tokens[: args.steps]:
                    found.append((await generator.log_probabilities_async(1, [token]))[token])
                    generator.append_tokens([token])
                return found

            told = {"context": args.context, "tokens": count}
            score_ms, scores = await timed(args.rounds, again, scored)
            prompt_ms, _ = await timed(args.rounds, again, prompted)
            steps_ms, steps = await timed(1, again, stepped)
            for name, spent, done in (
                ("score", score_ms, count),
                ("prompt", prompt_ms, count),
                ("steps", steps_ms, len(steps)),
            ):
                told[name] = {"ms": round(spent, 2), "tokens a second": round(1e3 * done / spent, 1)}
            pairs = zip(scores, steps, strict=False)
            told["largest difference"] = max(abs(score.log_probability - step) for score, step in pairs)
            told["scores"] = generator.tape_passes.get("scores")
            print(json.dumps(told), flush=True)
    print(model.adapter, file=sys.stderr)
    await model.aclose()


await main(models)  # noqa: F704, F821  # given to scripts of the page
