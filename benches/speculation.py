"""Tokens a second without and with speculation, in one run. It runs in the page:

usage: python3 build.py exec benches/speculation.py --model FOLDER [--model DRAFT ...] -- [--device webgpu|wasm]
       [--tokens N] [--rounds N] [--drafts N,...] [--ngram N] [--random] [--software]

Each case is generated without speculation, with it, and with every step drafted (`always`), by turns. Drafts are found
in the text; or each DRAFT, a model of the same vocabulary, drafts for FOLDER, which is loaded again for each; or, with
--ngram 0, FOLDER's own multi-token-prediction head drafts. The cases are chats: a text to repeat with one word changed,
a program to rename in, a story, and that story drawn by temperature, top-k and top-p.
With --random, for weights without meaning, they are greedy picks among six tokens, among all, and
draws; shapes/make_shape.py makes draft models of which a given share of drafts is right. With --software steps of
several positions are taped on a software adapter, too. A line of JSON for each case and number of drafts: tokens a
second (medians over the rounds, of the tokens after the first), their quotients, whether the ids are those without
speculation, and what came of the drafts. Times of a first use (a tape is recorded for each number of drafts) are told
apart.
"""

import argparse
import json
import statistics
import sys
import time

import capstan
from capstan.tape import PASSES

TEXT = (
    "The lighthouse at the end of the harbour was built in 1832 by order of the harbour council. Its keeper, a retired "
    "sailor, lit the lamp each evening and wrote the names of all ships that passed into a heavy book. In winter the "
    "storms threw spray up to the lamp, and the keeper wiped the glass every hour. When the railway reached the town, "
    "fewer ships came, but the keeper went on with his book. It is kept in the town hall today, and visitors of the "
    "lighthouse may read in it how the ships of that time were called and where they were bound."
)
PROGRAM = '''def total_price(items, rate):
    """The price of all items with tax."""
    total = 0.0
    for item in items:
        price = item["price"] * item["count"]
        if item.get("discount"):
            price = price * (1 - item["discount"])
        total = total + price
    return total * (1 + rate)


def print_receipt(items, rate):
    """Print a line for each item, then the price of all items."""
    for item in items:
        print(item["name"], item["count"], item["price"])
    print("total", total_price(items, rate))
'''
REPEAT = f"Repeat this text word for word, but write 'tower' in place of 'lighthouse':\n\n{TEXT}"
EDIT = (
    f"Rename the variable `rate` to `tax_rate` in this program, and give the whole program:\n\n```python\n{PROGRAM}```"
)
STORY = "Write a short story about a clock that runs backwards."
DRAWN = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "random_seed": 7}
FEW = dict.fromkeys(range(40, 46), 60.0)


def cases_of(model, random):
    """By name: prompt ids and search options."""
    if random:
        prompt = [100 + (7919 * place) % (model.config.vocab_size - 200) for place in range(200)]
        return {
            "six tokens": (prompt, {"logit_bias": FEW}),
            "all tokens": (prompt, {}),
            "all tokens, drawn": (prompt, DRAWN),
        }
    tokenizer = capstan.Tokenizer(model)

    def chat(text):
        return list(tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": text}])))

    return {
        "repeat a text": (chat(REPEAT), {}),
        "edit a program": (chat(EDIT), {}),
        "a story": (chat(STORY), {}),
        "a story, drawn": (chat(STORY), DRAWN),
    }


async def generated(model, prompt, options, speculation, tokens):
    """Tokens a second after the first one, the ids, what came of drafts, and milliseconds until the first."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, **options, "max_length": len(prompt) + tokens})
    params.set_speculation(speculation)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(prompt)
        began = time.perf_counter()
        ids = [await generator.generate_next_token_async()]
        first = time.perf_counter()
        while not generator.is_done():
            ids.append(await generator.generate_next_token_async())
        spent = time.perf_counter() - first
        return (len(ids) - 1) / spent, ids, generator.speculation, 1e3 * (first - began)


def equal_up_to(ids, plain):
    """The first place of another token, or "all"."""
    pairs = enumerate(zip(ids, plain, strict=True))
    return next((place for place, (one, other) in pairs if one != other), "all")


def told(stats):
    """The results of drafts, in short."""
    if stats is None:
        return None
    return {
        "acceptance": round(stats.acceptance, 3),
        "tokens a drafted step": round(stats.tokens_per_step, 2),
        "drafted steps": stats.rounds,
        "plain tokens": stats.plain,
        "on, off": [stats.switched_on, stats.switched_off],
        "ms of a drafted step": stats.drafted_step_ms and round(stats.drafted_step_ms, 3),
        "ms of a plain step": stats.plain_step_ms and round(stats.plain_step_ms, 3),
        "accepted": stats.accepted_by_step,
    }


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafts", default="4,7")
    parser.add_argument("--ngram", type=int, default=3)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--software", action="store_true")
    args = parser.parse_args()
    large, *drafts = folders.values()
    # On a software adapter steps of several positions are taped only with this option.
    passes = tuple(name for name in PASSES if name not in ("direct", "prefill")) if args.software else None
    for draft in drafts or [None]:
        given = {"device": args.device, "capture": "tape", "passes": passes}
        model = await capstan.Model.load(large, **given, draft_model=draft)
        print(model.adapter, file=sys.stderr)
        for most in map(int, args.drafts.split(",")):
            await measure(model, most, None if draft else args.ngram or None, args)
        await model.aclose()


async def measure(model, most, size, args):
    """Print a line for each case with up to `most` drafts a step. The draft model makes them, or they follow an earlier
    match of the last `size` tokens."""
    ways = {
        "plain": None,
        "speculated": capstan.Speculation(size, most),
        "always": capstan.Speculation(size, most, always=True),
    }
    for name, (prompt, options) in cases_of(model, args.random).items():
        speeds = {way: [] for way in ways}
        ids, stats, began = {}, {}, {}
        for number in range(args.rounds + 1):
            for way, speculation in ways.items():
                found = await generated(model, prompt, options, speculation, args.tokens)
                if number:
                    speeds[way].append(found[0])
                else:
                    began[way] = round(found[3], 1)
                ids[way], stats[way] = found[1:3]
        rates = {way: statistics.median(found) for way, found in speeds.items()}
        same = {way: equal_up_to(ids[way], ids["plain"]) for way in ("speculated", "always")}
        line = {
            "case": name,
            "drafts": most,
            "by": None if model.draft_model is None else model.draft_model.folder,
            "prompt": len(prompt),
            "tokens": len(ids["plain"]),
            "tokens a second": {way: round(rate, 1) for way, rate in rates.items()},
            "speculated over plain": round(rates["speculated"] / rates["plain"], 3),
            "always over plain": round(rates["always"] / rates["plain"], 3),
            "equal ids up to": same,
            "speculated": told(stats["speculated"]),
            "always": told(stats["always"]),
            "ms to the first token of the first use": began,
        }
        print(json.dumps(line), flush=True)


await main(models)  # noqa: F704, F821  # given to scripts of the page
