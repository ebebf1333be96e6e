"""Chooses the device that genai_config.json names by its providers, and the CPU in place of a missing GPU."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..device.device_host import DeviceHost
from ..device.model_interface import DeviceModel
from ..errors import ConfigError, DeviceUnavailableError
from ..fallback import fall_back
from ..model_files.genai_config import GenaiConfig

__all__ = ["CONFIGURED", "configured_device", "opened_or_on_cpu"]

CONFIGURED = "configured"
"""The value of `device` that leaves the choice to the configuration."""
PROVIDERS_OF_OTHERS = ("cuda", "dml", "nvtensorrtrtx", "openvino", "qnn", "rocm", "ryzenai", "tensorrt", "vitisai")
"""The names of providers that the native package has and a page does not."""
REFUSING = (
    "to get an error instead, load the model with device='webgpu', or name the provider in the script "
    "(og.Config: clear_providers, append_provider('webgpu'))"
)


def configured_device(config: GenaiConfig) -> str:
    """The device of the providers in genai_config.json: 'webgpu' if it is one of the providers, else 'cpu'. The result
    is 'auto' if a page has none of the providers, and for a repository. Raises ConfigError for an unknown name.
    """
    if config.decoder.providers is None:
        return "auto"
    names = [name.lower().removesuffix("executionprovider") for name in config.decoder.providers]
    for name, shown in zip(names, config.decoder.providers, strict=True):
        if name not in ("webgpu", "cpu", *PROVIDERS_OF_OTHERS):
            raise ConfigError(f"{config.name}: provider_options: provider {shown!r} is unknown; name 'webgpu' or 'cpu'")
    if "webgpu" in names or set(names) <= {"cpu"}:
        return "webgpu" if "webgpu" in names else "cpu"
    what = f"provider_options {', '.join(config.decoder.providers)} of {config.name}"
    fall_back(what, "a page has 'webgpu' and 'cpu'", "the better one for this machine is used")
    return "auto"


async def opened_or_on_cpu(
    host: DeviceHost, config_name: str, open_on: Callable[[str], Awaitable[DeviceModel]]
) -> DeviceModel:
    """Open a model on the GPU, since its configuration names WebGPU. If there is no such GPU, open it on the CPU, with
    a FallbackWarning.
    """
    reason = "there is no WebGPU adapter here"
    if await host.has_webgpu():
        try:
            return await open_on("webgpu")
        except DeviceUnavailableError as error:
            reason = str(error)
    fall_back(f"WebGPU, which {config_name} names as a provider", reason, f"the CPU computes; {REFUSING}")
    return await open_on("cpu")
