"""Turns the recorded operations into the operations that are replayed. Each pass is a pure function; errors are
TapeErrors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TapeError
from .recording import Clear, Command, Copy, Dispatch, DispatchIndirect, Op, Recording, Write

__all__ = [
    "TableGroup",
    "captured_half",
    "check_replayable",
    "copies_lost_by_ort",
    "direct_dispatches",
    "reaching_definition",
    "slice_for",
    "without_clears",
]


def captured_half(recording: Recording) -> tuple[Command, ...]:
    """The operations of the capturing half, without host writes.

    onnxruntime-web encodes a captured run twice, first while capturing, then replaying what it captured; the second
    half repeats the dispatches of the first with the same bind groups, but without its copies and clears. Raises
    TapeError if the halves differ, since the step is then unknown.
    """
    dispatches = [i for i, op in enumerate(recording.ops) if isinstance(op, Dispatch | DispatchIndirect)]
    if not dispatches:
        raise TapeError("the decode step recorded no dispatch; check that the model runs on WebGPU")
    half, odd = divmod(len(dispatches), 2)
    first = [recording.ops[i] for i in dispatches[:half]]
    second = [recording.ops[i] for i in dispatches[half:]]
    if odd or first != second:
        raise TapeError(
            f"the recorded run has {len(dispatches)} dispatches, which are not one sequence twice; this version of "
            "onnxruntime-web captures differently"
        )
    return tuple(op for op in recording.ops[: dispatches[half]] if not isinstance(op, Write))


def copies_lost_by_ort(ops: Sequence[Op]) -> int:
    """The number of buffer copies in the step. onnxruntime-web's own replay omits them, so its results would be stale.

    It also omits clears. Most come from its allocator, which zeroes a buffer before reuse, and change nothing; the
    comparison with an eager step finds those that matter.
    """
    return sum(isinstance(op, Copy) for op in ops)


def check_replayable(recording: Recording) -> None:
    """Raise TapeError unless a replay of the dispatches alone repeats the step. Host writes are not replayed, so the
    uploaded bytes must stay in their buffers: no byte range may be written twice with different contents, and none may
    be changed by the step itself.
    """
    written: dict[int, list[Write]] = {}
    for op in recording.ops:
        if not isinstance(op, Write):
            continue
        before = written.setdefault(op.buffer, [])
        if not all(_agree(op, other) for other in before):
            raise TapeError(
                f"buffer {op.buffer} is uploaded twice in one step with different contents; the step cannot be replayed"
            )
        before.append(op)
    uploaded = written.keys()
    for op in recording.ops:
        changed = uploaded & recording.writes(op) if not isinstance(op, Write) else frozenset()
        if changed:
            raise TapeError(f"buffer {min(changed)} is uploaded by the host and then changed by the step itself")


def _agree(a: Write, b: Write) -> bool:
    """Whether two uploads into one buffer are the same where they overlap."""
    first, last = max(a.offset, b.offset), min(a.offset + len(a.data), b.offset + len(b.data))
    return first >= last or a.data[first - a.offset : last - a.offset] == b.data[first - b.offset : last - b.offset]


def reaching_definition(recording: Recording, ops: Sequence[Op], use: int, buffer: int) -> int | None:
    """Index of the last operation before `use` that writes `buffer`, or None if it comes from outside the step."""
    for i in range(use - 1, -1, -1):
        if buffer in recording.writes(ops[i]):
            return i
    return None


def slice_for(recording: Recording, ops: Sequence[Op], target: int) -> list[int]:
    """Indices, ascending, of the operations that `target` depends on through buffers, and `target` itself.

    A dispatch may write only part of a buffer, so the search continues past it; a copy or clear of the whole buffer
    ends it.
    """
    wanted = set(recording.reads(ops[target]))
    kept = [target]
    for i in range(target - 1, -1, -1):
        useful = recording.writes(ops[i]) & wanted
        if not useful:
            continue
        kept.append(i)
        wanted -= {buffer for buffer in useful if recording.overwrites(ops[i], buffer)}
        wanted |= recording.reads(ops[i])
    return kept[::-1]


def without_clears(ops: Sequence[Command]) -> tuple[tuple[Command, ...], frozenset[int]]:
    """The step without its clears, and the buffers they cleared.

    A clear ends the compute pass, and each layer of a decoder has some: onnxruntime-web's allocator zeroes a buffer
    before reuse. A clear is needed only if a kernel reads elements that no kernel has written; the caller checks this
    by replaying with these buffers full of NaN.
    """
    kept = tuple(op for op in ops if not isinstance(op, Clear))
    return kept, frozenset(op.buffer for op in ops if isinstance(op, Clear))


@dataclass(frozen=True)
class TableGroup:
    """Indirect dispatches that always get the same workgroup counts, and the operations that compute these.

    `steps` (indices into the step) define the counts, which are then at `offset` of `buffer`.
    """

    uses: tuple[int, ...]
    steps: tuple[int, ...]
    buffer: int
    offset: int


def direct_dispatches(recording: Recording, ops: Sequence[Op]) -> tuple[list[list[Any]], list[TableGroup]]:
    """Make indirect dispatches direct: returns the played operations, whose counts come from tables, and the operations
    that fill each table.

    The operations that define a use's counts are the slice of its reaching definition. Definitions with the same
    pipeline, size and uploaded uniforms compute the same counts from the same sequence length, so they share a table;
    the earliest, whose slice is the shortest, fills it. The caller checks that they agree.
    """
    uniforms: dict[int, list[tuple[int, bytes]]] = {}
    for op in recording.ops:
        if isinstance(op, Write):
            entry = (op.offset, op.data)
            if entry not in uniforms.setdefault(op.buffer, []):
                uniforms[op.buffer].append(entry)
    groups: dict[object, TableGroup] = {}
    table_of: dict[int, object] = {}
    for use, op in enumerate(ops):
        if not isinstance(op, DispatchIndirect):
            continue
        definition = reaching_definition(recording, ops, use, op.buffer)
        if definition is None:
            continue
        key = (_signature(recording, ops[definition], uniforms), op.offset)
        table_of[use] = key
        if key in groups:
            group = groups[key]
            groups[key] = TableGroup((*group.uses, use), group.steps, group.buffer, group.offset)
        else:
            steps = tuple(slice_for(recording, ops, definition))
            groups[key] = TableGroup((use,), steps, op.buffer, op.offset)
    order = list(groups)
    played = [
        ["table", op.pipeline, list(op.groups), order.index(table_of[i])]
        if isinstance(op, DispatchIndirect) and i in table_of
        else op.played()
        for i, op in enumerate(ops)
        if not isinstance(op, Write)
    ]
    return played, [groups[key] for key in order]


def _signature(recording: Recording, op: Op, uniforms: dict[int, list[tuple[int, bytes]]]) -> object:
    """The facts that determine the counts that a defining dispatch writes: its pipeline, size and uniforms."""
    if not isinstance(op, Dispatch):
        return op
    bound = [
        (index, binding, tuple(uniforms.get(buffer, ())))
        for index, group in enumerate(op.groups)
        for binding, buffer, _, _ in recording.groups[group].entries
        if recording.pipelines[op.pipeline].access.get((index, binding)) == "uniform"
    ]
    return (op.pipeline, op.x, op.y, op.z, tuple(bound))
