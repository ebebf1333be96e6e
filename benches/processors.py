"""Measures the cost of options and logits processors per token, in the page: `build.py exec benches/processors.py
[--model DIR]`.

Prints milliseconds a token (the median of five rounds, the kinds taking turns) and bytes read back for a token.
"""

import statistics
import sys
import time

import capstan

TOKENS = 24
ROUNDS = 5
PROMPT = "def fibonacci(n):"

STAGES = {
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "no_repeat_ngram_size": 3,
    "logit_bias": [[7, 1.0]],
    "bad_words_ids": [[5], [6, 7]],
}
KINDS = {
    "nothing": ({}, {}),
    "nothing, run_ahead 1": ({"run_ahead": 1}, {}),
    "all stages": ({}, STAGES),
    "shortlist of 64": ({"shortlist_processor": lambda _tokens, best: {best[0][0]: best[0][1]}}, {}),
    "all logits": ({"logits_processor": lambda _tokens, _logits: None}, {}),
}


async def measured(model, ids, params, search):
    """Milliseconds and bytes a token."""
    given = capstan.GeneratorParams(model, **params)
    given.set_search_options(do_sample=False, max_length=len(ids) + TOKENS + 4, **search)
    async with capstan.Generator(model, given) as generator:
        generator.append_tokens(ids)
        for _ in range(4):
            await generator.generate_next_token_async()
        before, start = generator.counters["readback_bytes"], time.perf_counter()
        count = 0
        while not generator.is_done():
            await generator.generate_next_token_async()
            count += 1
        took = time.perf_counter() - start
        return 1000 * took / count, (generator.counters["readback_bytes"] - before) / count


name = next(iter(models))  # noqa: F821  # build.py exec gives it
model = await capstan.Model.load(models[name], device="webgpu")  # noqa: F704, F821
ids = capstan.Tokenizer(model).encode(PROMPT)
found = {kind: [] for kind in KINDS}
for round_ in range(ROUNDS + 1):
    for kind, (params, search) in KINDS.items():
        one = await measured(model, ids, params, search)  # noqa: F704
        if round_:
            found[kind].append(one)
print(f"{name}, {model.adapter}, {model.config.vocab_size} tokens", file=sys.stderr)
for kind, rounds in found.items():
    print(f"{kind}: {statistics.median(ms for ms, _ in rounds):.2f} ms, {rounds[-1][1]:.0f} bytes")
