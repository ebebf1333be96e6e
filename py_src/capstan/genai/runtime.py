"""Functions of the module: which providers there are, logging, telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OptionError
from ..fallback import fall_back
from ..host import current_host

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
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]

SWITCHES = (
    *("enabled", "ansi_tags", "warning", "generate_next_token", "append_next_tokens", "hit_eos", "hit_max_length"),
    *("model_input_values", "model_output_shapes", "model_output_values", "model_logits", "ort_lib", "value_stats"),
)
"""Log options that are on or off; `filename` is a text."""


def is_webgpu_available() -> bool:
    """Whether this browser offers a WebGPU adapter; False on CPython. The native package answers whether it was built
    with WebGPU."""
    host = current_host()
    return host.can_wait() and host.wait(host.has_webgpu())


def is_cuda_available() -> bool:
    """False."""
    return False


def is_dml_available() -> bool:
    """False."""
    return False


def is_openvino_available() -> bool:
    """False."""
    return False


def is_qnn_available() -> bool:
    """False."""
    return False


def get_current_gpu_device_id() -> int:
    """0: the browser's GPU."""
    return 0


def set_current_gpu_device_id(device_id: int, /) -> None:
    """Only 0, the browser's GPU. OptionError for another."""
    if device_id != 0:
        raise OptionError(f"GPU {device_id}: a page has one, 0, which the browser chooses")


def register_execution_provider_library(name: str, path: str, /) -> None:
    """Refused: a page loads no native libraries."""
    raise OptionError(f"execution provider {name!r} ({path}): a page loads no native libraries; use 'webgpu' or 'cpu'")


def unregister_execution_provider_library(name: str, /) -> None:
    """Refused, as none can be registered."""
    raise OptionError(f"execution provider {name!r} was not registered; a page loads no native libraries")


def enable_telemetry_events() -> None:
    """Nothing is sent, so that nothing can be enabled: a step down, with a warning."""
    fall_back("telemetry events", "Capstan sends none", "nothing is sent")


def disable_telemetry_events() -> None:
    """Nothing is sent anyway."""


def set_log_options(**options: Any) -> None:
    """Switches of the native package's log, which Capstan does not write: turning one on is a step down, with a
    warning. OptionError for an unknown name or a value of another type."""
    for name, value in options.items():
        if name not in SWITCHES and name != "filename":
            raise OptionError(f"{name!r} is not a log option; the options are {', '.join(SWITCHES)}, filename")
        if not isinstance(value, str if name == "filename" else bool):
            raise OptionError(f"{name} is {value!r}; it must be {'a text' if name == 'filename' else 'True or False'}")
        if value:
            fall_back(f"log option {name}", "Capstan writes no log", "errors and warnings say what there is to say")


def set_log_callback(callback: Callable[..., Any] | None, /) -> None:
    """A step down with a warning, as Capstan has no log. TypeError if the callback is not callable."""
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"set_log_callback: a function or None is expected, not {type(callback).__name__}")
    fall_back("a log callback", "Capstan writes no log", "it is never called")
