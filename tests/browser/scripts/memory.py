"""The memory of models, generators, sessions and devices: ledger, requirements, given pools; runs in the page."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import capstan
from capstan import CapstanError, Generator, Model
from capstan.device.probe import remembered
from capstan.fallback import fallbacks
from capstan.graph.one_node import add_model
from capstan.memory import DeviceBuffer, MemoryType, Pools, ledger

from . import device_operations, probe
from .running import close_all, load, parameters, take

PROMPT = [5, 6, 7, 8, 9]
CHUNK = 64
"""Prompt tokens of one run on a software adapter."""


async def on_device(models: Mapping[str, str], *, case: str, device: str, foreign: str | None = None) -> Any:
    """A case of device_operations on a device of this page."""
    opened = await capstan.open_device(device)
    others = [await capstan.open_device(foreign)] if foreign else []
    try:
        return await getattr(device_operations, case)(opened, *others)
    finally:
        for each in [opened, *others]:
            each.close()


WATCH = """async (folder, file, given) => {
  const { InferenceSession } = await import(new URL(`${folder}ort/${file}`, self.location.href));
  const create = InferenceSession.create;
  InferenceSession.create = function (model, options) {
    const [{ device, ...provider }] = options.executionProviders;
    given.push(JSON.stringify([provider, device instanceof GPUDevice]));
    return create.call(this, model, options);
  };
  return () => void (InferenceSession.create = create);
}"""
BUILDS = {"webgpu": "ort.webgpu.min.mjs", "wasm": "ort.wasm.min.mjs"}


async def providers(models: Mapping[str, str], *, device: str, model: str) -> dict[str, Any]:
    """The options of its provider as a device tells them, and as onnxruntime-web is given them for each session: a
    one-node session, one of any model, and those of a decoder; with whether a GPUDevice is among them."""
    from pyodide.code import run_js
    from pyodide.ffi import to_js

    await close_all()
    opened = await capstan.open_device(device)
    given = to_js([])
    restore = await run_js(WATCH)("./", BUILDS[device], given)
    try:
        session = await opened.create_session(add_model("float32", 4), owner="test")
        await session.close()
        async with (
            await Model.load(models[model], device=device) as loaded,
            Generator(loaded, parameters(loaded)) as one,
        ):
            one.append_tokens(PROMPT)
            await take(one, 2)
        return {"told": opened.provider_options_for_allocator_session(), "given": [json.loads(each) for each in given]}
    finally:
        restore()
        opened.close()


async def agreement(models: Mapping[str, str], *, model: str) -> list[dict[str, Any]]:
    """The ledger beside every live GPUBuffer, at each stage of a model's life."""
    await close_all()
    stages: list[dict[str, Any]] = []

    def note(stage: str) -> None:
        found, sizes = ledger(), probe.live_sizes()
        by_category = {name: found.bytes(category=name) for name in capstan.memory.CATEGORIES}
        seen = {"bytes": sum(sizes), "buffers": len(sizes)}
        told = {"bytes": found.bytes(), "buffers": found.buffers()}
        stages.append({"stage": stage, "seen": seen, "told": told, "by_category": by_category})

    note("nothing")
    opened = await Model.load(models[model], device="webgpu")
    note("loaded")
    with opened.device.allocate(4096, label="mine", owner="test"):
        note("user buffer")
    note("user buffer closed")
    async with Generator(opened, parameters(opened, max_length=64)) as generator:
        await generator.prepare_async()
        note("prepared")
        generator.append_tokens(PROMPT)
        await take(generator, 8)
        note("generated")
    note("generator closed")
    await opened.trim()
    note("trimmed")
    await opened.aclose()
    note("model closed")
    return stages


async def held(models: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Pipelines and devices that are held, and how many were ever made, once what Python dropped is gone."""
    await close_all()
    gc.collect()
    probe.forget_bound()
    now, ever = probe.held(), probe.counts()
    return {name: {"held": count, "made": ever[name]} for name, count in now.items()}


async def requirements(models: Mapping[str, str], *, model: str, max_length: int) -> dict[str, Any]:
    """The memory requirements before a sequence was recorded, after it, and after a whole chunk of prompt, and the
    ledger at the end."""
    await close_all()
    async with await Model.load(models[model], device="webgpu") as opened:
        before = opened.query_memory_requirements(max_length=max_length)
        async with Generator(opened, parameters(opened, max_length=max_length)) as generator:
            await generator.prepare_async()
            recorded = opened.query_memory_requirements(max_length=max_length)
            generator.append_tokens(PROMPT * (CHUNK // len(PROMPT) + 1))
            await take(generator, 1)
        found = ledger()
        after = opened.query_memory_requirements(max_length=max_length)
        return {
            "recorded": recorded.scratch.bytes,
            "before": {name: getattr(before, name).bytes for name in ("weights", "scratch", "persistent", "io")},
            "exact": [before.scratch.exact, recorded.scratch.exact, after.scratch.exact, before.persistent.exact],
            "after": {name: getattr(after, name).bytes for name in ("weights", "scratch", "persistent", "io")},
            "ledger": {name: found.bytes(category=name) for name in ("weights", "scratch", "persistent", "io")},
            "alignment": vars(opened.alignment_requirements()),
            "items": [[item.name, item.pool, item.bytes, item.bound] for item in after.items],
        }


async def given_pools(models: Mapping[str, str], *, model: str, count: int, close_early: bool) -> dict[str, Any]:
    """Generate with buffers of our own; what is live before, meanwhile and after."""
    await close_all()
    async with await Model.load(models[model], device="webgpu") as opened:
        need = opened.query_memory_requirements(max_length=64)
        made = own_buffers(opened, need.items)
        before = ledger().bytes(category="user")
        pools = Pools(
            persistent={item.name: made[item.name] for item in need.pool("persistent")},
            io={item.name: made[item.name] for item in need.pool("io")},
        )
        generator = Generator(opened, parameters(opened, max_length=64), pools=pools)
        generator.append_tokens(PROMPT)
        ids = await take(generator, count // 2)
        meanwhile = ledger()
        if close_early:
            for buffer in made.values():
                buffer.close()
        held = ledger().bytes(category="user")
        ids += await take(generator, count - len(ids))
        note = [generator.capture, generator.capture_note]
        await generator.aclose()
        left = ledger().bytes(category="user")
        for buffer in made.values():
            buffer.close()
        return {
            "ids": ids,
            "note": note,
            "user": [before, held, left, ledger().bytes(category="user")],
            "own": [meanwhile.bytes(category=name) for name in ("persistent", "io")],
        }


def own_buffers(model: Model, items: Sequence[Any]) -> dict[str, DeviceBuffer]:
    return {item.name: model.device.allocate(item.bytes, label=item.name) for item in items if item.pool != "weights"}


async def refused_pools(models: Mapping[str, str], *, model: str) -> dict[str, str]:
    """Errors for buffers that cannot be used; the same generator's model works afterwards."""
    found: dict[str, str] = {}
    opened = await load(models, model)
    need = opened.query_memory_requirements(max_length=64)
    items = {item.name: item for item in need.pool("io")}
    cpu = await capstan.open_device("wasm")

    def whole(**changed: DeviceBuffer | None) -> dict[str, DeviceBuffer]:
        made = {name: opened.device.allocate(item.bytes, label=name) for name, item in items.items()}
        made |= {name.replace("_", " "): buffer for name, buffer in changed.items() if buffer is not None}
        for name in [name for name, buffer in changed.items() if buffer is None]:
            del made[name.replace("_", " ")]
        return made

    size = items["logits"].bytes
    gone = opened.device.allocate(size, label="gone")
    gone.close()
    cases = {
        "small": whole(logits=opened.device.allocate(size - 16, label="small")),
        "staging": whole(logits=opened.device.allocate(size, MemoryType.HOST_ACCESSIBLE, label="staging")),
        "foreign": whole(logits=cpu.allocate(size, label="cpu")),
        "closed": whole(logits=gone),
        "unknown": whole(banana=opened.device.allocate(16)),
        "missing": whole(logits=None),
    }
    before = ledger().bytes(category="persistent"), ledger().bytes(category="io")
    for name, buffers in cases.items():
        try:
            async with Generator(opened, parameters(opened, max_length=64), pools=Pools(io=buffers)) as generator:
                await generator.prepare_async()
            found[name] = "no error"
        except CapstanError as error:
            found[name] = f"{type(error).__name__}: {error}"
        for buffer in buffers.values():
            buffer.close()
    after = ledger().bytes(category="persistent"), ledger().bytes(category="io")
    found["left"] = "nothing" if before == after else f"{before} became {after}"
    async with Generator(opened, parameters(opened, max_length=64)) as generator:
        generator.append_tokens(PROMPT)
        found["ids"] = str(await take(generator, 4))
    return found


async def apart_caches(models: Mapping[str, str], *, model: str, count: int) -> dict[str, Any]:
    """Generate on an adapter of which the probe says that past and present cannot be one buffer."""
    await close_all()
    device = await capstan.open_device("webgpu")
    found = await device.capabilities()
    key = next(key for key, value in remembered.items() if value is found)
    remembered[key] = replace(found, in_place_cache=False, missing=(("in_place_cache", "the test says so"),))
    notes: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                opened = await Model.load(models[model], device="webgpu")
                async with opened, Generator(opened, parameters(opened, max_length=64)) as generator:
                    generator.append_tokens(PROMPT)
                    ids = await take(generator, count)
                    notes.append(f"{generator.capture}: {generator.capture_note}")
                    submits = generator.counters["submits"]
    finally:
        remembered[key] = found
        device.close()
    counted = [times for reason, times in fallbacks().items() if "the test says so" in reason]
    texts = [str(warning.message) for warning in warned]
    return {"ids": ids, "notes": notes, "warned": texts, "counted": counted, "submits": submits}


async def incapable(models: Mapping[str, str], *, model: str) -> dict[str, str]:
    """Load on an adapter whose staging memory does not work, by the probe's word."""
    await close_all()
    device = await capstan.open_device("webgpu")
    found = await device.capabilities()
    key = next(key for key, value in remembered.items() if value is found)
    remembered[key] = replace(found, staging=False, missing=(("staging", "the test says so"),))
    try:
        await Model.load(models[model], device="webgpu")
        error = "none"
    except CapstanError as refused:
        error = f"{type(refused).__name__}: {refused}"
    finally:
        remembered[key] = found
        device.close()
    return {"error": error, "left": str(ledger())}


async def plans(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Whether a model fits, asked of its folder alone; with a limit that it breaks."""
    await close_all()
    before = probe.counts()["create_buffer"]
    good = await capstan.plan(models[model], device="webgpu", max_length=64)
    made = probe.counts()["create_buffer"] - before
    poor = await capstan.plan(models[model], device="webgpu", budget=good.requirements.total.bytes - 1, max_length=64)
    return {
        "good": bool(good),
        "poor": bool(poor),
        "reason": poor.reason,
        "buffers": made,
    }


async def dropped_generator(model: Model, live: Callable[[], list[int]]) -> list[int]:
    """The live objects after a generator was used, dropped and gave back its buffers for the next one."""
    generator = Generator(model, parameters(model, max_length=16))
    generator.append_tokens(PROMPT)
    await take(generator, 2)
    del generator
    gc.collect()
    await model.leaving.settled()
    return live()


async def cycles(
    models: Mapping[str, str], *, model: str, generators: int, sessions: int, loads: int
) -> dict[str, Any]:
    """Open and close each many times; live buffers and bytes before, and after each kind."""
    await close_all()

    def live() -> list[int]:
        sizes = probe.live_sizes()
        assert [ledger().buffers(), ledger().bytes()] == [len(sizes), sum(sizes)]
        return [len(sizes), sum(sizes)]

    found: dict[str, Any] = {"nothing": live()}
    opened = await Model.load(models[model], device="webgpu", capture="off")

    async def generate(one: Model, count: int) -> None:
        async with Generator(one, parameters(one, max_length=16)) as generator:
            generator.append_tokens(PROMPT)
            await take(generator, count)

    await generate(opened, 2)
    await opened.trim()
    found["a model"] = live()
    for _ in range(generators):
        await generate(opened, 1)
    await opened.trim()
    found["generators"] = live()
    found["dropped generators"] = [await dropped_generator(opened, live) for _ in range(3)]
    await opened.trim()
    found["after dropped generators"] = live()
    device = opened.device
    for _ in range(sessions):
        session = await device.create_session(add_model("float32", 4), owner="cycle")
        await session.close()
    found["sessions"] = live()
    await opened.aclose()
    found["closed"] = live()
    for _ in range(loads):
        await (await Model.load(models[model], device="webgpu", capture="off")).aclose()
    found["loads"] = live()
    opened = await Model.load(models[model], device="webgpu", capture="off")
    await dropped_generator(opened, live)
    del opened
    gc.collect()
    for _ in range(500):
        if not probe.live_sizes():
            break
        await asyncio.sleep(0.01)
    found["a dropped model"] = live()
    found["devices"] = probe.live_devices()
    return found
