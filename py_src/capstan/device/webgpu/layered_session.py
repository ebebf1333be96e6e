"""Runs an encoder's graph whose layers are computed by Capstan's kernels. onnxruntime-web runs the parts of the graph
before and after the layers.

The kernels are planned from the graph, and nothing is recorded. Capstan uses them only after one of their runs gave the
same results as a run of the whole graph. This run is made in this page or, according to a note, was made in an earlier
page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from math import prod
from typing import TypeVar

from ...errors import BindingError, OutOfMemoryError, TapeError, UnsupportedModelError, ValidationError
from ...fallback import fall_back
from ...graph import parse, serialize
from ...graph.encoder_layers import after_layers, before_layers, encoder_layers
from ...graph.onnx_pb2 import ModelProto, TensorProto
from ...host.notes import Notes, build
from ...memory import DeviceBuffer, DeviceSpan
from ...tape import WorkgroupLimits, encoder_run
from ..device_interface import BoundSpan, DeviceInterface, DeviceSession, Fetch
from ..element_types import byte_count
from .tapes.comparison import LAYERED_RUN, Compared, require_alike
from .webgpu_session import WebGpuSession

__all__ = ["LayeredSession"]

HALF = "float16"
RIGHT = "right"
REFUSALS = (TapeError, UnsupportedModelError, OutOfMemoryError, BindingError, ValidationError)
T = TypeVar("T")
ENDS = ("the input of the layers", "the output of the layers")


class Layers:
    """The layers' tape for inputs of one size, between the sessions before and after it."""

    def __init__(self, device: DeviceInterface, whole: WebGpuSession, feeds: Sequence[BoundSpan]) -> None:
        """Raises UnsupportedModelError if the graph has no layers that Capstan's kernels compute."""
        self.device, self.whole, self.engine = device, whole, whole.engine
        self.model: ModelProto | None = parse(whole.weights.model)
        self.found = encoder_layers(self.model)
        self.sizes = {feed.name: feed.dims for feed in feeds}
        self.weights: dict[str, int] = {}
        """Their buffers by name."""
        self.held: list[DeviceBuffer] = []
        """Weights that it loaded, and the tensors that enter and leave."""
        self.sessions: list[WebGpuSession] = []
        """The session of the graph before the layers and, once their input's shape is known, that of the graph after
        them.
        """
        self.ends: tuple[DeviceSpan, DeviceSpan] | None = None
        """The tape's input and output memory, once the tape is made."""
        self.dims: tuple[int, ...] = ()
        self.tape = 0
        self.report = ""
        """The number of operations, for reports."""

    async def open(self) -> None:
        """Make the first session, and load the weights that have no buffer yet."""
        assert self.model is not None
        names = {name for layer in self.found.layers for name in layer.names}
        packed = {name for layer in self.found.layers for name in layer.packed}
        inline = {tensor.name: tensor for tensor in self.model.graph.initializer if tensor.name in names}
        fed = {tensor.name: tensor for tensor in self.whole.weights.tensors if tensor.name in names}
        for name in sorted(names - packed):
            half = fed[name].dtype == HALF if name in fed else inline[name].data_type == TensorProto.FLOAT16
            if not half:
                raise UnsupportedModelError(f"{name} is not float16, the type that the kernels take")
        self.weights.update((name, tensor.buffer) for name, tensor in fed.items())
        for name in sorted(names - fed.keys()):
            data = inline[name].raw_data
            if not data:
                raise UnsupportedModelError(f"the bytes of {name} are missing")
            held = self.allocated(len(data), name, "weights")
            self.device.copy_cpu_to_device(held.span(), data)
            self.weights[name] = held.handle
        await self.add_session(before_layers(self.model, self.found, self.sizes))

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        """See DeviceSession. Raises TapeError for tensors that no kernel takes, or whose size changed."""
        sizes = {feed.name: feed.dims for feed in feeds}
        if sizes != self.sizes:
            raise TapeError(f"the graph's inputs are {shown(sizes)}; the layers' tape is for {shown(self.sizes)}")
        [entered] = await self.sessions[0].run(read_by(self.sessions[0], feeds), [self.found.enter])
        try:
            enter, leave = self.ends or await self.make(entered)
            if entered.dims != self.dims:
                raise TapeError(f"the layers' input is {list(entered.dims)}; their tape is for {list(self.dims)}")
            self.device.copy_tensors([(entered.span.sub(0, enter.length), enter)])
            self.engine.play_once(self.tape, 0)
            left = BoundSpan(self.found.leave, leave, HALF, self.dims)
            return await self.sessions[1].run(read_by(self.sessions[1], [left, *feeds]), fetches)
        finally:
            entered.span.buffer.close()

    async def make(self, entered: BoundSpan) -> tuple[DeviceSpan, DeviceSpan]:
        """Make the tape for the tensor that enters the layers, and the session after the layers."""
        *batch, rows, width = entered.dims
        if prod(batch) != 1 or entered.dtype != HALF:
            raise TapeError(f"the layers' input is {entered.dtype} {list(entered.dims)}, not one picture in float16")
        assert self.model is not None
        await self.add_session(after_layers(self.model, self.found, self.sizes, TensorProto.FLOAT16, rows))
        self.model = None
        size = byte_count(HALF, (rows, width))
        enter, leave = (self.allocated(size, label, "scratch") for label in ENDS)
        handles = {**self.weights, self.found.enter: enter.handle, self.found.leave: leave.handle}
        ids = {name: place for place, name in enumerate(handles, 1)}
        placement, step = encoder_run(self.found, ids, rows, WorkgroupLimits.of(self.engine.adapter()))
        stored = {
            "played": step.played,
            "fused": step.spec(self.whole.owner),
            "written": [ids[self.found.enter], ids[self.found.leave]],
            "given": list(ids.values()),
            "tables": [],
            **{name: {} for name in ("pipelines", "groups", "buffers")},
        }
        given = {ids[name]: handle for name, handle in handles.items()}
        self.tape = await self.engine.restore_tape(stored, given, self.whole.owner)
        self.dims, self.ends = entered.dims, (enter.span(), leave.span())
        self.report = f"{len(self.found.layers)} layers are {len(placement.nodes)} operations"
        return self.ends

    def allocated(self, size: int, label: str, category: str) -> DeviceBuffer:
        self.held.append(self.device.allocate(size, label=label, category=category, owner=self.whole.owner))
        return self.held[-1]

    async def add_session(self, part: ModelProto) -> None:
        """Make a session of a part of the graph; the session of the whole graph holds the part's weights."""
        whole, read = self.whole, {value.name for value in part.graph.input}
        tensors = [tensor for tensor in whole.weights.tensors if tensor.name in read]
        make = partial(whole.engine.open_session, serialize(part), tensors, whole.owner)
        self.sessions.append(await WebGpuSession.start(whole.engine, make, whole.memory, whole.owner))

    async def close(self) -> None:
        tape, self.tape, self.ends = self.tape, 0, None
        if tape:
            self.engine.close_tape(tape)
        while self.sessions:
            await self.sessions.pop().close()
        while self.held:
            self.held.pop().close()


def shown(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {list(dims)}" for name, dims in sizes.items())


def read_by(session: DeviceSession, feeds: Sequence[BoundSpan]) -> list[BoundSpan]:
    names = {spec.name for spec in session.inputs}
    return [feed for feed in feeds if feed.name in names]


async def open_layers(device: DeviceInterface, whole: WebGpuSession, feeds: Sequence[BoundSpan]) -> Layers:
    """The layers of a session's graph. Raises UnsupportedModelError if it has none that Capstan's kernels compute."""
    layers = Layers(device, whole, feeds)
    try:
        await layers.open()
    except BaseException:
        await layers.close()
        raise
    return layers


class LayeredSession(DeviceSession):
    """A session whose later runs compute its layers with Capstan's kernels, if these give the same results."""

    def __init__(self, device: DeviceInterface, whole: WebGpuSession, notes: Notes | None) -> None:
        self.inputs, self.outputs = whole.inputs, whole.outputs
        self.device, self.engine, self.whole = device, whole.engine, whole
        # A later load cannot identify weights whose source has no identity.
        self.notes = None if None in whole.weights.contents else notes
        self.layers: Layers | None = None
        self.refused = ""
        """The reason why onnxruntime-web runs the whole graph; empty if it does not."""

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        if self.layers is None and not self.refused and await self._known():
            self.layers = await self._tried(open_layers(self.device, self.whole, feeds))
        if self.layers is not None and not self.refused:
            made = await self._tried(self.layers.run(feeds, fetches))
            if made is not None:
                return made
        found = await self.whole.run(feeds, fetches)
        if self.layers is None and not self.refused:
            try:
                self.layers = await self._tried(self._compared(feeds, found))
            except BaseException:
                free(found)
                raise
        return found

    async def _tried(self, work: Awaitable[T]) -> T | None:
        """The result of a run by layers; None, with the reason counted, if the whole graph must run instead."""
        try:
            return await work
        except REFUSALS as error:
            if not self.engine.healthy():
                raise
            if self.layers is None or self.layers.ends is None:
                self.refused = str(error)
            fall_back("layers of a vision graph on our kernels", str(error), "onnxruntime-web runs the whole graph")
            return None

    async def _compared(self, feeds: Sequence[BoundSpan], wanted: Sequence[BoundSpan]) -> Layers:
        """Make the layers, run them, and return them if the results are the expected ones."""
        layers = await open_layers(self.device, self.whole, feeds)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(layers.close)
            made = await layers.run(feeds, [each.name for each in wanted])
            try:
                pairs = [compared(*pair) for pair in zip(made, wanted, strict=True)]
                message = "a run by layers differs from one of the whole graph"
                await require_alike(self.engine, message, pairs, LAYERED_RUN, [each.name for each in wanted])
            finally:
                free(made)
            undo.pop_all()
        if self.notes is not None:
            await self.notes.write(*self._note(), RIGHT)
        return layers

    async def _known(self) -> bool:
        """Whether an earlier page found the layers correct."""
        return self.notes is not None and await self.notes.read(*self._note()) == RIGHT

    def _note(self) -> tuple[str, str]:
        """The name of the note that the layers are right, and its key: all facts that may change this finding."""
        device = asdict(self.device.about())
        graph = hashlib.sha256(self.whole.weights.model).hexdigest()
        facts = [build(), device | {"features": sorted(device["features"])}, graph, self.whole.weights.contents]
        return f"layers of the graph {graph}", json.dumps(facts, sort_keys=True)

    async def close(self) -> None:
        layers, self.layers = self.layers, None
        if layers is not None:
            await layers.close()
        await self.whole.close()


def free(parts: Sequence[BoundSpan]) -> None:
    for each in parts:
        each.span.buffer.close()


def compared(made: BoundSpan, wanted: BoundSpan) -> Compared:
    size = byte_count(made.dtype, made.dims)
    return Compared(made.name, made.span.buffer.handle, wanted.span.buffer.handle, size, made.dtype)
