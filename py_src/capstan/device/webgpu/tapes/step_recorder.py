"""Records a decode step and makes a tape of it, which is used only if its results equal an eager step's."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ....errors import OutOfMemoryError, TapeCheckError, TapeError
from ....fallback import fall_back
from ....graph import GraphDescription, LeftOut
from ....host.spans import spanned
from ....tape import (
    Command,
    DispatchIndirect,
    NBitsWeights,
    Recorded,
    Recording,
    TableGroup,
    TableParts,
    WorkgroupLimits,
    captured_half,
    check_replayable,
    copies_lost_by_ort,
    direct_dispatches,
    fuse_step,
    fused_step,
    neighbours_joined,
    why_as_recorded,
    without_clears,
)
from ..gpu_engine import NOT_FUSED
from ..sequence_buffers import SequenceBuffers, left_out_by_cache
from .comparison import RECORDED_STEP
from .decode_step import DecodeStep
from .step_check import Fused, StepCheck, gross
from .tape_making import Check, make_tape, recorded, state_copies
from .verdicts import Verdict, Verdicts, recording_digest

__all__ = ["StepRecorder"]

COUNTED_LENGTHS = (1, 63, 64, 65, 127, 128, 129)
"""Lengths around which kernels change: the counts of every indirect dispatch are compared there, and at the longest
length.
"""


@dataclass
class StepRecorder:
    """Takes a DecodeStep whose captured session has never run, and makes the step to use from it."""

    step: DecodeStep
    buffers: SequenceBuffers
    about: GraphDescription
    check: StepCheck
    passes: Sequence[str]
    """The passes over the recorded step, by their names in capstan.tape.PASSES."""
    verdicts: Verdicts | None = None
    """The verdicts of earlier loads; with None no verdict is read or kept."""
    left_out: Sequence[LeftOut] = ()
    """Attention inputs that the recorded step omits: our kernels restore them, or the step is not replayed."""
    weights: Mapping[int, NBitsWeights] = field(default_factory=dict)
    """Quantized weights by recorded buffer."""
    tables: Sequence[TableParts] = ()
    """Tables in parts, as recorded buffers."""

    @spanned("record and check the decode step")
    async def record(self) -> DecodeStep:
        """Record the captured session's first run; return the requested step, or the next lower one with the reason."""
        try:
            async with recorded(self.step.engine, self.step.captured) as recording:
                return await self._best(recording)
        except TapeError as error:
            # ORT's capture may be incomplete, too, so its own replay is not used either.
            return replace(self.step, capture="off", note=f"the decode step could not be recorded: {error}")

    async def _best(self, recording: Recording) -> DecodeStep:
        """The requested step, or the next lower one with the reason."""
        engine = self.step.engine
        notes = []
        try:
            ops = captured_half(recording)
            if self.step.capture == "tape":
                try:
                    tape, verdict = await self._make_tape(
                        recording, (*ops, *state_copies(engine, self.buffers, recording))
                    )
                    engine.retire(self.step.captured)
                    return replace(self.step, tape=tape, passes=dict(verdict.passes), lasting=verdict.lasting)
                except TapeError as error:
                    notes.append(f"the tape cannot be used: {error}")
            if self.left_out:
                if notes:
                    fall_back("a replayed decode step", notes[-1], "onnxruntime-web runs each step")
                raise TapeError(str(self.left_out[0]))
            lost = copies_lost_by_ort(ops)
            if lost:
                raise TapeError(f"onnxruntime-web's capture loses {lost} buffer copies of this model's decode step")

            async def captured() -> None:
                await engine.run(self.step.captured)
                self.buffers.settle_states()

            for length in self.check.lengths:
                await self.check.step(recording, captured, length)
            return replace(self.step, capture="ort", note="; ".join(notes) or None)
        except TapeError as error:
            notes.append(str(error))
            engine.retire(self.step.captured)
            return replace(self.step, capture="off", note="; ".join(notes))

    async def _make_tape(self, recording: Recording, ops: Sequence[Command]) -> tuple[int, Verdict]:
        """A tape that was checked, now or in an earlier load, and its verdict. Raises TapeError."""
        check_replayable(recording)
        verdicts, capacity = self.verdicts, self.buffers.capacity
        if verdicts is None:
            return await self._found_out(recording, ops)
        digest = recording_digest(recording, ops, self.passes)
        known = await verdicts.read(capacity, digest)
        if known is not None:
            with suppress(TapeError, OutOfMemoryError):
                return await self._as_known(recording, ops, known), known
        tape, verdict = await self._found_out(recording, ops)
        await verdicts.write(capacity, digest, verdict)
        return tape, verdict

    async def _as_known(self, recording: Recording, ops: Sequence[Command], known: Verdict) -> int:
        """Make the tape in the form that an earlier load's verdict gives. Raises TapeError if it cannot be made
        here.
        """
        report: dict[str, str] = {}
        lean = without_clears(ops)[0] if known.form != "plain" and "clears" in self.passes else tuple(ops)
        if known.form == "fused":
            return (await self._fused(recording, lean, known.left, report)).tape
        played: list[Any] = [op.played() for op in lean]
        tables: Sequence[bytes] = ()
        if known.direct:
            played, tables = await self._with_tables(recording, lean, range(len(lean)), report)
        return await self._tape(recording, played, tables)

    async def _found_out(self, recording: Recording, ops: Sequence[Command]) -> tuple[int, Verdict]:
        """A checked tape, and its verdict; a pass that fails its check is left out. Raises TapeError."""
        report: dict[str, str] = {}
        lean, cleared = without_clears(ops) if "clears" in self.passes else (tuple(ops), frozenset())
        try:
            tape, left = await self._judged(recording, lean, cleared, report)
            report["clears"] = f"{len(ops) - len(lean)} dropped"
            return tape, Verdict("fused", left, report)
        except (TapeError, OutOfMemoryError) as error:
            if not self.step.engine.healthy():
                raise
            if self.left_out:
                raise TapeError(str(error)) from error
            if report:
                fall_back("fused decode kernels", str(error), "onnxruntime-web's own kernels are replayed")
            report = {"fused": f"not used: {error}"}
            lasting = not isinstance(error, OutOfMemoryError)
        form = "lean"
        try:
            tape = await self._checked_tape(recording, [op.played() for op in lean], poison=cleared)
            report["clears"] = f"{len(ops) - len(lean)} dropped"
        except TapeCheckError as error:
            tape = await self._checked_tape(recording, [op.played() for op in ops])
            report["clears"] = f"kept: {error}"
            lean, form = tuple(ops), "plain"
        direct = False
        played, tables = await self._with_tables(recording, lean, range(len(lean)), report)
        if tables:
            with ExitStack() as undo:
                undo.callback(self.step.engine.close_tape, tape)
                try:
                    tape = await self._checked_tape(recording, played, poison=cleared, tables=tables)
                    direct = True
                except TapeError as error:
                    undo.pop_all()
                    report["direct"] = f"{indirect_count(lean)} indirect dispatches kept: {error}"
        return tape, Verdict(form, passes=report, direct=direct, lasting=lasting)

    async def _fused(
        self, recording: Recording, ops: Sequence[Command], left: Collection[int], report: dict[str, str]
    ) -> Fused:
        """An unchecked tape with Capstan's kernels; the operations with an index in `left` stay as recorded.

        `report` is filled as soon as operations can be joined. Raises TapeError if the requested passes find no
        operations to join.
        """
        engine, buffers = self.step.engine, self.buffers
        lasting = {engine.recorded_id(buffer) for buffer in buffers.written()}
        left_out = left_out_by_cache(self.left_out, buffers, engine.recorded_id)
        positions = buffers.recorded_positions(engine.recorded_id)
        placement = fuse_step(
            recording, ops, lasting, self.passes, left, left_out, self.weights, self.tables, positions
        )
        replayed = [node.what.index for node in placement.nodes if isinstance(node.what, Recorded)]
        if len(replayed) == len(ops):
            raise TapeError(
                "the passes find no operation to join in the step" + (" whose result is correct" if left else "")
            )
        report["fused"] = f"{len(ops)} operations became {len(placement.nodes)}, {len(replayed)} of them as recorded"
        report["as recorded"] = why_as_recorded(recording, ops, placement, self.passes, left)
        played, tables = await self._with_tables(recording, ops, replayed, report)
        limits = WorkgroupLimits.of(engine.adapter())
        attended, within = neighbours_joined(placement, limits)
        fused = fused_step(
            attended,
            {index: played[index] for index in replayed},
            tables,
            self.check.state,
            limits,
            buffers.capacity,
        )
        tape = await self._tape(recording, fused.played, fused.tables, fused.spec(buffers.owner))
        return Fused(tape, placement, [fused.ends[index] for index in within])

    async def _judged(
        self, recording: Recording, ops: Sequence[Command], cleared: Collection[int], report: dict[str, str]
    ) -> tuple[int, dict[int, str]]:
        """A tape with Capstan's kernels, whose operations were each compared with the truth; and the recorded
        operations whose replacement was wrong, with the reasons. Raises TapeError.
        """
        left: dict[int, str] = {}
        while True:
            fused = await self._fused(recording, ops, left, report)
            with ExitStack() as undo:
                undo.callback(self.step.engine.close_tape, fused.tape)
                recorded = {place.id for place in fused.placement.places.values() if place.kind == "recorded"}
                poison = self.check.poisoned(recording, {*cleared, *recorded})
                wrong = await self.check.faults(recording, ops, fused, poison, recognise=not left)
                if not wrong:
                    await self.check.compare(recording, fused.tape, poison, gross(recording))
                    if left:
                        report["left out"] = "; ".join(dict.fromkeys(left.values()))
                    undo.pop_all()
                    return fused.tape, left
            lost = [reason for index, reason in wrong.items() if index in fused.irreplaceable]
            if lost:
                raise TapeError(lost[0])
            for reason in dict.fromkeys(wrong.values()):
                fall_back("a fused decode kernel", reason, "that operation is replayed as recorded")
            left |= wrong

    async def _with_tables(
        self, recording: Recording, ops: Sequence[Command], replayed: Collection[int], report: dict[str, str]
    ) -> tuple[list[Any], Sequence[bytes]]:
        """The played step, and tables for its indirect dispatches if these are requested and possible. `report` gets a
        note on the indirect dispatches among `replayed`.
        """
        indirect = indirect_count(ops[index] for index in replayed)
        if not indirect:
            report["direct"] = "no indirect dispatches"
        elif "direct" not in self.passes:
            report["direct"] = f"{indirect} indirect dispatches kept: not requested"
        else:
            try:
                direct = await self._direct(recording, ops)
                report["direct"] = f"{indirect} made direct"
                return direct
            except TapeError as error:
                report["direct"] = f"{indirect} indirect dispatches kept: {error}"
        return [op.played() for op in ops], ()

    async def _direct(self, recording: Recording, ops: Sequence[Command]) -> tuple[list[list[Any]], list[bytes]]:
        """The played step with tables for its indirect dispatches, whose counts were checked. Raises TapeError."""
        if self.about.mask_dtype != "int64":
            raise TapeError(f"the mask is {self.about.mask_dtype}; tables are filled only under an int64 mask")
        played, groups = direct_dispatches(recording, ops)
        tables = [await self._fill_table(recording, ops, group) for group in groups]
        await self._check_counts(recording, ops, groups, tables)
        return played, tables

    async def _fill_table(self, recording: Recording, ops: Sequence[Command], group: TableGroup) -> bytes:
        """u32 [capacity + 1, 3]: the counts by sequence length, computed by the step's own kernels."""
        steps = [ops[i].played() for i in group.steps]
        return await self.step.engine.counts_by_length(
            recording.handle, steps, group.buffer, group.offset, self.buffers.mask, self.buffers.capacity
        )

    async def _check_counts(
        self, recording: Recording, ops: Sequence[Command], groups: Sequence[TableGroup], tables: Sequence[bytes]
    ) -> None:
        """Raise TapeCheckError unless every indirect dispatch has the counts in its table."""
        tape = await self._tape(recording, [op.played() for op in ops])
        try:
            await self._compare_counts(tape, ops, groups, tables)
        finally:
            self.step.engine.close_tape(tape)

    async def _compare_counts(
        self, tape: int, ops: Sequence[Command], groups: Sequence[TableGroup], tables: Sequence[bytes]
    ) -> None:
        uses = [i for i, op in enumerate(ops) if isinstance(op, DispatchIndirect)]
        capacity = self.buffers.capacity
        for length in sorted({n for n in COUNTED_LENGTHS if n < capacity} | {capacity}):
            await self.buffers.bring([0])
            self.buffers.set_input(0, length - 1)
            found = await self.step.engine.counts_of_step(tape, length)
            for group, table in zip(groups, tables, strict=True):
                expected = struct.unpack_from("<3I", table, 12 * length)
                for use in group.uses:
                    got = struct.unpack_from("<3I", found, 12 * uses.index(use))
                    if got != expected:
                        raise TapeCheckError(
                            f"indirect dispatch {use} has {got} workgroups at length {length}; its table has {expected}"
                        )

    async def _tape(
        self,
        recording: Recording,
        played: Sequence[Any],
        tables: Sequence[bytes] = (),
        fused: Mapping[str, Any] = NOT_FUSED,
        check: Check | None = None,
    ) -> int:
        """A tape of the step over the sequence's buffers; see make_tape."""
        engine = self.step.engine
        written = [engine.recorded_id(buffer) for buffer in self.buffers.written()]
        return await make_tape(engine, recording, played, written, fused=fused, tables=tables, check=check)

    async def _checked_tape(
        self,
        recording: Recording,
        played: Sequence[Any],
        poison: Collection[int] = (),
        tables: Sequence[bytes] = (),
    ) -> int:
        """A tape of recorded kernels that equals an eager step after few positions and after many."""

        async def check(tape: int) -> None:
            await self.check.compare(recording, tape, self.check.poisoned(recording, poison), RECORDED_STEP)

        return await self._tape(recording, played, tables, check=check)


def indirect_count(ops: Iterable[Command]) -> int:
    return sum(isinstance(op, DispatchIndirect) for op in ops)
