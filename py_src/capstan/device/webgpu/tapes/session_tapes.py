"""Makes tapes of any model's runs on bound tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite, prod

from ....errors import BindingError, TapeCheckError, TapeError, ValidationError
from ....tape import Command, Copy, Recording, captured_half, check_replayable, without_clears
from ...device_interface import BoundSpan, DeviceTape
from ...element_types import byte_count
from ...ort_session import ModelSession, OrtSession
from ..gpu_engine import BoundTensor, GpuEngine
from ..session_weights import SessionWeights
from .comparison import SAME_KERNELS
from .tape_making import make_tape, recorded

__all__ = ["SessionTapeMaker", "WebGpuTape"]


class WebGpuTape(DeviceTape):
    """A checked tape, and the captured session whose buffers its commands use."""

    def __init__(
        self, engine: GpuEngine, tape: int, captured: ModelSession, passes: dict[str, str], weights: SessionWeights
    ) -> None:
        self.passes = passes
        self._weights = weights
        self._engine = engine
        self._tape = tape
        self._captured: ModelSession | None = captured

    def replay(self) -> None:
        self._engine.play_once(self._tape, 0)

    async def close(self) -> None:
        captured, self._captured = self._captured, None
        if captured is not None:
            self._engine.close_tape(self._tape)
            await captured.release()
            self._weights.release()


class SessionTapeMaker:
    """Records one run of a captured session; uses its tape only after a replay gave the results of eager runs."""

    def __init__(
        self,
        eager: OrtSession,
        engine: GpuEngine,
        captured: ModelSession,
        owner: str,
        feeds: Sequence[BoundSpan],
        fetches: Sequence[BoundSpan],
        weights: SessionWeights,
    ) -> None:
        self.eager = eager
        self.engine = engine
        self.captured = captured
        self.owner = owner
        self.feeds = feeds
        self.fetches = fetches
        self.weights = weights

    async def make(self) -> WebGpuTape:
        """Make the tape. Afterwards the outputs hold the results for the bound inputs. Raises TapeError."""
        engine = self.engine
        handle = engine.session_handle(self.captured, self.owner)
        feeds = [*map(bound, self.feeds), *self.weights.tensors]
        binding = engine.bind(handle, feeds, [bound(fetch) for fetch in self.fetches])
        try:
            async with recorded(engine, binding) as recording:
                ops = captured_half(recording)
                require_no_readback(recording, ops)
                check_replayable(recording)
                tape, passes = await self._checked(recording, ops)
        finally:
            engine.retire(binding)
            engine.unbind(binding)
        return WebGpuTape(engine, tape, self.captured, passes, self.weights)

    async def _checked(self, recording: Recording, ops: Sequence[Command]) -> tuple[int, dict[str, str]]:
        """A tape that was compared with eager runs, without the step's clears if the comparison also passes without
        them.
        """
        lean, cleared = without_clears(ops)
        try:
            tape = await self._tape(recording, lean, cleared)
            return tape, {"clears": f"{len(ops) - len(lean)} dropped"}
        except TapeCheckError as error:
            if len(lean) == len(ops):
                raise
            return await self._tape(recording, ops, frozenset()), {"clears": f"kept: {error}"}

    async def _tape(self, recording: Recording, ops: Sequence[Command], poisoned: frozenset[int]) -> int:
        written = {self.engine.recorded_id(tensor.span.buffer.handle) for tensor in (*self.feeds, *self.fetches)}
        played = [op.played() for op in ops]

        async def check(tape: int) -> None:
            await self._check(recording, tape, sorted(poisoned - written))

        return await make_tape(self.engine, recording, played, sorted(written), check=check)

    async def _check(self, recording: Recording, tape: int, poisoned: Sequence[int]) -> None:
        """Compare a tape with eager runs on the present inputs, and on the same inputs with their elements rotated by
        one: that finds values that the host read from the inputs, since the tape keeps them. Every output is filled
        with NaN (0xFF) before each run.
        """
        kept = [await self._read(feed) for feed in self.feeds]
        try:
            await self._compare(recording, tape, poisoned, "")
            for feed, data in zip(self.feeds, kept, strict=True):
                size = len(data) // prod(feed.dims)
                self._write(feed, data[-size:] + data[:-size])
            try:
                await self._compare(recording, tape, poisoned, " on other inputs")
            except (BindingError, ValidationError) as error:
                raise TapeCheckError(f"the run depends on the values of its inputs: {error}") from error
        finally:
            for feed, data in zip(self.feeds, kept, strict=True):
                self._write(feed, data)
        self.engine.play_once(tape, 0)

    async def _compare(self, recording: Recording, tape: int, poisoned: Sequence[int], when: str) -> None:
        self._poison_outputs()
        await self.eager.run(self.feeds, self.fetches)
        expected = [await self._read(fetch) for fetch in self.fetches]
        self._poison_outputs()
        self.engine.poison(tape, recording.handle, poisoned)
        self.engine.play_once(tape, 0)
        for fetch, wanted in zip(self.fetches, expected, strict=True):
            reason = difference(fetch.dtype, wanted, await self._read(fetch))
            if reason is not None:
                raise TapeCheckError(f"a replay differs from an eager run{when} in output {fetch.name!r}: {reason}")

    def _poison_outputs(self) -> None:
        for fetch in self.fetches:
            self.engine.fill(fetch.span.buffer.handle, 0xFF)

    async def _read(self, tensor: BoundSpan) -> bytes:
        return await self.engine.read(tensor.span.buffer.handle, 0, byte_count(tensor.dtype, tensor.dims))

    def _write(self, tensor: BoundSpan, data: bytes) -> None:
        self.engine.write(tensor.span.buffer.handle, 0, data)


def bound(tensor: BoundSpan) -> BoundTensor:
    return BoundTensor(tensor.name, tensor.span.buffer.handle, tensor.dtype, tensor.dims)


def require_no_readback(recording: Recording, ops: Sequence[Command]) -> None:
    """Raise TapeError if the run reads a tensor on the host: a replay would not see its new value."""
    staged = [op for op in ops if isinstance(op, Copy) and op.target in recording.mappable]
    if staged:
        raise TapeError(f"the run reads {len(staged)} tensors back to the CPU, which a replay cannot do")


def difference(dtype: str, wanted: bytes, got: bytes) -> str | None:
    """The reason why two tensors differ; None if they are equal, or, for floats, within SAME_KERNELS."""
    if wanted == got:
        return None
    if dtype not in ("float32", "float16"):
        unlike = sum(a != b for a, b in zip(wanted, got, strict=True))
        return f"{unlike} of {len(wanted)} bytes"
    largest, limit, unlike = 0.0, SAME_KERNELS.of(dtype), 0
    code = "<f" if dtype == "float32" else "<e"
    pairs = zip(struct.iter_unpack(code, wanted), struct.iter_unpack(code, got), strict=True)
    scale = 1.0
    for (a,), (b,) in pairs:
        if a == b or (a != a and b != b):
            continue
        if not (isfinite(a) and isfinite(b)):
            unlike += 1
            continue
        scale = max(scale, abs(a))
        largest = max(largest, abs(a - b))
    if unlike or largest > limit * scale:
        return f"by {largest:g}; at most {limit * scale:g} is allowed ({unlike} elements finite in only one)"
    return None
