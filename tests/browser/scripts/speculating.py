"""Generators with and without speculation, whose drafts are found and verified on the GPU; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from capstan import Generator, Speculation
from capstan.fallback import fallbacks

from .rows import JOINT
from .running import load, parameters


async def generated(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    cases: Sequence[Mapping[str, Any]],
    drafting: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Of each case of search options the sequence without speculation, and with each of `drafting` the sequences, what
    came of it, and how. After the first half the sequence is cut and goes on."""
    opened = await load(models, model, passes=JOINT)
    found = []
    for case in cases:
        bias = {int(token): value for token, value in case.get("logit_bias", {}).items()}
        options = {"do_sample": False, **case, "logit_bias": bias}
        results = []
        for asked in (None, *drafting):
            params = parameters(opened, **options)
            params.set_speculation(None if asked is None else Speculation(**asked))
            before = fallbacks()
            async with Generator(opened, params) as generator:
                generator.append_tokens(prompt)
                while not generator.is_done():
                    await generator.generate_next_token_async()
                sequences = [generator.get_sequence(0)]
                generator.rewind_to(len(sequences[0]) // 2)
                generator.append_tokens([41, 44])
                while not generator.is_done():
                    await generator.generate_next_token_async()
                sequences.append(generator.get_sequence(0))
                stats = generator.speculation
                results.append(
                    {
                        "sequences": sequences,
                        "stats": None if stats is None else asdict(stats),
                        "steps": generator.counters["steps"],
                        "said": generator.tape_passes.get("drafts", ""),
                        "stepped down": [each for each in fallbacks() if each not in before],
                    }
                )
        found.append({"plain": results[0], "drafted": results[1:]})
    return found
