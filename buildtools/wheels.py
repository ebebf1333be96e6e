"""The wheels that the page loads: ours, built from py_src, and protobuf's pure-Python one."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import CACHE, ROOT
from .environment import PROTOBUF_WHEELS, run_tool, venv_python

__all__ = ["build_wheel", "page_wheels", "wheel_inputs"]


def wheel_inputs() -> list[Path]:
    """The files that our wheel is made from."""
    sources = (path for path in (ROOT / "py_src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted([*sources, ROOT / "pyproject.toml"])


def build_wheel(target: Path) -> Path:
    """Build `capstan_webgpu-*.whl` into the emptied folder `target`."""
    shutil.rmtree(target, ignore_errors=True)
    hatchling: list[str | Path] = [venv_python(), "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", target]
    run_tool(hatchling, "fix pyproject.toml or py_src")
    (wheel,) = target.glob("*.whl")
    return wheel


def page_wheels() -> list[Path]:
    """Our wheel, freshly built, and protobuf's."""
    return [build_wheel(CACHE / "wheel"), *sorted(PROTOBUF_WHEELS.glob("*.whl"))]
