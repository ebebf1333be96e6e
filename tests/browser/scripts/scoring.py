"""Scores of given tokens; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.fallback import fallbacks
from capstan.memory import ledger

from .prefilling import TAPED
from .running import load, parameters


async def scored(
    models: Mapping[str, str],
    *,
    model: str,
    context: Sequence[int],
    parts: Sequence[Sequence[int]],
    device: str = "webgpu",
    taped: bool = False,
    **search: Any,
) -> dict[str, Any]:
    """The scores of each of `parts` behind the context, by one generator that is rewound to it, and the token that is
    generated behind the last."""
    opened = await load(models, model, device=device, passes=TAPED if taped else None)
    scores, counted = [], []
    warned = sum(fallbacks().values())
    async with Generator(opened, parameters(opened, **{"max_length": 256, **search})) as generator:
        for tokens in parts:
            if generator.token_count():
                generator.rewind_to(len(context))
            else:
                generator.append_tokens(context)
            await generator.get_logits_async()
            before = counts(generator)
            found = await generator.score_async(tokens)
            counted.append({name: value - before[name] for name, value in counts(generator).items()})
            scores.append([[each.log_probability, each.best, each.best_log_probability] for each in found])
        return {
            "scores": scores,
            "counted": counted,
            "next": await generator.generate_next_token_async(),
            "passes": generator.tape_passes,
            "fallbacks": sum(fallbacks().values()) - warned,
            "memory": {each.owner: each.bytes for each in ledger().entries if each.category == "io"},
        }


def counts(generator: Generator) -> dict[str, int]:
    """The decoder's counts, prefills included."""
    decoder = generator._loop.decoder
    assert decoder is not None
    return {name: value for name, value in decoder.counters().items() if name.startswith("readback")}
