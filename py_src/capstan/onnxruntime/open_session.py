"""Implements an open session on its device: its inputs and outputs, and their places. Bindings and captured runs need
no more.
"""

from __future__ import annotations

from ..device.device_interface import DeviceSession
from ..errors import ClosedError
from ..host import Host
from ..memory import MemoryInfo
from .host_array import HostArray
from .ort_value import HOST_MEMORY, OrtValue
from .providers import provider_of
from .session_placement import Placed

__all__ = ["OpenSession"]


class OpenSession:
    """The base class of InferenceSession."""

    def _open(self, host: Host, label: str, placed: Placed) -> None:
        self.host = host
        self.label = label
        self.device = placed.device
        self.attention_window = placed.attention_window
        self.in_place = placed.in_place
        self._session: DeviceSession | None = placed.session
        self.inputs = {spec.name: spec for spec in placed.session.inputs}
        self.outputs = {spec.name: spec for spec in placed.session.outputs}

    def get_providers(self) -> list[str]:
        """The provider in use."""
        return [provider_of(self.device)]

    @property
    def memory_info(self) -> MemoryInfo:
        """The memory in which the session computes, for `OrtValue.ortvalue_from_shape_and_type`."""
        return self.device.get_memory_info()

    def opened(self) -> DeviceSession:
        """The device's session. Raises ClosedError."""
        if self._session is None:
            raise ClosedError(f"{self.label} was closed; make a new one")
        return self._session

    def place(self, name: str, host: HostArray) -> OrtValue:
        """Bring an input array into memory that the session accepts: in place, or in a new buffer of the device."""
        if self.stays_on_host(host):
            return OrtValue.of_host(host)
        value = OrtValue.on_device(self.device, host.dtype, host.dims, f"input {name}", category="io", owner=self.label)
        self.device.copy_cpu_to_device(value.span.sub(0, len(host.data)), host.data)
        return value

    def stays_on_host(self, host: HostArray) -> bool:
        """Whether an input is given to the session in Python's heap."""
        on_host = self.memory_info.heap == HOST_MEMORY.heap
        return on_host or not host.data.nbytes or not self.opened().holds(host.dtype)
