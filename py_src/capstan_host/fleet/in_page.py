"""Runs in a page: answers the items of a batch with one model, which stays loaded between batches.

The text of this module is sent to the page as a script (capstan_host.fleet.browsers). It writes lines to stdout that
begin with MARK: one as soon as an item is done, with its place in the batch, or one with the reason why the model
cannot be loaded.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from capstan.embeddings import Embedder
from capstan.errors import CapstanError, OptionError, PromptError
from capstan.generation.answer import AnswerStream
from capstan.generation.generator import Generator
from capstan.generation.generator_params import GeneratorParams
from capstan.generation.prompt import require_fitting
from capstan.generation.row_pool import PooledSequence, RowPool, poolable
from capstan.generation.scored_pairs import Pair, pair_of, score_pair
from capstan.generation.token_scores import begin_of
from capstan.loading.load_options import EmbedderOptions, taken
from capstan.model import Model
from capstan.text.chat_prompts import template_options
from capstan.text.messages import without_pictures
from capstan.text.stream import StoppingStream
from capstan.tokenizer import Tokenizer

MARK = "\x1e"
KEPT_POOLS = 2
"""The number of row pools that stay, with their caches, for later batches; a pool is for one set of search options and
one max_length.
"""
Handler = Callable[[Any], Awaitable[dict[str, Any]]]
modules: dict[str, Any] = sys.modules
kept: Any = modules.setdefault("_capstan_fleet", SimpleNamespace(models={}, pools={}, scripts={}))
"""The page's models, row pools and scripts, which outlive a batch."""


def tell(**line: Any) -> None:
    # A script may have left a line without its end.
    print(f"\n{MARK}{json.dumps(line)}", flush=True)


def told(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def now() -> float:
    return 1000 * time.perf_counter()


async def loaded(job: dict[str, Any], place: Any) -> Any:
    """The batch's model, or its encoder of texts, loaded once."""
    pooling = job.get("pooling")
    kind = f"embedder {pooling}" if job["kind"] == "embed" else "model"
    if kind not in kept.models:
        options = dict(job["model"])
        options["disable_file_mapped_weights"] = True  # The browser's storage goes with the browser.
        if job["kind"] == "embed":
            kept.models[kind] = await Embedder.load(place, pooling=pooling, **taken(EmbedderOptions, options))
        else:
            kept.models[kind] = await Model.load(place, **options)
    return kept.models[kind]


async def answer(job: dict[str, Any], items: list[Any], place: Any) -> None:
    """Answer the items, as many at a time as the job's kind can do together. Pairs to be scored are ordered so that
    pairs with the same beginning follow one another.
    """
    begun = now()
    try:
        model: Any = await (script(job, place) if job["kind"] == "map" else loaded(job, place))
    except Exception as error:
        tell(unfit=told(error))
        return
    adapter = getattr(model, "adapter", "")

    async def one(number: int, handler: Handler) -> None:
        start = now()
        try:
            result = await handler(items[number])
            first = result.pop("first_token_ms", None)
            timings = {"queue_ms": start - begun, "first_token_ms": first, "total_ms": now() - start}
            tell(number=number, result=result, adapter=adapter, timings=timings)
        except Exception as error:
            tell(number=number, error=told(error))

    if job["kind"] == "loglikelihood":
        params = params_of(model, job)
        async with Generator(model, params) as generator:
            for number in in_order(model, items):
                await one(number, lambda pair: loglikelihood(model, generator, pair, params.search.max_length))
        return
    try:
        handler, together = await handler_of(job, model)
    except CapstanError as error:
        for number in range(len(items)):
            tell(number=number, error=told(error))
        return
    turns = asyncio.Semaphore(together)

    async def in_turn(number: int) -> None:
        async with turns:
            await one(number, handler)

    await asyncio.gather(*map(in_turn, range(len(items))))


async def handler_of(job: dict[str, Any], model: Any) -> tuple[Handler, int]:
    """The function that answers an item, and how many items it answers at a time."""
    if job["kind"] == "embed":
        return lambda text: embed(model, text), 1
    if job["kind"] == "map":
        return lambda item: mapped(model, item), 1
    if job["kind"] in ("about", "encode", "template"):
        return lambda item: asked(model, job["kind"], item), 1
    pool = await pool_of(job, model)
    return lambda item: generate(model, job, item, pool), job["rows"] if pool else 1


def params_of(model: Any, job: dict[str, Any], **search: Any) -> GeneratorParams:
    """Search options of sequences of the job's `max_length`, or of the model's context if that is shorter."""
    params = GeneratorParams(model)
    params.set_search_options(**{**search, "max_length": min(job["max_length"], model.config.context_length)})
    return params


async def pool_of(job: dict[str, Any], model: Any) -> RowPool | None:
    """The pool for the job's search options; None for options that a pool's joint steps do not support. `generate` ends
    the pool's sequences at stop strings. If there are too many pools, the least recently used one is freed.
    """
    whole = params_of(model, job, **job["search"])
    whole.stop_decoder()  # It refuses strings that cannot occur.
    params = params_of(model, job, **{**job["search"], "stop_strings": []})
    if not poolable(model, params):
        return None
    key = json.dumps([{**job["search"], "stop_strings": []}, job["max_length"]], sort_keys=True)
    found = kept.pools.pop(key, None)
    while len(kept.pools) >= KEPT_POOLS:
        _, idle = kept.pools.pop(next(iter(kept.pools)))
        await idle.aclose()
    if found is None:
        pool = RowPool(model, params)
        # An idle sequence keeps the pool's decoder, with its tapes, between batches.
        found = pool, pool.join()
    kept.pools[key] = found
    return cast(RowPool, found[0])


async def script(job: dict[str, Any], place: Any) -> Callable[[Any], Any]:
    """The function `run` of the job's script, which is run once in the life of the page; top-level await is allowed."""
    source = job["script"]
    if source not in kept.scripts:
        names: dict[str, Any] = {"__name__": "__main__", "models": {"model": place}}
        made = eval(compile(source, job["filename"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if made is not None:
            await made
        if not callable(names.get("run")):
            raise OptionError(f"{job['filename']} defines no function run(item): define one")
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


async def asked(model: Any, kind: str, item: Any) -> dict[str, Any]:
    """Answer an item without a run: the ids of a text, and whether all of them are special tokens; the text of a
    conversation by the model's template; else facts about the model."""
    tokenizer = Tokenizer(model)
    if kind == "encode":
        ids = list(tokenizer.encode_prompt(item))
        return {"token_ids": ids, "value": {"special": bool(ids) and not tokenizer.decode(ids)}}
    if kind == "template":
        return {"text": tokenizer.apply_chat_template(item["messages"], None, item["add_generation_prompt"])}
    about = {"device": model.device_type, "adapter": model.adapter, "context_length": model.config.context_length}
    return {"value": {**about, "begin_token_id": begin_of(model.config)}}


def in_order(model: Any, pairs: list[dict[str, Any]]) -> Iterable[int]:
    """The places of the pairs in the order of their tokens; those that are refused come first."""

    def tokens(number: int) -> tuple[list[int], int]:
        try:
            pair = read_pair(model, pairs[number])
        except (OptionError, PromptError):
            return [], 0
        return [*pair.context, *pair.tokens], len(pair.context)

    return sorted(range(len(pairs)), key=tokens)


def read_pair(model: Any, pair: Any) -> Pair:
    return pair_of(model, Tokenizer(model), "the pair", pair)


async def loglikelihood(model: Any, generator: Generator, given: dict[str, Any], longest: int) -> dict[str, Any]:
    """The scores of a pair, by a generator that still has the sequence of the previous pair."""
    pair = read_pair(model, given)
    if len(pair.context) + len(pair.tokens) > longest:
        raise PromptError(
            f"the context has {len(pair.context)} tokens and the text {len(pair.tokens)}, which together are more than "
            f"max_length ({longest}): shorten them, or raise the fleet's max_length"
        )
    scored = await score_pair(generator, pair)
    about = {"log_probability": sum(scored["log_probabilities"]), "greedy": all(scored["greedy"])}
    return {"token_ids": scored["token_ids"], "value": {**about, "log_probabilities": scored["log_probabilities"]}}


def prompt_of(model: Any, job: dict[str, Any], item: dict[str, Any]) -> tuple[list[int], AnswerStream | None]:
    """The token ids of an item's prompt or conversation, and the reader of the answer to a conversation."""
    tokenizer = Tokenizer(model)
    messages = item.get("messages")
    texts = (message.get("content") for message in messages or ())
    require_fitting((item.get("prompt"), *texts), model.config)
    if item.get("prompt") is not None and job.get("as_message") and tokenizer.has_chat_template:
        messages = [{"role": "user", "content": item["prompt"]}]
    if messages is not None:
        require_texts(messages)
        text = tokenizer.apply_chat_template(messages, **template_options(job))
        prompt, stops = list(tokenizer.encode(text)), job["search"].get("stop_strings") or ()
        return prompt, AnswerStream(tokenizer, text, job.get("tools"), stops=stops, before=prompt)
    return list(item.get("prompt_ids") or tokenizer.encode_prompt(item.get("prompt") or "")), None


def require_texts(messages: Any) -> None:
    """Raise OptionError for pictures in messages."""
    _, pictures = without_pictures(messages)
    if pictures:
        raise OptionError(f"messages with pictures ({len(pictures)}): the items of a fleet are texts; leave them out")


async def generate(model: Any, job: dict[str, Any], item: dict[str, Any], pool: RowPool | None) -> dict[str, Any]:
    """Continue an item's prompt as a row of the pool, or by a separate generator."""
    (prompt, answer), start = prompt_of(model, job, item), now()
    if not prompt:
        raise PromptError("the prompt is empty; give at least one token")
    whole = len(prompt) + job["max_new_tokens"]
    limit = min(job["max_length"], model.config.context_length)
    if whole > limit:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens, which with {job['max_new_tokens']} new ones are more than "
            f"max_length ({limit}): shorten it, lower max_new_tokens, or raise the fleet's max_length"
        )
    params = GeneratorParams(model)
    params.set_search_options(**{**job["search"], "max_length": whole})
    search = params.search
    sequence: PooledSequence | Generator = Generator(model, params) if pool is None else pool.join(whole)
    stream = StoppingStream(Tokenizer(model).decode, search.stop_strings, prompt)
    ids: list[int] = []
    first = None
    try:
        sequence.append_tokens(prompt)
        while sequence.finish_reason is None and stream.stopped is None:
            await sequence.generate_next_token_async()
            [token] = sequence.get_next_tokens()
            first = first or now()
            ids.append(token)
            if token not in search.end_token_ids:
                delta = stream.push(token)
                if answer is not None:
                    answer.push(token, delta)
        reason = sequence.finish_reason if stream.stopped is None else "stop"
    finally:
        await sequence.aclose()
    rest = stream.flush()
    told: dict[str, Any] = {"text": stream.text}
    if answer is not None:
        answer.end(rest)
        summary = answer.summary()
        told = {"text": summary.pop("text"), "value": summary}
        reason = answer.finish_reason_of(reason or "stop")
    about = {"prompt_tokens": len(prompt), "first_token_ms": None if first is None else first - start}
    return {**told, "token_ids": ids, "finish_reason": reason, **about}
