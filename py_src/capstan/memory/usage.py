"""Lists which memory each operation can use. The checks of every device and of the tests' stand-ins use this table.

WebGPU refuses a command over a buffer that lacks a usage flag, and the whole device fails with it. So the flags are
compared before anything is encoded.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import MemoryTypeError
from .info import MemoryInfo, MemoryType
from .span import DeviceSpan

__all__ = ["OPERATIONS", "WORD", "Use", "allows", "check_use", "in_words", "memory_info", "usage_of"]

Usage = frozenset[str]

WORD = 4
"""WebGPU copies, clears and writes whole words of this number of bytes; a kernel handles other bytes."""

TENSOR = frozenset({"storage", "copy_src", "copy_dst"})
"""The usage flags with which sessions, kernels and readbacks use a tensor."""


class Place(NamedTuple):
    """Describes the memory that a device makes for one memory type."""

    name: str
    """onnxruntime's allocator name."""
    heap: str
    alignment: int
    """In bytes."""
    usage: Usage
    """WebGPU's usage flags of its buffers."""


HOST_PLACE = Place("Cpu", "python", 16, TENSOR | {"map_read"})
PLACES = {
    ("webgpu", MemoryType.DEFAULT): Place("WebGPU_Buffer", "", 256, TENSOR),
    ("webgpu", MemoryType.HOST_ACCESSIBLE): Place(
        "WebGPU_Staging", "gpu-process", 8, frozenset({"map_read", "copy_dst"})
    ),
}
"""By device and memory type; other combinations are HOST_PLACE. web/src/worker/engine.ts makes the buffers."""


class Use(NamedTuple):
    """The usage flags that a buffer needs for an operation. The buffer needs one flag of each set."""

    words: Usage
    """For spans of whole words."""
    other: Usage
    """For spans of any other alignment."""
    remedy: str


STORAGE, COPY_SRC, COPY_DST = (frozenset({flag}) for flag in ("storage", "copy_src", "copy_dst"))
READABLE = COPY_SRC | {"map_read"}
READ_FIRST = "read it with copy_device_to_cpu, and write the bytes to {needed}"
COPY_AFTER = "do it in {needed}, then copy the result"
BIND = "bind a tensor in {needed}, or give it to session.run, which maps and uploads it"
CAPTURE = "bind it to 'webgpu', and take copy_outputs_to_cpu"

OPERATIONS = {
    "copy source": Use(COPY_SRC, STORAGE, READ_FIRST),
    "copy destination": Use(COPY_DST, STORAGE, COPY_AFTER),
    "write": Use(COPY_DST, STORAGE, COPY_AFTER),
    "read": Use(READABLE, READABLE, READ_FIRST),
    "zero": Use(COPY_DST, STORAGE, COPY_AFTER),
    "cast source": Use(STORAGE, STORAGE, READ_FIRST),
    "cast destination": Use(STORAGE, STORAGE, COPY_AFTER),
    "mask": Use(STORAGE, STORAGE, COPY_AFTER),
    "positions": Use(STORAGE, STORAGE, COPY_AFTER),
    "input": Use(STORAGE, STORAGE, BIND),
    "output": Use(STORAGE | COPY_DST, STORAGE, COPY_AFTER),
    "captured output": Use(STORAGE, STORAGE, CAPTURE),
    "pool": Use(STORAGE, STORAGE, "allocate it there"),
}
"""By the operation on a buffer. A strided copy is a copy; 'input' and 'output' are tensors of a bound run."""


def memory_info(device: str, memory_type: MemoryType, device_id: int = 0) -> MemoryInfo:
    """The memory in which a device makes buffers of that type."""
    place = PLACES.get((device, memory_type), HOST_PLACE)
    return MemoryInfo(place.name, device, memory_type, device_id, place.heap, place.alignment)


def usage_of(memory: MemoryInfo) -> Usage:
    """WebGPU's usage flags of buffers in that memory; memory of the host has all flags."""
    return PLACES.get((memory.device, memory.memory_type), HOST_PLACE).usage


def in_words(span: DeviceSpan) -> bool:
    """Whether the span consists of whole words. The padding after a buffer's end may complete its last word."""
    ends = span.length % WORD == 0 or span.offset + span.length == span.buffer.size
    return span.offset % WORD == 0 and ends


def allows(operation: str, memory: MemoryInfo, *, words: bool = True) -> bool:
    """Whether an operation can use a span of that memory, of whole words or not."""
    use = OPERATIONS[operation]
    return bool(usage_of(memory) & (use.words if words else use.other))


def check_use(operation: str, span: DeviceSpan, *, words: bool | None = None, what: str = "") -> None:
    """Raise MemoryTypeError if the operation cannot use the span in its memory.

    With `words` the operation works in whole words; by default this depends on the span; `what` names the tensor or the
    operation.
    """
    memory = span.buffer.memory
    whole = in_words(span) if words is None else words
    if not span.length or allows(operation, memory, words=whole):
        return
    needed = memory_info(memory.device, MemoryType.DEFAULT, memory.device_id).name
    where = f"{memory.device} device {memory.device_id}"
    if allows(operation, memory):
        raise MemoryTypeError(
            f"{what or operation}: bytes {span.offset} to {span.offset + span.length} of buffer {span.buffer.label!r}, "
            f"which is in {memory.name} of {where}, expected whole words of {WORD} bytes there, or {needed}; start and "
            f"end at multiples of {WORD}, or allocate it as MemoryType.DEFAULT"
        )
    raise MemoryTypeError(
        f"{what or operation}: buffer {span.buffer.label!r} is in {memory.name} of {where}, whose usage is "
        f"{' | '.join(sorted(usage_of(memory)))}, expected {needed} of {where}; "
        f"{OPERATIONS[operation].remedy.format(needed=needed)}"
    )
