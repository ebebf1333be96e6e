"""Whether models pick the same tokens, and how their decode steps run. It runs in the page:

usage: python3 build.py exec benches/real/same_ids.py --model REFERENCE --model OTHER ... -- [--device webgpu|wasm]
            [--reference-device webgpu|wasm] [--dtype DTYPE] [--prompts N] [--tokens N]

The first model is what the others are held to, with its tokenizer. `--dtype` chooses the graph of the others. One line
of JSON for each model; the exit status is 1 if any picks other tokens.
"""

import argparse
import json
import sys

import capstan

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nWrite three sentences about the sea, one about its colour, one about its sound and one about "
    "the people who live beside it. Do not use the word blue.<|im_end|>\n<|im_start|>assistant\n",
)


async def picked(model, prompts, tokens):
    """The ids after each prompt, and the report of the last run."""
    found = []
    for ids in prompts:
        params = capstan.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(ids) + tokens)
        async with capstan.Generator(model, params) as generator:
            generator.append_tokens(ids)
            async for _ in generator:
                pass
            found.append(list(generator.get_sequence())[len(ids) :])
            told = {
                "capture": generator.capture,
                "note": generator.capture_note,
                **generator.tape_passes,
                "tokens_per_second": generator.timing.tokens_per_second,
            }
    return found, told


def alike(mine, theirs):
    """Tokens up to the first other one, of all prompts together."""
    total = 0
    for a, b in zip(mine, theirs, strict=True):
        same = [x == y for x, y in zip(a, b, strict=False)]
        total += same.index(False) if False in same else len(same)
    return total


async def main(folders):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--reference-device")
    parser.add_argument("--dtype")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    reference, prompts, status = None, None, 0
    for name, folder in folders.items():
        device, dtype = args.device, args.dtype
        if reference is None:
            device, dtype = args.reference_device or device, None
        model = await capstan.Model.load(folder, device=device, dtype=dtype)
        if prompts is None:
            tokenizer = capstan.Tokenizer(model)
            prompts = [list(tokenizer.encode(text)) for text in PROMPTS[: args.prompts]]
        ids, told = await picked(model, prompts, args.tokens)
        await model.aclose()
        reference = reference or ids
        total = sum(map(len, reference))
        same = alike(ids, reference)
        status |= same != total
        print(json.dumps({"model": name, "device": device, "same": same, "of": total, **told}), flush=True)
    return status


sys.exit(await main(models))  # noqa: F821  # given to scripts of the page
