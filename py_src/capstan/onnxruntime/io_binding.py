"""Implements IOBinding: the tensors of a session's inputs and outputs are bound once and used by many runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..device.element_types import dtype_of
from ..errors import BindingError, BufferMismatchError, OptionError
from ..memory import DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType
from .checks import check_dims, check_dtype, check_held, check_placed, check_room, check_span, known
from .host_array import HostArray
from .open_session import OpenSession
from .ort_value import HOST_MEMORY, OrtValue, arrays_of, host_span, sizes
from .providers import blocking, device_type_of

__all__ = ["BoundOutput", "IOBinding"]


@dataclass(frozen=True)
class BoundOutput:
    """The destination of an output: the tensor `value` if it is given, else a new tensor on the device or in Python's
    heap.
    """

    value: OrtValue | None
    on_host: bool


class IOBinding:
    """Binds the tensors of a session's runs; see onnxruntime.IOBinding. `InferenceSession.io_binding()` makes it.

    A call that raises leaves earlier bindings unchanged. Arrays bound as inputs of a session on WebGPU are copied to
    the device immediately, as in onnxruntime; a session on the CPU uses them in place.
    """

    def __init__(self, session: OpenSession) -> None:
        self.session = session
        self.inputs: dict[str, OrtValue] = {}
        self.outputs: dict[str, BoundOutput] = {}
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array (any PEP 3118 buffer)."""
        spec = known("input", self.session.inputs, name)
        self._bind_host_input(name, HostArray.of(f"input {name!r}", arr_on_cpu, spec.dtype))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: Any
    ) -> None:
        """Bind memory; `buffer_ptr` is a DeviceBuffer, a DeviceSpan, an OrtValue or, on 'cpu', an array."""
        known("input", self.session.inputs, name)
        value = self._value("input", name, device_type, device_id, element_type, shape, buffer_ptr)
        self.bind_ortvalue_input(name, value)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a tensor. A tensor on the device is used in place: each run reads its present contents."""
        spec = known("input", self.session.inputs, name)
        check_dtype("input", spec, ortvalue.dtype)
        check_dims("input", spec, ortvalue.shape())
        check_span("input", name, open_span("input", name, ortvalue), ortvalue.dtype, ortvalue.shape())
        if ortvalue.memory_info.heap == HOST_MEMORY.heap:
            host = ortvalue.host()
            self.inputs[name] = ortvalue if self.session.stays_on_host(host) else self.session.place(name, host)
            return
        check_placed("input", name, ortvalue.span, self.session.memory_info)
        check_held("input", name, ortvalue.dtype, self.session.opened())
        self.inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: Any = None,
        *,
        memory_info: MemoryInfo | None = None,
    ) -> None:
        """Bind an output to new memory of 'cpu' or 'webgpu', made at each run, or to existing memory.

        With `buffer_ptr`, which may be as in `bind_input`, element type and shape are required. Without it, a
        `memory_info` of the session's device may name the memory instead of `device_type`. Host accessible memory means
        'cpu': the result is in Python's heap after the run, and its `numpy()` is a view.
        """
        spec = known("output", self.session.outputs, name)
        if memory_info is not None:
            if buffer_ptr is not None:
                raise OptionError(
                    f"output {name!r}: memory_info names the place of new memory, and buffer_ptr is existing memory; "
                    "leave one of them out"
                )
            device_type = self._device_type(name, memory_info)
        on_host = device_type_of(device_type) == "cpu"
        if buffer_ptr is not None:
            dtype = spec.dtype if element_type is None else element_type
            value = self._value("output", name, device_type, device_id, dtype, shape, buffer_ptr)
            self.bind_ortvalue_output(name, value)
            return
        if element_type is not None:
            check_dtype("output", spec, dtype_of(element_type))
        if shape is not None:
            check_dims("output", spec, shape)
        if not on_host and self.session.memory_info.heap == HOST_MEMORY.heap:
            raise BufferMismatchError(
                f"output {name!r}: device {device_type!r} was requested, but the session computes on "
                f"{self.session.get_providers()[0]}; bind it to 'cpu'"
            )
        self.outputs[name] = BoundOutput(None, on_host)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a tensor, which every run overwrites; its shape must be the result's.

        A tensor in host accessible memory of a GPU gets its copy in the run's own last submit, and is mapped when it is
        read.
        """
        spec = known("output", self.session.outputs, name)
        check_dtype("output", spec, ortvalue.dtype)
        check_dims("output", spec, ortvalue.shape())
        check_span("output", name, open_span("output", name, ortvalue), ortvalue.dtype, ortvalue.shape())
        on_host = ortvalue.memory_info.heap == HOST_MEMORY.heap
        if on_host:
            if ortvalue.host().data.readonly and ortvalue.tensor_size_in_bytes():
                raise BindingError(f"output {name!r}: the array is read-only; bind a writable one")
        else:
            check_placed("output", name, ortvalue.span, self.session.memory_info)
            check_held("output", name, ortvalue.dtype, self.session.opened())
            check_room(name, ortvalue.span, ortvalue.dtype, ortvalue.shape())
        self.outputs[name] = BoundOutput(ortvalue, on_host)

    def clear_binding_inputs(self) -> None:
        """Remove all bound inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove all bound outputs and the results."""
        self.outputs.clear()
        self.results.clear()

    def synchronize_inputs(self) -> None:
        """Does nothing: a run is queued after the copies of its inputs, on the same queue."""

    def synchronize_outputs(self) -> None:
        """Does nothing: reading a result is queued after the run; results bound to 'cpu' are complete after the run."""

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which outputs were bound."""
        return list(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays in Python's heap. Results on a device are all copied with one read."""
        if all(value.device_name() == "cpu" for value in self.results):
            return [value.numpy() for value in self.results]
        call, twin = "copy_outputs_to_cpu", "binding.copy_outputs_to_cpu_async()"
        return blocking(self.session.host, call, twin, self.copy_outputs_to_cpu_async)

    async def copy_outputs_to_cpu_async(self) -> list[Any]:
        """`copy_outputs_to_cpu`, without blocking."""
        return await arrays_of(self.results)

    def _device_type(self, name: str, memory_info: MemoryInfo) -> str:
        """'cpu' or 'webgpu' for the place of an output that a run makes."""
        places = [self.session.device.get_memory_info(kind) for kind in MemoryType]
        if memory_info not in (*places, HOST_MEMORY):
            raise BufferMismatchError(
                f"output {name!r}: {memory_info} is not a memory of the session's device, expected one of "
                f"{', '.join(map(str, places))}; use session.device.get_memory_info"
            )
        staging = memory_info.memory_type is MemoryType.HOST_ACCESSIBLE
        return "cpu" if staging or memory_info.heap == HOST_MEMORY.heap else memory_info.device

    def _bind_host_input(self, name: str, host: HostArray) -> None:
        spec = known("input", self.session.inputs, name)
        check_dtype("input", spec, host.dtype)
        check_dims("input", spec, host.dims)
        self.inputs[name] = self.session.place(name, host)

    def _value(
        self,
        kind: str,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int] | None,
        memory: Any,
    ) -> OrtValue:
        """A tensor that borrows the memory which a script bound by its parts: type, shape and buffer."""
        dtype = dtype_of(element_type)
        if device_id != 0:
            raise BufferMismatchError(f"{kind} {name!r}: device_id is {device_id!r}, expected 0: a page has one device")
        if isinstance(memory, int):
            raise BindingError(
                f"{kind} {name!r}: buffer_ptr is the address {memory:#x}; "
                "give a DeviceBuffer, a DeviceSpan, an OrtValue or an array instead"
            )
        span = span_of(kind, name, memory)
        place = span.buffer.memory
        on_host = place.heap == HOST_MEMORY.heap
        if ("cpu" if on_host else place.device) != device_type_of(device_type):
            raise BufferMismatchError(
                f"{kind} {name!r}: device_type is {device_type!r}, but buffer {span.buffer.label!r} is in "
                f"{place.name} of {place.device}; give the type of the buffer's device"
            )
        if shape is None:
            raise BindingError(f"{kind} {name!r}: a buffer was given without its shape; give the shape, too")
        dims = sizes(shape)
        check_span(kind, name, span, dtype, dims)
        return OrtValue(span, dtype, dims, None if on_host else self.session.device, keep=memory)


def span_of(kind: str, name: str, memory: Any) -> DeviceSpan:
    """The bytes that a script gave for `buffer_ptr`."""
    if isinstance(memory, OrtValue):
        return open_span(kind, name, memory)
    if isinstance(memory, DeviceBuffer):
        if memory.closed:
            raise BufferMismatchError(f"{kind} {name!r}: buffer {memory.label!r} was closed; bind an open one")
        return memory.span()
    if isinstance(memory, DeviceSpan):
        return memory
    what = f"{kind} {name!r}"
    return host_span((HostArray.of(what, memory) if kind == "input" else HostArray.to_write(what, memory)).data)


def open_span(kind: str, name: str, value: OrtValue) -> DeviceSpan:
    """The bytes of a tensor to bind. Raises BufferMismatchError if it was closed."""
    if not value.has_value():
        raise BufferMismatchError(f"{kind} {name!r}: the OrtValue was closed; bind an open one")
    return value.span
