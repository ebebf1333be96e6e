"""Time to continue a stored conversation, beside computing its prompt. It runs in the page:

usage: python3 build.py exec benches/saved_states.py --model FOLDER -- [--device webgpu|wasm] [--tokens N] [--rounds N]
       [--random]

Each round stores the state of a prompt of N tokens in the browser's storage, and restores it in another generator. With
--random no prompt is computed: the rows are random, for a machine without a GPU. Lines of JSON: milliseconds to compute
the prompt up to its first token; to store it; to restore it (until its rows are on the device), and from there to the
first token; all medians, with the least; bytes, and whether the ids are equal.
"""

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import closing

import capstan
from capstan.generation.saved_state import cache_sizes, identity
from capstan.generation.state_format import SHARD, FileRows, SavedState, write_shards
from capstan.host.session_store import SessionStore, StoredSession

ANSWER = 8
BUDGET = 1 << 40


def open_generator(model, room):
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=room)
    return capstan.Generator(model, params)


async def taken(generator, count):
    return [await generator.generate_next_token_async() for _ in range(count)]


async def random_rows(graph, length):
    """Rows of every cache, random float16 or float32 numbers below 2 in magnitude."""
    noise = os.urandom(1 << 20)
    width = 2 if graph.cache_dtype == "float16" else 4
    for size in cache_sizes(graph, length, 0):
        rows = bytearray(noise * (size // len(noise) + 1))[:size]
        rows[width - 1 :: width] = bytes([0x3C]) * (size // width)
        yield rows


async def random_state(generator, sink, prompt):
    """The header of a state with random rows."""
    loop = generator._loop
    graph = loop.model.graph
    size = sum(cache_sizes(graph, len(prompt), 0))
    await sink.begin(size)
    digests = await write_shards(random_rows(graph, len(prompt)), sink)
    about = {"tokens": prompt, "appended": [[0, len(prompt)]], "contents": [], "long": False}
    return {**identity(loop), **about, "length": len(prompt), "base": 0, "bytes": size, "digests": digests}


def milliseconds(since):
    return 1e3 * (time.perf_counter() - since)


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--random", action="store_true")
    args = parser.parse_args()
    [folder] = folders.values()
    room = args.tokens + 4 * ANSWER
    model = await capstan.Model.load(folder, device=args.device, max_length=room)
    vocabulary = model.config.vocab_size
    prompt = [100 + 7919 * place % (vocabulary - 200) for place in range(args.tokens)]
    store = await SessionStore.open()
    steps = ("compute the prompt", "store", "restore", "first token after it")
    times, same, stored = {step: [] for step in steps}, 0, None
    for number in range(args.rounds + 1):
        rows = store.rows("bench", BUDGET, SHARD)
        wanted = None
        async with open_generator(model, room) as first:
            await first.prepare_async(record=not args.random)
            began = time.perf_counter()
            if not args.random:
                first.append_tokens(prompt)
                wanted = await taken(first, 1)
                times["compute the prompt"].append(milliseconds(began))
            began = time.perf_counter()
            header = await (random_state(first, rows, prompt) if args.random else first.save_rows(rows))
            stored = await store.write(StoredSession("bench", [], header=json.dumps(header)), rows)
            times["store"].append(milliseconds(began))
            if not args.random:
                wanted = await taken(first, ANSWER)
        async with open_generator(model, room) as other:
            await other.prepare_async(record=not args.random)
            began = time.perf_counter()
            found = SavedState.header_of(stored.header)
            with closing(await store.open_rows(stored, SHARD)) as file:
                await other.restore_rows(SavedState(found, FileRows(file, stored.bytes, found["digests"])))
            times["restore"].append(milliseconds(began))
            if wanted is not None:
                began = time.perf_counter()
                ids = await taken(other, 1)
                times["first token after it"].append(milliseconds(began))
                ids += await taken(other, ANSWER - 1)
                same += wanted == ids
        if not number:
            times, same = {step: [] for step in steps}, 0
    for step, found in times.items():
        if found:
            told = {"ms": round(statistics.median(found), 1), "least": round(min(found), 1)}
            print(json.dumps({"step": step, **told}), flush=True)
    rate = round(stored.bytes / 1e6 / min(times["restore"]), 2)
    about = {"bytes": stored.bytes, "tokens": args.tokens, "restored GB a second": rate}
    print(json.dumps({**about, "same ids": None if args.random else f"{same} of {args.rounds}"}), flush=True)
    await store.remove("bench")
    print(model.adapter, file=sys.stderr)
    await model.aclose()


await main(models)  # noqa: F704, F821  # given to scripts of the page
