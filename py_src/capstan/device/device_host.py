"""Defines the interface of a host that opens devices, and models on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ..host import Host, use_host
from ..host.ready_results import ReadyGraphs
from ..host.storage_interface import Progress
from ..memory import Fit
from ..model_files.genai_config import GenaiConfig
from .device_interface import DeviceInterface
from .model_interface import DeviceModel, TapeOptions
from .model_memory import ModelMemory

__all__ = ["DeviceHost", "Opening", "Planned", "current_device_host", "fit_beside", "use_device_host"]


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


@dataclass(frozen=True)
class Planned:
    """A model whose memory is computed from its graphs alone."""

    folder: str
    config: GenaiConfig
    graphs: Mapping[str, bytes]
    """As in Opening."""


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
        model: Planned,
        draft: Planned | None,
        device: str,
        batch_size: int,
        max_length: int | None,
        budget: int | None,
    ) -> Fit:
        """Whether a model's sequences would fit the device, beside its draft model if it has one."""


async def fit_beside(
    memory_of: Callable[[Planned], Awaitable[ModelMemory]],
    model: Planned,
    draft: Planned | None,
    batch_size: int,
    max_length: int | None,
    budget: int | None,
) -> Fit:
    """`ModelMemory.fit` of a model beside its draft model, if it has one, on the device of `memory_of`."""
    memory = await memory_of(model)
    if draft is not None:
        memory = replace(memory, draft=await memory_of(draft))
    return memory.fit(batch_size, max_length, budget)


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
