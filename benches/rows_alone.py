"""Whether the rows of a batch, and the requests of an engine, get the ids that each gets alone: plainly, under a
grammar, and with options that change logits. It runs in the page, meant for a GPU host:

usage: python3 build.py exec benches/rows_alone.py --model FOLDER -- [--rows N,...] [--tokens N]

A line of JSON for each way and number of rows: how many rows have the same ids in all tokens, where the others part
first, and the steps down that the ways took. float16 parts at near ties: several rows are other sums than one.
Exits with 1 if a text under the grammar does not fit it.
"""

import argparse
import json
import re
import sys

import capstan
from capstan.fallback import fallbacks

FITS = "[a-z]{1,7}( [a-z]{1,7}){3,40}\\."
TEXTS = ("A walk by the sea", "def area(radius):", "The capital of", "Yesterday a fox")
WAYS = {
    "plain": ({}, {}),
    "penalties": ({}, {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "presence_penalty": 0.2}),
    "bias": ({}, {"logit_bias": [[11, 2.0], [13, -1.5]], "min_length": 20}),
    "grammar": ({"guidance": ("regex", FITS)}, {}),
    "processor": ({"shortlist": True}, {}),
}


def second(_tokens, best):
    """The second best token in place of each third one of the vocabulary."""
    return {best[1][0]: best[0][1] + 1} if best[0][0] % 3 == 0 else {}


async def generated(model, prompts, pad, tokens, way, search):
    """The ids of each row behind its prompt."""
    params = capstan.GeneratorParams(model, **({"shortlist_processor": second} if way.get("shortlist") else {}))
    params.set_search_options(
        do_sample=False, batch_size=len(prompts), max_length=max(map(len, prompts)) + tokens, **search
    )
    if "guidance" in way:
        params.set_guidance(*way["guidance"])
    longest = max(map(len, prompts))
    async with capstan.Generator(model, params) as generator:
        rows = [[*prompt, *[pad] * (longest - len(prompt))] for prompt in prompts]
        generator.append_tokens(rows if len(rows) > 1 else rows[0])
        while not generator.is_done():
            await generator.generate_next_token_async()
        return [list(generator.get_sequence(row))[longest:] for row in range(len(prompts))]


def parted(ids, alone, ends):
    """The first place at which they differ before the end, or None."""
    for place, (one, other) in enumerate(zip(ids, alone, strict=False)):
        if one != other:
            return place
        if one in ends:
            return None
    return None


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="4,8")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    [folder] = folders.values()
    model = await capstan.Model.load(folder)
    tokenizer = capstan.Tokenizer(model)
    config = model.config
    ends, pad = set(config.eos_token_ids), config.pad_token_id
    wrong = 0
    for name, (way, search) in WAYS.items():
        for count in map(int, args.rows.split(",")):
            texts = [f"{TEXTS[row % len(TEXTS)]} {row}" for row in range(count)]
            prompts = [list(tokenizer.encode(text)) for text in texts]
            rows = await generated(model, prompts, pad, args.tokens, way, search)
            alone = [(await generated(model, [prompt], pad, args.tokens, way, search))[0] for prompt in prompts]
            parts = [parted(*pair, ends) for pair in zip(rows, alone, strict=True)]
            told = {
                "way": name,
                "rows": count,
                "same": parts.count(None),
                "part at": [p for p in parts if p is not None],
            }
            if name == "grammar":
                made = [
                    tokenizer.decode([token for token in row if token not in ends and token != pad]) for row in rows
                ]
                fit = [bool(re.fullmatch(FITS, text)) for text in made]
                # Texts that the length cut off may be the beginning of one.
                cut = [len(row) >= args.tokens and not ends & set(row) for row in rows]
                wrong += sum(not one and not other for one, other in zip(fit, cut, strict=True))
                told["fit, cut off"] = [sum(fit), sum(cut)]
            print(json.dumps(told), flush=True)
    print(json.dumps({"steps down": fallbacks()}), flush=True)
    await model.aclose()
    if wrong:
        sys.exit(f"{wrong} texts do not fit the grammar")


await main(models)  # noqa: F704, F821  # given to scripts of the page
