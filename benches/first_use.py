"""The first token and the pace behind it of long prompts, each length's first use in a page. It runs in the page:

usage: python3 build.py exec benches/first_use.py --model FOLDER -- LENGTH,...

Each line of JSON: the prompt's tokens, the milliseconds to the first token, what the first use records among them, and
of a token after it. A length has caches of its own capacity, so that each is recorded again.
"""

import json
import sys
import time

import capstan

MORE = 200


async def main(folder):
    model = await capstan.Model.load(folder)
    vocab = model.config.vocab_size
    for length in map(int, sys.argv[1].split(",")):
        params = capstan.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=length + MORE)
        async with capstan.Generator(model, params) as generator:
            generator.append_tokens([100 + (7919 * place) % (vocab - 200) for place in range(length)])
            began = time.perf_counter()
            await generator.generate_next_token_async()
            first = time.perf_counter()
            count = 0
            while not generator.is_done():
                await generator.generate_next_token_async()
                count += 1
            spent = time.perf_counter() - first
        told = {"prompt": length, "first ms": round(1e3 * (first - began), 1), "tokens": count}
        print(json.dumps({**told, "ms a token": round(1e3 * spent / max(1, count), 3)}), flush=True)
    await model.aclose()


await main(next(iter(models.values())))  # noqa: F704, F821  # given to scripts of the page
