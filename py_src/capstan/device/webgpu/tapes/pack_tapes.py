"""Makes the taped run of tokens of several rows, each token at its own position. It is recorded as a step of one
sequence, widened, and compared with steps of one sequence. It fills the caches and computes no logits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....errors import TapeError
from ....memory import BufferRequest, DeviceBuffer, DeviceSpan, StridedCopy
from ..gpu_engine import GpuEngine
from ..row_buffers import RowBuffers
from ..sequence_buffers import STATE_WORDS, SequenceBuffers
from ..sliding import BASE, row_bytes
from .comparison import WIDENED_STEP, Compared, require_alike
from .row_tapes import LONG, PROBED, OneRow, TapeKind
from .stored_tapes import Span

__all__ = ["PackBuffers", "Placed", "pack_kind", "placed"]

ROW = 1
"""The word of a token's state with its row: attention_shared.wgsl."""


class Placed(NamedTuple):
    """A token, and the place of its key and value."""

    token: int
    row: int
    length: int
    """The row's positions up to this one."""
    base: int
    """The first position that the row's sliding caches hold."""


def placed(rows: RowBuffers, row: int, ids: Sequence[int], past: int) -> list[Placed]:
    """The places of `ids` in a row after `past` positions; the row must have room for them."""
    window = rows.window(row)
    base = window.base if window is not None else 0
    return [Placed(token, row, length, base) for length, token in enumerate(ids, past + 1)]


@dataclass
class PackBuffers:
    """The buffer of a run's tokens."""

    tokens: int
    """A multiple of 8: the ids begin at a multiple of 256 bytes."""
    inputs: DeviceBuffer
    """u32 [tokens, STATE_WORDS], the place of each token in the form of the sampler's state, then int64 [tokens], the
    ids.
    """

    @classmethod
    async def allocate(cls, rows: RowBuffers, tokens: int) -> PackBuffers:
        """Raises OutOfMemoryError."""
        request = BufferRequest("packed tokens", tokens * (4 * STATE_WORDS + 8), "kernels")
        return cls(tokens, *await rows.device.allocate_all([request], rows.owner))

    def bound(self, rows: RowBuffers) -> dict[str, Span]:
        """The parts of buffers that the run's kernels bind, by the names of a sequence's buffers."""
        places, ids = 4 * STATE_WORDS * self.tokens, 8 * self.tokens
        spans = {name: span for name, span in rows.bound().items() if name != "logits"}
        return {
            **spans,
            "state": (self.inputs.handle, 0, places),
            "input ids": (self.inputs.handle, places, ids),
        }

    def write(self, rows: RowBuffers, tokens: Sequence[Placed]) -> None:
        """Write the tokens of the next run; the last one is repeated to fill it."""
        whole = [*tokens, *[tokens[-1]] * (self.tokens - len(tokens))]
        words = array("I", bytes(self.inputs.size))
        for number, token in enumerate(whole):
            state = number * STATE_WORDS
            words[state], words[state + ROW], words[state + BASE] = token.length, token.row, token.base
            words[self.tokens * STATE_WORDS + 2 * number] = token.token
        rows.device.copy_cpu_to_device(self.inputs.span(), words)

    def close(self) -> None:
        self.inputs.close()


async def pack_kind(engine: GpuEngine, one: OneRow, rows: RowBuffers, tokens: int) -> TapeKind[PackBuffers]:
    """The run of a fixed number of tokens of any rows. The check of its tape restores their caches. Raises
    OutOfMemoryError."""
    pack = await PackBuffers.allocate(rows, tokens)

    async def check(tape: int) -> None:
        await _check(engine, one, rows, pack, tape)

    name, bound = f"run of {tokens} tokens of {rows.rows} rows", pack.bound(rows)
    return TapeKind(name, tokens, rows.rows, pack, bound, rows.owner, check, packed=True)


@dataclass(frozen=True)
class Probe:
    """Tokens of one row for the check."""

    row: int
    prompt: Sequence[int]
    ids: Sequence[int]
    """The row's tokens in the run, after the prompt."""

    @property
    def end(self) -> int:
        return len(self.prompt) + len(self.ids)

    async def run_prompt(self, one: OneRow) -> None:
        """Run the prompt on the sequence, with room for the other ids."""
        await one.prefill(self.prompt, 0)
        one.buffers.slide_for_check(len(self.prompt))
        one.buffers.make_room(len(self.prompt), len(self.ids))


async def _check(engine: GpuEngine, one: OneRow, rows: RowBuffers, pack: PackBuffers, tape: int) -> None:
    """Compare the caches of two rows: once after a run of tokens of both, once after steps of one sequence. Raises
    TapeCheckError. The contents of the rows are restored."""
    buffers, device, vocab = one.buffers, rows.device, rows.about.vocab_size
    longest = buffers.capacity - pack.tokens
    if longest < 1 or (buffers.slides and buffers.most_ahead < pack.tokens):
        raise TapeError(f"sequences of {buffers.capacity} positions are too short for a run of {pack.tokens} tokens")
    probes = []
    # The last slot of the run repeats the last token.
    counts = pack.tokens // 2 - 1, pack.tokens // 2
    for row, length, count in zip((rows.rows - 1, 0), (PROBED[0], LONG[device.about().software]), counts, strict=True):
        prompt = [(7 * i + 3 + row) % vocab for i in range(min(length, longest))]
        probes.append(Probe(row, prompt, [(11 * i + 5 + row) % vocab for i in range(count)]))
    most, bases = max(probe.end for probe in probes), [window.base for window in rows.windows]
    kept: dict[int, list[DeviceBuffer]] = {}
    try:
        for probe in probes:
            kept[probe.row] = await _copied(buffers, most, 0, _caches(rows, probe.row))
        tokens: list[Placed] = []
        for probe in probes:
            await probe.run_prompt(one)
            # Run other tokens, so that positions that the run does not write differ.
            one.step_through([(token + 1) % vocab for token in probe.ids], len(probe.prompt))
            device.copy_strided(
                _pieces(buffers, probe.end, buffers.base, _own(rows, buffers), _caches(rows, probe.row))
            )
            rows.rebase(probe.row, buffers.base)
            tokens += placed(rows, probe.row, probe.ids, len(probe.prompt))
        pack.write(rows, tokens)
        engine.play_once(tape, most)
        for probe in probes:
            await probe.run_prompt(one)
            one.step_through(probe.ids, len(probe.prompt))
            await _require_alike(engine, rows, buffers, probe)
    finally:
        for row, copies in kept.items():
            device.copy_strided(_pieces(buffers, most, 0, [copy.span() for copy in copies], _caches(rows, row)))
            for copy in copies:
                copy.close()
        for row, base in enumerate(bases):
            rows.rebase(row, base)


async def _require_alike(engine: GpuEngine, rows: RowBuffers, buffers: SequenceBuffers, probe: Probe) -> None:
    """Compare a row's caches with those of the sequence."""
    made: list[list[DeviceBuffer]] = []
    try:
        for caches in (_caches(rows, probe.row), _own(rows, buffers)):
            made.append(await _copied(buffers, probe.end, buffers.base, caches))
        compared = [
            Compared(f"kv {pair.past}", found.handle, right.handle, found.size, rows.about.rows_of(pair))
            for pair, found, right in zip(rows.about.cache, *made, strict=True)
        ]
        message = f"a run of tokens of {rows.rows} rows differs from steps of one row"
        await require_alike(engine, message, compared, WIDENED_STEP)
    finally:
        for copy in (copy for copies in made for copy in copies):
            copy.close()


def _caches(rows: RowBuffers, row: int) -> list[DeviceSpan]:
    return [rows.part(name, row) for name in rows.caches]


def _own(rows: RowBuffers, one: SequenceBuffers) -> list[DeviceSpan]:
    """The sequence's caches, cut to the length of a row's caches."""
    return [one.spans[name].sub(0, rows.part(name, 0).length) for name in rows.caches]


async def _copied(one: SequenceBuffers, end: int, base: int, caches: Sequence[DeviceSpan]) -> list[DeviceBuffer]:
    """Copies of the first positions of each head; see _pieces."""
    pieces = _pieces(one, end, base, caches, caches)
    requests = [BufferRequest("copy", piece.length * piece.pieces, "kernels") for piece in pieces]
    made = await one.device.allocate_all(requests, "tape check")
    one.device.copy_strided(_pieces(one, end, base, caches, [copy.span() for copy in made]))
    return list(made)


def _pieces(
    one: SequenceBuffers, end: int, base: int, source: Sequence[DeviceSpan], target: Sequence[DeviceSpan]
) -> list[StridedCopy]:
    """The pieces that copy the positions before `end` of each head from one set of caches to another; sliding caches
    begin at `base`.
    """
    about, found = one.about, []
    for pair, read, written in zip(about.cache, source, target, strict=True):
        slides = about.sliding is not None and pair.past in about.sliding.pasts
        places = min(end - base if slides else end, one.room_of(pair))
        strides = read.length // pair.heads, written.length // pair.heads
        length = places * row_bytes(about, pair.head_size)
        found.append(StridedCopy(read, strides[0], written, strides[1], length, pair.heads))
    return found
