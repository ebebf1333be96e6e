"""Tells which kernels of onnxruntime-web the tape recognises in each model. It runs in the page:

usage: python3 build.py exec benches/recognition.py --model FOLDER ...

A line of JSON for each model: its name, the capture that ran with its note, the notes of the passes over the tapes of a
decode step and of a prompt, and the ids of a greedy answer; or the error. `python3 build.py pin VERSION` compares two
versions of onnxruntime-web by it.
"""

import json
import sys

import capstan

PROMPTS = ([5, 6, 7, 8, 9], [(31 * place + 7) % 253 for place in range(70)])
TOKENS = 8


async def recognised(folder):
    model = await capstan.Model.load(folder, device="webgpu", capture="tape", max_length=256)
    try:
        ids, found = [], {}
        for prompt in PROMPTS:
            params = capstan.GeneratorParams(model)
            params.set_search_options(do_sample=False, max_length=len(prompt) + TOKENS)
            async with capstan.Generator(model, params) as generator:
                generator.append_tokens(prompt)
                while not generator.is_done():
                    ids.append(int(await generator.generate_next_token_async()))
                found = {"capture": generator.capture, "note": generator.capture_note, **generator.tape_passes}
        return {"passes": found, "ids": ids, "adapter": model.adapter}
    finally:
        await model.aclose()


async def main(folders):
    for name, folder in folders.items():
        try:
            told = await recognised(folder)
        except capstan.CapstanError as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"model": name, **told}), flush=True)
        print(".", end="", file=sys.stderr, flush=True)


await main(models)  # noqa: F704, F821  # given to scripts of the page
