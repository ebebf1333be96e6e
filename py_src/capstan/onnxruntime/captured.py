"""Implements CapturedRun: one run of a static-shape model, recorded as a tape of GPU commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..device.device_interface import BoundSpan, DeviceTape
from ..errors import BindingError, ClosedError, OutOfMemoryError, TapeError
from ..fallback import fall_back
from ..memory import check_use
from .io_binding import BoundOutput, IOBinding
from .open_session import OpenSession
from .ort_value import HOST_MEMORY, OrtValue, arrays_of
from .providers import GRAPH_CAPTURE, WEBGPU, blocking

__all__ = ["AutomaticCapture", "CapturedRun", "capture", "run_eagerly", "span_of"]


class CapturedRun:
    """A recorded run, replayed without onnxruntime-web; made by `InferenceSession.capture`.

    It reads the tensors that were bound as inputs and writes those bound as outputs: change an input with its
    `update_inplace`, then call `replay()`, then read an output. It was compared with an eager run, owns the session
    from which it was recorded, and stays usable after the InferenceSession is closed. `close` frees it.
    """

    def __init__(
        self, session: OpenSession, tape: DeviceTape, inputs: dict[str, OrtValue], outputs: dict[str, OrtValue]
    ) -> None:
        self._host = session.host
        self._device = session.device
        self._device.retain()
        self._tape: DeviceTape | None = tape
        self.inputs = inputs
        self.outputs = outputs

    @property
    def passes(self) -> dict[str, str]:
        """The effect of each pass over the recorded commands."""
        return dict(self._opened().passes)

    def replay(self) -> None:
        """Queue the run once without a wait; work that is queued afterwards sees the results."""
        tape = self._opened()
        for name, value in [*self.inputs.items(), *self.outputs.items()]:
            if not value.has_value():
                raise ClosedError(f"the OrtValue of {name!r} was closed, which the captured run uses; capture again")
        tape.replay()

    def get_outputs(self) -> list[OrtValue]:
        """The tensors that each replay writes, in the order in which they were bound."""
        return list(self.outputs.values())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last replay as arrays in Python's heap, all with one read."""
        call, twin = "CapturedRun.copy_outputs_to_cpu", "run.copy_outputs_to_cpu_async()"
        return blocking(self._host, call, twin, self.copy_outputs_to_cpu_async)

    async def copy_outputs_to_cpu_async(self) -> list[Any]:
        """`copy_outputs_to_cpu`, without blocking."""
        return await arrays_of(self.get_outputs())

    def close(self) -> None:
        """`aclose`, blocking."""
        blocking(self._host, "CapturedRun.close()", "run.aclose()", self.aclose)

    async def aclose(self) -> None:
        """Free the commands and their session; the outputs stay. Closing twice is harmless."""
        tape, self._tape = self._tape, None
        if tape is not None:
            await tape.close()
            self._device.close()

    async def __aenter__(self) -> CapturedRun:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> CapturedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> DeviceTape:
        if self._tape is None:
            raise ClosedError("this captured run was closed; capture the binding again")
        return self._tape


class AutomaticCapture:
    """Captures the runs of a session whose provider has enableGraphCapture. The first run with an IO binding is
    captured, and later runs are replays. A run that cannot be captured runs eagerly; Capstan then warns once and counts
    every such run.
    """

    def __init__(self) -> None:
        self._captured: CapturedRun | None = None
        self._refused: str | None = None
        """The reason why no run of the session can be captured, after an attempt."""
        self._turn = asyncio.Lock()

    async def run(
        self,
        session: OpenSession,
        binding: IOBinding,
        feeds: Sequence[BoundSpan],
        outputs: dict[str, BoundOutput],
    ) -> bool:
        """Run the bound tensors. Returns False if the caller must run eagerly instead. Raises BindingError unless they
        are the tensors of the captured run, which a replay reads and writes.
        """
        async with self._turn:
            if self._captured is None:
                self._captured = await self._first(session, binding, feeds, outputs)
                return self._captured is not None
            require_captured(self._captured, feeds, outputs)
            self._captured.replay()
            binding.results = [self._captured.outputs[name] for name in outputs]
        return True

    async def close(self) -> None:
        """Free the captured run; the outputs stay."""
        if self._captured is not None:
            await self._captured.aclose()

    async def _first(
        self,
        session: OpenSession,
        binding: IOBinding,
        feeds: Sequence[BoundSpan],
        outputs: dict[str, BoundOutput],
    ) -> CapturedRun | None:
        """Capture the run; its outputs hold the results for the present inputs. None if it cannot be captured."""
        reason = self._refused
        if reason is None:
            try:
                require_capturable(session, feeds, outputs)
            except (BindingError, TapeError) as error:
                # Other tensors may work; another attempt costs nothing.
                reason = str(error)
        if reason is None:
            try:
                return await capture(session, binding, feeds, outputs)
            except (TapeError, OutOfMemoryError) as error:
                self._refused = reason = str(error)
        run_eagerly(reason)
        return None


def run_eagerly(reason: str) -> None:
    """Count a run that is not captured, and warn the first time."""
    fall_back(f'{WEBGPU} with {GRAPH_CAPTURE} "1"', reason, "the run is eager")


async def capture(
    session: OpenSession, binding: IOBinding, feeds: Sequence[BoundSpan], outputs: dict[str, BoundOutput]
) -> CapturedRun:
    """Record a run on the bound tensors. An output that is bound to the device without memory gets a tensor, and keeps
    it.
    """
    require_capturable(session, feeds, outputs)
    missing = [name for name, output in outputs.items() if output.value is None]
    made: dict[str, OrtValue] = {}
    if missing:
        # An eager run gives the shapes.
        for result in await session.opened().run(feeds, missing):
            with OrtValue(result.span, result.dtype, result.dims, session.device, owned=True):
                label = f"output {result.name}"
                given = {"category": "io", "owner": session.label}
                made[result.name] = OrtValue.on_device(session.device, result.dtype, result.dims, label, **given)
    values = {name: output.value or made[name] for name, output in outputs.items()}
    fetches = [span_of(name, value) for name, value in values.items()]
    tape = await session.opened().record(feeds, fetches)
    binding.outputs.update({name: BoundOutput(value, on_host=False) for name, value in made.items()})
    binding.results = list(values.values())
    return CapturedRun(session, tape, dict(binding.inputs), values)


def span_of(name: str, value: OrtValue) -> BoundSpan:
    return BoundSpan(name, value.span, value.dtype, tuple(value.shape()))


def require_capturable(session: OpenSession, feeds: Sequence[BoundSpan], outputs: dict[str, BoundOutput]) -> None:
    """Raise BindingError or TapeError for faults that are visible before a run is recorded."""
    if session.attention_window:
        raise TapeError(
            f"attention looks back {session.attention_window} positions, which onnxruntime-web ignores in a captured "
            "run; use session.run_with_iobinding"
        )
    require_device(session, feeds, outputs)
    require_apart(feeds, [span_of(name, output.value) for name, output in outputs.items() if output.value])


def require_captured(run: CapturedRun, feeds: Sequence[BoundSpan], outputs: dict[str, BoundOutput]) -> None:
    """Raise BindingError unless the tensors are those with which the run was captured. An output that is bound to the
    device without memory takes the captured tensor.
    """
    for feed in feeds:
        require_same("input", feed, run.inputs[feed.name])
    for name, output in outputs.items():
        if name not in run.outputs:
            had = ", ".join(map(repr, run.outputs))
            raise BindingError(
                f"output {name!r} was not bound when the run was captured; the bound ones were {had}; {REMEDY}"
            )
        if output.on_host:
            raise BindingError(
                f"output {name!r} is bound to 'cpu', but the captured run leaves it on 'webgpu'; {REMEDY}"
            )
        if output.value is not None:
            require_same("output", span_of(name, output.value), run.outputs[name])


REMEDY = "bind the tensors of the first run, or make another session"


def require_same(kind: str, bound: BoundSpan, captured: OrtValue) -> None:
    if (bound.span.buffer, bound.span.offset, list(bound.dims)) == (
        captured.span.buffer,
        captured.span.offset,
        list(captured.shape()),
    ):
        return
    raise BindingError(
        f"{kind} {bound.name!r} is bound to {list(bound.dims)} in buffer {bound.span.buffer.label!r}, and the run was "
        f"captured with another tensor, {list(captured.shape())} in {captured.span.buffer.label!r}, which a replay "
        f"with {GRAPH_CAPTURE} uses; change that tensor by update_inplace, {REMEDY}"
    )


def require_device(session: OpenSession, feeds: Sequence[BoundSpan], outputs: dict[str, BoundOutput]) -> None:
    """Raise unless all bound tensors are in the device's memory: a replay moves nothing between host and device."""
    if session.memory_info.heap == HOST_MEMORY.heap:
        raise TapeError(
            f"{session.get_providers()[0]} has no GPU commands to record; use 'WebGpuExecutionProvider', or run()"
        )
    for name, output in outputs.items():
        if output.on_host:
            raise BindingError(f"output {name!r} is bound to 'cpu', expected 'webgpu': a replay leaves results there")
        if output.value is not None:
            check_use("captured output", output.value.span, what=f"output {name!r} of a captured run")
    for feed in feeds:
        if feed.span.buffer.memory.heap == HOST_MEMORY.heap:
            raise TapeError(f"input {feed.name!r} of type {feed.dtype} cannot be in GPU memory, so no tape can read it")


def require_apart(feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> None:
    """Raise TapeError if a buffer is bound twice and a run writes it: checking the tape would change what the tape
    reads.
    """
    owners: dict[int, str] = {id(feed.span.buffer): f"input {feed.name!r}" for feed in feeds}
    for fetch in fetches:
        other = owners.setdefault(id(fetch.span.buffer), f"output {fetch.name!r}")
        if other != f"output {fetch.name!r}":
            raise TapeError(
                f"output {fetch.name!r} and {other} share buffer {fetch.span.buffer.label!r}; a run in place cannot "
                "be captured; bind separate buffers"
            )
