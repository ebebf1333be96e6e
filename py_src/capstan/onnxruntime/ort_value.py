"""Implements OrtValue, a tensor in Python's heap or on a device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import index
from typing import Any

from ..device.device_interface import DeviceInterface
from ..device.element_types import ELEMENT_TYPES, byte_count, dtype_of
from ..errors import BindingError, BufferMismatchError, ClosedError, OptionError
from ..host import current_host
from ..memory import DeviceBuffer, DeviceSpan, MemoryInfo, MemoryType
from .host_array import HostArray, as_array, empty
from .providers import at_once, blocking, device_type_of, open_device

__all__ = ["HOST_MEMORY", "OrtValue", "arrays_of", "host_bytes", "host_span", "store"]

HOST_MEMORY = MemoryInfo("Cpu", "cpu", MemoryType.DEFAULT, heap="python", alignment=1)
"""The memory of the program's arrays, which is also that of the buffers of CPU devices."""


class OrtValue:
    """A tensor; see onnxruntime.OrtValue.

    A value in Python's heap ('cpu') shares the memory of the array from which it was made, and `numpy()` is a view of
    it. A value on a device owns a buffer there, or borrows one; an owned one is freed by `close`, at the end of a
    `with` block or with the last reference to the value. Each method that waits has a twin with `_async` at the end of
    its name.
    """

    def __init__(
        self,
        span: DeviceSpan,
        dtype: str,
        dims: Sequence[int],
        device: DeviceInterface | None = None,
        *,
        owned: bool = False,
        keep: Any = None,
    ) -> None:
        """`device` is None for Python's heap. If `owned` is True, closing the value also closes its buffer. `keep` is
        an object that lives as long as the value.
        """
        self._span = span
        self._dtype = dtype
        self._dims = tuple(dims)
        self._device = device
        self._keep = keep
        self._free = None
        if owned:
            if device is not None:
                device.retain()
            self._free = weakref.finalize(self, free, span.buffer, device)

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, /, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor over an array (any PEP 3118 buffer): the same memory on 'cpu', one copy on 'webgpu'."""
        if on_host(device_type, device_id):
            return cls._over(array)
        twin = f"OrtValue.ortvalue_from_numpy_async(array, {device_type!r})"
        return at_once(current_host(), "ortvalue_from_numpy", twin, lambda: cls._upload(array, device_type))

    @classmethod
    async def ortvalue_from_numpy_async(cls, array: Any, /, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """`ortvalue_from_numpy`, without blocking."""
        return cls._over(array) if on_host(device_type, device_id) else await cls._upload(array, device_type)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        *,
        memory_info: MemoryInfo | None = None,
    ) -> OrtValue:
        """A tensor of zeros; a `memory_info` (of a device or an OrtValue) names the place instead of `device_type`."""
        if memory_info.heap == HOST_MEMORY.heap if memory_info else on_host(device_type, device_id):
            return cls.of_host(empty(dtype_of(element_type), sizes(shape)))
        twin = "OrtValue.ortvalue_from_shape_and_type_async(...)"
        call = "ortvalue_from_shape_and_type"
        place = (shape, element_type, device_type, memory_info)
        return at_once(current_host(), call, twin, lambda: cls._allocate(*place))

    @classmethod
    async def ortvalue_from_shape_and_type_async(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        *,
        memory_info: MemoryInfo | None = None,
    ) -> OrtValue:
        """`ortvalue_from_shape_and_type`, without blocking."""
        if memory_info.heap == HOST_MEMORY.heap if memory_info else on_host(device_type, device_id):
            return cls.of_host(empty(dtype_of(element_type), sizes(shape)))
        return await cls._allocate(shape, element_type, device_type, memory_info)

    @classmethod
    def of_host(cls, host: HostArray) -> OrtValue:
        """A tensor over memory in Python's heap."""
        return cls(host_span(host.data), host.dtype, host.dims)

    @classmethod
    def on_device(cls, device: DeviceInterface, dtype: str, dims: Sequence[int], label: str, **given: Any) -> OrtValue:
        """A tensor of zeros in a new buffer; `given` are arguments of DeviceInterface.allocate."""
        buffer = device.allocate(byte_count(dtype, dims), label=label, **given)
        return cls(buffer.span(), dtype, dims, device, owned=True)

    @classmethod
    def _over(cls, array: Any) -> OrtValue:
        return cls.of_host(HostArray.of("the array", array))

    @classmethod
    async def _upload(cls, array: Any, device_type: str) -> OrtValue:
        host = HostArray.of("the array", array)
        device = await open_device(device_type_of(device_type))
        try:
            value = cls.on_device(device, host.dtype, host.dims, "OrtValue")
            device.copy_cpu_to_device(value.span, host.data)
        finally:
            device.close()
        return value

    @classmethod
    async def _allocate(
        cls, shape: Sequence[int], element_type: Any, device_type: str, memory_info: MemoryInfo | None
    ) -> OrtValue:
        dims, dtype = sizes(shape), dtype_of(element_type)
        device = await open_device(memory_info.device if memory_info else device_type_of(device_type))
        kind = memory_info.memory_type if memory_info else MemoryType.DEFAULT
        try:
            if memory_info is not None and device.get_memory_info(kind) != memory_info:
                raise BufferMismatchError(
                    f"{memory_info} is not a memory of the open device, {device.get_memory_info(kind)}; use the "
                    "memory_info of a session, or name device_type='webgpu'"
                )
            return cls.on_device(device, dtype, dims, "OrtValue", memory_type=kind)
        finally:
            device.close()

    @property
    def span(self) -> DeviceSpan:
        """The bytes. Raises ClosedError after `close`."""
        if self._free is not None and not self._free.alive:
            raise ClosedError(f"this OrtValue ({self._dtype} {list(self._dims)}) was closed; make a new one")
        return self._span

    @property
    def dtype(self) -> str:
        """The element type by numpy's name."""
        return self._dtype

    @property
    def device(self) -> DeviceInterface | None:
        """The device whose memory holds the tensor; None for Python's heap."""
        return self._device

    @property
    def memory_info(self) -> MemoryInfo:
        """The place of the tensor's memory."""
        return self._span.buffer.memory

    def shape(self) -> list[int]:
        """Sizes of the dimensions."""
        return list(self._dims)

    def data_type(self) -> str:
        """The type as text, such as 'tensor(float)'."""
        return ELEMENT_TYPES[self._dtype].tensor

    def element_type(self) -> int:
        """The type as ONNX's number, such as TensorProto.FLOAT."""
        return ELEMENT_TYPES[self._dtype].onnx

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the elements."""
        return byte_count(self._dtype, self._dims)

    def device_name(self) -> str:
        """'cpu' or 'webgpu'."""
        return "cpu" if self._device is None else self._device.type

    def is_tensor(self) -> bool:
        """True: sequences and maps do not exist here."""
        return True

    def has_value(self) -> bool:
        """False after `close`."""
        return self._free is None or self._free.alive

    def data_ptr(self) -> OrtValue:
        """The argument `buffer_ptr` of `bind_input`: the value itself, since a page has no addresses."""
        return self

    def numpy(self, *, out: Any = None) -> Any:
        """The tensor as an ndarray (a memoryview if numpy is not loaded).

        A tensor in Python's heap gives a view. A tensor on a device gives a copy, or `out`, a writable array of the
        same type and shape; either way the bytes are copied once.
        """
        if self._device is None:
            return as_array(self.host()) if out is None else self._written(out)
        return blocking(current_host(), "OrtValue.numpy()", "value.numpy_async()", lambda: self.numpy_async(out=out))

    async def numpy_async(self, *, out: Any = None) -> Any:
        """`numpy`, without blocking."""
        if self._device is None:
            return self.numpy(out=out)
        target = empty(self._dtype, self._dims) if out is None else HostArray.to_write("out", out, self._dtype)
        await self.read_into(target)
        return as_array(target) if out is None else out

    async def read_into(self, target: HostArray) -> None:
        """Copy the elements into an array of the same type and shape. Raises BindingError for another array."""
        self.require_same("the array for the result", target)
        if self._device is None:
            store(target.data, self.host().data)
        elif target.data.nbytes:
            await self._device.copy_device_to_cpu(self.span.sub(0, target.data.nbytes), target.data)

    def host(self) -> HostArray:
        """A tensor in Python's heap, as a view of its memory without a copy."""
        return HostArray(host_bytes(self.span)[: self.tensor_size_in_bytes()], self._dtype, self._dims)

    def update_inplace(self, array: Any) -> None:
        """Overwrite the elements with an array of the same type and shape, with one copy and no wait."""
        host = HostArray.of("the array", array, self._dtype)
        self.require_same("the array", host)
        span = self.span
        if self._device is not None:
            self._device.copy_cpu_to_device(span.sub(0, len(host.data)), host.data)
            return
        store(host_bytes(span), host.data)

    def close(self) -> None:
        """Free the device memory that the value owns; closing twice is harmless."""
        if self._free is not None:
            self._free()

    def __enter__(self) -> OrtValue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OrtValue {self._dtype} {list(self._dims)} on {self.device_name()}>"

    def _written(self, out: Any) -> Any:
        target = HostArray.to_write("out", out, self._dtype)
        self.require_same("out", target)
        store(target.data, self.host().data)
        return out

    def require_same(self, what: str, host: HostArray) -> None:
        """Raise BindingError unless an array has the tensor's type and shape; `what` names it."""
        if (host.dtype, host.dims) != (self._dtype, self._dims):
            raise BindingError(
                f"{what} is {host.dtype} {list(host.dims)}, the OrtValue is {self._dtype} {list(self._dims)}; they "
                "must be the same"
            )


async def arrays_of(values: Sequence[OrtValue]) -> list[Any]:
    """The tensors as arrays. Tensors in Python's heap become views; all tensors of a device are copied with one
    read.
    """
    found: list[HostArray] = []
    reads: dict[DeviceInterface, list[tuple[DeviceSpan, memoryview]]] = {}
    for value in values:
        device = value.device
        target = value.host() if device is None else empty(value.dtype, value.shape())
        found.append(target)
        if device is not None and target.data.nbytes:
            reads.setdefault(device, []).append((value.span.sub(0, target.data.nbytes), target.data))
    for device, parts in reads.items():
        await device.copy_all_to_cpu(parts)
    return [as_array(target) for target in found]


def free(buffer: DeviceBuffer, device: DeviceInterface | None) -> None:
    """Free the memory that a value owned."""
    buffer.close()
    if device is not None:
        device.close()


def host_span(data: memoryview) -> DeviceSpan:
    """Bytes in Python's heap as a span, without a copy; it needs no release."""
    return DeviceBuffer(data, data.nbytes, HOST_MEMORY, label="array", free=lambda: None).span()


def host_bytes(span: DeviceSpan) -> memoryview:
    """The bytes of a span in Python's heap."""
    return memoryview(span.buffer.handle)[span.offset : span.offset + span.length]


def store(target: memoryview, source: memoryview) -> None:
    """Copy bytes within Python's heap. Raises BindingError if they cannot be written."""
    if target.readonly and target.nbytes:
        raise BindingError("the array is read-only; give a writable one")
    target[:] = source


def on_host(device_type: str, device_id: int) -> bool:
    """Whether a device type is 'cpu'. Raises OptionError unless it is 'cpu' or 'webgpu'."""
    if device_id != 0:
        raise OptionError(f"device_id is {device_id!r}; it must be 0, the only device of each type")
    return device_type_of(device_type) == "cpu"


def sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape whose dimensions are all known."""
    dims = tuple(map(index, shape))
    if any(size < 0 for size in dims):
        raise BindingError(f"shape is {list(dims)}; every dimension must be a whole number, 0 or more")
    return dims
