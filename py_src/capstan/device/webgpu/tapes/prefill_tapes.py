"""Makes tapes of prefill runs of one length. A run is recorded, rewritten, and compared with an eager run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from ....errors import OutOfMemoryError, TapeError, UnsupportedModelError
from ....fallback import fall_back
from ....graph import GraphDescription, NBitsProduct
from ....host.spans import spanned
from ....tape import (
    MatMul,
    MatrixMatMul,
    MatVec,
    NBitsWeights,
    PrefillAttention,
    Recorded,
    TapeKey,
    WorkgroupLimits,
    captured_half,
    check_replayable,
    fuse_prefill,
    fused_step,
    without_clears,
)
from ..gpu_engine import GpuEngine, GpuTapes
from ..sequence_buffers import SequenceBuffers, left_out_by_cache
from .comparison import PROMPT_RUN, RECORDED_STEP, check_replay
from .stored_tapes import StoredTapes
from .tape_making import make_tape, recorded
from .tape_scratch import TapeScratch

__all__ = ["SHORT", "PrefillTapes", "Run", "compared_after", "cut_prompt", "weights_on_device"]

SHARES = (1, 2, 4)
"""A chunk, its half and its quarter may have tapes."""

SHORT = (8, 16, 32)
"""Runs of these lengths may have tapes, too; their products read each weight once or a few times."""

LEAST_FULL = 0.75
"""The smallest share of new positions in a taped run; the others are computed again, with the same values."""

MOST_SHORT = 4
"""The most short taped runs that replace one run without a tape: onnxruntime-web takes 18 to 24 ms to encode a run of
any length.
"""


@dataclass(frozen=True)
class Run:
    """A prefill run over ids[start:start + length] of a prompt."""

    start: int
    length: int


def cut_prompt(count: int, chunk: int, lengths: Collection[int]) -> list[Run]:
    """The runs of a prompt of `count` ids: full chunks, then the rest.

    If the rest nearly fills one of `lengths`, it is one run of that length, which overlaps ids before it. Else it is up
    to MOST_SHORT runs with the lengths in SHORT, the last of which may overlap the one before.
    """
    runs = [Run(start, chunk) for start in range(0, count - count % chunk, chunk)]
    rest = count % chunk
    if rest:
        longer = [n for n in lengths if rest <= n <= min(rest / LEAST_FULL, count)]
        if longer:
            runs.append(Run(count - min(longer), min(longer)))
        else:
            runs += short_runs(count - rest, count, lengths) or [Run(count - rest, rest)]
    return runs


def short_runs(start: int, end: int, lengths: Collection[int]) -> list[Run]:
    """The runs over ids[start:end] whose lengths are in both `lengths` and SHORT; none if that takes more than
    MOST_SHORT runs.
    """
    runs: list[Run] = []
    short = sorted(set(lengths) & set(SHORT), reverse=True)
    while start < end:
        length = next((n for n in short if n <= end - start), min(short, default=0))
        if length == 0 or length > end or len(runs) == MOST_SHORT:
            return []
        runs.append(Run(min(start, end - length), length))
        start += length
    return runs


def compared_after(length: int, capacity: int, window: int) -> list[int]:
    """The numbers of positions after which a taped run of `length` is compared with an eager one: 0, `length`, and the
    longest window (0 if there is none).
    """
    room = capacity - length
    return sorted({0, min(length, room), min(window, room)})


def weights_on_device(
    engine: GpuTapes, products: Collection[NBitsProduct], buffers: Mapping[str, int]
) -> dict[int, NBitsWeights]:
    """The weights of products that are in `buffers` of their own, by recorded buffer."""
    recorded = {name: engine.recorded_id(buffer) for name, buffer in buffers.items()}
    return {
        recorded[p.weights]: NBitsWeights(
            *(recorded[p.scales], p.n, p.k, p.block, p.int8, p.bits), recorded.get(p.zeros), recorded.get(p.minima)
        )
        for p in products
        if {p.weights, p.scales, p.zeros, p.minima} - {""} <= recorded.keys()
    }


OFTEN = 32
"""A prompt with at least this number of runs of one length has their tape made first. With a 1B model on an NVIDIA
H100, 64 runs of 2048 take 71 s without a tape, and 22 s with one that is made before them; 16 runs take 5 and 6 s.
"""


@dataclass
class PrefillTapes:
    """The prefill tapes of one sequence. A tape that another sequence or an earlier load stored is restored for the
    next run of its length. A missing one is requested from `later`; without `later` it is made before the second prompt
    with such a run. A new sequence's prompt with OFTEN such runs has the tape made before it.

    The model's memory estimate leaves out a tape's memory: the buffers of its captured session, the scratch of its
    kernels, and copies of the caches during the check. If memory is too short for a tape, onnxruntime-web runs the
    prompt, which is counted as a fallback.
    """

    engine: GpuEngine
    buffers: SequenceBuffers
    about: GraphDescription
    weights: Mapping[int, NBitsWeights]
    """By recorded buffer."""
    capture: Callable[[int], Awaitable[tuple[int, int]]]
    """A captured session over the sequence's buffers for runs of that length, and its binding."""
    eager: int
    """The prefill session bound to any number of prompt ids."""
    size: Callable[[], int]
    """The most tokens of the next run."""
    stored: StoredTapes
    key: TapeKey
    """The key of stored tapes."""
    scratch: TapeScratch
    what: str = "prefill"
    """The beginning of the names under which tapes are stored."""
    later: Callable[[int], None] | None = None
    """Has the tape for a length made while the device is unused."""
    tapes: dict[int, int] = field(default_factory=dict)
    """The tapes by length; 0 if none is possible."""
    reports: dict[int, str] = field(default_factory=dict)
    """The passes' effects on each tape, or the reason why there is no tape, by length."""
    sessions: list[tuple[int, int]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Lengths of the runs so far."""
    often: set[int] = field(default_factory=set)
    """Lengths of which a prompt has OFTEN runs; their tapes are made before the prompt runs."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of runs that may have a tape, longest first."""
        chunk = self.size()
        shares = {chunk // share for share in SHARES if chunk >= share}
        return tuple(sorted(shares | {length for length in SHORT if length <= chunk}, reverse=True))

    @property
    def report(self) -> str:
        """The tapes made so far, and the reason for each missing one."""
        if not self.reports:
            return f"no length of {', '.join(map(str, self.lengths))} positions has a tape yet"
        return "; ".join(f"{length} positions: {report}" for length, report in sorted(self.reports.items()))

    def due(self, count: int, past: int = 0) -> list[int]:
        """The lengths of the tapes that a prompt of `count` ids after `past` positions uses and that are missing.
        After positions there are none if tapes would be made over this sequence's caches.
        """
        if past and self.later is None:
            return []
        runs = Counter(run.length for run in cut_prompt(count, self.size(), self.lengths))
        if not past:
            self.often |= {length for length, times in runs.items() if times >= OFTEN}
        return self.untried(runs.keys() & set(self.lengths))

    def untried(self, lengths: Collection[int]) -> list[int]:
        """The lengths whose tapes are not made and not known to be impossible."""
        return sorted(set(lengths) - self.tapes.keys())

    async def make(self, lengths: Collection[int]) -> None:
        """Restore the tapes of these lengths that are stored. Make those whose runs came before or come often, which
        overwrites the sequence's buffers, including its mask; or request them from `later`.
        """
        for length in lengths:
            restored = await self._restored(length)
            if restored or length in self.often or (length in self.seen and self.later is None):
                await self._keep_made(length, restored or await self._make(length))
            elif self.later is not None:
                self.later(length)
            self.seen.add(length)

    async def make_one(self, length: int) -> None:
        """Make the tape of a length over this sequence's buffers, unless it is stored."""
        if length not in self.tapes:
            await self._keep_made(length, await self._restored(length) or await self._make(length))

    async def _keep_made(self, length: int, tape: int) -> None:
        self.tapes[length] = tape
        if tape:
            await self.scratch.add(tape, f"the tape of prompt runs of {length} positions")

    async def _restored(self, length: int) -> int:
        """Restore the stored tape for runs of `length`; 0 if there is none. Only the first such run reads storage."""
        what = f"{self.what} of {length} positions"
        if length in self.seen and not self.stored.in_memory(what, self.key, self.buffers):
            return 0
        found = await self.stored.restore(what, self.key, self.buffers)
        if found is None:
            return 0
        self.reports[length] = found.passes["prefill"]
        return found.tape

    def cut(self, count: int) -> list[Run]:
        """The runs of a prompt of `count` ids."""
        chunk = self.size()
        return cut_prompt(count, chunk, [length for length, tape in self.tapes.items() if tape and length <= chunk])

    def play(self, length: int, valid: int) -> bool:
        """Queue a run whose inputs are written, if there is a tape for its length; returns whether there is one.
        Afterwards there are `valid` positions.
        """
        tape = self.tapes.get(length, 0)
        if tape:
            self.engine.play_once(tape, valid)
        return bool(tape)

    async def release(self) -> None:
        """Close the tapes, then the sessions whose buffers they use."""
        for tape in filter(None, self.tapes.values()):
            self.scratch.drop(tape)
            self.engine.close_tape(tape)
        self.tapes.clear()
        for session, binding in self.sessions:
            self.engine.unbind(binding)
            await self.engine.release_session(session)
        self.sessions.clear()

    @spanned("record and check a prompt's run")
    async def _make(self, length: int) -> int:
        """A checked tape of runs of `length`; 0, with the reason reported, if none is possible."""
        try:
            session, binding = await self.capture(length)
            async with AsyncExitStack() as undo:
                undo.push_async_callback(self.engine.release_session, session)
                undo.callback(self.engine.unbind, binding)
                undo.callback(self.engine.retire, binding)
                tape, report = await self._recorded(length, binding)
                undo.callback(self.engine.close_tape, tape)
                self.engine.retire(binding)
                await self._keep(length, tape, report)
                undo.pop_all()
            self.sessions.append((session, binding))
        except (TapeError, UnsupportedModelError, OutOfMemoryError) as error:
            if not self.engine.healthy():
                raise
            self.reports[length] = f"not used: {error}"
            fall_back("prefill runs from a tape", str(error), "onnxruntime-web runs them")
            return 0
        self.reports[length] = report
        return tape

    async def _keep(self, length: int, tape: int, report: str) -> None:
        """Store a checked tape for other sequences and later loads."""
        await self.stored.keep(f"{self.what} of {length} positions", self.key, self.buffers, tape, {"prefill": report})

    async def _recorded(self, length: int, binding: int) -> tuple[int, str]:
        engine, buffers = self.engine, self.buffers
        async with recorded(engine, binding) as recording:
            ops = captured_half(recording)
            check_replayable(recording)
            lean, cleared = without_clears(ops)
            results = {engine.recorded_id(handle) for handle in (*buffers.cache, buffers.logits)}
            limits = WorkgroupLimits.of(engine.adapter())
            missing = self.about.left_out_within(buffers.capacity)
            left_out = left_out_by_cache(missing, buffers, engine.recorded_id)
            placement = fuse_prefill(recording, lean, results, self.weights, length, limits, left_out)
            replayed = [node.what.index for node in placement.nodes if isinstance(node.what, Recorded)]
            ours = any(isinstance(node.what, MatMul | MatrixMatMul | PrefillAttention) for node in placement.nodes)
            # With int8 activations or float16, our products of few rows round differently from the recorded ones.
            rounds = self.about.cache_dtype == "float16" or any(each.int8 for each in self.weights.values())
            ours = ours or (rounds and any(isinstance(node.what, MatVec) for node in placement.nodes))
            state = buffers.spans["state"]
            fused = fused_step(
                placement,
                {index: lean[index].played() for index in replayed},
                (),
                (state.buffer.handle, state.offset, state.length),
                limits,
                buffers.capacity,
            )
            written = [engine.recorded_id(handle) for handle in buffers.written("prompt")]

            async def check(tape: int) -> None:
                places = (place.id for place in placement.places.values() if place.kind == "recorded")
                poisoned = sorted({*cleared, *places} & recording.private() - set(written))
                window = max((each.window for each in left_out.values()), default=0)
                filled = 0
                for past in compared_after(length, buffers.capacity, window):
                    await self._fill(filled, past, length)
                    engine.poison(tape, recording.handle, poisoned)
                    await self._check(tape, length, past, ours)
                    filled = past + length

            spec = fused.spec(buffers.owner)
            tape = await make_tape(engine, recording, fused.played, written, fused=spec, check=check)
            return tape, f"{len(ops)} operations became {len(placement.nodes)}, {len(replayed)} of them as recorded"

    def _probe(self, start: int, count: int) -> list[int]:
        """The `count` ids of a compared sequence that begin at position `start`."""
        return [(7 * i + 3) % self.about.vocab_size for i in range(start, start + count)]

    async def _fill(self, start: int, end: int, most: int) -> None:
        """Run the positions of a compared sequence eagerly, in runs of at most `most`."""
        for past in range(start, end, most):
            count = min(most, end - past)
            self.buffers.make_room(past, count)
            await self.buffers.bring(self._probe(past, count))
            self.buffers.write_prompt(self._probe(past, count), past)
            await self.engine.run(self.eager, past + count, count, self.buffers.base)

    async def _check(self, tape: int, length: int, past: int, ours: bool) -> None:
        """Compare the run after `past` positions with an eager one; see check_replay. With `ours` some of its kernels
        are Capstan's.
        """
        engine, buffers, about = self.engine, self.buffers, self.about
        buffers.make_room(past, length)
        await buffers.bring(self._probe(past, length))
        buffers.write_prompt(self._probe(past, length), past)

        async def replay() -> None:
            engine.play_once(tape, past + length)

        what = f"run of {length} positions after {past}"
        eager = partial(engine.run, self.eager, past + length, length, buffers.base)
        await check_replay(engine, buffers, about, what, replay, eager, PROMPT_RUN if ours else RECORDED_STEP)
