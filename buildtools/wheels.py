"""The wheels: ours, built from py_src, and protobuf's pure-Python one."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import CACHE, ROOT
from .bundles import WHEEL_HOST, bundle_wheel_host
from .environment import PROTOBUF_WHEELS, locked, run_tool, venv_python

__all__ = ["build_wheel", "page_wheels", "wheel_inputs"]


def wheel_inputs() -> list[Path]:
    """The inputs of the page's own wheel."""
    sources = (path for path in (ROOT / "py_src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted([*(path for path in sources if path != WHEEL_HOST), ROOT / "pyproject.toml"])


def build_wheel(target: Path) -> Path:
    """Build `capstan_webgpu-*.whl`, for any Pyodide and for CPython, into the emptied folder `target`."""
    return _built(target, with_host=True)


def page_wheels() -> list[Path]:
    """The wheels that our own page loads: ours, freshly built, without what its worker brings, and protobuf's."""
    return [_built(CACHE / "wheel", with_host=False), *sorted(PROTOBUF_WHEELS.glob("*.whl"))]


def _built(target: Path, *, with_host: bool) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    hatchling: list[str | Path] = [venv_python(), "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", target]
    with locked("wheel"):
        WHEEL_HOST.unlink(missing_ok=True)
        if with_host:
            bundle_wheel_host()
        run_tool(hatchling, "fix pyproject.toml or py_src")
    (wheel,) = target.glob("*.whl")
    return wheel
