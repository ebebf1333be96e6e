"""What the worker's WebGPU devices were asked for, seen at their prototypes (probe.js); runs in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import js
from pyodide.code import run_js

__all__ = ["COUNTS", "counts", "faults", "forget", "forgive", "install", "live_buffers", "stamps"]

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


def stamps() -> dict[str, Any]:
    """`submitted`: when queue.submit was called; `mapped`: when mapAsync was called and resolved. Since `forget`."""
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
