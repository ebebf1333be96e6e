"""Implements DeviceSession on CPython, with the native onnxruntime's CPU provider and memory in Python's heap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ...errors import BindingError, ClosedError, UnsupportedModelError, ValidationError
from ...host.storage_interface import ExternalData
from ...memory import DeviceBuffer, DeviceSpan, MemoryInfo
from ..device_interface import BoundSpan, DeviceSession, Fetch, OnHost, TensorSpec

__all__ = ["PROVIDER", "ReferenceSession", "array_of", "one_line", "whole_files"]

PROVIDER = "CPUExecutionProvider"

MOST_CHARACTERS = 1000
"""The most characters of onnxruntime's message in an error."""
DTYPES = {"float": "float32", "double": "float64"}
"""Names that differ between onnxruntime and numpy."""


class ReferenceSession(DeviceSession):
    """A session over spans whose handles are bytearrays or memoryviews; results are onnxruntime's own memory."""

    def __init__(self, session: Any, memory: MemoryInfo) -> None:
        self._session: Any = session
        self._memory = memory
        self.inputs = tuple(spec_of(argument) for argument in session.get_inputs())
        self.outputs = tuple(spec_of(argument) for argument in session.get_outputs())

    @classmethod
    def open(cls, model: bytes, external: Mapping[str, bytes], memory: MemoryInfo) -> ReferenceSession:
        """A session over a serialized model; `memory` is the device's place. Raises UnsupportedModelError."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if external:
            names, files = list(external), list(external.values())
            options.add_external_initializers_from_files_in_memory(names, files, [len(file) for file in files])
        try:
            return cls(onnxruntime.InferenceSession(model, options, providers=[PROVIDER]), memory)
        except Exception as error:
            raise UnsupportedModelError(f"onnxruntime could not create a session: {one_line(error)}") from error

    async def run(self, feeds: Sequence[BoundSpan], fetches: Sequence[Fetch]) -> list[BoundSpan]:
        if self._session is None:
            raise ClosedError("this session was closed; make another one")
        binding = self._session.io_binding()
        arrays = [array_of(feed) for feed in feeds]
        for feed, array in zip(feeds, arrays, strict=True):
            binding.bind_cpu_input(feed.name, array)
        for fetch in fetches:
            if isinstance(fetch, BoundSpan):
                target = array_of(fetch)
                arrays.append(target)
                binding.bind_output(fetch.name, "cpu", 0, target.dtype, target.shape, target.ctypes.data)
            else:
                binding.bind_output(name_of(fetch))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            kind = BindingError if any(isinstance(f, BoundSpan) for f in fetches) else ValidationError
            raise kind(f"onnxruntime could not run the model: {one_line(error)}") from error
        results = binding.get_outputs()
        return [
            fetch if isinstance(fetch, BoundSpan) else self._result(name_of(fetch), value.numpy())
            for fetch, value in zip(fetches, results, strict=True)
        ]

    async def close(self) -> None:
        self._session = None

    def _result(self, name: str, array: np.ndarray[Any, np.dtype[Any]]) -> BoundSpan:
        data = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
        buffer = DeviceBuffer(data, array.nbytes, self._memory, label=f"output {name}", free=lambda: None)
        return BoundSpan(name, buffer.span(), str(array.dtype), array.shape)


def one_line(error: Exception) -> str:
    """onnxruntime's message, in one line; a long one is cut."""
    text = " ".join(str(error).split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def array_of(tensor: BoundSpan) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor's bytes as an array, without a copy."""
    span: DeviceSpan = tensor.span
    if not span.length:
        return np.empty(tensor.dims, tensor.dtype)
    data = memoryview(span.buffer.handle)[span.offset : span.offset + span.length]
    count = int(np.prod(tensor.dims))
    return np.frombuffer(data, tensor.dtype, count).reshape(tensor.dims)


def name_of(fetch: OnHost | str) -> str:
    return fetch if isinstance(fetch, str) else fetch.name


def spec_of(argument: Any) -> TensorSpec:
    kind = argument.type.removeprefix("tensor(").removesuffix(")")
    dims = tuple("?" if size is None else size for size in argument.shape)
    return TensorSpec(argument.name, DTYPES.get(kind, kind), dims)


async def whole_files(external: ExternalData | None) -> dict[str, bytes]:
    """The data files of a model by location, up to the last byte that it needs."""
    found: dict[str, bytes] = {}
    if external is None:
        return found
    for location, end in external.ends.items():
        file = await external.open(location)
        try:
            found[location] = await file.read(0, end)
        finally:
            file.close()
    return found
