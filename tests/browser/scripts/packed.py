"""Prompts of several rows, which are run together; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.fallback import fallbacks

from .rows import JOINT
from .running import load, parameters


async def batches(
    models: Mapping[str, str], *, model: str, runs: Sequence[Mapping[str, Any]], **how: Any
) -> list[dict[str, Any]]:
    """For each run, a generator over `prompts`, then over `more` of them behind `count` tokens, with other options: its
    sequences after each, and what was said of its prompts."""
    opened = await load(models, model, passes=JOINT, **how)
    found = []
    for run in runs:
        options = {"do_sample": False, "batch_size": len(run["prompts"]), **run.get("options", {})}
        before = fallbacks()
        async with Generator(opened, parameters(opened, **options)) as generator:
            sequences = []
            for prompts in (run["prompts"], *run.get("more", [])):
                generator.append_tokens(prompts)
                for _ in range(run["count"]):
                    if not generator.is_done():
                        await generator.generate_next_token_async()
                sequences.append([generator.get_sequence(row) for row in range(len(prompts))])
            found.append(
                {
                    "sequences": sequences,
                    "said": generator.tape_passes.get("prompts", ""),
                    "stepped down": [each for each in fallbacks() if each not in before],
                }
            )
    return found
