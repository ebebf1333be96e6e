"""Time to the first token of prompts that begin alike, without and with a prefix cache. It runs in the page:

usage: python3 build.py exec benches/prefix.py --model FOLDER -- [--device webgpu|wasm] [--common N] [--own N]
       [--rounds N]

Each round asks for one token after a common start of N tokens and a few of the round's own: without a prefix cache,
with one after a closed generator, with one beside an open one; then a chat's next turn, sent as a whole. One line of
JSON for each: milliseconds to the first token (the median of the rounds, and the least), tokens taken over, whether
the ids are those of a generator that runs its whole prompt, and milliseconds of closing, when rows are copied to be
kept.
"""

import argparse
import json
import statistics
import sys
import time

import capstan

ANSWER = 8


def prompt_of(vocabulary, start, length):
    """Tokens of no meaning, all ids far from the special ones."""
    return [100 + (7919 * (start + place)) % (vocabulary - 200) for place in range(length)]


async def answered(model, prompt, room):
    """Milliseconds to the first token, the ids, tokens taken over, and the generator, which is open."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=room)
    generator = capstan.Generator(model, params)
    # Buffers, tapes and kernels are no part of a prompt.
    await generator.prepare_async()
    began = time.perf_counter()
    generator.append_tokens(prompt)
    ids = [await generator.generate_next_token_async()]
    spent = 1e3 * (time.perf_counter() - began)
    while len(ids) < ANSWER and not generator.is_done():
        ids.append(await generator.generate_next_token_async())
    return spent, ids, generator.reused_tokens, generator


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--common", type=int, default=512)
    parser.add_argument("--own", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    [folder] = folders.values()
    plain = await capstan.Model.load(folder, device=args.device)
    cached = await capstan.Model.load(folder, device=args.device, prefix_cache=1 << 30)
    vocabulary = plain.config.vocab_size
    room = args.common + args.own + 4 * ANSWER
    start = prompt_of(vocabulary, 0, args.common)
    kinds = ("whole prompt", "after a closed generator", "beside an open generator", "next turn of a chat")
    times = {kind: [] for kind in kinds}
    closing, same, reused = [], dict.fromkeys(kinds, 0), {}

    async def measured(kind, model, prompt, wanted=None):
        spent, ids, taken, generator = await answered(model, prompt, room)
        times[kind].append(spent)
        reused[kind] = taken
        same[kind] += wanted in (None, ids)
        return ids, generator

    for number in range(args.rounds + 1):
        prompt = [*start, *prompt_of(vocabulary, 10_000 * (number + 1), args.own)]
        wanted, generator = await measured(kinds[0], plain, prompt)
        await generator.aclose()
        # Only the common start is there to be found.
        cached.prefixes.clear()
        first = (await answered(cached, [*start, 99], room))[3]
        _, open_ = await measured(kinds[2], cached, prompt, wanted)
        await open_.aclose()
        cached.prefixes.clear()
        began = time.perf_counter()
        await first.aclose()
        closing.append(1e3 * (time.perf_counter() - began))
        ids, generator = await measured(kinds[1], cached, prompt, wanted)
        await generator.aclose()
        turn = [*prompt, *ids, *prompt_of(vocabulary, 20_000 * (number + 1), args.own)][: room - ANSWER]
        _, whole, _, generator = await answered(plain, turn, room)
        await generator.aclose()
        _, generator = await measured(kinds[3], cached, turn, whole)
        await generator.aclose()
        if not number:
            times, closing, same = {kind: [] for kind in kinds}, [], dict.fromkeys(kinds, 0)
    for kind in kinds:
        found = times[kind]
        told = {"ms to the first token": round(statistics.median(found), 2), "least": round(min(found), 2)}
        told |= {"tokens taken over": reused[kind], "same ids": f"{same[kind]} of {len(found)}"}
        print(json.dumps({"prompt": kind, **told}), flush=True)
    kept = cached.prefixes.stats()
    print(json.dumps({"ms of closing": round(statistics.median(closing), 2), "bytes kept": kept.bytes}), flush=True)
    print(plain.adapter, file=sys.stderr)
    await plain.aclose()
    await cached.aclose()


await main(models)  # noqa: F704, F821  # given to scripts of the page
