"""Probes a device's real abilities by one-node sessions and copies with known results."""

from __future__ import annotations

import json
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from ..errors import CapstanError, DeviceLostError
from ..graph.one_node import add_model, attention_model, cast_model
from ..host.notes import Notes, build
from ..memory import Capabilities, DeviceBuffer, MemoryType
from .device_interface import BoundSpan, DeviceInterface, DeviceSession, TensorSpec
from .element_types import byte_count

__all__ = ["Probe", "capabilities_of"]

PATTERN = bytes((37 * i + 11) % 256 for i in range(64))
NUMBERS = array("f", [0.5, -1.0, 2.0, 65536.0]).tobytes()
DOUBLED = array("f", [1.0, -2.0, 4.0, 131072.0]).tobytes()
CACHE_POSITIONS, CACHE_LENGTH, HEAD_SIZE = 8, 5, 16

remembered: dict[str, Capabilities] = {}
"""Capabilities by GPU adapter, for as long as the interpreter runs; notes keep them longer."""


async def capabilities_of(device: DeviceInterface) -> Capabilities:
    """Probe the device, unless its adapter was probed before, by this page or an earlier one."""
    key = f"{device.type} {device.about().adapter}"
    if key not in remembered:
        remembered[key] = await noted_capabilities(device, Notes())
    return remembered[key]


async def noted_capabilities(device: DeviceInterface, notes: Notes) -> Capabilities:
    """The capabilities that an earlier page noted under the same facts, else the result of a new probe.

    If an attempt ended with an error, nothing is noted and the next page probes again: the error may be temporary.
    """
    facts = device.about()
    if not facts.runtime:
        return await Probe(device).run()
    known = asdict(facts) | {"features": sorted(facts.features)}
    name, key = f"capabilities of {device.type}", json.dumps([build(), known], sort_keys=True)
    text = await notes.read(name, key)
    if text is not None:
        found = json.loads(text)
        return Capabilities(**found | {"missing": tuple((what, why) for what, why in found["missing"])})
    probe = Probe(device)
    capabilities = await probe.run()
    if not probe.failed:
        await notes.write(name, key, json.dumps(asdict(capabilities)))
    return capabilities


@dataclass
class Probe:
    """One probing of a device; every attempt frees its buffers and sessions."""

    device: DeviceInterface
    missing: list[tuple[str, str]] = field(default_factory=list)
    failed: bool = False
    """Whether an attempt ended with an error instead of a result."""

    async def run(self) -> Capabilities:
        """Run all attempts. Raises DeviceLostError if the device is lost."""
        about = self.device.about()
        return Capabilities(
            adapter=about.adapter,
            software=about.software,
            staging=await self._works("staging", self._staging),
            mappable_storage=about.mappable_storage,
            f16=await self._works("f16", self._f16),
            subgroups=await self._works("subgroups", self._feature("subgroups")),
            timestamps=await self._works("timestamps", self._feature("timestamp-query")),
            int64=await self._works("int64", self._int64),
            in_place_cache=await self._works("in_place_cache", self._in_place_cache),
            max_buffer_size=about.max_buffer_size,
            max_binding_size=about.max_binding_size,
            offset_alignment=about.offset_alignment,
            missing=tuple(self.missing),
        )

    async def _works(self, capability: str, attempt: Callable[[], Awaitable[str | None]]) -> bool:
        """Make an attempt, note the reason if it fails, and return whether the capability works."""
        try:
            reason = await attempt()
        except DeviceLostError:
            raise
        except CapstanError as error:
            reason = str(error)
            self.failed = True
        if reason is not None:
            self.missing.append((capability, reason))
        return reason is None

    def _feature(self, name: str) -> Callable[[], Awaitable[str | None]]:
        async def attempt() -> str | None:
            about = self.device.about()
            return None if name in about.features else about.without.get(name, f"the adapter has no {name}")

        return attempt

    async def _staging(self) -> str | None:
        """Write a byte pattern, shift it on the device, and read it back whole and in part. Then read a result that
        onnxruntime allocated, directly and through host accessible memory."""
        device = self.device
        with (
            device.allocate(len(PATTERN), label="probe") as first,
            device.allocate(len(PATTERN), label="probe") as second,
        ):
            device.copy_cpu_to_device(first.span(), PATTERN)
            device.copy_tensors([(first.span(0, 60), second.span(4, 60))])
            whole = (await device.copy_device_to_cpu(second.span())).data
            part = (await device.copy_device_to_cpu(second.span(5, 7))).data
        if whole != bytes(4) + PATTERN[:60] or part != whole[5:12]:
            return f"{whole[:8].hex()}... was read back; {(bytes(4) + PATTERN)[:8].hex()}... was written"
        for memory_type in MemoryType:
            result = await self._allocated(memory_type)
            if result != DOUBLED:
                name = device.get_memory_info(memory_type).name
                return f"a sum in {name} is {result.hex()}, expected {DOUBLED.hex()}"
        return None

    async def _allocated(self, memory_type: MemoryType) -> bytes:
        """Compute 2 * NUMBERS into memory that onnxruntime allocates; read it there or in a buffer of `memory_type`."""
        device = self.device
        session = await device.create_session(add_model("float32", 4), owner="probe")
        try:
            with device.allocate(len(NUMBERS), label="probe") as given:
                device.copy_cpu_to_device(given.span(), NUMBERS)
                feeds = [BoundSpan(name, given.span(), "float32", (4,)) for name in ("a", "b")]
                (result,) = await session.run(feeds, ["c"])
                # onnxruntime allocates in size classes.
                found = result.span.sub(0, len(NUMBERS))
                with result.span.buffer:
                    if memory_type is MemoryType.DEFAULT:
                        return (await device.copy_device_to_cpu(found)).data
                    with device.allocate(len(NUMBERS), memory_type, label="probe") as reachable:
                        device.copy_from(reachable.span(), found)
                        return (await device.copy_device_to_cpu(reachable.span())).data
        finally:
            await session.close()

    async def _f16(self) -> str | None:
        reason = await self._feature("shader-f16")()
        if reason is not None:
            return reason
        session = await self.device.create_session(add_model("float16", 4), owner="probe")
        # 1, 2, -0.5 and 65504, the largest; their doubles overflow at the end.
        halves = array("H", [0x3C00, 0x4000, 0xB800, 0x7BFF]).tobytes()
        (result,) = await self._results(session, {"a": halves, "b": halves}, ["c"])
        expected = array("H", [0x4000, 0x4400, 0xBC00, 0x7C00]).tobytes()
        return None if result == expected else f"a sum of float16 is {result.hex()}, expected {expected.hex()}"

    async def _int64(self) -> str | None:
        """Run a Cast from int64, which works if onnxruntime does not read its input back to the host."""
        numbers = array("q", [0, 1, -5, 2**31 - 1])
        session = await self.device.create_session(cast_model("int64", "int32", 4), owner="probe")
        before = self.device.readbacks()
        (result,) = await self._results(session, {"a": numbers.tobytes()}, ["b"])
        expected = array("i", numbers).tobytes()
        if result != expected:
            return f"a Cast from int64 gives {result.hex()}, expected {expected.hex()}"
        # Capstan itself reads back once.
        extra = self.device.readbacks() - before - 1
        return f"onnxruntime computes int64 on the host, with {extra} readbacks a run" if extra > 0 else None

    async def _in_place_cache(self) -> str | None:
        """Whether an attention step gives the same result with past and present in one buffer as in two."""
        model = attention_model(CACHE_POSITIONS, CACHE_LENGTH, HEAD_SIZE)
        row = {name: ramp(HEAD_SIZE, i) for i, name in enumerate(("query", "key", "value"))}
        live, dead = (
            ramp((CACHE_LENGTH - 1) * HEAD_SIZE, 3),
            bytes(4 * (CACHE_POSITIONS - CACHE_LENGTH + 1) * HEAD_SIZE),
        )
        feeds = {**row, "past_key": live + dead, "past_value": live + dead}
        names = ["output", "present_key", "present_value"]
        session = await self.device.create_session(model, owner="probe")
        apart = await self._results(session, feeds, names, keep=True)
        shared = {"present_key": "past_key", "present_value": "past_value"}
        together = await self._results(session, feeds, names, shared=shared)
        used = 4 * CACHE_LENGTH * HEAD_SIZE
        for name, one, two in zip(names, apart, together, strict=True):
            if not close(one[:used], two[:used]):
                return f"attention gives another {name} when past and present are one buffer"
        return None

    async def _results(
        self,
        session: DeviceSession,
        feeds: dict[str, bytes],
        fetches: Sequence[str],
        *,
        shared: dict[str, str] | None = None,
        keep: bool = False,
    ) -> list[bytes]:
        """Run once over new buffers and read the fetches. `shared` names the feed whose buffer a fetch takes.

        Closes the session unless `keep`.
        """
        device = self.device
        buffers: dict[str, DeviceBuffer] = {}
        specs = {spec.name: spec for spec in (*session.inputs, *session.outputs)}
        shared = shared or {}
        try:
            for name in [*feeds, *fetches]:
                if name not in shared:
                    buffers[name] = device.allocate(byte_count(specs[name].dtype, sizes(specs[name])), label="probe")
            for name, data in feeds.items():
                device.copy_cpu_to_device(buffers[name].span(), data)

            def bound(name: str, buffer: DeviceBuffer) -> BoundSpan:
                return BoundSpan(name, buffer.span(), specs[name].dtype, sizes(specs[name]))

            targets = {name: buffers[shared.get(name, name)] for name in fetches}
            await session.run(
                [bound(name, buffers[name]) for name in feeds], [bound(name, targets[name]) for name in fetches]
            )
            return [(await device.copy_device_to_cpu(targets[name].span())).data for name in fetches]
        finally:
            for buffer in buffers.values():
                buffer.close()
            if not keep:
                await session.close()


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    """The dims of a tensor of a one-node model, all of them fixed."""
    return tuple(int(size) for size in spec.dims)


def ramp(count: int, seed: int) -> bytes:
    """`count` float32 numbers between -1 and 1."""
    return array("f", [((i * 29 + seed * 17) % 41) / 20 - 1 for i in range(count)]).tobytes()


def close(one: bytes, two: bytes) -> bool:
    """Whether two float32 arrays agree within 1e-5, relative to numbers above 1; NaN agrees with nothing."""
    return all(abs(a - b) <= 1e-5 * max(1.0, abs(a)) for a, b in zip(array("f", one), array("f", two), strict=True))
