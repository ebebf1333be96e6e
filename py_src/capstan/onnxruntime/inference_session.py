"""Implements InferenceSession, which runs any ONNX model on onnxruntime-web with the interface of the native
onnxruntime.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ..device.device_interface import BoundSpan, DeviceInterface, DeviceSession, Fetch, OnHost, TensorSpec
from ..device.element_types import ELEMENT_TYPES, byte_count
from ..errors import BindingError
from ..host import Host, current_host
from ..host.leaving import when_dropped
from ..memory import AlignmentRequirements, DeviceBuffer, DeviceSpan, Way, way_between
from .captured import AutomaticCapture, CapturedRun, capture, run_eagerly, span_of
from .checks import check_apart, check_dims, check_dtype, check_held, check_placed, check_span, known
from .host_array import HostArray
from .io_binding import BoundOutput, IOBinding, open_span
from .open_session import OpenSession
from .ort_value import HOST_MEMORY, OrtValue, host_bytes, host_span
from .providers import WEBGPU, Asked, asked_for, blocking, provider_of
from .requirements import Ran, SessionRequirements, session_requirements
from .session_options import SessionOptions, keeps_weights
from .session_placement import GraphFile, Placed, place_session

__all__ = ["InferenceSession", "NodeArg"]

numbers = itertools.count(1)


@dataclass(frozen=True)
class NodeArg:
    """Describes an input or output. `shape` holds sizes, names of free dimensions, and None for free dimensions without
    a name.
    """

    name: str
    shape: list[int | str | None]
    type: str
    """Such as 'tensor(float)'."""


class InferenceSession(OpenSession):
    """A model ready to run; see onnxruntime.InferenceSession.

    `path_or_bytes` is a URL of the page's origin, a file, or the serialized model. External data is read from files
    next to the path, kept in the browser's storage unless `sess_options` turn that off, and on WebGPU shared by all
    sessions and models of the page. `providers` are names, or pairs (name, options), in order of preference:
    'WebGpuExecutionProvider' (or 'webgpu') and 'CPUExecutionProvider' ('wasm', 'cpu'). A fallback to the next one
    gives a warning; the default is WebGPU on a hardware adapter, else the CPU. `get_providers()` returns the provider
    in use.

    With ('WebGpuExecutionProvider', {'enableGraphCapture': '1'}) the first `run_with_iobinding` is captured, as by
    `capture`, and later runs are replays: they read and write the tensors of the first run, and other tensors raise
    BindingError. A run that cannot be captured is eager, with a FallbackWarning that gives the reason.

    `InferenceSession(...)` blocks, which in a page needs JavaScript Promise Integration; `await
    InferenceSession.create(...)` never blocks. The same holds for every method that has a twin named `..._async`.

    Raises ModelFileError, UnsupportedModelError, OptionError, DeviceUnavailableError, OutOfMemoryError.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        keep = keeps_weights(sess_options)
        host = current_host()
        asked = asked_for(providers, provider_options)
        label = f"InferenceSession {next(numbers)}"
        call, twin = "InferenceSession(...)", "InferenceSession.create(...)"
        placed = blocking(host, call, twin, lambda: place_session(host, path_or_bytes, asked.providers, label, keep))
        self._set(host, label, placed, asked.capture)

    @classmethod
    async def create(
        cls,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> InferenceSession:
        """Make a session without blocking; see the class for the arguments and errors."""
        asked = asked_for(providers, provider_options)
        return await cls.of_graph(path_or_bytes, asked, keeps_weights(sess_options))

    @classmethod
    async def of_graph(
        cls, graph: str | bytes | os.PathLike[str] | GraphFile, asked: Asked, keep: bool
    ) -> InferenceSession:
        """Make a session like `create`, also for a graph that is rewritten first."""
        host = current_host()
        label = f"InferenceSession {next(numbers)}"
        placed = await place_session(host, graph, asked.providers, label, keep)
        session = cls.__new__(cls)
        session._set(host, label, placed, asked.capture)
        return session

    def _set(self, host: Host, label: str, placed: Placed, capture: bool) -> None:
        self._open(host, label, placed)
        self._weights, self._activations = placed.weights, placed.activations
        self._ran: Ran | None = None
        self._spare: dict[str, DeviceBuffer] = {}
        """Input buffers of `run` that are not in use."""
        automatic = AutomaticCapture() if capture and provider_of(placed.device) == WEBGPU else None
        self._automatic = automatic
        spare = self._spare
        self._finalizer = when_dropped(self, host, lambda: freed(placed.session, placed.device, spare, automatic))

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the model's order."""
        return [node_arg(spec) for spec in self.inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order."""
        return [node_arg(spec) for spec in self.outputs.values()]

    def query_memory_requirements(self, shapes: Mapping[str, Sequence[int]] | None = None) -> SessionRequirements:
        """Bytes of the session and of a run with inputs of these shapes: weights, each input and output, and
        onnxruntime's scratch, which is an estimate unless the last run had these shapes. Inputs without free dimensions
        may be left out. Raises BindingError.
        """
        self.opened()
        alignment = self.alignment_requirements().start
        return session_requirements(
            *(self.device.type, self.label, self.inputs, self.outputs, self._weights, self._activations),
            *(shapes or {}, self._ran, alignment),
        )

    def alignment_requirements(self) -> AlignmentRequirements:
        """The start, size and span alignments of buffers for inputs and outputs, in bytes. Each tensor has a separate
        buffer.
        """
        return AlignmentRequirements.of(self.memory_info, self.device.about())

    def _note(self, feeds: Sequence[BoundSpan], results: Sequence[BoundSpan]) -> None:
        """Remember the shapes of a run."""
        self._ran = Ran({feed.name: feed.dims for feed in feeds}, {result.name: result.dims for result in results})

    def io_binding(self) -> IOBinding:
        """A binding with nothing bound."""
        return IOBinding(self)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], *, out: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Run on arrays (PEP 3118 buffers) or OrtValues; returns the named outputs (None means all) as arrays.

        Outputs named in `out` are written directly into the given arrays. From a GPU all outputs come in the run's own
        last submit, with one map. Raises BindingError for names, types and shapes that the model does not have, and for
        arrays that overlap.
        """
        twin = "session.run_async(...)"
        return blocking(self.host, "session.run", twin, lambda: self.run_async(output_names, input_feed, out=out))

    async def run_async(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], *, out: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """`run`, without blocking."""
        session = self.opened()
        if self._automatic is not None:
            run_eagerly("run() places its arrays again in each run; bind them, and use run_with_iobinding")
        names = list(self.outputs if output_names is None else output_names)
        targets = self._targets(names, out or {})
        with ExitStack() as borrowed:
            given = [self._given(name, value) for name, value in self._complete(input_feed).items()]

            def spare(name: str, size: int) -> DeviceBuffer:
                buffer = self._taken(name, size)
                borrowed.callback(self._give_back, name, buffer)
                return buffer

            feeds = await self._moved(given, spare)
            fetches: list[Fetch] = [
                BoundSpan(name, host_span(targets[name].data), targets[name].dtype, targets[name].dims)
                if name in targets
                else OnHost(name)
                for name in names
            ]
            check_apart(feeds, fetches, self.in_place)
            results = await session.run(feeds, fetches)
        self._note(feeds, results)
        return [
            out[result.name] if out and result.name in targets else self._value(result).numpy() for result in results
        ]

    def run_with_iobinding(self, iobinding: IOBinding) -> None:
        """Run on the bound tensors; `iobinding.get_outputs()` are the results.

        Results bound to the host are complete then: from a GPU they come in the run's own last submit, with one map.
        Raises BindingError, before anything runs, for an output that overlaps another tensor of the run.
        """
        twin = "session.run_with_iobinding_async(binding)"
        call = "session.run_with_iobinding"
        blocking(self.host, call, twin, lambda: self.run_with_iobinding_async(iobinding))

    async def run_with_iobinding_async(self, iobinding: IOBinding) -> None:
        """`run_with_iobinding`, without blocking."""
        session = self.opened()
        feeds, outputs = self.bound(iobinding)
        fetches = [self._fetch(name, output) for name, output in outputs.items()]
        check_apart(feeds, fetches, self.in_place)
        if self._automatic is not None and await self._automatic.run(self, iobinding, feeds, outputs):
            self._note(feeds, [span_of(name, value) for name, value in zip(outputs, iobinding.results, strict=True)])
            return
        results = await session.run(feeds, fetches)
        self._note(feeds, results)
        iobinding.results = [
            output.value or self._value(result) for output, result in zip(outputs.values(), results, strict=True)
        ]

    def capture(self, iobinding: IOBinding) -> CapturedRun:
        """Record one run on the bound tensors as a tape of GPU commands; see CapturedRun. Raises TapeError with the
        reason if that is impossible: on the CPU, for outputs bound to 'cpu', for models with control flow, nodes that
        work in place or attention with a window.
        """
        twin = "session.capture_async(binding)"
        return blocking(self.host, "session.capture", twin, lambda: self.capture_async(iobinding))

    async def capture_async(self, iobinding: IOBinding) -> CapturedRun:
        """`capture`, without blocking."""
        return await capture(self, iobinding, *self.bound(iobinding))

    def close(self) -> None:
        """`aclose`, blocking."""
        blocking(self.host, "session.close()", "session.aclose()", self.aclose)

    async def aclose(self) -> None:
        """Free the session; results stay. Closing twice is harmless."""
        session, self._session = self._session, None
        self._finalizer.detach()
        if session is not None:
            await freed(session, self.device, self._spare, self._automatic)

    async def __aenter__(self) -> InferenceSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bound(self, iobinding: IOBinding) -> tuple[list[BoundSpan], dict[str, BoundOutput]]:
        """The bound inputs and outputs of a run. Raises BindingError if an input or output is not bound,
        BufferMismatchError if its buffer was closed.
        """
        if iobinding.session is not self:
            raise BindingError("this binding belongs to another session; use session.io_binding() of this one")
        inputs = self._complete(iobinding.inputs)
        if not iobinding.outputs:
            raise BindingError(f"no output is bound; the model has {', '.join(map(repr, self.outputs))}")
        feeds = [BoundSpan(name, open_span("input", name, v), v.dtype, tuple(v.shape())) for name, v in inputs.items()]
        for feed in feeds:
            check_span("input", feed.name, feed.span, feed.dtype, feed.dims)
        return feeds, dict(iobinding.outputs)

    async def _moved(self, given: Sequence[BoundSpan], spare: Callable[[str, int], DeviceBuffer]) -> list[BoundSpan]:
        """The inputs in memory that the session can bind: in place if possible, else in a buffer from `spare(name,
        size)`.
        """
        feeds: list[BoundSpan] = []
        copies: list[tuple[DeviceSpan, DeviceSpan]] = []
        mapped: list[tuple[DeviceSpan, DeviceSpan]] = []
        for feed in given:
            source = feed.span.sub(0, byte_count(feed.dtype, feed.dims))
            way = way_between(source.buffer.memory, self.memory_info)
            on_host = source.buffer.memory.heap == HOST_MEMORY.heap
            bound = way is Way.SHARED and source.offset == 0
            if bound or (on_host and self.stays_on_host(HostArray(host_bytes(feed.span), feed.dtype, feed.dims))):
                feeds.append(feed)
                continue
            target = spare(feed.name, source.length).span()
            if way is Way.WRITE:
                self.device.copy_cpu_to_device(target, host_bytes(source))
            else:
                (mapped if way is Way.MAP else copies).append((source, target))
            feeds.append(BoundSpan(feed.name, target, feed.dtype, feed.dims))
        if copies:
            self.device.copy_tensors(copies)
        if mapped:
            await self.device.copy_through_host(mapped)
        return feeds

    def _given(self, name: str, value: Any) -> BoundSpan:
        """An input of `run` in the caller's memory, checked."""
        spec = self.inputs[name]
        if isinstance(value, OrtValue) and value.device_name() != "cpu":
            span, dtype, dims = open_span("input", name, value), value.dtype, tuple(value.shape())
        else:
            host = HostArray.of(f"input {name!r}", value.numpy() if isinstance(value, OrtValue) else value, spec.dtype)
            span, dtype, dims = host_span(host.data), host.dtype, host.dims
        check_dtype("input", spec, dtype)
        check_dims("input", spec, dims)
        check_span("input", name, span, dtype, dims)
        place, own = span.buffer.memory, self.memory_info
        if place.heap != HOST_MEMORY.heap:
            if (place.device, place.device_id) != (own.device, own.device_id):
                check_placed("input", name, span, own)
            check_held("input", name, dtype, self.opened())
        return BoundSpan(name, span, dtype, dims)

    def _taken(self, name: str, size: int) -> DeviceBuffer:
        """A buffer of the device for an input of `run`: the spare one if it has the size, else a new one."""
        buffer = self._spare.pop(name, None)
        if buffer is not None and buffer.size == size:
            return buffer
        if buffer is not None:
            buffer.close()
        return self.device.allocate(size, label=f"input {name}", category="io", owner=self.label)

    def _give_back(self, name: str, buffer: DeviceBuffer) -> None:
        if self._session is None or name in self._spare:
            buffer.close()
        else:
            self._spare[name] = buffer

    def _complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs in the model's order. Raises BindingError for an unknown or missing one."""
        for name in given:
            known("input", self.inputs, name)
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise BindingError(f"input {missing[0]!r} is missing; the model has {', '.join(map(repr, self.inputs))}")
        return {name: given[name] for name in self.inputs}

    def _targets(self, names: Sequence[str], out: Mapping[str, Any]) -> dict[str, HostArray]:
        """The arrays of `out`, with the checks that are possible before the run."""
        for name in names:
            known("output", self.outputs, name)
        targets = {}
        for name, array in out.items():
            spec = known("output", self.outputs, name)
            if name not in names:
                raise BindingError(f"out has {name!r}, which is not among the requested outputs, {list(names)}")
            target = HostArray.to_write(f"out[{name!r}]", array, spec.dtype)
            check_dtype("output", spec, target.dtype)
            check_dims("output", spec, target.dims)
            targets[name] = target
        return targets

    def _fetch(self, name: str, output: BoundOutput) -> Fetch:
        """The destination of an output of a bound run."""
        value = output.value
        if value is None:
            return OnHost(name) if output.on_host else name
        span = open_span("output", name, value)
        check_span("output", name, span, value.dtype, value.shape())
        return BoundSpan(name, span, value.dtype, tuple(value.shape()))

    def _value(self, result: BoundSpan) -> OrtValue:
        """A result in memory that the device's session made."""
        device = None if result.span.buffer.memory.heap == HOST_MEMORY.heap else self.device
        return OrtValue(result.span, result.dtype, result.dims, device, owned=True)


def node_arg(spec: TensorSpec) -> NodeArg:
    kind = ELEMENT_TYPES[spec.dtype].tensor
    return NodeArg(spec.name, [None if size == "?" else size for size in spec.dims], kind)


async def freed(
    session: DeviceSession,
    device: DeviceInterface,
    spare: dict[str, DeviceBuffer],
    automatic: AutomaticCapture | None,
) -> None:
    """Free a session with its captured run and its input buffers."""
    if automatic is not None:
        await automatic.close()
    for buffer in spare.values():
        buffer.close()
    spare.clear()
    await session.close()
    device.close()
