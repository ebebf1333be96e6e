"""Outputs of any-ONNX sessions that go to the host: what comes, and what it costs at the device; runs in the page."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode, b64encode
from typing import Any

import js
from pyodide.code import run_js

import capstan
import capstan.onnxruntime as ort
from capstan import CapstanError

from . import probe

__all__ = ["attention", "captured", "costs", "delayed", "in_place", "mixed", "staged", "stopped", "times"]

COUNTED = ("submits", "readbacks", "create_buffer")
WAYS = ("run", "out", "cpu", "arrays", "host_accessible")


def cost(before: dict[str, int]) -> dict[str, int]:
    after = probe.counts()
    return {name: after[name] - before[name] for name in COUNTED}


def floats(values: Any, *shape: int) -> Any:
    """A float32 array without numpy."""
    return memoryview(array("f", values)).cast("B").cast("f", shape or (len(values),))


def lists(results: Any) -> list[Any]:
    return [view.tolist() for view in results]


async def session_of(text: str, provider: str = "webgpu") -> ort.InferenceSession:
    return await ort.InferenceSession.create(b64decode(text), providers=[provider])


def host_accessible(session: ort.InferenceSession) -> ort.MemoryInfo:
    return session.device.get_memory_info(ort.MemoryType.HOST_ACCESSIBLE)


async def costs(models: Any, *, given: str, provider: str) -> dict[str, Any]:
    """Three runs of a model x -> y0, y1, ... in each way: [results, what each run cost, what reading them cost]."""
    session = await session_of(given, provider)
    x = floats(range(6))
    names = [spec.name for spec in session.get_outputs()]
    found = {}
    for way in WAYS:
        targets = {name: floats([0] * 6) for name in names}
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        for name in names:
            match way:
                case "cpu":
                    binding.bind_output(name)
                case "arrays":
                    binding.bind_output(name, "cpu", 0, "float32", [6], targets[name])
                case "host_accessible":
                    binding.bind_output(name, memory_info=host_accessible(session))
        runs, results = [], []
        for _ in range(3):
            before = probe.counts()
            if way in ("run", "out"):
                results = await session.run_async(None, {"x": x}, out=targets if way == "out" else None)
            else:
                await session.run_with_iobinding_async(binding)
            runs.append(cost(before))
        before = probe.counts()
        if way not in ("run", "out"):
            results = binding.copy_outputs_to_cpu()
            assert [value.device_name() for value in binding.get_outputs()] == ["cpu"] * len(names)
            first = binding.get_outputs()[0].numpy()
            number, first[0] = first[0], -100
            assert results[0][0] == -100, "numpy() of a result in Python's heap is a view"
            first[0] = number
        found[way] = [lists(results), runs, cost(before)]
        if way in ("out", "arrays"):
            assert lists(targets.values()) == lists(results)
    await session.aclose()
    return found


async def mixed(models: Any, *, given: str, feeds: dict[str, list[Any]]) -> list[Any]:
    """[[dtype, shape, bytes] of each output, cost] of a second run; feeds are [format, shape, numbers]."""
    session = await session_of(given)
    arrays = {}
    for name, (form, shape, numbers) in feeds.items():
        arrays[name] = (memoryview(array(form, numbers)), tuple(shape))
    names = [spec.name for spec in session.get_outputs()]
    binding = session.io_binding()
    for name in arrays:
        binding.bind_cpu_input(name, arrays[name])
    for name in names:
        binding.bind_output(name)
    await session.run_with_iobinding_async(binding)
    before = probe.counts()
    await session.run_with_iobinding_async(binding)
    spent = cost(before)
    told = [
        [value.dtype, value.shape(), b64encode(bytes(value.host().data)).decode()] for value in binding.get_outputs()
    ]
    await session.aclose()
    return [told, spent]


async def staged(models: Any, *, given: str) -> dict[str, Any]:
    """Outputs bound to OrtValues in host accessible memory: two of one buffer, one of its own, beside one of 'cpu'."""
    session = await session_of(given)
    device = session.device
    pool = device.allocate(256, ort.MemoryType.HOST_ACCESSIBLE, label="pool")
    own = await ort.OrtValue.ortvalue_from_shape_and_type_async([6], "float32", memory_info=host_accessible(session))
    binding = session.io_binding()
    binding.bind_cpu_input("x", floats(range(6)))
    binding.bind_output("y0")
    binding.bind_output("y1", "webgpu", 0, "float32", [6], pool.span(4, 24))
    binding.bind_output("y2", "webgpu", 0, "float32", [6], pool.span(100, 24))
    binding.bind_ortvalue_output("y3", own)
    await session.run_with_iobinding_async(binding)
    before = probe.counts()
    await session.run_with_iobinding_async(binding)
    run = cost(before)
    before = probe.counts()
    results = lists(await binding.copy_outputs_to_cpu_async())
    read = cost(before)
    single = (await own.numpy_async()).tolist()
    refused = {}

    async def refusal(what: str, attempt: Any) -> None:
        try:
            await attempt
            refused[what] = "none"
        except CapstanError as error:
            refused[what] = f"{type(error).__name__}: {error}"

    other = session.io_binding()
    other.bind_cpu_input("x", floats(range(6)))
    other.bind_ortvalue_output("y1", own)
    await refusal("capture", session.capture_async(other))
    reading = asyncio.ensure_future(own.numpy_async())
    await asyncio.sleep(0)
    await refusal("while it is read", session.run_with_iobinding_async(binding))
    await reading
    await session.run_with_iobinding_async(binding)
    after = lists(await binding.copy_outputs_to_cpu_async())
    healthy = device.engine.healthy()  # type: ignore[attr-defined]
    pool.close()
    own.close()
    await session.aclose()
    return {
        "results": results,
        "run": run,
        "read": read,
        "single": single,
        "refused": refused,
        "after": after,
        "healthy": healthy,
    }


async def captured(models: Any, *, given: str) -> dict[str, Any]:
    """A replay of a model with several outputs, all read at once."""
    session = await session_of(given)
    x = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(6)), "webgpu")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    for spec in session.get_outputs():
        binding.bind_output(spec.name, "webgpu")
    async with await session.capture_async(binding) as run:
        found = {}
        for start in (10, 20):
            x.update_inplace(floats(range(start, start + 6)))
            before = probe.counts()
            run.replay()
            results = await run.copy_outputs_to_cpu_async()
            found[str(start)] = [lists(results), cost(before)]
        outputs = run.get_outputs()
    await session.aclose()
    for value in (x, *outputs):
        value.close()
    return found


async def in_place(models: Any, *, given: str) -> dict[str, Any]:
    """An output bound to its input's buffer, and two outputs to one: the errors, the counts, and a run afterwards."""
    session = await session_of(given)
    x = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(6)), "webgpu")
    y = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(6)), "webgpu")
    found: dict[str, Any] = {}
    for what, bound in {"input": {"y0": x}, "twice": {"y0": y, "y1": y}}.items():
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        for name, value in bound.items():
            binding.bind_ortvalue_output(name, value)
        before = probe.counts()
        try:
            await session.run_with_iobinding_async(binding)
            found[what] = ["none"]
        except CapstanError as error:
            found[what] = [f"{type(error).__name__}: {error}", cost(before)]
    found["x"] = lists([await x.numpy_async()])
    found["after"] = lists(await session.run_async(None, {"x": x}))
    await session.aclose()
    for value in (x, y):
        value.close()
    return found


async def attention(models: Any, *, given: str) -> dict[str, Any]:
    """A run of GroupQueryAttention over caches that are bound in place."""
    session = await session_of(given)
    caches = [
        await ort.OrtValue.ortvalue_from_numpy_async(floats([0] * 128, 1, 1, 8, 16), "webgpu") for _ in ("key", "value")
    ]
    binding = session.io_binding()
    binding.bind_cpu_input("x", floats(range(48), 1, 1, 48))
    binding.bind_cpu_input("before", (array("i", [0]), (1, 1)))
    binding.bind_cpu_input("total", (array("i", [1]), (1,)))
    for kind, cache in zip(("key", "value"), caches, strict=True):
        binding.bind_ortvalue_input(f"past_{kind}", cache)
        binding.bind_ortvalue_output(f"present_{kind}", cache)
    binding.bind_output("y")
    await session.run_with_iobinding_async(binding)
    key, value, y = lists(await binding.copy_outputs_to_cpu_async())
    await session.aclose()
    for cache in caches:
        cache.close()
    return {"key": key[0][0][0], "value": value[0][0][0], "y": y[0][0]}


async def stopped(models: Any, *, given: str) -> dict[str, Any]:
    """Runs whose waits are cancelled, then one that is not: what that costs and gives, and what is live."""
    session = await session_of(given)
    feeds = {"x": floats(range(6))}
    for _ in range(2):
        await session.run_async(None, feeds)
    live = sorted(probe.live_buffers())
    for turns in range(12):
        task = asyncio.ensure_future(session.run_async(None, feeds))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    results = await session.run_async(None, feeds)
    before = probe.counts()
    results = await session.run_async(None, feeds)
    found = {"results": lists(results), "cost": cost(before), "live": sorted(probe.live_buffers()) == live}
    await session.aclose()
    return found


DELAYS = """(queue, work, map) => {
  const { prototype } = GPUBuffer;
  const { mapAsync } = prototype;
  const done = queue.onSubmittedWorkDone;
  const after = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  const stamps = {};
  let idle;
  queue.onSubmittedWorkDone = () => {
    stamps.asked = performance.now();
    idle = done.call(queue).then(() => after(work)).then(() => { stamps.idle = performance.now(); });
    return idle;
  };
  prototype.mapAsync = function (...given) {
    return mapAsync.apply(this, given).then(() => idle).then(() => after(map));
  };
  stamps.restore = () => {
    queue.onSubmittedWorkDone = done;
    prototype.mapAsync = mapAsync;
  };
  return stamps;
}"""
"""Submitted work is done `work` milliseconds late, and a map `map` milliseconds after that."""


async def delayed(models: Any, *, work: int, map: int) -> dict[str, float]:
    """The times that a readback reports when earlier work and the map are late, and stamps of the same clock."""
    device: Any = await capstan.open_device("webgpu")
    with device.allocate(64) as buffer:
        stamps = run_js(DELAYS)(device.engine.js.watched.device.queue, work, map)
        try:
            began = js.performance.now()
            readback = await device.copy_device_to_cpu(buffer.span())
            ended = js.performance.now()
        finally:
            stamps.restore()
    device.close()
    found = {"began": began, "asked": stamps.asked, "idle": stamps.idle, "ended": ended}
    return {**found, "waiting": readback.waiting_ms, "copying": readback.copying_ms}


async def times(models: Any) -> dict[str, Any]:
    """A readback behind copies that take a while: what it tells, and stamps of the same clock, in milliseconds."""
    device: Any = await capstan.open_device("webgpu")
    done = run_js("engine => engine.watched.device.queue.onSubmittedWorkDone().then(() => performance.now())")
    size = 1 << 24
    with device.allocate(size) as a, device.allocate(size) as b:
        await device.copy_device_to_cpu(a.span())
        probe.forget()
        for _ in range(8):
            device.copy_tensors([(a.span(), b.span())])
            device.copy_tensors([(b.span(), a.span())])
        finished = done(device.engine.js)
        started = js.performance.now()
        readback = await device.copy_device_to_cpu(a.span(), bytearray(size))
        ended = js.performance.now()
        stamps = probe.stamps()
        found = {"finished": await finished}
    device.close()
    ((called, _),), (ranged,) = stamps["mapped"], stamps["ranged"]
    found |= {"started": started, "called": called, "ranged": ranged, "ended": ended}
    return {**found, "waiting": readback.waiting_ms, "copying": readback.copying_ms}
