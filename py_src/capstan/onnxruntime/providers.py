"""Maps onnxruntime's names of execution providers to devices."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..device.device_host import current_device_host
from ..device.device_interface import DeviceInterface
from ..errors import AsyncRequiredError, OptionError
from ..host import Host

__all__ = [
    "CPU",
    "DEVICE_TYPES",
    "GRAPH_CAPTURE",
    "WEBGPU",
    "Asked",
    "asked_for",
    "at_once",
    "blocking",
    "device_type_of",
    "get_available_providers",
    "open_device",
    "provider_of",
]

T = TypeVar("T")

WEBGPU = "WebGpuExecutionProvider"
CPU = "CPUExecutionProvider"

NAMES = {WEBGPU.lower(): WEBGPU, "webgpu": WEBGPU, CPU.lower(): CPU, "cpu": CPU, "wasm": CPU}


DEVICE_TYPES = {WEBGPU: "webgpu", CPU: "cpu"}

GRAPH_CAPTURE = "enableGraphCapture"
OPTIONS = {WEBGPU: ("device_id", GRAPH_CAPTURE), CPU: ("device_id",)}
KNOWN = {"device_id": "'device_id', which is 0", GRAPH_CAPTURE: f"'{GRAPH_CAPTURE}', which is '0' or '1'"}


@dataclass(frozen=True)
class Asked:
    """The providers that a caller requested, with their options."""

    providers: tuple[str, ...] = ()
    """By onnxruntime's names, in order of preference; empty for the default."""
    capture: bool = False
    """Whether WebGPU captures the first run with an IO binding and replays it."""


def get_available_providers() -> list[str]:
    """The providers that can be requested; whether there is a GPU is known when a session is made."""
    return [WEBGPU, CPU]


def asked_for(providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None) -> Asked:
    """Read the providers of a call and their options.

    A provider is a name or a pair (name, options). Raises OptionError for an unknown option: no option is ignored.
    """
    given = list(providers or ())
    if provider_options is not None and len(provider_options) != len(given):
        raise OptionError(
            f"{len(provider_options)} provider_options were given for {len(given)} providers; give one for each"
        )
    found: list[str] = []
    capture = False
    for i, item in enumerate(given):
        name, options = item if isinstance(item, tuple) and len(item) == 2 else (item, {})
        if not isinstance(options, Mapping):
            raise OptionError(f"the options of provider {name!r} are {options!r}; give a dict of them")
        options = {**options, **(provider_options[i] if provider_options else {})}
        provider = NAMES.get(name.lower()) if isinstance(name, str) else None
        if provider is None:
            raise OptionError(f"provider {name!r} does not exist here; use {WEBGPU!r} or {CPU!r}")
        unknown = [key for key in options if key not in OPTIONS[provider]]
        if unknown:
            has = ", and ".join(KNOWN[name] for name in OPTIONS[provider])
            raise OptionError(f"{provider} has no option {unknown[0]!r}; it has {has}")
        if str(options.get("device_id", 0)) != "0":
            raise OptionError(f"{provider}: device_id is {options['device_id']!r}; a page has one device, 0")
        if str(options.get(GRAPH_CAPTURE, "0")) not in ("0", "1"):
            raise OptionError(f"{provider}: {GRAPH_CAPTURE} is {options[GRAPH_CAPTURE]!r}; it must be '0' or '1'")
        if GRAPH_CAPTURE in options:
            capture = str(options[GRAPH_CAPTURE]) == "1"
        if provider not in found:
            found.append(provider)
    return Asked(tuple(found), capture)


def device_type_of(given: str) -> str:
    """'cpu' or 'webgpu' for a script's name of a device or a provider. Raises OptionError."""
    for provider, device_type in DEVICE_TYPES.items():
        if given.lower() == device_type or NAMES.get(given.lower()) == provider:
            return device_type
    raise OptionError(f"device_type is {given!r}; it must be 'cpu' or 'webgpu'")


async def open_device(device_type: str) -> DeviceInterface:
    """Open the page's device: 'cpu', 'webgpu', or 'auto', which means WebGPU on a hardware adapter and else the CPU.
    The caller must close the device.
    """
    return await current_device_host().open_device(device_type)


def provider_of(device: DeviceInterface) -> str:
    """The provider that runs on a device."""
    return next((provider for provider, name in DEVICE_TYPES.items() if name == device.type), CPU)


def blocking(host: Host, call: str, twin: str, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait for a coroutine. Raises AsyncRequiredError, which names the asynchronous twin, if the host cannot wait."""
    if not host.can_wait():
        raise AsyncRequiredError(f"{call} would have to wait here; use `await {twin}`")
    return host.wait(coroutine())


def at_once(host: Host, call: str, twin: str, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait like `blocking`, for a call that waits only the first time, such as opening a device."""
    if host.can_wait():
        return host.wait(coroutine())
    started = coroutine()
    try:
        started.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    started.close()
    raise AsyncRequiredError(f"{call} would have to wait here; use `await {twin}`")
