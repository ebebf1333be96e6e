"""Describes memories in onnxruntime's terms, and the capabilities and limits of their devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["Capabilities", "Limits", "MemoryInfo", "MemoryType"]


class MemoryType(Enum):
    """The type of a memory: onnxruntime's OrtMemType, with its meaning in a page."""

    DEFAULT = "default"
    """The device's own memory, in which sessions compute. On WebGPU storage buffers, which cannot be mapped."""
    HOST_ACCESSIBLE = "host_accessible"
    """Memory that device and host both reach. On WebGPU mappable staging buffers, which cannot be storage."""


@dataclass(frozen=True)
class MemoryInfo:
    """Describes a memory in which buffers are made, like onnxruntime's OrtMemoryInfo."""

    name: str
    """onnxruntime's allocator name: 'WebGPU_Buffer', 'WebGPU_Staging' or 'Cpu'. 'WebGPU_Buf', its newer name, becomes
    'WebGPU_Buffer'.
    """
    device: str
    """'webgpu', 'wasm' or 'reference'."""
    memory_type: MemoryType
    device_id: int = 0
    """Which physical device of that kind; two GPUDevices never share buffers."""
    heap: str = ""
    """The heap, for memory that the CPU addresses: 'python', 'onnxruntime' (another WebAssembly memory) or
    'gpu-process' (mapped staging memory). Empty for other memory.
    """
    alignment: int = 16
    """The start of an allocation is a multiple of this number of bytes."""

    def __post_init__(self) -> None:
        if self.name == "WebGPU_Buf":
            object.__setattr__(self, "name", "WebGPU_Buffer")


@dataclass(frozen=True)
class Capabilities:
    """The capabilities that the probe of a device found; sizes are bytes. `missing` holds (capability, reason)."""

    adapter: str
    software: bool
    staging: bool
    """Whether mappable staging memory works: a byte pattern went to the device and came back."""
    mappable_storage: bool
    """Whether HOST_ACCESSIBLE memory can be bound as storage: true on CPU devices, never on WebGPU."""
    f16: bool
    subgroups: bool
    timestamps: bool
    int64: bool
    """Whether int64 tensors are computed on the device."""
    in_place_cache: bool
    """Whether past and present of attention can be one buffer."""
    max_buffer_size: int
    max_binding_size: int
    offset_alignment: int
    """The offset of a bound span is a multiple of this number of bytes."""
    missing: tuple[tuple[str, str], ...] = ()


class Limits(Protocol):
    """The largest buffer and binding of a device, and the alignment of a bound span's offset, in bytes."""

    @property
    def max_buffer_size(self) -> int:
        """The most bytes of a buffer."""

    @property
    def max_binding_size(self) -> int:
        """The most bytes of a buffer that a kernel can bind."""

    @property
    def offset_alignment(self) -> int:
        """The alignment of bound spans: a bound span begins at a multiple of this number of bytes."""
