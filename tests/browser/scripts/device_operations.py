"""One body for every device: its memory operations against plain Python; runs in the page and on CPython."""

from __future__ import annotations

import random
import struct
import time
from array import array
from collections.abc import Callable
from typing import Any

from capstan import BufferMismatchError, CapstanError, ClosedError
from capstan.device.device_interface import DeviceInterface
from capstan.memory import DeviceBuffer, MemoryType

__all__ = ["capabilities", "conversions", "copies", "infos", "masks", "readbacks", "refusals"]

SIZE = 256
LARGE = 1 << 24


async def bytes_of(device: DeviceInterface, buffer: DeviceBuffer) -> bytes:
    return (await device.copy_device_to_cpu(buffer.span())).data


async def copies(device: DeviceInterface, *, rounds: int = 40) -> list[str]:
    """Random copies, zeros and writes of any alignment, some in one batch, against two bytearrays; what differs."""
    chosen = random.Random(7)
    wrong: list[str] = []
    with device.allocate(SIZE, label="one") as one, device.allocate(SIZE, label="two") as two:
        mirror = {id(one): bytearray(SIZE), id(two): bytearray(SIZE)}
        for round_ in range(rounds):
            done: list[str] = []
            with device.batch():
                for _ in range(chosen.randint(1, 4)):
                    done.append(operation(device, chosen, (one, two), mirror))
            for buffer in (one, two):
                if await bytes_of(device, buffer) != bytes(mirror[id(buffer)]):
                    wrong.append(f"{buffer.label} in round {round_} after {done}")
                    return wrong
    return wrong


def operation(
    device: DeviceInterface,
    chosen: random.Random,
    buffers: tuple[DeviceBuffer, DeviceBuffer],
    mirror: dict[int, bytearray],
) -> str:
    """One random operation, done on the device and on the mirror."""
    target, source = chosen.choice(buffers), chosen.choice(buffers)
    length = chosen.choice([0, 1, 3, 4, 5, 16, 63, 64])
    to, start = chosen.randrange(SIZE - length + 1), chosen.randrange(SIZE - length + 1)
    kind = chosen.choice(["write", "zero", "copy", "copy"])
    into = mirror[id(target)]
    if kind == "write":
        data = chosen.randbytes(length)
        device.copy_cpu_to_device(target.span(to, length), data)
        into[to : to + length] = data
    elif kind == "zero":
        device.zero(target.span(to, length))
        into[to : to + length] = bytes(length)
    else:
        device.copy_from(target.span(to, length), source.span(start, length))
        into[to : to + length] = bytes(mirror[id(source)][start : start + length])
    return f"{kind} {length} bytes {source.label}[{start}] to {target.label}[{to}]"


async def readbacks(device: DeviceInterface) -> dict[str, Any]:
    """Parts of a buffer, into a buffer of the caller's, with the two times."""
    pattern = bytes(range(200))
    with device.allocate(200, label="pattern") as buffer:
        device.copy_cpu_to_device(buffer.span(), pattern)
        parts = [(0, 200), (0, 1), (3, 5), (7, 9), (196, 4), (199, 1), (50, 0)]
        wrong = []
        for offset, length in parts:
            out = bytearray(length)
            into = await device.copy_device_to_cpu(buffer.span(offset, length), out=out)
            alone = await device.copy_device_to_cpu(buffer.span(offset, length))
            expected = pattern[offset : offset + length]
            if bytes(out) != expected or alone.data != expected or into.data != b"":
                wrong.append([offset, length, out.hex(), alone.data.hex()])
    with device.allocate(LARGE, label="large") as buffer:
        out = bytearray(LARGE)
        device.copy_cpu_to_device(buffer.span(), out)
        started = time.perf_counter()
        times = await device.copy_device_to_cpu(buffer.span(), out)
        elapsed = 1e3 * (time.perf_counter() - started)
    return {"wrong": wrong, "waiting": times.waiting_ms, "copying": times.copying_ms, "elapsed": elapsed}


async def masks(device: DeviceInterface) -> dict[str, Any]:
    """A [3, 9] mask that grows and shrinks row by row, and positions [3, 4]; int64 and int32."""
    found: dict[str, Any] = {}
    for dtype, code, size in (("int64", "q", 8), ("int32", "i", 4)):
        with device.allocate(3 * 9 * size, label="mask") as mask, device.allocate(12 * size, label="ids") as ids:
            # The marks show which elements an update leaves unchanged.
            device.copy_cpu_to_device(mask.span(), array(code, [7] * 27))
            device.update_attention_mask(mask.span(), dtype, 9, [0, 2, 9], [3, 2, 4])
            first = array(code, await bytes_of(device, mask)).tolist()
            with device.batch():
                device.update_attention_mask(mask.span(), dtype, 9, [3, 2, 4], [5, 0, 9])
                device.update_position_ids(ids.span(), dtype, [0, 5, -1], 4)
            second = array(code, await bytes_of(device, mask)).tolist()
            found[dtype] = [first, second, array(code, await bytes_of(device, ids)).tolist()]
    return found


async def conversions(device: DeviceInterface) -> dict[str, Any]:
    """Casts of numbers whose results are known; as hexadecimal bytes."""
    cases = {
        "float32 float16": struct.pack("<4f", 1.0, -65504.0, 1e6, 2.0**-24),
        "float16 float32": struct.pack("<4e", 1.0, -65504.0, 2.0**-24, -0.0),
        "float32 int64": struct.pack("<4f", 1.9, -1.9, 2.0**40, float("nan")),
        "int64 float32": struct.pack("<4q", 1, -1, 2**53 + 1, 0),
        "int64 int32": struct.pack("<4q", 1, -1, 2**32 + 5, 2**31),
        "int32 uint32": struct.pack("<4i", 1, -1, 2**31 - 1, -(2**31)),
    }
    sizes = {"float32": 4, "float16": 2, "int64": 8, "int32": 4, "uint32": 4}
    found: dict[str, Any] = {}
    for name, data in cases.items():
        source, target = name.split()
        with device.allocate(len(data), label="from") as a, device.allocate(4 * sizes[target], label="to") as b:
            device.copy_cpu_to_device(a.span(), data)
            device.cast(a.span(), source, b.span(), target)
            found[name] = (await bytes_of(device, b)).hex()
    return found


async def infos(device: DeviceInterface) -> dict[str, Any]:
    """Memory infos by type, and the provider's options."""
    return {
        "places": {kind.value: device.get_memory_info(kind).name for kind in MemoryType},
        "device": device.get_memory_info().device,
        "provider": device.provider_options_for_allocator_session()["name"],
    }


async def capabilities(device: DeviceInterface) -> dict[str, Any]:
    """The probe's results; probing again is a lookup."""
    found = await device.capabilities()
    again = await device.capabilities()
    names = ("staging", "mappable_storage", "f16", "subgroups", "timestamps", "int64", "in_place_cache", "software")
    return {name: getattr(found, name) for name in names} | {"missing": dict(found.missing), "same": found is again}


async def refusals(device: DeviceInterface, foreign: DeviceInterface) -> dict[str, str]:
    """Errors by case; the buffers keep what they hold."""
    found: dict[str, str] = {}
    kept = bytes(range(16))
    with device.allocate(16, label="kept") as buffer, foreign.allocate(16, label="foreign") as other:
        device.copy_cpu_to_device(buffer.span(), kept)
        closed = device.allocate(16, label="gone")
        span = closed.span()
        closed.close()
        closed.close()
        cases: dict[str, Callable[[], object]] = {
            "outside": lambda: buffer.span(12, 8),
            "outside a span": lambda: buffer.span(4, 4).sub(2, 4),
            "lengths": lambda: device.copy_tensors([(buffer.span(0, 4), buffer.span(8, 8))]),
            "data": lambda: device.copy_cpu_to_device(buffer.span(), b"123"),
            "foreign": lambda: device.copy_from(buffer.span(), other.span()),
            "closed": lambda: device.zero(span),
            "cast": lambda: device.cast(buffer.span(), "float64", buffer.span(), "float32"),
            "mask": lambda: device.update_attention_mask(buffer.span(), "int64", 2, [0], [3]),
            "positions": lambda: device.update_position_ids(buffer.span(), "float32", [0], 2),
        }
        for name, call in cases.items():
            try:
                call()
            except CapstanError as error:
                found[name] = f"{type(error).__name__}: {error}"
        try:
            await device.copy_device_to_cpu(buffer.span(), out=bytearray(3))
        except BufferMismatchError as error:
            found["out"] = f"BufferMismatchError: {error}"
        try:
            await device.copy_device_to_cpu(span)
        except ClosedError as error:
            found["closed read"] = f"ClosedError: {error}"
        found["kept"] = (await bytes_of(device, buffer)).hex()
    return found
