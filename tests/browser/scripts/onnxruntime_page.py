"""capstan.onnxruntime in the page: first without numpy, through its async names; then scripts with it."""

from __future__ import annotations

import gc
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

import capstan.onnxruntime as ort
from capstan import CapstanError
from capstan.fallback import counted, fallbacks
from capstan.memory import ledger

from . import probe

__all__ = [
    "binds",
    "captures",
    "captures_by_option",
    "counts",
    "external",
    "fails",
    "grows",
    "half",
    "install_numpy",
    "refuses",
    "refuses_capture",
    "runs",
    "scenario",
    "uncapturable",
]

Texts = dict[str, str]

GROW = """(session, grow) => {
  const run = session.run;
  session.run = function (...given) {
    delete session.run;
    grow();
    return run.apply(this, given);
  };
}"""


async def session_of(given: Texts, name: str, provider: str) -> ort.InferenceSession:
    return await ort.InferenceSession.create(b64decode(given[name]), providers=[provider])


def floats(values: Iterable[float], *shape: int) -> Any:
    """A float32 array without numpy."""
    return memoryview(array("f", values)).cast("B").cast("f", shape)


def told(view: Any) -> list[Any]:
    """[class, format, shape, values]: a result as the page's Python sees it."""
    return [type(view).__name__, view.format, list(view.shape), view.tolist()]


async def runs(models: Any, *, given: Texts, provider: str) -> dict[str, Any]:
    """Feeds of several forms, free dimensions, out=, all element types; no numpy."""
    session = await session_of(given, "affine", provider)
    x = array("f", range(12))
    found = [
        (await session.run_async(None, {"x": floats(x[:6], 2, 3)}))[0],
        (await session.run_async(["y"], {"x": (x, (4, 3))}))[0],
        (await session.run_async(["y"], {"x": (x[:3].tobytes(), (1, 3))}))[0],
        (await session.run_async(["y"], {"x": (array("f"), (0, 3))}))[0],
    ]
    target = floats([0] * 8, 4, 2)
    (same,) = await session.run_async(None, {"x": (x, (4, 3))}, out={"y": target})
    await session.aclose()
    types = await session_of(given, "element_types", provider)
    flags = memoryview(bytes([1, 0, 1, 1, 0])).cast("?")
    results = await types.run_async(None, {"n": array("q", [1, -2, 30, 4, 63]), "flag": flags})
    await types.aclose()
    return {
        "affine": [told(view) for view in found],
        "out": [same is target, told(target)],
        "types": [told(view) for view in results],
        "providers": session.get_providers(),
        "numpy": "numpy" in sys.modules,
    }


async def binds(models: Any, *, given: Texts, provider: str, device: str) -> dict[str, Any]:
    """OrtValues on the device, changed in place; outputs made by the device and read when asked for; no numpy."""
    session = await session_of(given, "two_outputs", provider)
    a = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(6), 2, 3), device)
    total = await ort.OrtValue.ortvalue_from_shape_and_type_async([2, 3], "float32", device)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", a)
    binding.bind_cpu_input("b", floats([1] * 6, 2, 3))
    binding.bind_ortvalue_output("sum", total)
    binding.bind_output("difference", device)
    found = []
    for factor in (1, 10):
        a.update_inplace(floats([factor * i for i in range(6)], 2, 3))
        await session.run_with_iobinding_async(binding)
        found.append([told(view) for view in await binding.copy_outputs_to_cpu_async()])
    target = floats([0] * 6, 2, 3)
    await total.numpy_async(out=target)
    _, difference = binding.get_outputs()
    await session.aclose()
    # A result outlives its session.
    late = told(await difference.numpy_async())
    for value in (a, total, difference):
        value.close()
    return {"found": found, "out": told(target), "late": late, "devices": [a.device_name(), difference.device_name()]}


async def fails(models: Any, *, given: Texts, provider: str) -> dict[str, Any]:
    """A run that onnxruntime fails, between two that it does not; then an output bound to the wrong shape."""
    session = await session_of(given, "sum_of_any", provider)

    async def total(a: list[float], b: list[float], **more: Any) -> Any:
        feeds = {"a": array("f", a), "b": array("f", b)}
        return told((await session.run_async(None, feeds, **more))[0])

    found: list[Any] = [await total([1, 2], [3, 4])]
    for attempt in ({}, {"out": {"y": floats([0] * 3, 3)}}):
        try:
            await total([1, 2, 3] if not attempt else [5, 6], [4, 5], **attempt)
        except CapstanError as error:
            found.append([type(error).__name__, str(error)])
        found.append(await total([7, 8], [3, 4]))
    binding = session.io_binding()
    binding.bind_cpu_input("a", array("f", [1, 2]))
    binding.bind_cpu_input("b", array("f", [1, 2]))
    wrong = await ort.OrtValue.ortvalue_from_shape_and_type_async([3], "float32", device(session))
    binding.bind_ortvalue_output("y", wrong)
    try:
        await session.run_with_iobinding_async(binding)
    except CapstanError as error:
        found.append([type(error).__name__, str(error)])
    found.append(await total([9, 8], [3, 4]))
    await session.aclose()
    return {"found": found}


def device(session: ort.InferenceSession) -> str:
    return "webgpu" if session.get_providers() == ["WebGpuExecutionProvider"] else "cpu"


async def refuses(models: Any, *, given: Texts) -> dict[str, Any]:
    """The errors for buffers and tensors that do not fit, each between two good runs."""
    session = await session_of(given, "two_outputs", "webgpu")
    binding = session.io_binding()
    found = {}
    good = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(6), 2, 3), "webgpu")
    small = session.device.allocate(16, label="small")
    pool = session.device.allocate(1024, label="pool")
    gone = session.device.allocate(24, label="gone")
    gone.close()
    staging = session.device.allocate(24, ort.MemoryType.HOST_ACCESSIBLE, label="staging")
    for name, memory in {
        "small": small,
        "odd": pool.span(2, 24),
        "middle": pool.span(256, 24),
        "gone": gone,
        "staging": staging,
        "host": floats(range(6), 2, 3),
    }.items():
        binding.bind_ortvalue_input("a", good)
        binding.bind_ortvalue_input("b", good)
        binding.bind_output("sum", "webgpu")
        try:
            binding.bind_input("a", "webgpu", 0, "float32", [2, 3], memory)
            await session.run_with_iobinding_async(binding)
            error = "none"
        except CapstanError as raised:
            error = f"{type(raised).__name__}: {raised}"
        await session.run_with_iobinding_async(binding)
        (total,) = await binding.copy_outputs_to_cpu_async()
        found[name] = [error, total.tolist()]
    for buffer in (small, pool, staging):
        buffer.close()
    await session.aclose()
    return found


async def captures(
    models: Any, *, given: Texts, model: str, feeds: list[list[float]], shape: list[int]
) -> dict[str, Any]:
    """A captured run on changing inputs, and what an eager session gives for them; what is live before and after."""
    before = sorted(probe.live_buffers())
    eager = await session_of(given, model, "webgpu")
    session = await session_of(given, model, "webgpu")
    binding = session.io_binding()
    x = await ort.OrtValue.ortvalue_from_numpy_async(floats(feeds[0], *shape), "webgpu")
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y", "webgpu")
    captured = await session.capture_async(binding)
    (y,) = captured.get_outputs()
    first = told(await y.numpy_async())
    await session.aclose()
    replayed, expected, counted = [], [], []
    for feed in feeds:
        x.update_inplace(floats(feed, *shape))
        counts = probe.counts()
        captured.replay()
        counted.append({key: value - counts[key] for key, value in probe.counts().items()})
        replayed.append(told(await y.numpy_async()))
        expected += [told(view) for view in await eager.run_async(None, {"x": floats(feed, *shape)})]
    passes = captured.passes
    await captured.aclose()
    try:
        captured.replay()
        closed = "none"
    except CapstanError as error:
        closed = type(error).__name__
    await eager.aclose()
    x.close()
    y.close()
    return {
        "first": first,
        "replayed": replayed,
        "expected": expected,
        "counted": counted,
        "passes": passes,
        "closed": closed,
        "left": [label for label in sorted(probe.live_buffers()) if label not in before],
    }


async def captures_by_option(models: Any, *, given: Texts, value: str) -> dict[str, Any]:
    """Bound runs of a session with enableGraphCapture; what each asked of the device, and what is live afterwards."""
    before = sorted(probe.live_buffers())
    counted.clear()
    provider = ("WebGpuExecutionProvider", {"enableGraphCapture": value})
    session = await ort.InferenceSession.create(b64decode(given["static"]), providers=[provider])
    binding = session.io_binding()
    x = await ort.OrtValue.ortvalue_from_numpy_async(floats(range(32), 4, 8), "webgpu")
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y", "webgpu")
    results, asked, made = [], [], []
    for factor in (1, -2, 3):
        x.update_inplace(floats([factor * i for i in range(32)], 4, 8))
        counts = probe.counts()
        await session.run_with_iobinding_async(binding)
        asked.append({key: value - counts[key] for key, value in probe.counts().items()})
        (y,) = binding.get_outputs()
        made.append(y)
        results.append(told(await y.numpy_async()))
    await session.aclose()
    for y in [x, *made]:
        y.close()
    left = [label for label in probe.live_buffers() if label and label not in before]
    return {"results": results, "asked": asked, "left": left, "fallbacks": fallbacks()}


async def refuses_capture(models: Any, *, given: Texts) -> dict[str, Any]:
    """The result of `refused`, and its tensors that are live afterwards, without a garbage collection."""
    gc.disable()
    try:
        found = await refused(given)
        return found | {"left": [label for label in probe.live_buffers() if label in ("input x", "output y")]}
    finally:
        gc.enable()


async def refused(given: Texts) -> dict[str, Any]:
    """Runs of a session with enableGraphCapture whose model chooses its path by values."""
    counted.clear()
    provider = ("WebGpuExecutionProvider", {"enableGraphCapture": "1"})
    session = await ort.InferenceSession.create(b64decode(given["positions"]), providers=[provider])
    binding = session.io_binding()
    binding.bind_cpu_input("x", array("f", [0, 1, 2, 0]))
    binding.bind_output("y", "cpu")
    await session.run_with_iobinding_async(binding)
    (y,) = binding.get_outputs()
    on_host = fallbacks()
    binding.bind_output("y", "webgpu")
    found = [told(await y.numpy_async())]
    for _ in range(2):
        await session.run_with_iobinding_async(binding)
        (y,) = binding.get_outputs()
        found.append(told(await y.numpy_async()))
    await session.aclose()
    return {"results": found, "on_host": on_host, "fallbacks": fallbacks()}


async def uncapturable(models: Any, *, given: Texts) -> dict[str, Any]:
    """Why runs cannot be captured; each session still runs afterwards."""
    found = {}
    cases: dict[str, dict[str, Any]] = {
        "sized": {"x": floats(range(24), 4, 6), "shape": array("q", [3, 8])},
        "positions": {"x": array("f", [0, 1, 2, 0])},
        "looking_back": {"x": floats(range(48), 1, 1, 48)},
    }
    for name, feeds in cases.items():
        session = await session_of(given, name, "webgpu")
        binding = session.io_binding()
        for key, feed in feeds.items():
            binding.bind_cpu_input(key, feed)
        binding.bind_output("y", "webgpu")
        try:
            await session.capture_async(binding)
            error = "none"
        except CapstanError as raised:
            error = f"{type(raised).__name__}: {raised}"
        (y,) = await session.run_async(None, feeds)
        found[name] = [error, told(y)]
        await session.aclose()
    return found


async def counts(models: Any, *, given: Texts) -> dict[str, Any]:
    """The device calls of ten runs; live buffers after open and close cycles."""
    session = await session_of(given, "static", "webgpu")
    x, y = floats(range(32), 4, 8), floats([0] * 20, 4, 5)
    for _ in range(2):
        await session.run_async(None, {"x": x}, out={"y": y})
    before = probe.counts()
    for _ in range(10):
        await session.run_async(None, {"x": x}, out={"y": y})
    after = probe.counts()
    await session.aclose()
    live = []
    for _ in range(4):
        again = await session_of(given, "affine", "webgpu")
        await again.run_async(None, {"x": floats(range(6), 2, 3)})
        binding = again.io_binding()
        binding.bind_cpu_input("x", floats(range(3), 1, 3))
        binding.bind_output("y", "webgpu")
        await again.run_with_iobinding_async(binding)
        binding.get_outputs()[0].close()
        await again.aclose()
        binding.clear_binding_inputs()
        del binding, again
        live.append(len(probe.live_buffers()))
    return {"ten": {key: after[key] - before[key] for key in after}, "live": live, "devices": probe.live_devices()}


async def half(models: Any, *, given: Texts) -> dict[str, Any]:
    """A float16 model where the adapter may not have it."""
    session = await ort.InferenceSession.create(b64decode(given["half"]), providers=["webgpu", "cpu"])
    bits = array("H", [0x3C00, 0xC000, 0x3800, 0x0000])
    (y,) = await session.run_async(None, {"x": (bits.tobytes(), (4,))})
    await session.aclose()
    return {
        "providers": session.get_providers(),
        "format": y.format,
        "bits": y.cast("B").hex(),
        "fallbacks": [text for text in fallbacks() if "float16" in text],
    }


async def external(models: dict[str, str], *, provider: str) -> dict[str, Any]:
    """A model by its URL, with its weights in a file next to it."""
    url = next(iter(models.values())) + "model.onnx"
    before = ledger().bytes(category="weights")
    session = await ort.InferenceSession.create(url, providers=[provider])
    loaded, asked = ledger().bytes(category="weights") - before, session.query_memory_requirements()
    (y,) = await session.run_async(None, {"x": floats(range(32), 4, 8)})
    need, alignment = session.query_memory_requirements(), session.alignment_requirements()
    items = {item.name: item.bytes for item in need.items}
    # Buffers of those sizes are enough for a run.
    if provider.startswith("WebGpu"):
        with session.device.allocate(items["input x"]) as x, session.device.allocate(items["output y"]) as out:
            session.device.copy_cpu_to_device(x.span(0, 128), floats(range(32), 4, 8).cast("B"))
            binding = session.io_binding()
            binding.bind_input("x", "webgpu", 0, "float32", [4, 8], x)
            binding.bind_output("y", "webgpu", 0, "float32", [4, 5], out)
            await session.run_with_iobinding_async(binding)
            bound = await session.device.copy_device_to_cpu(out.span(0, 80))
            assert bound.data == y.tobytes()
    await session.aclose()
    try:
        await ort.InferenceSession.create(url.replace("model.onnx", "none.onnx"), providers=[provider])
        missing = "none"
    except CapstanError as error:
        missing = f"{type(error).__name__}: {error}"
    told_sizes = {"items": items, "alignment": vars(alignment), "exact": [asked.scratch.exact, need.scratch.exact]}
    return {"y": told(y), "missing": missing, "loaded": loaded, **told_sizes}


async def grows(models: Any, *, given: Texts) -> dict[str, Any]:
    """A run on the CPU during which Python's heap grows, so that what JavaScript saw of its inputs is detached."""
    import pyodide_js
    from pyodide.code import run_js
    from pyodide.ffi import create_proxy

    session = await session_of(given, "two_outputs", "cpu")
    inner: Any = session.opened()
    kept = []
    before = pyodide_js._module.HEAPU8.length

    def grow() -> None:
        kept.append(bytearray(pyodide_js._module.HEAPU8.length // 2))

    proxy = create_proxy(grow)
    run_js(GROW)(inner.session.js.session, proxy)
    found = await session.run_async(None, {"a": floats(range(6), 2, 3), "b": floats([1] * 6, 2, 3)})
    proxy.destroy()
    await session.aclose()
    return {"found": [told(view) for view in found], "grown": pyodide_js._module.HEAPU8.length > before}


async def install_numpy(models: Any) -> str:
    """Import numpy, which comes with the page."""
    import numpy

    return str(numpy.__version__)


async def scenario(models: Any, *, given: Texts, script: str, provider: str, device: str) -> list[Any]:
    """One of onnxruntime_scenarios.py: [dtype, shape, bytes as base64] of each array."""
    from .onnxruntime_scenarios import SCENARIOS

    found = SCENARIOS[script](ort, provider, device, {key: b64decode(text) for key, text in given.items()})
    return [[str(a.dtype), list(a.shape), b64encode(a.tobytes()).decode()] for a in found]
