"""How decoders with float16 activations run on this adapter, each held to its own run on the CPU. It runs in the page:

usage: python3 build.py exec benches/real/float16_families.py --model FOLDER ...

The folders are what tests/fixtures/make_families.py --float16 writes. For each it prints a line of JSON: tokens that
are equal after each of two prompts, the largest difference of the first logits as a share of the largest, and how
decode steps run. Ids may part where two logits nearly tie: both devices round, at other places.
"""

import json
import warnings

import capstan

PROMPTS = ([5, 6, 7, 8, 9], [(31 * i + 7) % 253 for i in range(70)])
COUNT = 24


async def run(folder, device):
    """Ids and first logits after each prompt, and the report of the last run."""
    ids, logits = [], []
    model = await capstan.Model.load(folder, device=device)
    for prompt in PROMPTS:
        params = capstan.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(prompt) + COUNT + 1)
        async with capstan.Generator(model, params) as generator:
            generator.append_tokens(prompt)
            logits.append(list(await generator.get_logits_async()))
            ids.append([])
            while len(ids[-1]) < COUNT and not generator.is_done():
                ids[-1].append(await generator.generate_next_token_async())
            told = {"capture": generator.capture, "note": generator.capture_note, **generator.tape_passes}
    await model.aclose()
    return ids, logits, told


def equal(mine, theirs):
    """Tokens up to the first other one."""
    same = [a == b for a, b in zip(mine, theirs, strict=False)]
    return same.index(False) if False in same else len(same)


def apart(mine, theirs):
    return round(max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) / max(map(abs, theirs)), 5)


async def main(folders):
    for name, folder in folders.items():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            on_gpu, on_cpu = await run(folder, "webgpu"), await run(folder, "wasm")
        row = {
            "model": name,
            "equal": [equal(a, b) for a, b in zip(on_gpu[0], on_cpu[0], strict=True)],
            "apart": [apart(a, b) for a, b in zip(on_gpu[1], on_cpu[1], strict=True)],
            **on_gpu[2],
            "warnings": [str(each.message) for each in seen],
        }
        print(json.dumps(row), flush=True)


await main(models)  # noqa: F704, F821  # given to scripts of the page
