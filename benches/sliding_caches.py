"""Long sequences over caches of a window and over whole caches: bytes, ids and times. It runs in the page, on a GPU:

usage: python3 build.py exec benches/sliding_caches.py --model FOLDER -- [PROMPT] [TOKENS] [CONTEXT]

For each kind of caches, a line of JSON: the bytes of the key/value caches at CONTEXT (32768, or the model's own), the
milliseconds to the first token of PROMPT (6000) ids, the second time, and for each of TOKENS (3000) behind it; the ids
are compared, and so are those of four rows, of drafted steps, and of a rewind to where the window is gone.
"""

import json
import sys
import time

import capstan
from capstan.graph import SlidingCaches

ROOM = SlidingCaches.room


def numbers(count, step, vocab):
    return [(step * i + i * i % 17 + 3) % (vocab - 4) for i in range(count)]


async def generated(generator, count):
    ids = []
    while len(ids) < count and not generator.is_done():
        ids.append(await generator.generate_next_token_async())
    return ids


async def driven(model, context, prompt, count):
    """The ids that each kind of generator picks, and milliseconds."""
    vocab, found, told = model.config.vocab_size, {}, {}
    ids = numbers(prompt, 29, vocab)

    def params(**search):
        made = capstan.GeneratorParams(model)
        made.set_search_options(do_sample=False, max_length=context, min_length=context, **search)
        return made

    for turn in ("first", "again"):
        async with capstan.Generator(model, params()) as generator:
            began = time.perf_counter()
            generator.append_tokens(ids)
            found[turn] = await generated(generator, 1)
            told[f"{turn} token ms"] = round(1000 * (time.perf_counter() - began), 1)
            began = time.perf_counter()
            found[turn] += await generated(generator, count)
            told[f"ms a token, {turn}"] = round(1000 * (time.perf_counter() - began) / count, 3)
            generator.append_tokens(numbers(900, 31, vocab))
            found[f"{turn}, appended"] = await generated(generator, 40)
            if turn == "again":
                generator.rewind_to(prompt // 3)
                found["rewound"] = await generated(generator, 20)
                told |= {"recomputed": generator.recomputed_tokens, "passes": generator.tape_passes}
                logits = await generator.get_logits_async()
                told["logits"] = [round(float(each), 4) for each in list(logits)[:4]]
    rows = params(batch_size=4)
    async with capstan.Generator(model, rows) as generator:
        generator.append_tokens([numbers(prompt // 2, 29 + 2 * row, vocab) for row in range(4)])
        for _ in range(count // 3):
            await generator.generate_next_token_async()
        found["rows"] = [token for row in range(4) for token in generator.get_sequence(row)[prompt // 2 :]]
        told["rows"] = generator.tape_passes.get("rows", "separate")
    drafted = params()
    drafted.set_speculation(capstan.Speculation(always=True, ngram_size=2))
    async with capstan.Generator(model, drafted) as generator:
        generator.append_tokens(ids)
        found["drafted"] = await generated(generator, count)
        told["accepted"] = generator.speculation.accepted
    return found, told


async def main(folder, prompt=6000, count=3000, context=32768):
    runs = {}
    for kind in ("whole", "window"):
        SlidingCaches.room = ROOM if kind == "window" else lambda self, capacity, chunk: capacity
        model = await capstan.Model.load(folder, device="webgpu", disable_file_mapped_weights=True)
        context = min(context, model.config.context_length)
        need = model.query_memory_requirements(max_length=context)
        caches = sum(item.bytes for item in need.items if item.name.startswith("kv "))
        runs[kind], told = await driven(model, context, prompt, count)
        await model.aclose()
        print(
            json.dumps({"caches": kind, "bytes": caches, **told, "steps down": capstan.fallback.fallbacks()}),
            flush=True,
        )
    alike = {}
    for name, ids in runs["whole"].items():
        differ = (place for place, pair in enumerate(zip(ids, runs["window"][name], strict=True)) if pair[0] != pair[1])
        alike[name] = next(differ, "all")
    print(json.dumps({"ids alike": alike}))


await main(next(iter(models.values())), *map(int, sys.argv[1:]))  # noqa: F704, F821
