"""Pyodide's packages as its own server would have them: npm has Pyodide without any, PyPI the wheels of those in pure
Python."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from buildtools import ROOT
from buildtools.environment import PROTOBUF_WHEELS, venv_python
from buildtools.site import ORT_FILES, PYODIDE_FILES
from buildtools.wheels import template_wheels
from capstan_host.model_arguments import BUNDLED

__all__ = ["download", "fresh_venv", "lay_beside", "of_npm", "pyodide_distribution"]

PYODIDE = ROOT / "node_modules/pyodide"
PURE = ["--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.14"]


def download(folder: Path, *requirements: str) -> list[Path]:
    """Download pure-Python wheels from PyPI, without their dependencies."""
    command = [venv_python(), "-m", "pip", "download", "-q", "--no-deps", *PURE, "-d", folder, *requirements]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return sorted(folder.glob("*.whl"))


def of_npm(folder: Path, package: str) -> Path:
    """A package of npm's at a version, unpacked in a folder that is there."""
    pack = ["npm", "pack", package, "--silent", "--pack-destination", str(folder)]
    subprocess.run(pack, check=True, capture_output=True, cwd=folder)
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder / "packed", format="gztar", filter="data")
    return folder / "packed/package"


def fresh_venv(folder: Path, *packages: str) -> Path:
    """Make a new virtual environment with these packages. Returns the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install: list[str | Path] = [folder / "bin/python", "-m", "pip", "install", "-q", *packages]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "bin"


def lay_beside(folder: Path) -> None:
    """Copy the files that a notebook reads into a new folder: `ort` with onnxruntime-web, and models/bundled."""
    (folder / "ort").mkdir(parents=True)
    for name in ORT_FILES:
        shutil.copy(ROOT / "node_modules/onnxruntime-web/dist" / name, folder / "ort")
    shutil.copytree(BUNDLED, folder / "models/bundled")


def pyodide_distribution(folder: Path, packages: Sequence[str], pyodide: Path = PYODIDE) -> Path:
    """A folder with Pyodide, the project's or that of another folder, these of its packages and what they depend on; in
    the lock file they have the digests of PyPI's wheels, as Pyodide's server has builds of its own. Capstan's
    dependencies are there as pure Python."""
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
    for wheel in (protobuf, *template_wheels()):
        name = wheel.name.split("-")[0]
        shutil.copy(wheel, folder)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        known[name].update(version=wheel.name.split("-")[1], file_name=wheel.name, sha256=digest)
    (folder / "pyodide-lock.json").write_text(json.dumps(lock))
    return folder
