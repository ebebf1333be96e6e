"""Pyodide's packages as its own server would have them: npm has Pyodide without any, PyPI the wheels of those in pure
Python."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from buildtools import ROOT
from buildtools.environment import PROTOBUF_WHEELS, venv_python
from buildtools.site import PYODIDE_FILES

__all__ = ["download", "pyodide_distribution"]

PYODIDE = ROOT / "node_modules/pyodide"
PURE = ["--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.14"]


def download(folder: Path, *requirements: str) -> list[Path]:
    """Pure-Python wheels of PyPI, without what they depend on."""
    command = [venv_python(), "-m", "pip", "download", "-q", "--no-deps", *PURE, "-d", folder, *requirements]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return sorted(folder.glob("*.whl"))


def pyodide_distribution(folder: Path, packages: Sequence[str], pyodide: Path = PYODIDE) -> Path:
    """A folder with Pyodide, the project's or that of another folder, these of its packages and what they depend on; in
    the lock file they have the digests of PyPI's wheels, as Pyodide's server has builds of its own. protobuf is the
    pure one, too."""
    folder.mkdir(parents=True)
    for name in PYODIDE_FILES:
        shutil.copy(pyodide / name, folder)
    lock = json.loads((pyodide / "pyodide-lock.json").read_text())
    known = {name.lower().replace("_", "-"): about for name, about in lock["packages"].items()}
    wanted: dict[str, str] = {}
    todo = list(packages)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in wanted:
            wanted[name] = known[name]["version"]
            todo += known[name]["depends"]
    wheels = download(folder, *(f"{name}=={version}" for name, version in wanted.items()))
    by_file = {about["file_name"]: about for about in known.values()}
    for wheel in wheels:
        by_file[wheel.name]["sha256"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (protobuf,) = PROTOBUF_WHEELS.glob("*.whl")
    shutil.copy(protobuf, folder)
    digest = hashlib.sha256(protobuf.read_bytes()).hexdigest()
    known["protobuf"].update(version=protobuf.name.split("-")[1], file_name=protobuf.name, sha256=digest)
    (folder / "pyodide-lock.json").write_text(json.dumps(lock))
    return folder
