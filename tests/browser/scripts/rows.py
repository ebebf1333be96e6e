"""Generators of several rows, in one step or one after another; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.fallback import fallbacks
from capstan.generation.row_pool import PooledSequence, RowPool
from capstan.tape import PASSES

from .running import load, parameters

APART = tuple(name for name in PASSES if name not in ("prefill", "direct", "rows"))
JOINT = (*APART, "rows")


def without_best(_tokens: Sequence[int], best: Sequence[tuple[int, float]]) -> dict[int, float]:
    return {best[0][0]: float("-inf")}


async def generated(
    models: Mapping[str, str],
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    cases: Sequence[Mapping[str, Any]],
    joint: bool = True,
) -> list[dict[str, Any]]:
    """For each case of search options the sequences, the decode steps of the device, and how rows were run. An option
    eos replaces the model's end-of-sequence ids; with `second` a processor forbids each best token."""
    opened = await load(models, model, passes=JOINT if joint else APART)
    found = []
    for case in cases:
        options = {"do_sample": False, "batch_size": len(prompts), **case}
        if options.pop("second", False):
            options["shortlist_processor"] = without_best
        before = fallbacks()
        async with Generator(opened, parameters(opened, **options)) as generator:
            generator.append_tokens(prompts)
            steps = 0
            while not generator.is_done():
                await generator.generate_next_token_async()
                steps += 1
            rows = len(prompts) * options.get("num_return_sequences", 1)
            found.append(
                {
                    "sequences": [generator.get_sequence(row) for row in range(rows)],
                    "tokens": steps,
                    "counted": generator.counters["steps"],
                    "said": generator.tape_passes.get("rows", ""),
                    "stepped down": [each for each in fallbacks() if each not in before],
                }
            )
    return found


async def pooled(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], count: int, **search: Any
) -> dict[str, Any]:
    """Sequences of a pool: the first two begin together, each other one joins after some tokens and the first leaves
    before the last joins; then the second goes on after more tokens. Their ids, and how the last steps were made."""
    opened = await load(models, model, passes=JOINT)
    before = fallbacks()
    pool = RowPool(opened, parameters(opened, do_sample=False, max_length=64, **search))
    found: list[list[int]] = [[] for _ in prompts]
    sequences: list[PooledSequence] = []

    def take(times: int) -> None:
        for _ in range(times):
            for number, sequence in enumerate(sequences):
                if len(found[number]) < count:
                    sequence.generate_next_token()
                    found[number] += sequence.get_next_tokens()

    for number, prompt in enumerate(prompts):
        sequences.append(pool.join())
        sequences[-1].append_tokens(prompt)
        if number:
            take(3)
        if number == len(prompts) - 2:
            while len(found[0]) < count:
                take(1)
            sequences[0].close()
    take(count)
    sequences[1].append_tokens([5, 6])
    again = sequences[1].get_sequence()
    for _ in range(4):
        sequences[1].generate_next_token()
    assert pool.decoder is not None
    said, rows = pool.decoder.tape_passes.get("rows", ""), pool.decoder.rows
    later = sequences[1].get_sequence()
    for sequence in sequences:
        sequence.close()
    return {
        "found": found,
        "again": [again, later[len(again) :]],
        "said": said,
        "rows": rows,
        "stepped down": [each for each in fallbacks() if each not in before],
    }


async def looked_at(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], scored: Sequence[int], cache: str
) -> list[list[Any]]:
    """By rows of one step, then by decoders of one: the best token at each one that is scored behind a prompt, and the
    picks that follow; then whether caches are alike but for rounding."""
    opened = await load(models, model, passes=JOINT)
    rows = len(prompts)
    joint: Any = await opened.row_decoder(rows, 64)
    ones: list[Any] = [await opened.decoder(64) for _ in prompts]
    assert joint.row(0) is not joint
    found: list[list[Any]] = []
    caches = []
    for decoders in [joint] * rows, ones:
        for number, (decoder, prompt) in enumerate(zip(decoders, prompts, strict=True)):
            decoder.set_search(opened.search, number)
            await decoder.row(number).prefill(prompt, 0)
        told, held = [], []
        for number, (decoder, prompt) in enumerate(zip(decoders, prompts, strict=True)):
            row = decoder.row(number)
            scores = await row.score([*prompt, *scored], len(prompt) - 1)
            held.append((await row.carried(cache)).data)
            await row.prefill(scored[-1:], len(prompt) + len(scored) - 1)
            told.append([each.found.best[0][1] for each in scores])
        together = decoders is not ones
        bursts = [await joint.submit(4, True, range(rows))] if together else [await one.submit(4, True) for one in ones]
        found.append([told, [ids for burst in bursts for ids in burst.rows]])
        caches.append(held)
    pairs = [[memoryview(data).cast("f") for data in pair] for pair in zip(*caches, strict=True)]
    near = [all(abs(one - other) < 1e-4 for one, other in zip(*pair, strict=True)) for pair in pairs]
    return [*found, near]
