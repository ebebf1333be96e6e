"""`build.py wheel`: the pure-Python wheel, which installs in any Pyodide and on CPython."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from capstan_host.terminal import say

from .. import BUILD, ROOT
from ..bundles import bundle_wheel_host
from ..environment import run_tool, venv_python
from ..pyodide_root import make_pyodide_root
from ..wheels import NO_HOOKS, build_wheel

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "wheel"
TARGET = BUILD / "wheel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`wheel` has no options of its own."""


def check(args: argparse.Namespace) -> None:
    """Nothing to refuse."""


def run(args: argparse.Namespace) -> int:
    """Build the wheel into build/wheel and print its path."""
    reason = obstacle(sys.version_info[:2], shutil.which("make"))
    if reason is None:
        say("wheel: built by pyodide build")
        wheel = pyodide_build()
    else:
        say(f"wheel: built by hatchling, not by pyodide build ({reason}); a pure-Python wheel comes out the same")
        wheel = build_wheel(TARGET)
    print(wheel)
    return 0


def obstacle(version: tuple[int, ...], make: str | None) -> str | None:
    """Why `pyodide build` cannot run under this Python with this make, if it cannot."""
    if version < (3, 12):
        return f"it needs Python 3.12, this is {version[0]}.{version[1]}"
    if make is None:
        return "it needs make"
    return None


def pyodide_build() -> Path:
    """The wheel as Pyodide's own tool builds it, without the network."""
    shutil.rmtree(TARGET, ignore_errors=True)
    bundle_wheel_host()
    environ = {
        **os.environ,
        **NO_HOOKS,
        "PATH": os.pathsep.join([str(venv_python().parent), os.environ.get("PATH", "")]),
        "PYODIDE_ROOT": str(make_pyodide_root()),
        "SKIP_EMSCRIPTEN_VERSION_CHECK": "1",
    }
    pyodide = venv_python().with_name("pyodide" + venv_python().suffix)
    command: list[str | Path] = [pyodide, "build", ROOT, "--no-isolation", "--outdir", TARGET]
    run_tool(command, "fix pyproject.toml or py_src", env=environ)
    (wheel,) = TARGET.glob("*.whl")
    return wheel
