"""CapturedRun: one run of a static-shape model as a tape of GPU commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..device.interface import BoundSpan, DeviceTape
from ..errors import BindingError, ClosedError, TapeError
from .io_binding import BoundOutput, IOBinding
from .ort_value import HOST_MEMORY, OrtValue
from .providers import blocking

if TYPE_CHECKING:
    from .session import InferenceSession

__all__ = ["CapturedRun", "capture"]


class CapturedRun:
    """A recorded run, replayed without onnxruntime-web; made by `InferenceSession.capture`.

    It reads the tensors that were bound as inputs and writes those bound as outputs: change an input by its
    `update_inplace`, then `replay()`, then read an output. It was compared with an eager run before it was handed out,
    owns the session that it was recorded from, and stays usable when the InferenceSession is closed. `close` frees it.
    """

    def __init__(
        self, session: InferenceSession, tape: DeviceTape, inputs: dict[str, OrtValue], outputs: dict[str, OrtValue]
    ) -> None:
        self._host = session.host
        self._device = session.device
        self._device.retain()
        self._tape: DeviceTape | None = tape
        self.inputs = inputs
        self.outputs = outputs

    @property
    def passes(self) -> dict[str, str]:
        """What was done to the recorded commands."""
        return dict(self._opened().passes)

    def replay(self) -> None:
        """Queue the run once; nothing waits, whatever is queued afterwards sees the results."""
        tape = self._opened()
        for name, value in [*self.inputs.items(), *self.outputs.items()]:
            if not value.has_value():
                raise ClosedError(f"the OrtValue of {name!r} was closed, which the captured run uses; capture again")
        tape.replay()

    def get_outputs(self) -> list[OrtValue]:
        """The tensors that each replay writes, in the order in which they were bound."""
        return list(self.outputs.values())

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


async def capture(session: InferenceSession, binding: IOBinding) -> CapturedRun:
    """Record a run on what is bound; outputs bound to the device without memory get a tensor each, and keep it."""
    if session.attention_window:
        raise TapeError(
            f"attention looks back {session.attention_window} positions, which onnxruntime-web leaves out of a "
            "captured run; use session.run_with_iobinding"
        )
    feeds, outputs = session.bound(binding)
    require_device(session, feeds, outputs)
    missing = [name for name, output in outputs.items() if output.value is None]
    made: dict[str, OrtValue] = {}
    if missing:
        # An eager run tells the shapes.
        for result in await session.opened().run(feeds, missing):
            with OrtValue(result.span, result.dtype, result.dims, session.device, owned=True):
                label = f"output {result.name}"
                given = {"category": "io", "owner": session.label}
                made[result.name] = OrtValue.on_device(session.device, result.dtype, result.dims, label, **given)
    values = {name: output.value or made[name] for name, output in outputs.items()}
    fetches = [BoundSpan(name, value.span, value.dtype, tuple(value.shape())) for name, value in values.items()]
    require_apart(feeds, fetches)
    tape = await session.opened().record(feeds, fetches)
    binding.outputs.update({name: BoundOutput(value, on_host=False) for name, value in made.items()})
    binding.results = list(values.values())
    return CapturedRun(session, tape, dict(binding.inputs), values)


def require_device(session: InferenceSession, feeds: Sequence[BoundSpan], outputs: dict[str, BoundOutput]) -> None:
    """Raise unless everything that is bound is memory of the device: a replay moves nothing between host and device."""
    if session.memory_info.heap == HOST_MEMORY.heap:
        raise TapeError(
            f"{session.get_providers()[0]} has no GPU commands to record; use 'WebGpuExecutionProvider', or run()"
        )
    for name, output in outputs.items():
        if output.on_host:
            raise BindingError(f"output {name!r} is bound to 'cpu', expected 'webgpu': a replay leaves results there")
    for feed in feeds:
        if feed.span.buffer.memory.heap == HOST_MEMORY.heap:
            raise TapeError(f"input {feed.name!r} of type {feed.dtype} cannot be in GPU memory, so no tape can read it")


def require_apart(feeds: Sequence[BoundSpan], fetches: Sequence[BoundSpan]) -> None:
    """Raise TapeError if a buffer is bound twice and written: checking the tape would change what it reads."""
    owners: dict[int, str] = {id(feed.span.buffer): f"input {feed.name!r}" for feed in feeds}
    for fetch in fetches:
        other = owners.setdefault(id(fetch.span.buffer), f"output {fetch.name!r}")
        if other != f"output {fetch.name!r}":
            raise TapeError(
                f"output {fetch.name!r} and {other} share buffer {fetch.span.buffer.label!r}; "
                "a run in place cannot be captured, bind a buffer of its own"
            )
