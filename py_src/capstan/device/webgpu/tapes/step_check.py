"""Checks whether a tape computes the recorded step. Each operation is compared with the truth (tape/witness.py), and
the whole step with an eager step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....graph import GraphDescription
from ....tape import (
    BEYOND,
    CacheRows,
    Command,
    Found,
    Node,
    Placement,
    Recorded,
    Recording,
    Watched,
    WorkgroupLimits,
    cache_rows,
    plan_witness,
)
from ..gpu_engine import GpuEngine
from ..sequence_buffers import SequenceBuffers
from .comparison import BESIDE_INT8, FUSED_STEP, RECORDED_STEP, Tolerance, check_replay
from .tape_making import make_tape
from .verdicts import OURS, RECORDED, judge

__all__ = ["Fused", "StepCheck", "gross"]

PROBE_TOKENS = 40
"""The number of positions that are prefilled before the compared step."""

LONG_PROBE = 700
"""The number of positions before a second compared step: there attention is split, and numbers frozen at the recorded
length show.
"""

OWNER = "tape check"
CACHE_BYTES = {"float16": 2, "float32": 4}


def gross(recording: Recording) -> Tolerance:
    """The tolerance between a fused step of this recording and an eager one."""
    in_int8 = any("dot4I8Packed(" in pipeline.code for pipeline in recording.pipelines.values())
    return BESIDE_INT8 if in_int8 else FUSED_STEP


@dataclass(frozen=True)
class Fused:
    """The plan of a tape with Capstan's kernels."""

    tape: int
    placement: Placement
    ends: Sequence[int]
    """For each node, the number of the tape's operations up to its last one."""

    @property
    def irreplaceable(self) -> frozenset[int]:
        """The recorded operations whose results differ from those of Capstan's operations in their place."""
        return frozenset(
            index
            for node in self.placement.nodes
            if not isinstance(node.what, Recorded) and node.what.as_recorded != node.what
            for index in node.origins
        )


def made_in_int8(nodes: Sequence[Node], homes: Collection[int]) -> set[int]:
    """The nodes, by index, whose recorded kernels round their inputs to int8, and the nodes that read those of their
    results that have no recorded buffer. No recorded kernel writes such a result, so the unrounded truth takes its
    place in comparisons.
    """
    found: set[int] = set()
    values: set[int] = set()
    for index, node in enumerate(nodes):
        if not isinstance(node.what, Recorded) and (node.what.rounded or not values.isdisjoint(node.reads)):
            found.add(index)
            values |= set(node.writes) - set(homes)
    return found


@dataclass
class StepCheck:
    """Checks tapes of one recorded step over the sequence's buffers, whose contents it changes."""

    engine: GpuEngine
    eager: int
    """The prefill session bound to a single input id."""
    buffers: SequenceBuffers
    about: GraphDescription
    probe: Callable[[SequenceBuffers, Sequence[int]], Awaitable[None]]
    """Prefills a few tokens, so that steps are compared on a real state."""
    longest_window: int = 0
    """The longest window of attention, in positions, that is shorter than the capacity; 0 if there is none."""
    prefilled: int = 0
    """The number of prompt positions in the caches. Correct steps change none of them."""

    async def _plain(self, recording: Recording, ops: Sequence[Command]) -> int:
        """A tape of the step as it was recorded."""
        written = [self.engine.recorded_id(buffer) for buffer in self.buffers.written()]
        return await make_tape(self.engine, recording, [op.played() for op in ops], written)

    async def faults(
        self, recording: Recording, ops: Sequence[Command], fused: Fused, poison: Sequence[int], recognise: bool
    ) -> dict[int, str]:
        """The reasons why operations must stay as recorded, by recorded index: Capstan's kernel is wrong, or (with
        `recognise`) the recorded kernel was mistaken for another operation.

        A kernel of Capstan that is wrong in one operation is not used at all, since its other faults may go undetected.
        """
        engine, nodes, places = self.engine, fused.placement.nodes, fused.placement.places
        makers = {value: (index, node) for index, node in enumerate(nodes) for value in node.writes}
        ours = Watched(
            nodes,
            lambda value: (places[value].kind, places[value].id),
            {value: fused.ends[index] - 1 for value, (index, _) in makers.items()},
        )
        homes = fused.placement.homes
        theirs = Watched(
            [node if isinstance(node.what, Recorded) else replace(node, what=node.what.as_recorded) for node in nodes],
            lambda value: ("recorded", homes[value]) if value in homes else None,
            {value: node.position for value, (_, node) in makers.items()},
        )
        faults: dict[int, str] = {}
        wrong: dict[int, str] = {}
        plain = await self._plain(recording, ops) if recognise else 0
        try:
            for length in self.lengths:
                await self._prepare(recording, length, BEYOND)
                if recognise:
                    found = await self._witness(recording, plain, theirs, length)
                    faults |= judge(nodes, found, RECORDED, "the recorded kernel", made_in_int8(nodes, homes))
                    await self._rows(recording, BEYOND)
                engine.poison(fused.tape, recording.handle, poison)
                found = await self._witness(recording, fused.tape, ours, length)
                wrong |= judge(nodes, found, OURS, "our kernel")
        finally:
            if plain:
                engine.close_tape(plain)
        self.prefilled = 0 if faults or wrong else self.prefilled
        reasons = {kernels: wrong[index] for index in wrong if (kernels := self._kernels(nodes[index]))}
        for index, node in enumerate(nodes) if wrong else ():
            reason = wrong.get(index) or reasons.get(self._kernels(node))
            if reason is not None:
                faults[index] = reason
        return {origin: reason for index, reason in faults.items() for origin in nodes[index].origins}

    def _kernels(self, node: Node) -> tuple[Any, ...]:
        """The identity of an operation's kernels: shader, constants, precision. Empty for a recorded operation."""
        if isinstance(node.what, Recorded):
            return ()
        limits = WorkgroupLimits.of(self.engine.adapter())
        made = node.what.kernels(node.reads, node.writes, limits)
        return tuple((each.plan.shader, tuple(sorted(each.plan.constants.items())), each.half) for each in made)

    async def _witness(self, recording: Recording, tape: int, watched: Watched, length: int) -> list[Found]:
        longest = max(self.lengths) + 1
        planned = plan_witness(watched, self.state, length + 1, longest, OWNER)
        return planned.found(await self.engine.witness(recording.handle, tape, length + 1, planned.spec()))

    async def _rows(self, recording: Recording, beyond: int, filled: int = 0) -> None:
        """Prepare the caches' rows for the step whose input is set; see cache_rows."""
        engine, about, buffers = self.engine, self.about, self.buffers
        caches = [
            CacheRows(
                *(engine.recorded_id(cache), pair.heads, pair.head_size * CACHE_BYTES[about.cache_dtype]),
                *(buffers.room_of(pair), buffers.room_of(pair) < buffers.capacity),
            )
            for pair, cache in zip(about.cache, buffers.cache, strict=True)
        ]
        planned = cache_rows(caches, filled, beyond, self.state, OWNER)
        await engine.witness(recording.handle, 0, 0, planned.spec())

    async def _prepare(self, recording: Recording, length: int, beyond: int) -> None:
        """Make the state after `length` positions of a prompt: the first ones are prefilled, only once unless the model
        has states, and the caches' later rows repeat them.

        The word `beyond` fills the rest of the caches.
        """
        buffers, vocabulary = self.buffers, self.about.vocab_size
        filled = min(length, PROBE_TOKENS)
        if self.prefilled != filled or buffers.states:
            await self.probe(buffers, [(7 * i + 3) % vocabulary for i in range(filled)])
            self.prefilled = filled
        if buffers.sliding is not None:
            buffers.sliding.rebase(buffers.sliding.probed_base(length))
        await buffers.bring([11 % vocabulary])
        buffers.set_input(11 % vocabulary, length)
        await self._rows(recording, beyond, filled)

    @property
    def state(self) -> tuple[int, int, int]:
        """The sampler's state: handle, offset, bytes."""
        span = self.buffers.spans["state"]
        return span.buffer.handle, span.offset, span.length

    def poisoned(self, recording: Recording, buffers: Collection[int]) -> list[int]:
        """The buffers that a step writes and that are not live-out."""
        written = {self.engine.recorded_id(buffer) for buffer in self.buffers.written()}
        return sorted(recording.private().intersection(buffers) - written)

    async def compare(self, recording: Recording, tape: int, poison: Sequence[int], tolerance: Tolerance) -> None:
        """Compare the steps of a tape with eager ones. Before each step, NaN fills the buffers that it must not depend
        on: `poison` and the scratch of its kernels.
        """
        engine = self.engine
        for length in self.lengths:

            async def play(length: int = length) -> None:
                engine.poison(tape, recording.handle, poison)
                engine.play_once(tape, length + 1)

            await self.step(recording, play, length, tolerance)

    @property
    def lengths(self) -> list[int]:
        """The numbers of positions before the compared steps."""
        long = max(LONG_PROBE, self.longest_window + PROBE_TOKENS)
        return sorted({min(length, self.buffers.capacity - 1) for length in (PROBE_TOKENS, long)})

    async def step(
        self,
        recording: Recording,
        replay: Callable[[], Awaitable[None]],
        length: int,
        tolerance: Tolerance = RECORDED_STEP,
    ) -> None:
        """Compare the step after `length` positions with an eager one; see check_replay."""
        engine = self.engine
        await self._prepare(recording, length, beyond=0)
        eager = partial(engine.run, self.eager, length + 1, 1, self.buffers.base)
        kept, self.prefilled = self.prefilled, 0
        await check_replay(engine, self.buffers, self.about, "step", replay, eager, tolerance)
        self.prefilled = kept
