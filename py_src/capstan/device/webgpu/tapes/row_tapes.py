"""Makes the taped step of several sequences. It is recorded as a step of one sequence, widened, and compared with steps
of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ....host.spans import spanned
from ....memory import BufferRequest, DeviceBuffer
from ....tape import (
    Command,
    Placement,
    Recording,
    RowSpans,
    WorkgroupLimits,
    captured_half,
    check_replayable,
    row_step,
    without_clears,
)
from ..gpu_engine import GpuEngine
from ..row_buffers import RowBuffers
from ..sequence_buffers import SequenceBuffers
from .comparison import WIDENED_STEP, Compared, require_alike
from .stored_tapes import Span
from .tape_making import Check, make_tape, recorded, state_copies
from .tape_scratch import TapeScratch

__all__ = [
    "Closable",
    "LONG",
    "PROBED",
    "Exchanged",
    "Fuse",
    "OneRow",
    "RowTape",
    "TapeKind",
    "check_rows",
    "require_steps_of_one",
    "row_kind",
    "widened_tape",
]

Fuse = Callable[[Recording, Sequence[Command], Collection[int]], Placement]
"""Applies the model's passes to the recorded step of one row; the last argument is its live-out buffers. See fuse_step.
"""

PROBED = (40, 57)
LONG = {False: 700, True: 90}
"""Lengths of the compared sequences; rows take them in turn. The last one depends on whether the adapter is software.
"""


class OneRow(Protocol):
    """A decoder of one sequence with a checked tape, for comparison."""

    @property
    def buffers(self) -> SequenceBuffers: ...
    async def prefill(self, ids: Sequence[int], past: int) -> None:
        """Run a prompt after `past` positions."""

    def step_through(self, ids: Sequence[int], past: int) -> None:
        """Queue a step of the tape for each id."""


class Closable(Protocol):
    def close(self) -> None: ...


B = TypeVar("B", bound=Closable)


@dataclass(frozen=True)
class TapeKind(Generic[B]):
    """A step of several tokens, made by widening a step of one token."""

    name: str
    rows: int
    """The number of tokens in a step."""
    sequences: int
    """The number of rows of the decoder that has the tape."""
    buffers: B
    """Its buffers in addition to the recorded ones."""
    bound: Mapping[str, Span]
    """The parts of buffers that its kernels bind, by the names of the buffers of one sequence. With a 'table', rows
    look up places in each other's caches.
    """
    owner: str
    check: Check
    along: bool = False
    """Whether the rows are positions of one sequence."""
    packed: bool = False
    """Whether the rows are tokens of any sequences."""

    @property
    def unit(self) -> str:
        """The name of its rows in messages."""
        if self.packed or self.along:
            return "tokens of any" if self.packed else "positions"
        return "beams" if "table" in self.bound else "rows"


@dataclass
class RowTape(Generic[B]):
    """The tape of a TapeKind's step with its buffers, and the captured session whose weights and constants it uses; a
    restored tape has no session.
    """

    engine: GpuEngine
    tape: int
    session: int
    binding: int
    report: str
    buffers: B
    scratch: TapeScratch

    async def release(self) -> None:
        """Free the tape and its buffers once the device has done all submitted work."""
        self.scratch.drop(self.tape)
        await self.engine.idle()
        self.engine.close_tape(self.tape)
        if self.session:
            self.engine.unbind(self.binding)
            await self.engine.release_session(self.session)
        self.buffers.close()


@spanned("record and check the step of several tokens")
async def widened_tape(
    engine: GpuEngine, one: OneRow, kind: TapeKind[Any], binding: int, fuse: Fuse
) -> tuple[int, str]:
    """Make a checked tape of the step; returns it and a report. `binding` binds a captured session to the buffers of
    `one`, whose caches are overwritten. Raises TapeError if no tape is possible, and OutOfMemoryError.
    """
    buffers = one.buffers
    async with recorded(engine, binding) as recording:
        ops, _ = without_clears((*captured_half(recording), *state_copies(engine, buffers, recording)))
        check_replayable(recording)
        lasting = {engine.recorded_id(handle) for handle in buffers.written()}
        placement = fuse(recording, ops, lasting)
        limits = WorkgroupLimits.of(engine.adapter())
        where = row_spans(engine, buffers, kind)
        step = row_step(placement, recording, ops, where, kind.rows, limits, buffers.capacity, kind.along)

        async def retired(tape: int) -> None:
            engine.retire(binding)
            await kind.check(tape)

        spec, tables = step.spec(kind.owner), step.tables
        tape = await make_tape(
            engine, recording, step.played, sorted(lasting), fused=spec, tables=tables, check=retired
        )
        return tape, f"{len(ops)} operations became {len(step.played)} for {kind.rows} {kind.unit}"


def row_spans(engine: GpuEngine, buffers: SequenceBuffers, kind: TapeKind[Any]) -> RowSpans:
    bound = kind.bound
    known = {name: engine.recorded_id(buffers.handle(name)) for name in bound if name not in ("state", "table")}
    spans = {recorded: bound[name] for name, recorded in known.items()}
    return RowSpans(bound["state"], spans, known["input ids"], bound.get("table"), kind.packed)


def row_kind(engine: GpuEngine, one: OneRow, rows: RowBuffers) -> TapeKind[RowBuffers]:
    """The step of rows with one sequence each."""

    async def check(tape: int) -> None:
        await check_rows(engine, one, rows, tape)

    return TapeKind(f"step of {rows.rows} rows", rows.rows, rows.rows, rows, rows.bound(), rows.owner, check)


class Exchanged(Protocol):
    """Rows that read each other's caches."""

    def part(self, length: int, kept: Sequence[DeviceBuffer]) -> None:
        """Move each row's first `length` positions to the caches of another row; `kept` has space for one row's
        caches.
        """

    def join(self, row: int, length: int, copies: Sequence[DeviceBuffer]) -> None:
        """Put a row's own first positions back into copies of its caches."""


async def check_rows(
    engine: GpuEngine, one: OneRow, rows: RowBuffers, tape: int, exchanged: Exchanged | None = None
) -> None:
    """Compare a step of rows of different lengths with steps of one row: the logits of each row, and the caches of the
    last row. Raises TapeCheckError.
    """
    about, device = rows.about, rows.device
    longest = min(LONG[device.about().software], rows.capacity - 2)
    lengths = [min(length, rows.capacity - 2) for length in PROBED] + [longest]
    logits = rows.spans["logits"]
    requests = [BufferRequest("copy", logits.buffer.size, "kernels")]
    requests += [BufferRequest("copy", rows.part(name, 0).length, "kernels") for name in rows.caches]
    expected, *copies = await device.allocate_all(requests, "tape check")
    tokens = [(11 * row + 5) % about.vocab_size for row in range(rows.rows)]
    try:
        last = rows.rows - 1
        # The last row is stepped last, so that its caches can be compared.
        for turn in sorted(range(min(rows.rows, len(lengths))), key=lambda turn: turn == last % len(lengths)):
            await one.prefill([(7 * i + 3 + turn) % about.vocab_size for i in range(lengths[turn])], 0)
            one.buffers.slide_for_check(lengths[turn])
            for row in range(turn, rows.rows, len(lengths)):
                rows.from_one(row, one.buffers)
            for row in range(turn, rows.rows, len(lengths)):
                one.step_through([tokens[row]], lengths[turn])
                part = rows.part("logits", row)
                there = one.buffers.spans["logits"].sub(0, part.length)
                device.copy_tensors([(there, expected.span(part.offset, part.length))])
        half = min(lengths) // 2
        if exchanged is not None:
            exchanged.part(half, copies)
        engine.fill(rows.handle("logits"), 0xFF)
        rows.set_inputs(tokens)
        for row in range(rows.rows):
            rows.set_length(row, lengths[row % len(lengths)] + 1)
        engine.play_once(tape, max(lengths[: rows.rows]) + 1)
        parts = [rows.part(name, last) for name in rows.caches]
        device.copy_tensors([(part, copy.span()) for part, copy in zip(parts, copies, strict=True)])
        if exchanged is not None:
            exchanged.join(last, half, copies)
        message = f"a step of {rows.rows} rows differs from steps of one row"
        await require_steps_of_one(
            engine, message, one.buffers, (rows.handle("logits"), expected.handle, logits.length), copies
        )
    finally:
        for copy in (expected, *copies):
            copy.close()


async def require_steps_of_one(
    engine: GpuEngine, message: str, one: SequenceBuffers, logits: tuple[int, int, int], copies: Sequence[DeviceBuffer]
) -> None:
    """Compare a widened step with steps of one sequence: `logits` has the handles of its logits and of the expected
    ones, and their bytes; `copies` are copies of caches, which must equal the caches of `one`. Raises TapeCheckError.
    """
    about = one.about
    compared = [Compared("logits", *logits, about.logits_dtype)]
    compared += [
        Compared(f"kv {pair.past}", copy.handle, handle, copy.size, about.rows_of(pair))
        for pair, copy, handle in zip(about.cache, copies, one.cache, strict=True)
    ]
    await require_alike(engine, message, compared, WIDENED_STEP)
