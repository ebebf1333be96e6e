"""How long each feature takes at its first, second and later uses in a page, and the pace of several rows; runs in the
page's worker.

Each use has prompts of its own, of equal lengths, so that no use finds the caches of an earlier one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import onnxruntime_genai as og

import capstan
from capstan._js import host_calls
from capstan.host import spans

SHORT, LONG, ROWS, REQUESTS = 41, 1000, 4, 16
"""Tokens of a prompt, and the numbers of rows, beams and requests."""
SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})

Use = Callable[[Any, int], Awaitable[tuple[float, float]]]
"""Takes a model and a number of tokens; returns the milliseconds to the first token and to the last one."""

fresh = itertools.count()


def prompt_of(model: Any, length: int) -> list[int]:
    """New ids: no earlier prompt begins with them."""
    number, vocabulary = next(fresh), model.capstan.config.vocab_size
    return [100 + (7919 * (place + 1009 * number)) % (vocabulary - 200) for place in range(length)]


async def generated(model: Any, prompts: list[list[int]], tokens: int, prepare: Callable[[Any], None], **search: Any):
    """Milliseconds until the first token, and until the last one."""
    begun = host_calls.now()
    params = capstan.GeneratorParams(model.capstan)
    params.set_search_options(do_sample=False, max_length=len(prompts[0]) + tokens, **search)
    prepare(params)
    async with capstan.Generator(model.capstan, params) as generator:
        generator.append_tokens(prompts if len(prompts) > 1 else prompts[0])
        await generator.generate_next_token_async()
        first = host_calls.now()
        while not generator.is_done():
            await generator.generate_next_token_async()
        return first - begun, host_calls.now() - begun


def plain(params: Any) -> None:
    """Options of a generator without a feature."""


async def short(model: Any, tokens: int) -> tuple[float, float]:
    return await generated(model, [prompt_of(model, SHORT)], tokens, plain)


async def long(model: Any, tokens: int) -> tuple[float, float]:
    length = min(LONG, model.capstan.config.context_length - tokens)
    return await generated(model, [prompt_of(model, length)], tokens, plain)


async def drafts(model: Any, tokens: int) -> tuple[float, float]:
    speculation = capstan.Speculation(always=True)
    return await generated(model, [prompt_of(model, SHORT)], tokens, lambda params: params.set_speculation(speculation))


async def grammar(model: Any, tokens: int) -> tuple[float, float]:
    return await generated(
        model, [prompt_of(model, SHORT)], tokens, lambda params: params.set_guidance("json_schema", SCHEMA)
    )


async def rows(model: Any, tokens: int, count: int = ROWS) -> tuple[float, float]:
    prompts = [prompt_of(model, SHORT) for _ in range(count)]
    return await generated(model, prompts, tokens, plain, batch_size=count)


async def beams(model: Any, tokens: int) -> tuple[float, float]:
    return await generated(model, [prompt_of(model, SHORT)], tokens, plain, num_beams=ROWS)


async def engine(model: Any, tokens: int, count: int = REQUESTS) -> tuple[float, float]:
    begun = host_calls.now()
    served = og.Engine(model)
    requests = []
    for _ in range(count):
        request = served.create_request()
        options = og.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(tokens)
        request.begin_turn(prompt_of(model, SHORT), options)
        requests.append(request)
    events = served.create_event_buffer(len(requests))
    first = 0.0
    while served.has_pending_requests():
        served.run(events)
        first = first or host_calls.now()
    ended = host_calls.now()
    for request in requests:
        request.close()
    return first - begun, ended - begun


FEATURES = {
    "a prompt of 41 tokens": short,
    "a prompt of 1000 tokens": long,
    "drafts": drafts,
    "a grammar": grammar,
    "4 rows": rows,
    "4 beams": beams,
    "an engine of 16": engine,
}


PACES: dict[str, tuple[int, Use]] = {
    "1 row": (1, lambda model, tokens: rows(model, tokens, 1)),
    "8 rows": (8, lambda model, tokens: rows(model, tokens, 8)),
    "32 rows": (32, lambda model, tokens: rows(model, tokens, 32)),
    "4 beams": (1, beams),
    "an engine of 1": (1, lambda model, tokens: engine(model, tokens, 1)),
    "an engine of 16": (16, engine),
}
"""Sequences that a step advances, and how they are generated."""


def opened(address: str, tokens: int) -> Any:
    """The model, for sequences of a short prompt and `tokens` tokens without an end."""
    config = og.Config(address)
    config.overlay(json.dumps({"search": {"max_length": SHORT + tokens + 8}, "model": {"eos_token_id": []}}))
    return og.Model(config)


async def paces(address: str, times: int, tokens: int) -> dict[str, Any]:
    """By way of generating: its sequences, and the milliseconds of a step after the first one, in each of `times` runs
    after one that records."""
    model = opened(address, tokens)
    found: dict[str, Any] = {}
    for name, (sequences, use) in PACES.items():
        steps = []
        for _ in range(times + 1):
            first, whole = await use(model, tokens)
            await model.capstan.settled_async()
            steps.append((whole - first) / (tokens - 1))
        found[name] = {"sequences": sequences, "step_ms": steps[1:]}
    return {"paces": found}


async def measured(address: str, times: int, tokens: int) -> dict[str, Any]:
    """By feature, each use's milliseconds to its first token and to its last one, and what it waited for: the spans of
    a trace that name recordings and checks, in milliseconds."""
    model = opened(address, tokens)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, use in FEATURES.items():
        found[name] = []
        for _ in range(times):
            spans.begin(host_calls.now)
            try:
                first, whole = await use(model, tokens)
            finally:
                kept = spans.end().kept
            await model.capstan.settled_async()
            made = {each.name: each.end - each.begin for each in kept if each.name.startswith("record and check")}
            found[name].append({"first_ms": first, "whole_ms": whole, "made_ms": made})
    return {"uses": found}
