"""Represents a recorded step as a graph: the computation of each operation and its values. A value is the content of a
buffer between two writes.

onnxruntime-web uses one buffer for many values in turn. Here each write makes a new value, so that operations can be
replaced and joined by their computation; `placement` puts the values back into buffers and checks that none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .operation import Operation
from .recording import Command, Dispatch, DispatchIndirect, Recording

__all__ = ["Node", "Recorded", "StepGraph", "Values", "What", "walk", "without_dead"]


@dataclass(frozen=True)
class Recorded:
    """An operation that is replayed as it was recorded; `index` is its place in the step."""

    index: int


What = Recorded | Operation


@dataclass(frozen=True)
class Node:
    """An operation over values; it runs at `position`, an index into the recorded step."""

    what: What
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    position: int
    origins: frozenset[int]
    """The recorded operations that the node replaces."""


@dataclass(frozen=True)
class StepGraph:
    """Nodes in the order in which they run, with facts about their values."""

    nodes: tuple[Node, ...]
    homes: Mapping[int, int]
    """The recorded buffer of each value that had one."""
    first: Mapping[int, int]
    """The value each recorded buffer holds before the step."""
    last: Mapping[int, int]
    """The value each buffer that outlives the step must hold after it."""

    def readers(self) -> dict[int, list[Node]]:
        """Nodes by the values they read."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.reads):
                found.setdefault(value, []).append(node)
        return found

    def makers(self) -> dict[int, Node]:
        """The node that makes each value."""
        return {value: node for node in self.nodes for value in node.writes}


@dataclass
class Values:
    """Numbers the values in a walk through the recorded operations."""

    homes: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    current: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    count: int = 0

    def fresh(self) -> int:
        """A value that no recorded buffer holds."""
        self.count += 1
        return self.count

    def of(self, buffer: int) -> int:
        if buffer not in self.current:
            value = self.fresh()
            self.current[buffer] = self.first[buffer] = value
            self.homes[value] = buffer
        return self.current[buffer]

    def unread(self, buffer: int) -> bool:
        """Whether the buffer holds a value of the step that was not read yet."""
        return buffer in self.current and self.current[buffer] not in self.read

    def written(self, buffer: int) -> int:
        value = self.fresh()
        self.current[buffer] = value
        self.homes[value] = buffer
        return value


def walk(
    recording: Recording,
    ops: Sequence[Command],
    lasting: Collection[int],
    values: Values,
    lifted: Callable[[int, Mapping[int, int], Mapping[int, int]], list[Node] | None],
) -> StepGraph:
    """The graph of the recorded step. `lifted` gets the index of each operation, and the values that it reads and
    writes by buffer; it returns Capstan's operation, or None to keep the recorded one.
    """
    nodes: list[Node] = []
    for index, op in enumerate(ops):
        written = recording.writes(op)
        partly = {b for b in written if b in lasting or not _whole(recording, op, b, values.unread(b))}
        reads = tuple(values.of(buffer) for buffer in sorted(recording.reads(op) - written | partly))
        read_at = {values.homes[value]: value for value in reads}
        values.read |= set(reads)
        writes = {buffer: values.written(buffer) for buffer in sorted(written)}
        parts = lifted(index, read_at, writes)
        nodes += parts or [Node(Recorded(index), reads, tuple(writes.values()), index, frozenset({index}))]
    last = {buffer: values.current[buffer] for buffer in lasting if buffer in values.current}
    return StepGraph(tuple(nodes), values.homes, values.first, last)


def _whole(recording: Recording, op: Command, buffer: int, unread: bool) -> bool:
    """Whether the operation overwrites the whole buffer; `unread` says that the buffer has an unread value of this
    step."""
    return recording.overwrites(op, buffer) or (isinstance(op, Dispatch | DispatchIndirect) and not unread)


def without_dead(graph: StepGraph) -> StepGraph:
    """The graph without operations whose results are neither read nor live-out."""
    wanted = set(graph.last.values())
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.writes):
            continue
        nodes.append(node)
        wanted |= set(node.reads)
    return replace(graph, nodes=tuple(reversed(nodes)))
