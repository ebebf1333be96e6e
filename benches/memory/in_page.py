"""Runs in the page: load the one model that is given and, if asked, count what a decoded token costs; prints JSON.

argv: PROMPT (JSON ids) COUNTS (JSON list of numbers of tokens, one run each; the first is for warming up)
"""

import json
import sys
from typing import Any

import js

import capstan

prompt, runs = json.loads(sys.argv[1]), json.loads(sys.argv[2])


async def counted(model: capstan.Model, count: int) -> dict[str, Any]:
    """The ids and what a run of `count` tokens counted."""
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + count)
    params.search = capstan.SearchOptions(**{**vars(params.search), "eos_token_ids": ()})
    before = js.pageMemory.counts().to_py()
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(prompt)
        ids = [token async for token in generator]
        capture = generator.capture
    after = js.pageMemory.counts().to_py()
    return {"ids": ids, "capture": capture, "counts": {name: after[name] - before[name] for name in after}}


(folder,) = models.values()  # noqa: F821  # `models` is given by the page
async with await capstan.Model.load(folder, device="webgpu") as model:
    print(json.dumps([await counted(model, count) for count in runs]))
