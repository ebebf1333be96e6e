"""Checks buffers that the user gives for a pool, before anything uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import BufferMismatchError
from .compatibility import why_incompatible
from .info import MemoryInfo
from .pools import AlignmentRequirements, PoolItem
from .span import DeviceBuffer, DeviceSpan
from .usage import check_use

__all__ = ["Pools", "check_given", "check_pools"]

Given = Mapping[str, DeviceBuffer | DeviceSpan]


@dataclass(frozen=True)
class Pools:
    """Buffers for the rows of a generator, by the tensor names of `query_memory_requirements`. The model allocates a
    pool that is None. A buffer that is closed earlier than the generator is freed with the generator. Generators may
    share `scratch`, and `Generator.replace_scratch` replaces it.
    """

    persistent: Given | None = None
    io: Given | None = None
    scratch: Given | None = None


def check_pools(
    items: Sequence[PoolItem], pools: Pools, memory: MemoryInfo, alignment: AlignmentRequirements
) -> dict[str, DeviceSpan]:
    """Check the given pools, and return the spans to use for their items; see check_given."""
    wanted: list[PoolItem] = []
    buffers: dict[str, DeviceBuffer | DeviceSpan] = {}
    for pool in ("persistent", "io", "scratch"):
        given: Given | None = getattr(pools, pool)
        if given is not None:
            found = [item for item in items if item.pool == pool]
            _check_names(found, given)
            wanted += found
            buffers.update(given)
    return check_given(wanted, buffers, memory, alignment)


def check_given(
    items: Sequence[PoolItem], buffers: Given, memory: MemoryInfo, alignment: AlignmentRequirements
) -> dict[str, DeviceSpan]:
    """Check the buffers for `items`, and return the spans to use, one for each name. Nothing is changed.

    The model computes in `memory`. A tensor that is `bound` needs the start of a separate buffer; the others may be
    spans of one buffer. Raises BufferMismatchError, with the expected and the given value, for an unknown or missing
    name, another device, a closed buffer, a wrong size or alignment, two tensors in the same bytes, and bytes that
    another generator holds (several may hold the same scratch); MemoryTypeError for memory that kernels cannot use.
    """
    _check_names(items, buffers)
    spans: dict[str, DeviceSpan] = {}
    for item in items:
        given = buffers[item.name]
        span = given if isinstance(given, DeviceSpan) else given.span()
        _check(item, span, memory, alignment)
        for other, taken in spans.items():
            if span.meets(taken):
                raise BufferMismatchError(
                    f"{item.name!r} and {other!r} were given the same bytes, from {max(span.offset, taken.offset)} of "
                    f"buffer {span.buffer.label!r}; give each separate bytes"
                )
        spans[item.name] = span
    for item in items:
        if item.bound and sum(span.buffer is spans[item.name].buffer for span in spans.values()) > 1:
            raise BufferMismatchError(
                f"{item.name!r} shares buffer {spans[item.name].buffer.label!r} with another tensor; give it a "
                "separate buffer"
            )
        _check_unused(item, spans[item.name])
    return {item.name: spans[item.name].sub(0, item.bytes) for item in items}


def _check_names(items: Sequence[PoolItem], buffers: Given) -> None:
    names = {item.name for item in items}
    for name in buffers:
        if name not in names:
            raise BufferMismatchError(f"a buffer for {name!r} was given; expected {_listed(names)}")
    missing = names.difference(buffers)
    if missing:
        raise BufferMismatchError(
            f"no buffer was given for {_listed(missing)}; give buffers for all tensors of a pool, or for none"
        )


def _check_unused(item: PoolItem, span: DeviceSpan) -> None:
    """Raise BufferMismatchError if another generator holds bytes that the item would use."""
    wanted = span.buffer.span() if item.bound else span
    for loan in span.buffer.loans:
        if loan.shared and item.pool == "scratch":
            continue
        for name, taken in loan.taken.items():
            if wanted.meets(taken):
                raise BufferMismatchError(
                    f"the buffer for {item.name!r}: bytes {taken.offset} to {taken.offset + taken.length} of buffer "
                    f"{span.buffer.label!r} are in use, as {name!r} of an open generator; close that one first, or "
                    "give other bytes"
                )


def _check(item: PoolItem, span: DeviceSpan, memory: MemoryInfo, alignment: AlignmentRequirements) -> None:
    def wrong(expected: str, got: str, remedy: str) -> BufferMismatchError:
        return BufferMismatchError(f"the buffer for {item.name!r}: expected {expected}, got {got}; {remedy}")

    buffer = span.buffer
    if buffer.closed:
        raise wrong("an open buffer", "a closed one", "keep it open until the generator is closed")
    if (buffer.memory.device, buffer.memory.device_id) == (memory.device, memory.device_id):
        check_use("pool", span, what=f"the buffer for {item.name!r}")
    elif why := why_incompatible(buffer.memory, memory):
        raise wrong(_named(memory), f"{_named(buffer.memory)} ({why})", "allocate it there")
    if span.length < item.bytes:
        raise wrong(f"at least {item.bytes} bytes", str(span.length), "query_memory_requirements lists the sizes")
    if span.length % alignment.size:
        raise wrong(f"a multiple of {alignment.size} bytes", str(span.length), "round its size up")
    start = max(alignment.start, item.alignment)
    if buffer.memory.alignment % start:
        raise wrong(f"a start at a multiple of {start} bytes", str(buffer.memory.alignment), "allocate it aligned")
    if item.bound and span.offset:
        raise wrong("the start of a buffer", f"offset {span.offset}", "give it a separate buffer")
    if span.offset % max(alignment.span_offset, start):
        multiple = max(alignment.span_offset, start)
        raise wrong(
            f"an offset that is a multiple of {multiple}", str(span.offset), "alignment_requirements gives the multiple"
        )


def _named(memory: MemoryInfo) -> str:
    return f"{memory.name} of {memory.device} device {memory.device_id}"


def _listed(names: set[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"
