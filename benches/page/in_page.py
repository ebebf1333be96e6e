"""Contender: Capstan, driven from Python as its users do; runs in the page's worker.

`load` keeps models by (name, capture, direct, passes), all over one set of weights. Every other function takes the same
options to choose one of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from collections.abc import Awaitable, Iterator
from collections.abc import Generator as Steps
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import js
from pyodide.code import run_js
from pyodide.ffi import to_js
from pyodide.http import pyfetch

import capstan
from capstan._js import host_calls
from capstan.device import probe

loaded: dict[str, capstan.Model] = {}
encoded: dict[tuple[str, str | None], list[int]] = {}
"""The ids of prompts that were given as text, by the model's file."""
bursts_seen: dict[str, int] = {}
"""The decode steps of a submit that the adaptive run-ahead of the last generation came to, as `played` names it."""


async def load(*, model: str, counting: bool = False, **options: Any) -> dict[str, Any]:
    """Load a model with these options; milliseconds, its phases, the adapter's name. `counting` is for the first load
    only: it has what WebGPU is asked for counted from there on."""
    if counting:
        (await counts()).install()
    start = host_calls.now()
    opened = await open_model(model, options)
    return {"load_ms": host_calls.now() - start, "phases": opened.load_times, "adapter": opened.adapter}


def key_of(name: str, options: dict[str, Any]) -> str:
    return json.dumps([name, options], sort_keys=True)


def played(name: str, sampling: dict[str, Any] | None, options: dict[str, Any]) -> str:
    """The key of a generation and of the replay that repeats its bursts: model, options and sampler."""
    return key_of(name, {**options, "sampling": sampling})


async def open_model(name: str, options: dict[str, Any]) -> capstan.Model:
    key = key_of(name, options)
    if key not in loaded:
        given = {**options, "prefill_ms": float(options["prefill_ms"])} if "prefill_ms" in options else {**options}
        with caches_as_asked(given.pop("in_place", True)):
            loaded[key] = await capstan.Model.load(address_of(name), device="webgpu", **given)
    return loaded[key]


def address_of(name: str) -> str:
    """The address of a model's folder, or of its GGUF file."""
    return f"/models/{name}" if name.endswith(".gguf") else f"/models/{name}/"


@contextmanager
def caches_as_asked(in_place: bool) -> Iterator[None]:
    """Have a load in here find an adapter that cannot write KV caches in place, if that is asked."""
    probed, remembered = dict(probe.remembered), probe.remembered
    if not in_place:
        for key, found in probed.items():
            missing = (*found.missing, ("in_place_cache", "the bench asks for caches apart"))
            remembered[key] = replace(found, in_place_cache=False, missing=missing)
    try:
        yield
    finally:
        remembered.update(probed)


async def counts() -> Any:
    """The counters that counts.js sets up in this worker."""
    if not hasattr(js, "benchCounts"):
        run_js(await source("counts.js"))
    return js.benchCounts


async def source(name: str) -> str:
    """A script of the bench's page."""
    text: str = await (await pyfetch(f"/bench/{name}")).text()
    return text


async def close() -> None:
    """Close every model."""
    while loaded:
        await loaded.popitem()[1].aclose()


async def unload(*, model: str, **options: Any) -> dict[str, Any]:
    """Close one model."""
    opened = loaded.pop(key_of(model, options), None)
    if opened is not None:
        await opened.aclose()
    return {}


def ids_of(opened: capstan.Model, prompt: list[int] | None, text: str | None) -> list[int]:
    """A prompt's ids: those given, or the text's by the model's tokenizer. They are kept, since a GPU that waits for a
    tokenizer of 128,000 tokens clocks down before what is timed."""
    if prompt is not None:
        return prompt
    key = opened.folder + opened.config.decoder.filename, text
    if key not in encoded:
        encoded[key] = [int(token) for token in capstan.Tokenizer(opened).encode(text or "")]
    return encoded[key]


def parameters(
    model: capstan.Model, length: int, sampling: dict[str, Any] | None, run_ahead: int | None
) -> capstan.GeneratorParams:
    """Up to `length` tokens in all, whatever is generated: no end-of-sequence ids."""
    params = capstan.GeneratorParams(model, run_ahead=run_ahead)
    params.set_search_options(do_sample=sampling is not None, max_length=length, **(sampling or {}))
    params.search = replace(params.search, eos_token_ids=())
    return params


async def generate(
    *,
    model: str,
    tokens: int,
    prompt: list[int] | None = None,
    text: str | None = None,
    sampling: dict[str, Any] | None = None,
    run_ahead: int | None = None,
    counting: bool = False,
    showing: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Pick `tokens` ids after the prompt, told to the page as they come if it is `showing` them. `first_ms` goes
    from the call to the first id, `rest_ms` from there to the last one. A prompt that is text is made ids before.

    With `counting`, what WebGPU was asked for, and the host's milliseconds: `loop` is all that ran between the waits of
    the loop that takes the tokens, `javascript` the part of it that encoded and submitted.
    """
    opened = await open_model(model, options)
    given = ids_of(opened, prompt, text)
    ids: list[int] = []
    times: list[float] = []

    async def take(generator: capstan.Generator) -> None:
        generator.append_tokens(given)
        async for token in generator:
            if not ids:
                times.append(host_calls.now())
            ids.append(token)
            if showing:
                print(token, end=" ", file=sys.stderr)
        times.append(host_calls.now())

    params = parameters(opened, len(given) + tokens, sampling, run_ahead)
    if counting:
        async with capstan.Generator(opened, params) as generator:
            return await count(generator, take, ids)
    start = host_calls.now()
    async with capstan.Generator(opened, params) as generator:
        await take(generator)
        if run_ahead is None and generator._loop.run_ahead is not None:
            bursts_seen[played(model, sampling, options)] = generator._loop.run_ahead.usual
        found = {"ids": ids, "first_ms": times[0] - start, "rest_ms": times[1] - times[0], "prompt_tokens": len(given)}
        if showing:
            decoder: Any = generator._loop.decoder
            found |= {"began": js.performance.timeOrigin + start, "run_tokens": decoder.runs.pace.size}
        found |= {"capture": generator.capture, "capture_note": generator.capture_note}
    await opened.settled_async()  # Work of unused time would disturb the next call.
    return found


async def answer(
    *,
    model: str,
    tokens: int,
    rest_s: float,
    prompt: list[int] | None = None,
    text: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """When each token of an answer arrives, in milliseconds from the call, after `rest_s` seconds without any work."""
    opened = await open_model(model, options)
    given = ids_of(opened, prompt, text)
    await asyncio.sleep(rest_s)
    start = host_calls.now()
    async with capstan.Generator(opened, parameters(opened, len(given) + tokens, None, None)) as generator:
        generator.append_tokens(given)
        arrivals = [host_calls.now() - start async for _ in generator]
    await opened.settled_async()  # Work of unused time would disturb the next call.
    return {"arrivals_ms": arrivals}


async def count(generator: capstan.Generator, take: Any, ids: list[int]) -> dict[str, Any]:
    """The cost of a run's decode steps: WebGPU's counts and the host's milliseconds after the prefill."""
    await generator.prepare_async()
    counter = await counts()
    decoder: Any = generator._loop.decoder
    prefill, receive = decoder.prefill, generator._loop.receive
    bursts: list[Any] = []
    prefilled: list[float] = []

    def keep(burst: Any, numbers: Any) -> None:
        bursts.append(burst)
        receive(burst, numbers)

    async def marked(*run: Any) -> None:
        await prefill(*run)
        prefilled.append(loop.so_far())
        counter.start()

    generator._loop.receive = keep  # type: ignore[method-assign]
    decoder.prefill = marked
    loop = Clocked(take(generator))
    try:
        await loop
    finally:
        del decoder.prefill
    return {
        "ids": ids,
        "counts": counter.counted().to_py(),
        "host": {"loop": loop.milliseconds - prefilled[0], "javascript": sum(burst.host for burst in bursts)},
        "crossings": len(bursts),
        "capture": generator.capture,
        "capture_note": generator.capture_note,
        "tape_passes": generator.tape_passes,
    }


class Clocked:
    """An awaitable that clocks what its coroutine does between its waits."""

    def __init__(self, work: Awaitable[None]) -> None:
        self.work = work
        self.milliseconds = 0.0
        self.resumed = 0.0

    def so_far(self) -> float:
        """The milliseconds, asked from within the coroutine."""
        return self.milliseconds + host_calls.now() - self.resumed

    def __await__(self) -> Steps[Any, Any, None]:
        steps = self.work.__await__()
        sent: Any = None
        while True:
            self.resumed = host_calls.now()
            try:
                waiting = steps.send(sent)
            except StopIteration:
                return
            finally:
                self.milliseconds += host_calls.now() - self.resumed
            sent = yield waiting


async def started(
    opened: capstan.Model, prompt: list[int], room: int, sampling: dict[str, Any] | None
) -> capstan.Generator:
    """A generator that has its first token."""
    generator = capstan.Generator(opened, parameters(opened, len(prompt) + room, sampling, None))
    generator.append_tokens(prompt)
    await generator.prepare_async(record=True)
    await generator.generate_next_token_async()
    return generator


async def replay(
    *,
    model: str,
    tokens: int,
    prompt: list[int] | None = None,
    text: str | None = None,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Milliseconds a token of the same tape and sampler played from JavaScript alone, in bursts of Python's length."""
    opened = await open_model(model, options)
    picks = bursts_seen[played(model, sampling, options)]
    async with await started(opened, ids_of(opened, prompt, text), tokens + picks, sampling) as generator:
        return {"ms_per_token": await capstan.measure.replay(generator, tokens, picks), "picks": picks}


async def gpu_time(
    *,
    model: str,
    steps: int,
    prompt: list[int] | None = None,
    text: str | None = None,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Milliseconds of GPU time of one replayed step at the prompt's length, by timestamp queries."""
    opened = await open_model(model, options)
    async with await started(opened, ids_of(opened, prompt, text), 2 * steps, sampling) as generator:
        return {"gpu_ms": await capstan.measure.gpu_step_time(generator, steps)}


async def operations(
    *, model: str, repeats: int, prompt: list[int] | None = None, text: str | None = None, **options: Any
) -> dict[str, Any]:
    """Microseconds of each dispatch of a step, in a pass of its own."""
    opened = await open_model(model, options)
    async with await started(opened, ids_of(opened, prompt, text), 2 * repeats, None) as generator:
        found = await capstan.measure.operations(generator, repeats)
        return {"operations": [asdict(operation) for operation in found]}


async def limits() -> dict[str, Any]:
    """The bytes that the adapter copies in a second, and the microseconds of an empty dispatch in its own pass."""
    found: dict[str, Any] = (await run_js(await source("limits.js"))).to_py()
    return found


async def agreement(*, model: str, chat: int, **options: Any) -> dict[str, Any]:
    """How near the probabilities of decode steps over a chat's given reply come to float32's: tokens compared, those
    with the same likeliest token, the sum and the largest of the Kullback-Leibler divergences."""
    if not hasattr(js, "benchLikeness"):
        run_js(await source("likeness.js"))
    opened = await open_model(model, options)
    given = await js.benchLikeness.chat(model, chat)
    prompt, reply = given.prompt.to_py(), given.reply.to_py()
    params = parameters(opened, len(prompt) + len(reply) + 2, None, None)
    async with capstan.Generator(opened, params) as generator:
        generator.append_tokens(prompt)
        await force(generator, reply[0], opened.config.vocab_size)

        def compare(logits: memoryview[float]) -> None:
            given.compare(to_js(logits))

        # The last token is forced as well; the token after it is of no interest.
        await capstan.measure.forced(generator, [*reply[1:], reply[0]], compare)
        about = {"capture": generator.capture, "capture_note": generator.capture_note}
        return {**given.found.to_py(), **about, "tape_passes": generator.tape_passes}


async def force(generator: capstan.Generator, token: int, vocabulary: int) -> None:
    """Have the first token after a prompt be this one."""
    await generator.prepare_async()
    await generator.get_logits_async()
    logits = array("f", [-65504.0]) * vocabulary
    logits[token] = 0.0
    await generator.set_logits_async(logits)
    picked = await generator.generate_next_token_async()
    if picked != token:
        raise RuntimeError(f"{picked} was picked where {token} was forced")


async def transcript(*, model: str, prompt: list[int], tokens: int, **options: Any) -> dict[str, Any]:
    """The model's greedy answer, up to its end-of-sequence token or `tokens` tokens."""
    opened = await open_model(model, options)
    tokenizer = capstan.Tokenizer(opened)
    params = capstan.GeneratorParams(opened)
    params.set_search_options(do_sample=False, max_length=len(prompt) + tokens)
    async with capstan.Generator(opened, params) as generator:
        generator.append_tokens(prompt)
        ids = [token async for token in generator]
        about = {"capture": generator.capture, "finish_reason": generator.finish_reason}
        return {"reply": ids, "prompt": tokenizer.decode(prompt), "text": tokenizer.decode(ids), **about}


async def uses(*, model: str, times: int, tokens: int, function: str = "measured") -> dict[str, Any]:
    """How long each feature takes at its first and later uses, or the pace of several rows; see uses.py."""
    module: dict[str, Any] = {}
    exec(compile(await source("uses.py"), "uses.py", "exec"), module)
    found: dict[str, Any] = await module[function](address_of(model), times, tokens)
    return found


async def memory() -> dict[str, Any]:
    """GPU memory now and at its peak, and the ledger by category, in bytes."""
    ledger = capstan.memory.ledger()
    return {
        **(await counts()).memory().to_py(),
        "ledger": {name: ledger.bytes(category=name) for name in capstan.memory.CATEGORIES},
    }
