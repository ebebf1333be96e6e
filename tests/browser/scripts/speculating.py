"""Generators with and without speculation, whose drafts are found and verified on the GPU; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from capstan import Generator, GeneratorParams, Model, Speculation
from capstan.fallback import fallbacks

from .rows import JOINT
from .running import load, parameters


async def generated(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    cases: Sequence[Mapping[str, Any]],
    drafting: Mapping[str, Any],
    draft_model: str | None = None,
    kv_cache_dtype: str | None = None,
    device: str = "webgpu",
    rewinds: bool = True,
) -> list[dict[str, Any]]:
    """For each case of search options the sequences without and with speculation, its statistics, and how steps were
    run: one sequence to its end, then cut to its first half, extended by other tokens, and to its end again."""
    opened = await load(
        models, model, device=device, passes=JOINT, draft_model=draft_model, kv_cache_dtype=kv_cache_dtype
    )
    found = []
    for case in cases:
        bias = {int(token): value for token, value in case.get("logit_bias", {}).items()}
        results = []
        for speculation in (None, Speculation(**drafting)):
            params = parameters(opened, **{"do_sample": False, **case, "logit_bias": bias})
            params.set_speculation(speculation)
            before = fallbacks()
            async with Generator(opened, params) as generator:
                generator.append_tokens(prompt)
                reasons: list[str | None] = []
                sequences: list[list[int]] = []
                for again in (False, True)[: 1 + rewinds]:
                    if again:
                        generator.rewind_to(len(sequences[0]) // 2)
                        generator.append_tokens([41, 44])
                    while not generator.is_done():
                        await generator.generate_next_token_async()
                    reasons.append(generator.finish_reason)
                    sequences.append(generator.get_sequence(0))
                stats = generator.speculation
                results.append(
                    {
                        "sequences": sequences,
                        "reasons": reasons,
                        "stats": None if stats is None else asdict(stats),
                        "steps": generator.counters["steps"],
                        "submits": generator.counters["submits"],
                        "readbacks": generator.counters["readbacks"],
                        "said": generator.tape_passes.get("drafts", ""),
                        "stepped down": [each for each in fallbacks() if each not in before],
                    }
                )
        found.append({"plain": results[0], "drafted": results[1]})
    return found


async def headed(
    models: Mapping[str, str], *, model: str, device: str, prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """Tokens of a model with a multi-token-prediction head by the default parameters, what the load told, and the
    statistics; None where nothing drafts.
    """
    before = fallbacks()
    async with await Model.load(models[model], device=device) as opened:
        params = GeneratorParams(opened)
        params.set_search_options(do_sample=False, max_length=len(prompt) + count)
        async with Generator(opened, params) as generator:
            generator.append_tokens(prompt)
            while not generator.is_done():
                await generator.generate_next_token_async()
            return {
                "picked": generator.get_sequence(0)[len(prompt) :],
                "capture": generator.capture,
                "stats": None if generator.speculation is None else asdict(generator.speculation),
                "told": [each for each in fallbacks() if fallbacks()[each] != before.get(each)],
                "draft bytes": 0 if params.speculation is None else draft_bytes(opened),
            }


def draft_bytes(model: Model) -> int:
    """The bytes of the head's weights."""
    draft = model.query_memory_requirements().draft
    assert draft is not None
    return draft.weights.bytes
