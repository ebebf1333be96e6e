"""The calls of the worker's WebGPU devices, seen at their prototypes (probe.js); runs in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import js
from pyodide.code import run_js

__all__ = [
    "COUNTS",
    "bound_buffers",
    "counts",
    "faults",
    "forget",
    "forget_bound",
    "forgive",
    "held",
    "install",
    "live_buffers",
    "live_devices",
    "live_sizes",
    "private_buffers",
    "stamps",
]

COUNTS = ("create_buffer", "create_bind_group", "write_buffer", "submits", "readbacks", "readback_bytes")


def install() -> None:
    """Wrap the prototypes of this worker, once; devices made before are not seen."""
    run_js(Path(__file__).with_name("probe.js").read_text())


def counts() -> dict[str, int]:
    """Totals since `install`."""
    found: dict[str, int] = json.loads(js.capstanProbe.counted())
    return found


def live_buffers() -> list[str]:
    """Labels of the buffers that nobody destroyed, on devices that nobody destroyed."""
    found: list[str] = json.loads(js.capstanProbe.live())
    return found


def live_sizes() -> list[int]:
    """Bytes of each of those buffers."""
    found: list[int] = json.loads(js.capstanProbe.sizes())
    return found


def live_devices() -> int:
    """How many devices nobody destroyed."""
    return int(js.capstanProbe.devices())


def held() -> dict[str, int]:
    """How many compute `pipelines` and `devices` somebody still holds, or were not collected yet."""
    found: dict[str, int] = json.loads(js.capstanProbe.held())
    return found


def stamps() -> dict[str, Any]:
    """`finished`, `submitted`, `ranged`: when an encoder's finish, queue.submit and getMappedRange were called;
    `mapped`: when mapAsync was called and resolved; `work`: when queue.onSubmittedWorkDone resolved right before the
    caller's call and right after. Since `forget`."""
    found: dict[str, Any] = json.loads(js.capstanProbe.stamps())
    return found


def forget() -> None:
    """Drop the stamps taken so far."""
    js.capstanProbe.forget()


def faults() -> list[str]:
    """Uncaptured errors and losses that nobody asked for, of every device."""
    found: list[str] = json.loads(js.capstanProbe.faults())
    return found


def forgive() -> None:
    """Drop the faults seen so far: the test provoked them."""
    js.capstanProbe.forgive()


def forget_bound() -> None:
    """Forget which buffers were put into bind groups so far."""
    js.capstanProbe.forgetBound()


def bound_buffers(engine: Any) -> list[int]:
    """Ids of the buffers in bind groups made since `forget_bound`; `engine` is a JsGpuEngine."""
    found: list[int] = json.loads(js.capstanProbe.boundIds(engine.js))
    return found


def played(engine: Any, tape: int) -> list[str]:
    """The kinds of a tape's operations, in order."""
    found: list[str] = json.loads(js.capstanProbe.played(engine.js, tape))
    return found


def private_buffers(engine: Any, tape: int) -> list[int]:
    """Ids of the buffers that a tape uses and that Capstan did not make."""
    found: list[int] = json.loads(js.capstanProbe.privateIds(engine.js, tape))
    return found
