"""Shares weight buffers on the GPU among all models and sessions of the page. Each content has one set of buffers,
which is freed with its last user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from ..errors import OutOfMemoryError
from ..graph import Part
from ..memory import BufferRequest

__all__ = ["BufferOwner", "Lease", "SharedWeights", "Span"]

LEAST_BYTES = 16
"""A buffer has at least this size; kernels may read whole vec4s."""


class BufferOwner(Protocol):
    """Makes and frees buffers: capstan.device.webgpu.gpu_engine.GpuEngine."""

    async def create_buffers(self, requests: Sequence[BufferRequest], owner: str) -> list[int]: ...
    def destroy_buffer(self, buffer: int) -> None: ...


@dataclass(frozen=True)
class Span:
    """One weight of a data file: the bytes that its parts make; `name` is for labels and messages."""

    name: str
    parts: tuple[Part, ...]

    @property
    def length(self) -> int:
        """Bytes on the device."""
        return sum(part.made for part in self.parts)

    @property
    def request(self) -> BufferRequest:
        """The request for its buffer."""
        return BufferRequest(f"weight {self.name}", max(LEAST_BYTES, self.length), "weights")


Key = tuple[str, tuple[Part, ...]]
"""(content, its parts)"""


@dataclass
class Shared:
    """One buffer; its handle is 0 until it is made. `users` counts the leases that hold it."""

    buffer: int = 0
    users: int = 0
    loaded: asyncio.Event = field(default_factory=asyncio.Event)


class Lease:
    """The buffers of some spans, in their order, until `release`."""

    def __init__(self, shared: SharedWeights, held: Sequence[tuple[Key, Shared]]) -> None:
        self._shared = shared
        self._held = list(held)
        self.buffers = [entry.buffer for _, entry in held]

    def again(self) -> Lease:
        """A lease of the same buffers for one more user."""
        for _, entry in self._held:
            entry.users += 1
        return Lease(self._shared, self._held)

    def release(self) -> None:
        """Free the buffers without another holder; releasing twice is harmless."""
        held, self._held = self._held, []
        self._shared.give_back(held)


class SharedWeights:
    """The weights on one device. A file's key is its content hash or, until that is known, the identity that its source
    gives; `also` notes that two keys mean the same bytes.
    """

    def __init__(self, owner: BufferOwner, largest: int) -> None:
        """`largest` is the largest binding, in bytes."""
        self._owner = owner
        self._largest = largest
        self._entries: dict[Key, Shared] = {}
        self._names: dict[str, str] = {}
        self._unshared = count()

    async def acquire(
        self,
        content: str | None,
        spans: Sequence[Span],
        owner: str,
        load: Callable[[list[tuple[Span, int]]], Awaitable[None]],
    ) -> Lease:
        """The buffers of these spans. `load` fills those that are not on the device yet; it is called only if there are
        any. Without `content` nothing is shared. Nothing stays allocated on failure.
        """
        for span in spans:
            if span.length > self._largest:
                raise OutOfMemoryError(
                    f"weight {span.name} has {span.length} bytes; this adapter binds at most {self._largest}: export "
                    "the model with smaller weights, or use device='wasm'"
                )
        name = f"unshared {next(self._unshared)}" if content is None else content
        while True:
            resolved = self._names.get(name, name)
            keys = [(resolved, span.parts) for span in spans]
            pending = [entry for key in keys if (entry := self._entries.get(key)) and not entry.loaded.is_set()]
            if not pending:
                break
            await pending[0].loaded.wait()
        missing: dict[Key, tuple[Span, Shared]] = {}
        held: list[tuple[Key, Shared]] = []
        try:
            for key, span in zip(keys, spans, strict=True):
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = Shared()
                    missing[key] = (span, entry)
                entry.users += 1
                held.append((key, entry))
            if missing:
                made = await self._owner.create_buffers([span.request for span, _ in missing.values()], owner)
                for (_, entry), buffer in zip(missing.values(), made, strict=True):
                    entry.buffer = buffer
                await load([(span, entry.buffer) for span, entry in missing.values()])
        except BaseException:
            self.give_back(held)
            raise
        finally:
            for _, entry in missing.values():
                entry.loaded.set()
        return Lease(self, held)

    def also(self, name: str, content: str) -> None:
        """Make `content` a second key of the buffers of `name`, unless it is a key already."""
        if name != content and not any(key[0] == content for key in self._entries):
            self._names[content] = self._names.get(name, name)

    def give_back(self, held: Sequence[tuple[Key, Shared]]) -> None:
        """Count one user less for each buffer."""
        for key, entry in held:
            entry.users -= 1
            if entry.users == 0:
                if entry.buffer:
                    self._owner.destroy_buffer(entry.buffer)
                del self._entries[key]
        names = {key[0] for key in self._entries}
        self._names = {content: name for content, name in self._names.items() if name in names}

    @property
    def bytes(self) -> int:
        """The size of the weights on the device."""
        sizes = (sum(part.made for part in parts) for _, parts in self._entries)
        return sum(-(-max(LEAST_BYTES, size) // LEAST_BYTES) * LEAST_BYTES for size in sizes)
