"""The wheels: ours, built from py_src, protobuf's pure-Python one, those of Jinja2 and what it imports, and one with
the file of Silero's detector of speech."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from capstan_host.locks import locked

from . import CACHE, ROOT
from .bundles import WHEEL_HOST, bundle_wheel_host
from .carried_wheels import DETECTOR
from .environment import PROTOBUF_WHEELS, distribution, run_tool, venv_python

__all__ = ["NO_HOOKS", "ON_CPYTHON", "build_wheel", "detector_wheel", "page_wheels", "template_wheels", "wheel_inputs"]

ON_CPYTHON = ("capstan_host/", "capstan/local/", "capstan/device/reference/")
"""Folders of our wheel that no page imports."""
NO_HOOKS = {"HATCH_BUILD_NO_HOOKS": "true"}
"""Has hatchling leave the page's files out (page_in_wheel.py)."""
DETECTOR_FILE = "data/silero_vad_16k_sequence.onnx"
PURE = "Wheel-Version: 1.0\nGenerator: capstan\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_inputs() -> list[Path]:
    """The inputs of the page's own wheel."""
    found = (path for name in ("capstan", "in_the_wheel") for path in (ROOT / "py_src" / name).rglob("*"))
    kept = (path for path in found if path.is_file() and path != WHEEL_HOST and "__pycache__" not in path.parts)
    return sorted([*kept, ROOT / "pyproject.toml"])


def build_wheel(target: Path) -> Path:
    """Build `capstan_webgpu-*.whl`, for any Pyodide and for CPython, into the emptied folder `target`."""
    return _built(target, with_host=True)


def page_wheels() -> list[Path]:
    """The wheels that our own page loads: ours, freshly built, without what the page's worker brings and what runs
    on CPython alone, and protobuf's."""
    wheel = _built(CACHE / "wheel", with_host=False)
    leave_out(wheel, ON_CPYTHON)
    return [wheel, *sorted(PROTOBUF_WHEELS.glob("*.whl"))]


def leave_out(wheel: Path, folders: tuple[str, ...]) -> None:
    """Take the files of these folders out of a wheel, and their lines out of its RECORD."""
    smaller = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as kept:
        for entry in whole.infolist():
            if entry.filename.startswith(folders):
                continue
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if not line.startswith(folders)).encode()
            kept.writestr(entry, content)
    smaller.replace(wheel)


def template_wheels() -> list[Path]:
    """Wheels of what renders chat templates: .venv's packages without compiled parts, of which MarkupSafe
    alone has one, and a substitute for it in Python."""
    made = []
    for name in ("jinja2", "markupsafe"):
        about = distribution(name)
        made.append(CACHE / "templates" / f"{about.name.removesuffix('.dist-info')}-py3-none-any.whl")
        made[-1].parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(made[-1], "w", zipfile.ZIP_DEFLATED) as wheel:
            for path in (*sorted((about.parent / name).glob("*.py")), about / "METADATA"):
                _add(wheel, path.relative_to(about.parent).as_posix(), path.read_text(encoding="utf-8"))
            for file, text in (("WHEEL", PURE), ("RECORD", "")):
                _add(wheel, f"{about.name}/{file}", text)
    return made


def detector_wheel() -> Path:
    """Silero's wheel without its code, which needs torch, and without the forms of its model that are not read."""
    made = CACHE / "templates" / DETECTOR.file_name
    made.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(DETECTOR.path()) as whole, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in whole.namelist():
            if name.endswith(DETECTOR_FILE) or (".dist-info/" in name and not name.endswith("RECORD")):
                _add(wheel, name, whole.read(name))
    return made


def _add(wheel: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    """A file without a date: what is made of equal contents is equal."""
    wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def _built(target: Path, *, with_host: bool) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    hatchling: list[str | Path] = [venv_python(), "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", target]
    with locked("wheel"):
        WHEEL_HOST.unlink(missing_ok=True)
        if with_host:
            bundle_wheel_host()
        run_tool(hatchling, "fix pyproject.toml or py_src", {**os.environ, **NO_HOOKS})
    (wheel,) = target.glob("*.whl")
    return wheel
