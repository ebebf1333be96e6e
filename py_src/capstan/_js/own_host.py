"""Finds the page's host object (web/src/worker/host.ts): the host that the worker registered, or else the host in the
wheel.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from typing import Any

import pyodide
from pyodide.code import run_js
from pyodide.ffi import JsException, register_js_module

from ..errors import DeviceUnavailableError, VersionError

__all__ = ["capstan_host"]

HOST = "_capstan_host"
SCRIPT = "host.js"
"""web/src/worker/wheel_host.ts, built as a script that evaluates to the host. Capstan's own worker registers its
host."""
OLDEST = (0, 28)
"""The oldest Pyodide that is tested: older versions convert Python objects for JavaScript differently."""


def find_host() -> Any:
    """Find the module `_capstan_host`, and register the wheel's module if no module is registered. Raises VersionError,
    DeviceUnavailableError.
    """
    if HOST not in sys.modules and importlib.util.find_spec(HOST) is None:
        register_host()
    return importlib.import_module(HOST)


def register_host() -> None:
    require_version(pyodide.__version__)
    try:
        script = pkgutil.get_data(__package__, SCRIPT)
    except OSError:
        script = None
    if script is None:
        raise DeviceUnavailableError(
            f"this copy of Capstan has no {SCRIPT}, which pages need: install the wheel that `build.py wheel` makes"
        )
    try:
        host = run_js(script.decode())
    except JsException as error:
        raise DeviceUnavailableError(
            f"{SCRIPT} could not be run here ({error}); a Content-Security-Policy has to allow 'unsafe-eval'"
        ) from error
    register_js_module(HOST, host)


def require_version(found: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        least = ".".join(map(str, OLDEST))
        raise VersionError(f"this page has Pyodide {found}; Capstan needs {least} or newer: load a newer version")


capstan_host = find_host()
