"""Implements the functions of the module: available providers, logging and telemetry."""

from __future__ import annotations

from ..device.device_host import current_device_host
from ..errors import OptionError
from ..fallback import fall_back

__all__ = [
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "unregister_execution_provider_library",
]


def is_webgpu_available() -> bool:
    """Whether this browser offers a WebGPU adapter; False on CPython. The native package answers whether it was built
    with WebGPU."""
    host = current_device_host()
    return host.can_wait() and host.wait(host.has_webgpu())


def is_cuda_available() -> bool:
    """False: Capstan never runs on CUDA."""
    return False


def is_dml_available() -> bool:
    """False: Capstan never runs on DirectML."""
    return False


def is_openvino_available() -> bool:
    """False: Capstan never runs on OpenVINO."""
    return False


def is_qnn_available() -> bool:
    """False: Capstan never runs on QNN."""
    return False


def get_current_gpu_device_id() -> int:
    """Always 0, the browser's GPU."""
    return 0


def set_current_gpu_device_id(device_id: int, /) -> None:
    """Accepts only 0, the browser's GPU. Raises OptionError for another number."""
    if device_id != 0:
        raise OptionError(f"GPU {device_id}: a page has only GPU 0, which the browser chooses")


def register_execution_provider_library(name: str, path: str, /) -> None:
    """Always raises an error, because a page loads no native libraries."""
    raise OptionError(f"execution provider {name!r} ({path}): a page loads no native libraries; use 'webgpu' or 'cpu'")


def unregister_execution_provider_library(name: str, /) -> None:
    """Always raises an error, because no library can be registered."""
    raise OptionError(f"execution provider {name!r} was not registered; a page loads no native libraries")


def enable_telemetry_events() -> None:
    """Enables nothing, since Capstan sends nothing: a fallback, with a warning."""
    fall_back("telemetry events", "Capstan sends none", "nothing is sent")


def disable_telemetry_events() -> None:
    """Does nothing, since Capstan sends nothing."""
