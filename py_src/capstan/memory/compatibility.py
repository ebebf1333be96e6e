"""Decides whether two memories hold the same bytes, so that a tensor in one memory can be used from the other without a
copy.

This is onnxruntime's DevicesAreMemoryCompatible (pull request 28037) for a page: there "the CPU" is several WebAssembly
memories, none of which can address another, and a buffer that the host maps cannot be a storage buffer on WebGPU.
`way_between` plans the move of bytes.
"""

from __future__ import annotations

from enum import Enum

from .info import Capabilities, MemoryInfo, MemoryType
from .usage import allows, usage_of

__all__ = ["Way", "devices_are_memory_compatible", "way_between", "why_incompatible"]


class Way(Enum):
    """How the bytes of one memory reach another; see `way_between`."""

    SHARED = "shared"
    """The bytes are used in place."""
    WRITE = "write"
    """One write from Python's heap."""
    COPY = "copy"
    """A copy on the device; nothing waits."""
    MAP = "map"
    """The source is mapped and its bytes are written, since WebGPU copies nothing from memory that the host maps. The
    map waits for the work that was queued before.
    """


def way_between(source: MemoryInfo, destination: MemoryInfo) -> Way:
    """Find how a tensor in `source` gets to `destination`, between memories of one device, or between Python's heap and
    a device.
    """
    if why_incompatible(source, destination) is None:
        return Way.SHARED
    if source.heap == "python":
        return Way.WRITE
    return Way.COPY if allows("copy source", source) and allows("copy destination", destination) else Way.MAP


def devices_are_memory_compatible(a: MemoryInfo, b: MemoryInfo, capabilities: Capabilities | None = None) -> bool:
    """Whether bytes made in `a` can be used in `b`, and vice versa, without moving; see `why_incompatible`."""
    return why_incompatible(a, b, capabilities) is None


def why_incompatible(a: MemoryInfo, b: MemoryInfo, capabilities: Capabilities | None = None) -> str | None:
    """The reason why bytes have to be copied between `a` and `b`; None if both can share the bytes. The order of `a`
    and `b` does not matter.

    `capabilities` are those that the probe of the device found. If `a` or `b` is host memory, the device is that of the
    other memory. Without `capabilities` only the usage flags of the buffers are known. Alignment is not considered: it
    belongs to a tensor, not to a memory.
    """
    for place in (a, b):
        if capabilities is not None and place.memory_type is MemoryType.HOST_ACCESSIBLE and not capabilities.staging:
            return f"host accessible memory of {_device(place)} does not work: {_reason(capabilities, 'staging')}"
    apart = (a.device, a.device_id) != (b.device, b.device_id)
    mapped_by_two = apart and a.memory_type is b.memory_type is MemoryType.HOST_ACCESSIBLE
    if a.heap and b.heap and not mapped_by_two:
        if a.heap == b.heap:
            return None
        return f"{_named(a)} is in the {a.heap} heap, {_named(b)} in the {b.heap} heap"
    if apart:
        return f"{_named(a)} is memory of {_device(a)}, {_named(b)} of {_device(b)}"
    if a.memory_type is b.memory_type:
        return None
    if capabilities is None:
        for place in (a, b):
            if not allows("input", place):
                return f"{_named(place)} is no storage; its usage is {' | '.join(sorted(usage_of(place)))}"
        return f"whether {_device(a)} computes in host accessible memory was not probed"
    if not capabilities.mappable_storage:
        return f"{_device(a)} cannot compute in host accessible memory: {_reason(capabilities, 'mappable_storage')}"
    return None


def _device(place: MemoryInfo) -> str:
    return f"{place.device} device {place.device_id}"


def _named(place: MemoryInfo) -> str:
    return f"{place.name} ({place.memory_type.value})"


def _reason(capabilities: Capabilities, name: str) -> str:
    return dict(capabilities.missing).get(name, f"its probe says {name} is {getattr(capabilities, name)}")
