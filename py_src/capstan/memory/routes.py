"""Through what bytes get from one place to another.

    from \\ to   heap              storage                       staging
    heap        HostCopy          Upload                        HostCopy, mapped
    storage     Readback          Copy, ByteCopy or Bounce      Copy
    staging     HostCopy, mapped  Copy                          Copy

What has no step of its own goes through a temporary buffer: uploads that do not fill words, copies of odd bytes to and
from staging memory, readbacks without a whole word to read, and anything between two devices.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import BufferMismatchError
from .info import MemoryInfo
from .places import HOST, Kind, Place, Temporaries
from .steps import WORD, Bounce, ByteCopy, Copy, HostCopy, Readback, Step, Upload

__all__ = ["detour", "one_step", "route"]


def route(source: Place, destination: Place, temporaries: Temporaries) -> list[Step]:
    """The steps that move the bytes, in order; all but the first read a temporary, all but the last write one."""
    step = one_step(source, destination)
    return [step] if step else detour(source, destination, temporaries)


def detour(source: Place, destination: Place, temporaries: Temporaries) -> list[Step]:
    """The same through a temporary at any rate, so that the source can be read long before the destination is written.

    Raises BufferMismatchError if staging memory would have to be written or read in parts of words.
    """
    memory = between(source, destination)
    if memory.heap:
        middle = temporaries.place(memory, source.length)
        return [*route(source, middle, temporaries), *route(middle, destination, temporaries)]
    # From staging memory whole words go over, and the second step takes the bytes out of them.
    odd = source.offset % WORD if source.kind is Kind.STAGING else 0
    middle = temporaries.place(memory, source.length, odd)
    whole = replace(source, offset=source.offset - odd, length=source.length + odd)
    steps = [one_step(whole, replace(middle, offset=0, length=whole.length)), one_step(middle, destination)]
    done: list[Step] = [step for step in steps if step is not None]
    if len(done) < len(steps):
        raise not_in_words(source, destination)
    return done


def between(source: Place, destination: Place) -> MemoryInfo:
    """Where bytes rest on their way: on a device, if one of the two places is its storage or both are its own."""
    if Kind.HEAP in (source.kind, destination.kind):
        heap, other = (destination, source) if destination.kind is Kind.HEAP else (source, destination)
        return other.memory if other.kind is Kind.STORAGE else heap.memory
    return destination.storage() if source.device == destination.device else HOST


def one_step(source: Place, destination: Place) -> Copy | ByteCopy | Bounce | Upload | Readback | HostCopy | None:
    """The step that moves the bytes; None if it takes more than one."""
    kinds = (source.kind, destination.kind)
    spread = (source.buffer, source.offset, destination.buffer, destination.offset, source.length)
    short = -source.length % WORD
    if kinds == (Kind.HEAP, Kind.HEAP):
        return HostCopy(*spread)
    if kinds in ((Kind.HEAP, Kind.STAGING), (Kind.STAGING, Kind.HEAP)):
        return HostCopy(*spread, mapped=True)
    if kinds == (Kind.HEAP, Kind.STORAGE):
        return Upload(*spread) if destination.offset % WORD == 0 and short <= destination.free_after else None
    if kinds == (Kind.STORAGE, Kind.HEAP):
        return Readback(*spread) if -source.end % WORD <= source.there_after else None
    if source.device != destination.device:
        return None
    if source.buffer == destination.buffer:
        if Kind.STAGING in kinds:
            raise BufferMismatchError(
                f"a copy inside staging buffer {source.buffer}; devices copy to it or from it, use two buffers"
            )
        return Bounce(*spread)
    words = source.offset % WORD == 0 and destination.offset % WORD == 0
    if words and short <= destination.free_after and short <= source.there_after:
        return Copy(*spread[:-1], source.length + short)
    return ByteCopy(*spread) if kinds == (Kind.STORAGE, Kind.STORAGE) else None


def not_in_words(source: Place, destination: Place) -> BufferMismatchError:
    return BufferMismatchError(
        f"bytes {source.offset} to {source.end} of buffer {source.buffer} to byte {destination.offset} of buffer "
        f"{destination.buffer}; devices copy to and from staging memory in words of {WORD} bytes: start and end there "
        "at multiples of them"
    )
