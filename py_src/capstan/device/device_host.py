"""Defines the interface of a host that opens devices, and models on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..host import Host, use_host
from ..host.ready_results import ReadyGraphs
from ..host.storage_interface import Progress
from ..memory import Fit
from ..model_files.genai_config import GenaiConfig
from .device_interface import DeviceInterface
from .model_interface import DeviceModel, TapeOptions

__all__ = ["DeviceHost", "Opening", "current_device_host", "use_device_host"]


@dataclass(frozen=True)
class Opening:
    """A model to open, and the options of this load."""

    folder: str
    config: GenaiConfig
    options: TapeOptions
    progress: Progress
    keep_weights: bool
    graphs: Mapping[str, bytes]
    """The contents of its graphs' files by name, if they were read."""
    ready: ReadyGraphs | None = None
    """The site's ready-made graphs."""


class DeviceHost(Host, Protocol):
    """A host that also opens devices; every host has files, a clock and waits."""

    async def open_model(self, opening: Opening, device: str) -> DeviceModel:
        """Load a model onto a device; `device` 'auto' is resolved here."""

    async def has_webgpu(self) -> bool:
        """Whether there is a WebGPU adapter."""

    async def open_device(self, device: str) -> DeviceInterface:
        """Open the page's GPU, the page's CPU or CPython's CPU; `device` 'auto' is resolved here."""

    async def fit(
        self,
        folder: str,
        config: GenaiConfig,
        device: str,
        batch_size: int,
        max_length: int | None,
        budget: int | None,
        graphs: Mapping[str, bytes],
    ) -> Fit:
        """Whether a model's sequences would fit the device, from its graphs alone; `graphs` as in Opening."""


_host: DeviceHost | None = None


def use_device_host(host: DeviceHost) -> None:
    """Set the host of this interpreter, also for `current_host`. Only `capstan/__init__.py`, which knows all hosts,
    calls it.
    """
    global _host
    _host = host
    use_host(host)


def current_device_host() -> DeviceHost:
    """The host of this interpreter."""
    assert _host is not None, "importing capstan calls use_device_host"
    return _host
