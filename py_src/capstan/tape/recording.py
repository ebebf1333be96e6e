"""Describes the commands that a device received during one captured run (web/src/worker/gpu/recorder.ts); objects have
integer ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BindGroup",
    "Clear",
    "Command",
    "Copy",
    "Dispatch",
    "DispatchIndirect",
    "Op",
    "Pipeline",
    "Recording",
    "Write",
]


@dataclass(frozen=True)
class Dispatch:
    """A compute dispatch of x * y * z workgroups; `groups` are bind groups by index."""

    pipeline: int
    groups: tuple[int, ...]
    x: int
    y: int
    z: int

    def played(self) -> list[Any]:
        return ["dispatch", self.pipeline, list(self.groups), self.x, self.y, self.z]


@dataclass(frozen=True)
class DispatchIndirect:
    """A compute dispatch whose three u32 workgroup counts are in `buffer` at `offset` bytes."""

    pipeline: int
    groups: tuple[int, ...]
    buffer: int
    offset: int

    def played(self) -> list[Any]:
        return ["indirect", self.pipeline, list(self.groups), self.buffer, self.offset]


@dataclass(frozen=True)
class Copy:
    """`size` bytes from one buffer to another."""

    source: int
    source_offset: int
    target: int
    target_offset: int
    size: int

    def played(self) -> list[Any]:
        return ["copy", self.source, self.source_offset, self.target, self.target_offset, self.size]


@dataclass(frozen=True)
class Clear:
    """`size` bytes of a buffer set to zero."""

    buffer: int
    offset: int
    size: int

    def played(self) -> list[Any]:
        return ["clear", self.buffer, self.offset, self.size]


@dataclass(frozen=True)
class Write:
    """An upload from the host, which was executed while recording and is not replayed."""

    buffer: int
    offset: int
    data: bytes


Command = Dispatch | DispatchIndirect | Copy | Clear
"""A command that is replayed."""

Op = Command | Write
"""A command that is recorded."""


@dataclass(frozen=True)
class Pipeline:
    """A compute pipeline; `access` maps (group, binding) to 'read', 'read_write' or 'uniform', as its WGSL declares."""

    label: str
    access: Mapping[tuple[int, int], str]
    code: str = ""
    """Its WGSL."""
    names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The WGSL name of each binding."""


@dataclass(frozen=True)
class BindGroup:
    """Bound buffer ranges: (binding, buffer, offset in bytes, size in bytes)."""

    entries: tuple[tuple[int, int, int, int], ...]


MAP_READ = 1
"""GPUBufferUsage.MAP_READ."""


@dataclass(frozen=True)
class Recording:
    """The operations in the order in which the device received them, and the objects by their ids."""

    handle: int
    ops: tuple[Op, ...]
    pipelines: Mapping[int, Pipeline]
    groups: Mapping[int, BindGroup]
    sizes: Mapping[int, int]
    """Bytes of each buffer."""
    mappable: frozenset[int] = frozenset()
    """Buffers that the host can map: a copy into one of them is a readback."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Read what GpuEngine.record returns."""
        return cls(
            handle=int(data["handle"]),
            ops=tuple(_op(op) for op in data["ops"]),
            pipelines={
                int(id_): Pipeline(
                    p["label"],
                    {(g, b): access for g, b, access, _ in p["bindings"]},
                    p["code"],
                    {(g, b): name for g, b, _, name in p["bindings"]},
                )
                for id_, p in data["pipelines"].items()
            },
            groups={int(id_): BindGroup(tuple((*entry,) for entry in e)) for id_, e in data["bind_groups"].items()},
            sizes={int(id_): buffer["size"] for id_, buffer in data["buffers"].items()},
            mappable=frozenset(int(id_) for id_, buffer in data["buffers"].items() if buffer["usage"] & MAP_READ),
        )

    def private(self) -> frozenset[int]:
        """Buffers that the step writes and the host does not."""
        written: set[int] = set()
        for op in self.ops:
            if not isinstance(op, Write):
                written |= self.writes(op)
        return frozenset(written - {op.buffer for op in self.ops if isinstance(op, Write)})

    def uploaded(self) -> dict[int, bytes]:
        """The bytes that the host uploaded while recording, by buffer; only uploads to the buffer's start."""
        return {op.buffer: op.data for op in self.ops if isinstance(op, Write) and op.offset == 0}

    def reads(self, op: Op) -> frozenset[int]:
        """Buffers whose contents the operation may use, uniforms included."""
        match op:
            case Dispatch() | DispatchIndirect():
                found = {buffer for buffer, _ in self._bound(op)}
                return frozenset(found | {op.buffer} if isinstance(op, DispatchIndirect) else found)
            case Copy():
                return frozenset({op.source})
            case _:
                return frozenset()

    def writes(self, op: Op) -> frozenset[int]:
        """Buffers that the operation may change."""
        match op:
            case Dispatch() | DispatchIndirect():
                return frozenset(buffer for buffer, access in self._bound(op) if access == "read_write")
            case Copy():
                return frozenset({op.target})
            case Clear() | Write():
                return frozenset({op.buffer})

    def overwrites(self, op: Op, buffer: int) -> bool:
        """Whether the operation defines the whole buffer, so that no earlier content remains."""
        match op:
            case Copy():
                return op.target == buffer and op.target_offset == 0 and op.size == self.sizes[buffer]
            case Clear():
                return op.buffer == buffer and op.offset == 0 and op.size == self.sizes[buffer]
            case _:
                return False

    def _bound(self, op: Dispatch | DispatchIndirect) -> list[tuple[int, str]]:
        access = self.pipelines[op.pipeline].access
        return [
            # A binding that the WGSL does not declare counts as read and written.
            (buffer, access.get((index, binding), "read_write"))
            for index, group in enumerate(op.groups)
            for binding, buffer, _, _ in self.groups[group].entries
        ]


def _op(data: list[Any]) -> Op:
    kind, *rest = data
    match kind:
        case "dispatch":
            pipeline, groups, x, y, z = rest
            return Dispatch(pipeline, tuple(groups), x, y, z)
        case "indirect":
            pipeline, groups, buffer, offset = rest
            return DispatchIndirect(pipeline, tuple(groups), buffer, offset)
        case "copy":
            return Copy(*rest)
        case "clear":
            return Clear(*rest)
        case "write":
            buffer, offset, data_ = rest
            return Write(buffer, offset, bytes.fromhex(data_))
        case _:
            raise ValueError(f"unknown recorded operation {kind!r}")
