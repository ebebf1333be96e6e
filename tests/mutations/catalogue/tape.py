"""Faults in recordings, the passes over them, placement, and the operations that replace recorded ones."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["TAPE"]

TAPE = (
    Mutation(
        "passes.first_definition",
        "py_src/capstan/tape/passes.py",
        "for i in range(use - 1, -1, -1):",
        "for i in range(use):",
        "the counts of an indirect dispatch are taken from the first write of their buffer, not the last",
        unit("tape"),
    ),
    Mutation(
        "passes.second_upload",
        "py_src/capstan/tape/passes.py",
        "a.data[first - a.offset : last - a.offset] == b.data[first - b.offset : last - b.offset]",
        "a.data[: last - first] == b.data[: last - first]",
        "overlapping uploads are compared at the wrong offsets",
        unit("tape"),
    ),
    Mutation(
        "passes.offset_of_counts",
        "py_src/capstan/tape/passes.py",
        "key = (_signature(recording, ops[definition], uniforms), op.offset)",
        "key = (_signature(recording, ops[definition], uniforms),)",
        "indirect dispatches with counts at different offsets share one table",
        unit("tape"),
    ),
    Mutation(
        "recording.part_overwrites",
        "py_src/capstan/tape/recording.py",
        "return op.target == buffer and op.target_offset == 0 and op.size == self.sizes[buffer]",
        "return op.target == buffer and op.target_offset == 0",
        "a copy into a part of a buffer counts as a new content of the whole",
        unit("tape", "tape_recording"),
    ),
    Mutation(
        "placement.freed_early",
        "py_src/capstan/tape/placement.py",
        "last_use = {value: i for i, node in enumerate(nodes) for value in (*node.writes, *node.reads)}",
        "last_use = {value: i for i, node in enumerate(nodes) for value in node.writes}",
        "scratch is given to another value while this one is still to be read",
        unit("placement"),
    ),
    Mutation(
        "placement.read_and_written",
        "py_src/capstan/tape/placement.py",
        'both -= {Place("recorded", buffer) for buffer in node.what.in_place}',
        "both = set()",
        "an operation may write the buffer that it reads",
        unit("placement", "step_graph"),
    ),
    Mutation(
        "uniforms.vec3",
        "py_src/capstan/tape/uniforms.py",
        "ALIGNMENT = {1: 4, 2: 8, 3: 16, 4: 16}",
        "ALIGNMENT = {1: 4, 2: 8, 3: 12, 4: 16}",
        "vectors of three components are read at the wrong alignment",
        unit("uniforms"),
    ),
    Mutation(
        "witness.part_overlaps",
        "py_src/capstan/tape/witness.py",
        "self.sizes[buffer] = offset + -(-size // ALIGNMENT) * ALIGNMENT",
        "self.sizes[buffer] = offset + size // ALIGNMENT * ALIGNMENT",
        "parts of the witness's log overlap where a size is no multiple of the alignment",
        unit("step_check", "fused_step"),
    ),
)
