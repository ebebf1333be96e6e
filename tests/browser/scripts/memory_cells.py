"""Every operation over every memory and alignment, while another model generates on the device; runs in the page. The
cells run over a device without a page, too."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import capstan
from capstan import Generator, Model
from capstan.device.device_interface import DeviceInterface
from capstan.errors import CapstanError
from capstan.memory import DeviceBuffer, DeviceSpan, MemoryType, Pools, StridedCopy

__all__ = ["CELLS", "Cell", "bound", "mapped", "outcome", "walk"]

PATTERN = bytes((37 * i + 11) % 256 for i in range(64))
OTHER = bytes((53 * i + 7) % 256 for i in range(64))
PROMPT = [5, 6, 7, 8, 9]

Act = Callable[[DeviceInterface, DeviceSpan, DeviceSpan], Any]


class Cell(NamedTuple):
    """An operation over a span at an offset of a buffer, and whether it is of whole words. `act` gets that span and the
    same one of another buffer, which is DEFAULT memory."""

    operation: str
    """As capstan.memory.OPERATIONS names it."""
    name: str
    size: int
    offset: int
    length: int
    words: bool
    act: Act


def strided(source: DeviceSpan, destination: DeviceSpan) -> list[StridedCopy]:
    return [StridedCopy(source, 8, destination, 8, source.length - 8, 2)]


BYTES: dict[str, Act] = {
    "copy source": lambda device, span, other: device.copy_tensors([(span, other)]),
    "copy destination": lambda device, span, other: device.copy_tensors([(other, span)]),
    "write": lambda device, span, _: device.copy_cpu_to_device(span, OTHER[: span.length]),
    "zero": lambda device, span, _: device.zero(span),
    "read": lambda device, span, _: device.copy_device_to_cpu(span),
}
"""Operations that take any number of bytes."""

TENSORS: dict[str, tuple[str, Act]] = {
    "copy inside": ("copy source", lambda device, span, _: device.copy_tensors([(span, span.buffer.span(32, 16))])),
    "cast source": ("cast source", lambda device, span, other: device.cast(span, "int32", other, "float32")),
    "cast destination": ("cast destination", lambda device, span, other: device.cast(other, "int32", span, "float32")),
    "mask": ("mask", lambda device, span, _: device.update_attention_mask(span, "int32", 4, [1], [3])),
    "positions": ("positions", lambda device, span, _: device.update_position_ids(span, "int32", [7], 4)),
}
"""By name: the operation in the table, and what takes 16 bytes."""

STRIDED: dict[str, tuple[str, Act]] = {
    "strided source": ("copy source", lambda device, span, other: device.copy_strided(strided(span, other))),
    "strided destination": ("copy destination", lambda device, span, other: device.copy_strided(strided(other, span))),
}


def cells() -> Iterator[Cell]:
    for name, act in BYTES.items():
        places = [(64, 8, 16, True), (64, 9, 16, False), (64, 8, 15, False), (23, 8, 15, True)]
        yield from (Cell(name, name, *place, act) for place in places)
    for name, (operation, act) in TENSORS.items():
        yield from (Cell(operation, name, 64, offset, 16, offset == 8, act) for offset in (8, 9))
    for name, (operation, act) in STRIDED.items():
        places = [(64, 8, 12, True), (64, 9, 12, False), (64, 8, 11, False)]
        yield from (Cell(operation, name, *place, act) for place in places)


CELLS = tuple(cells())


async def content(device: DeviceInterface, buffer: DeviceBuffer) -> str:
    return (await device.copy_device_to_cpu(buffer.span())).data.hex()


async def outcome(device: DeviceInterface, cell: Cell, memory_type: MemoryType) -> dict[str, Any]:
    """The bytes of both buffers after a cell, what it read, and the error if there was one."""
    found: dict[str, Any] = {"error": None, "read": None}
    with device.allocate(cell.size, memory_type, label="tried") as tried, device.allocate(cell.size) as other:
        device.copy_cpu_to_device(tried.span(), PATTERN[: cell.size])
        device.copy_cpu_to_device(other.span(), OTHER[: cell.size])
        try:
            result = cell.act(device, tried.span(cell.offset, cell.length), other.span(cell.offset, cell.length))
            if result is not None:
                found["read"] = (await result).data.hex()
        except CapstanError as error:
            found["error"] = f"{type(error).__name__}: {error}"
        return {**found, "tried": await content(device, tried), "other": await content(device, other)}


@contextmanager
def unchecked() -> Iterator[None]:
    """Let devices do what the table refuses."""
    from capstan.device import span_checks
    from capstan.device.webgpu import webgpu_device
    from capstan.memory import copies

    modules: list[Any] = [span_checks, webgpu_device, copies]
    checks = [module.check_use for module in modules]
    for module in modules:
        module.check_use = lambda *_, **__: None
    try:
        yield
    finally:
        for module, check in zip(modules, checks, strict=True):
            module.check_use = check


async def refusal(device: Any, cell: Cell, memory_type: MemoryType) -> str | None:
    """The error of WebGPU for a cell, caught before it becomes a fault of the device."""
    gpu = device.engine.js.watched.device
    with device.allocate(cell.size, memory_type) as tried, device.allocate(cell.size) as other:
        gpu.pushErrorScope("validation")
        with unchecked():
            cell.act(device, tried.span(cell.offset, cell.length), other.span(cell.offset, cell.length))
        error = await gpu.popErrorScope()
    return None if error is None else str(error.message)


class Meanwhile:
    """Generates with another model until `end`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.answers: list[list[int]] = []
        self._ending = False
        self._task = asyncio.ensure_future(self._generate())

    async def _generate(self) -> None:
        from .running import picked

        while not self._ending:
            self.answers.append(await picked(self.model, PROMPT, 24))

    async def end(self) -> dict[str, Any]:
        """The distinct answers, how many there were, and whether the device is well."""
        self._ending = True
        await self._task
        distinct = [list(each) for each in {tuple(answer) for answer in self.answers}]
        return {"answers": distinct, "count": len(self.answers), "healthy": self.model.healthy()}


async def walk(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Each cell over each memory: its outcome, the one of Python's heap, and WebGPU's word on those refused."""
    from .running import load

    loaded = await load(models, model)
    other = Meanwhile(loaded)
    device = await capstan.open_device("webgpu")
    host = await capstan.open_device("wasm")
    found: list[dict[str, Any]] = []
    for cell in CELLS:
        for memory_type in MemoryType:
            got = await outcome(device, cell, memory_type)
            wanted = await outcome(host, cell, MemoryType.DEFAULT)
            place = [cell.operation, cell.name, [cell.size, cell.offset, cell.length], cell.words, memory_type.value]
            found.append({"place": place, "got": got, "wanted": wanted})
    ended = await other.end()
    tries = [(cell, memory_type) for cell in CELLS for memory_type in MemoryType]
    for (cell, memory_type), each in zip(tries, found, strict=True):
        # An error scope is the device's: nobody else may be at work.
        each["webgpu"] = await refusal(device, cell, memory_type) if each["got"]["error"] else None
    flags = usage_flags(device)
    device.close()
    host.close()
    return {"cells": found, "usage": flags, **ended, "healthy": loaded.healthy()}


def usage_flags(device: Any) -> dict[str, list[str]]:
    """WebGPU's usage flags of the buffers that a device makes, by their memory."""
    import js

    found = {}
    for memory_type in MemoryType:
        with device.allocate(16, memory_type) as buffer:
            usage = device.engine.js.buffers.get(buffer.handle).usage
            flags = [name for name in dir(js.GPUBufferUsage) if name.isupper()]
            found[memory_type.value] = [name.lower() for name in flags if usage & getattr(js.GPUBufferUsage, name)]
    return found


async def attempt(action: Any) -> str:
    """The error of something that is awaited, or of a call, or 'none'."""
    try:
        result = action()
        if result is not None:
            await result
        return "none"
    except CapstanError as error:
        return f"{type(error).__name__}: {error}"


async def staged(device: Any, data: bytes, dtype: str, dims: Sequence[int], offset: int = 0, size: int = 64) -> Any:
    """A tensor in host accessible memory with these elements, `offset` bytes from the start of its buffer."""
    import capstan.onnxruntime as ort

    whole = bytearray(size)
    whole[offset : offset + len(data)] = data
    buffer = device.allocate(size, MemoryType.HOST_ACCESSIBLE, label="staged")
    device.copy_cpu_to_device(buffer.span(), whole)
    return ort.OrtValue(buffer.span(offset, len(data)), dtype, dims, device, owned=True)


async def bound(models: Mapping[str, str], *, model: str, sums: str, flags: str) -> dict[str, Any]:
    """Tensors of sessions and pools of generators in host accessible memory. `sums` adds x and y; `flags` negates x."""
    import capstan.onnxruntime as ort

    from . import probe
    from .running import load, parameters

    loaded = await load(models, model)
    other = Meanwhile(loaded)
    session, negation = [
        await ort.InferenceSession.create(b64decode(each), providers=["webgpu"]) for each in (sums, flags)
    ]
    device: Any = session.device
    one, two, three = (array("f", range(start, start + 6)).tobytes() for start in (1, 10, 100))
    kept = await ort.OrtValue.ortvalue_from_numpy_async(array("f", range(6)), "webgpu")
    found: dict[str, Any] = {}

    async def summed(x: Any, y: Any) -> tuple[list[float], int]:
        """The result, and how often something was mapped."""
        before = probe.counts()["readbacks"]
        (result,) = await session.run_async(None, {"x": x, "y": y})
        return result.tolist(), probe.counts()["readbacks"] - before

    x, y, z = [await staged(device, data, "float32", [6], offset) for data, offset in ((one, 0), (two, 8), (three, 36))]
    shared = ort.OrtValue(x.span.buffer.span(0, 24), "float32", [6], device)
    pairs = ((x, kept), (kept, y), (y, z), (x, shared))
    found["sums"] = [(await summed(*pair))[0] for pair in pairs]
    bits = [bytes([1, 0, 1, 1, 0]), bytes([0, 0, 1])]
    odd = [await staged(device, data, "bool", [len(data)], offset) for data, offset in zip(bits, (3, 9), strict=True)]
    exact = await staged(device, bits[0], "bool", [5], 0, 5)
    exact.update_inplace(memoryview(bytes([0, 1, 0, 0, 1])).cast("?"))
    found["flags"] = []
    for value in (*odd, exact):
        (result,) = await negation.run_async(None, {"x": value})
        found["flags"].append([int(each) for each in result])

    binding = session.io_binding()
    refused = {"bound input": await attempt(lambda: binding.bind_ortvalue_input("x", x))}
    place = x.span.buffer
    refused["bound input by its parts"] = await attempt(
        lambda: binding.bind_input("x", "webgpu", 0, "float32", [6], place.span(0, 24))
    )
    binding.bind_ortvalue_input("x", kept)
    binding.bind_ortvalue_input("y", kept)
    binding.bind_ortvalue_output("sum", y)
    await session.run_with_iobinding_async(binding)
    found["output"] = list(await y.numpy_async())
    refused["captured output"] = await attempt(lambda: session.capture_async(binding))
    negated = negation.io_binding()
    refused["odd output"] = await attempt(lambda: negated.bind_output("y", "webgpu", 0, "bool", [4], place.span(2, 4)))
    need = loaded.query_memory_requirements(max_length=64)
    for pool in ("persistent", "io"):
        buffers = {item.name: device.allocate(item.bytes, MemoryType.HOST_ACCESSIBLE) for item in need.pool(pool)}
        generator = Generator(loaded, parameters(loaded, max_length=64), pools=Pools(**{pool: buffers}))
        refused[pool] = await attempt(generator.prepare_async)
        await generator.aclose()
        for buffer in buffers.values():
            buffer.close()
    ended = await other.end()
    found["output again"] = await summed(y, kept)
    y.update_inplace(memoryview(two).cast("f"))
    found["alone"] = [await summed(*pair) for pair in pairs]
    for value in (x, y, z, kept, *odd, exact):
        value.close()
    await session.aclose()
    await negation.aclose()
    return {**found, "refused": refused, **ended}


async def mapped(models: Mapping[str, str], *, model: str, sums: str) -> dict[str, Any]:
    """Each cell, and runs of a session, over host accessible memory that is being read: the errors, and the read."""
    import capstan.onnxruntime as ort

    from .running import load

    other = Meanwhile(await load(models, model))
    session = await ort.InferenceSession.create(b64decode(sums), providers=["webgpu"])
    device: Any = session.device
    kept = await ort.OrtValue.ortvalue_from_numpy_async(array("f", range(6)), "webgpu")
    refused: dict[str, str] = {}
    reads = []

    async def while_read(name: str, span: DeviceSpan, action: Any) -> None:
        """A read that ended before the action proves nothing: both are tried again."""
        whole = span.buffer.span()
        for _ in range(20):
            reading = asyncio.ensure_future(device.copy_device_to_cpu(whole))
            await asyncio.sleep(0)
            refused[name] = await attempt(action)
            late = refused[name] == "none" and reading.done()
            right = (await reading).data == PATTERN[: span.buffer.size]
            if not late:
                break
            device.copy_cpu_to_device(whole, PATTERN)
        reads.append(right)

    with device.allocate(64, MemoryType.HOST_ACCESSIBLE, label="read") as buffer, device.allocate(64) as free:
        device.copy_cpu_to_device(buffer.span(), PATTERN)
        for cell in CELLS:
            if cell.size != buffer.size:
                continue
            spans = [each.span(cell.offset, cell.length) for each in (buffer, free)]
            name = f"{cell.name} {cell.offset} {cell.length}"
            await while_read(name, spans[0], lambda cell=cell, spans=spans: cell.act(device, *spans))

        async def in_a_batch() -> None:
            with device.batch():
                device.copy_tensors([(free.span(), buffer.span())])
                device.zero(free.span())

        device.copy_cpu_to_device(free.span(), OTHER)
        await while_read("batch", buffer.span(), in_a_batch)
        refused["nothing of the batch was done"] = str((await content(device, free)) == OTHER.hex())
        value = ort.OrtValue(buffer.span(0, 24), "float32", [6], device)
        await while_read("input", buffer.span(), lambda: session.run_async(None, {"x": value, "y": kept}))
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", kept)
        binding.bind_ortvalue_input("y", kept)
        binding.bind_ortvalue_output("sum", value)
        await while_read("output", buffer.span(), lambda: session.run_with_iobinding_async(binding))
        await session.run_with_iobinding_async(binding)
        after = (await value.numpy_async()).tolist()
    ended = await other.end()
    kept.close()
    await session.aclose()
    return {"refused": refused, "reads": reads, "after": after, **ended}
