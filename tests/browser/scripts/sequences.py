"""Rewinding, appending, ends of sequence and several generators; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyodide.code import run_js
from pyodide.ffi import create_proxy

from capstan import Generator, Model

from . import probe
from .meddling import recorded_again
from .running import close_all, gpu, load, parameters, picked, take

WHEN_RECORDING = """(watched, action) => {
  let recorder = null;
  const set = (value) => {
    recorder = value;
    if (value) action();
  };
  Object.defineProperty(watched, "recorder", { get: () => recorder, set, configurable: true });
  return () => Object.defineProperty(watched, "recorder", { value: null, writable: true });
}"""


async def drive(
    models: Mapping[str, str], *, model: str, actions: Sequence[tuple[str, Any]], device: str = "webgpu", **options: Any
) -> dict[str, Any]:
    """The actions of tests/oracle.py on one generator: ("append", ids), ("generate", most), ("rewind", length)."""
    source = {name: options.pop(name) for name in ("capture", "passes", "kv_cache_dtype") if name in options}
    opened = await load(models, model, device=device, **source)
    ids: list[int] = []
    async with Generator(opened, parameters(opened, **options)) as generator:
        for verb, argument in actions:
            if verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                generator.rewind_to(argument)
            else:
                ids += await take(generator, argument)
        return {
            "picked": ids,
            "sequence": generator.get_sequence(),
            "done": generator.is_done(),
            "finish_reason": generator.finish_reason,
            "capture": generator.capture,
            "note": generator.capture_note,
            "passes": generator.tape_passes,
        }


async def each(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], count: int, **options: Any
) -> list[list[int]]:
    """The tokens after each prompt, each by a generator of its own, one after the other."""
    source = {name: options.pop(name) for name in ("capture", "passes", "device") if name in options}
    opened = await load(models, model, **source)
    return [await picked(opened, prompt, count, **options) for prompt in prompts]


async def ways(
    models: Mapping[str, str], *, model: str, captures: Sequence[str], prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """The tokens after a prompt by generators that run their steps in different ways."""
    found: dict[str, Any] = {}
    for capture in captures:
        loading = Model.load(models[model], device="webgpu", capture=capture)
        async with await loading as opened, Generator(opened, parameters(opened)) as generator:
            generator.append_tokens(prompt)
            ids = await take(generator, count)
            found[capture] = {"ids": ids, "capture": generator.capture, "note": generator.capture_note}
    return found


async def interleaved(
    models: Mapping[str, str],
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    lengths: Sequence[int | None],
    count: int,
    device: str = "webgpu",
    **options: Any,
) -> list[list[int]]:
    """Generators at work side by side, a token each in turn; `lengths` are their max_lengths."""
    opened = await load(models, model, device=device)
    generators = []
    for prompt, length in zip(prompts, lengths, strict=True):
        limit: dict[str, Any] = {} if length is None else {"max_length": length}
        generators.append(Generator(opened, parameters(opened, **options, **limit)))
        generators[-1].append_tokens(prompt)
    found: list[list[int]] = [[] for _ in generators]
    try:
        for _ in range(count):
            for generator, ids in zip(generators, found, strict=True):
                ids += await take(generator, 1)
    finally:
        for generator in generators:
            await generator.aclose()
    return found


async def beside_a_recording(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int
) -> dict[str, Any]:
    """Set one sequence's sampling when a step of another is being recorded, and again before that one is used."""
    opened = await load(models, model)
    decoder: Any = await opened.decoder(64)
    search = parameters(opened, do_sample=True, top_k=3).search
    times = [0]

    def upload() -> None:
        times[0] += 1
        decoder.set_search(search)

    uploading = create_proxy(upload)
    restore = run_js(WHEN_RECORDING)(gpu().js.watched, uploading)
    try:
        async with Generator(opened, parameters(opened, max_length=100)) as generator:
            with recorded_again():
                await generator.prepare_async()
            decoder.set_search(search)
            generator.append_tokens(prompt)
            ids = await take(generator, count)
            return {"ids": ids, "capture": generator.capture, "times": times[0]}
    finally:
        restore()
        uploading.destroy()
        await decoder.close()


def only(generator: Generator) -> Any:
    """The device's decoder of a generator of one row."""
    return generator._loop.decoder


async def reused(models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """Two generators, one after the other; what the second one's preparing created on the device."""
    await close_all()
    opened = await load(models, model)
    first = Generator(opened)
    first.append_tokens(prompt)
    before = await take(first, count)
    decoder = only(first)
    await first.aclose()
    await first.aclose()
    counted = probe.counts()
    second = Generator(opened)
    await second.prepare_async()
    created = {name: probe.counts()[name] - counted[name] for name in ("create_buffer", "submits", "create_bind_group")}
    second.append_tokens(prompt)
    after = await take(second, count)
    same = only(second) is decoder
    async with Generator(opened) as third:
        third.append_tokens(prompt)
        beside = await take(third, count)
        apart = only(third) is not decoder
    await second.aclose()
    refused = ""
    try:
        second.append_tokens([1])
    except Exception as error:
        refused = type(error).__name__
    return {
        "ids": [before, after, beside],
        "created": created,
        "same": same,
        "apart": apart,
        "refused": refused,
    }


async def stopped_ahead(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], run_ahead: int
) -> dict[str, Any]:
    """Close a generator while bursts are under way, then use its decoder again."""
    opened = await load(models, model)
    generator = Generator(opened, parameters(opened, run_ahead=run_ahead))
    generator.append_tokens(prompt)
    await take(generator, 2)
    flights = len(generator._loop.flight)
    await generator.aclose()
    return {"flights": flights, "ids": await picked(opened, prompt, 12)}
