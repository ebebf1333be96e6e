"""The memory snapshot: an interpreter that has imported Capstan, from which pages start."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capstan_host.terminal import say

from . import CACHE, ROOT
from .environment import run_tool

__all__ = ["WHEELS_FOLDER", "Snapshot", "make_snapshot", "snapshot_tools"]

PYODIDE = ROOT / "node_modules/pyodide"
HERE = Path(__file__).parent
SCRIPT, COMPILE = HERE / "snapshot.mjs", HERE / "compiled_wheels.py"
WHEELS_FOLDER = "/lib/wheels/"
"""The folder of the wheels in the page's file system, in the snapshot and without it."""
HOST = "_capstan_host"
"""The module that the worker makes (web/src/worker/host.ts): the only JavaScript object that Capstan holds when
imported."""
START = "capstan._js.start"
MODULES = ("capstan.page.request_handler", START, "capstan.onnxruntime", "capstan.text.chat_template", "pyodide.code")
SNAPSHOTS = CACHE / "snapshots"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as a file, gzipped."""

    path: Path
    bytes: int
    """Its size unpacked."""
    heap: int
    """The size of the WebAssembly memory it belongs into: what is not in the file is zero."""


def snapshot_tools() -> list[Path]:
    """The files, besides the wheels, that determine a snapshot."""
    return [SCRIPT, COMPILE, Path(__file__), *(PYODIDE / name for name in ("package.json", "pyodide.asm.wasm"))]


def make_snapshot(wheels: Sequence[Path]) -> Snapshot:
    """The snapshot with these wheels imported: the one made last time if nothing has changed, wheels and Node included.

    Only the last one is kept.
    """
    digest = hashlib.sha256(run_tool(["node", "--version"], "install Node").encode())
    for path in [*wheels, *snapshot_tools()]:
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    folder = SNAPSHOTS / digest.hexdigest()[:16]
    about = folder / "about.json"
    if not about.is_file():
        say("site: snapshot of Python's memory ...")
        shutil.rmtree(SNAPSHOTS, ignore_errors=True)
        folder.mkdir(parents=True)
        raw = folder / "python.raw"
        found = json.loads(run_node(wheels, raw))
        packed = gzip.compress(raw.read_bytes(), compresslevel=6, mtime=0)
        raw.unlink()
        path = folder / f"python-{hashlib.sha256(packed).hexdigest()[:16]}.snapshot"
        path.write_bytes(packed)
        about.write_text(json.dumps({"name": path.name, **found}))
    kept = json.loads(about.read_text())
    return Snapshot(folder / kept["name"], kept["bytes"], kept["heap"])


def run_node(wheels: Sequence[Path], target: Path) -> str:
    """Write the raw memory to `target`; the report of snapshot.mjs, as JSON."""
    request = {
        "pyodide": str(PYODIDE),
        "wheels": [str(wheel) for wheel in wheels],
        "folder": WHEELS_FOLDER,
        "compile": str(COMPILE),
        "start": START,
        "modules": MODULES,
        "host": HOST,
        "target": str(target),
    }
    environment = {**os.environ, "TZ": "UTC"}
    return run_tool(["node", SCRIPT, json.dumps(request)], "mend what it reports, or build.py check", environment)
