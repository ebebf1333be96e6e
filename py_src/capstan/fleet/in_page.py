"""Runs in a page: answers the items of a batch with one model, which stays loaded between batches.

The text of this module is sent to the page as a script (capstan.fleet.browsers). It writes lines to stdout that begin
with MARK: one as soon as an item is done, with its place in the batch, or one that says why the model cannot be loaded.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from capstan.embeddings import Embedder
from capstan.errors import OptionError, PromptError
from capstan.generation.generator import Generator
from capstan.generation.generator_params import GeneratorParams
from capstan.generation.row_pool import PooledSequence, RowPool, poolable
from capstan.model import Model
from capstan.page.scoring import score
from capstan.text.stream import StoppingStream
from capstan.tokenizer import Tokenizer

MARK = "\x1e"
modules: dict[str, Any] = sys.modules
kept: Any = modules.setdefault("_capstan_fleet", SimpleNamespace(models={}, pools={}, scripts={}))
"""The page's models, row pools and scripts, which outlive a batch."""


def tell(**line: Any) -> None:
    print(MARK + json.dumps(line), flush=True)


def told(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def now() -> float:
    return 1000 * time.perf_counter()


async def loaded(job: dict[str, Any], place: Any) -> Any:
    """The batch's model, or its encoder of texts, loaded once."""
    kind = "embedder" if job["kind"] == "embed" else "model"
    if kind not in kept.models:
        options = dict(job["model"])
        options["disable_file_mapped_weights"] = True  # The browser's storage goes with the browser.
        if kind == "embedder":
            names = ("device", "dtype", "disable_file_mapped_weights")
            options = {name: options[name] for name in names if name in options} | {"pooling": job.get("pooling")}
            kept.models[kind] = await Embedder.load(place, **options)
        else:
            kept.models[kind] = await Model.load(place, **options)
    return kept.models[kind]


async def answer(job: dict[str, Any], items: list[Any], place: Any) -> None:
    """Answer the items, so many at a time as the job's kind can do together."""
    begun = now()
    try:
        model = await (script(job, place) if job["kind"] == "map" else loaded(job, place))
    except Exception as error:
        tell(unfit=told(error))
        return
    handler, together = handler_of(job, model)
    turns = asyncio.Semaphore(together)

    async def one(number: int, item: Any) -> None:
        async with turns:
            start = now()
            try:
                result = await handler(item)
            except Exception as error:
                tell(number=number, error=told(error))
                return
            adapter = getattr(model, "adapter", "")
            first = result.pop("first_token_ms", None)
            timings = {"queue_ms": start - begun, "first_token_ms": first, "total_ms": now() - start}
            tell(number=number, result=result, adapter=adapter, timings=timings)

    await asyncio.gather(*(one(number, item) for number, item in enumerate(items)))


def handler_of(job: dict[str, Any], model: Any) -> tuple[Callable[[Any], Awaitable[dict[str, Any]]], int]:
    """The function that answers an item, and how many items it answers at a time."""
    if job["kind"] == "embed":
        return lambda text: embed(model, text), 1
    if job["kind"] == "loglikelihood":
        return lambda pair: loglikelihood(model, job, pair), 1
    if job["kind"] == "map":
        return lambda item: mapped(model, item), 1
    params = GeneratorParams(model)
    params.set_search_options(**{**job["search"], "max_length": min(job["max_length"], model.config.context_length)})
    if not poolable(model, params):
        return lambda item: generate(model, job, item, None), 1
    key = json.dumps([job["search"], job["max_length"]], sort_keys=True)
    if key not in kept.pools:
        pool = RowPool(model, params)
        # An idle sequence keeps the pool's decoder, with its tapes, between batches.
        kept.pools[key] = pool, pool.join()
    return lambda item: generate(model, job, item, kept.pools[key][0]), job["rows"]


async def script(job: dict[str, Any], place: Any) -> Callable[[Any], Any]:
    """The function `run` of the job's script, which is run once in the life of the page; top-level await is allowed."""
    source = job["script"]
    if source not in kept.scripts:
        names: dict[str, Any] = {"__name__": "__main__", "models": {"model": place}}
        made = eval(compile(source, job["filename"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if made is not None:
            await made
        if not callable(names.get("run")):
            raise OptionError(f"{job['filename']} defines no function run(item)")
        kept.scripts[source] = names["run"]
    found: Callable[[Any], Any] = kept.scripts[source]
    return found


async def mapped(function: Callable[[Any], Any], item: Any) -> dict[str, Any]:
    value = function(item)
    if hasattr(value, "__await__"):
        value = await value
    json.dumps(value)
    return {"value": value}


async def embed(encoder: Embedder, text: str) -> dict[str, Any]:
    [vector] = await encoder.embed([text])
    return {"value": vector.tolist()}


async def loglikelihood(model: Any, job: dict[str, Any], pair: dict[str, Any]) -> dict[str, Any]:
    request: Any = {"sequences": [pair], "max_length": job["max_length"]}
    found = await score(model, request, job["max_length"])
    [scored] = found["sequences"]
    about = {"log_probability": sum(scored["log_probabilities"]), "greedy": all(scored["greedy"])}
    return {"token_ids": scored["token_ids"], "value": {**about, "log_probabilities": scored["log_probabilities"]}}


def prompt_of(model: Any, job: dict[str, Any], item: dict[str, Any]) -> list[int]:
    """The token ids of an item's prompt or conversation."""
    tokenizer = Tokenizer(model)
    messages = item.get("messages")
    if item.get("prompt") is not None and job.get("as_message") and tokenizer.has_chat_template:
        messages = [{"role": "user", "content": item["prompt"]}]
    if messages is not None:
        text = tokenizer.apply_chat_template(messages, job.get("tools"), thinking=job.get("thinking"))
        return list(tokenizer.encode(text))
    return list(item.get("prompt_ids") or tokenizer.encode(item.get("prompt") or ""))


async def generate(model: Any, job: dict[str, Any], item: dict[str, Any], pool: RowPool | None) -> dict[str, Any]:
    """Continue an item's prompt as a row of the pool, or by a generator of its own."""
    prompt, start = prompt_of(model, job, item), now()
    if not prompt:
        raise PromptError("the prompt is empty; give at least one token")
    whole = len(prompt) + job["max_new_tokens"]
    limit = min(job["max_length"], model.config.context_length)
    if whole > limit:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens, which with {job['max_new_tokens']} new ones are more than "
            f"max_length ({limit}): shorten it, lower max_new_tokens, or raise the fleet's max_length"
        )
    sequence: PooledSequence | Generator
    if pool is not None:
        sequence, search = pool.join(whole), pool.options
    else:
        params = GeneratorParams(model)
        params.set_search_options(**{**job["search"], "max_length": whole})
        sequence, search = Generator(model, params), params.search
    stream = StoppingStream(Tokenizer(model).decode, search.stop_strings)
    ids: list[int] = []
    first = None
    try:
        sequence.append_tokens(prompt)
        while sequence.finish_reason is None:
            await sequence.generate_next_token_async()
            [token] = sequence.get_next_tokens()
            first = first or now()
            ids.append(token)
            if token not in search.end_token_ids:
                stream.push(token)
        reason = sequence.finish_reason
    finally:
        await sequence.aclose()
    stream.flush()
    about = {"prompt_tokens": len(prompt), "first_token_ms": None if first is None else first - start}
    return {"text": stream.text, "token_ids": ids, "finish_reason": reason, **about}
