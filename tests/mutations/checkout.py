"""A copy of the checkout for trying faults: the user's own files never change."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from buildtools import ROOT
from buildtools.wire import GENERATED as WIRE

from .mutation import Mutation, MutationError

__all__ = ["Checkout", "Outcome"]

GENERATED = (
    *("py_src/capstan/_js/host.js", "py_src/capstan/graph/onnx_pb2.py", "py_src/capstan/graph/onnx_pb2.pyi"),
    *(path.relative_to(ROOT).as_posix() for path in WIRE),
)
"""Files of the package and of the page that git ignores."""
INSTALLED = (".venv", "node_modules")
"""Folders whose own folders are linked; stamps of the set-up are copied, so that no set-up in the copy ends another."""
BUILT = ("build/site", "build/cache")
SECONDS = 180
"""The most that one test may take with a fault in the product: some faults are waits without end."""
FAILED = 1
"""pytest's exit status when tests failed."""


@dataclass(frozen=True)
class Outcome:
    """The end of a test run: the test that failed, empty if all passed, and the seconds."""

    killer: str
    seconds: float


class Checkout:
    """A copy of the checkout at `root`, with its uncommitted changes, in the folder `copy`, which is emptied before."""

    def __init__(self, root: Path, copy: Path) -> None:
        self.copy = copy
        shutil.rmtree(copy, ignore_errors=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        for name in {*listed.split("\0"), *GENERATED} - {""}:
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name)
        for name in INSTALLED:
            for path in (root / name).iterdir() if (root / name).exists() else ():
                (copy / name).mkdir(parents=True, exist_ok=True)
                if path.is_file():
                    shutil.copy2(path, copy / name)
                else:
                    (copy / name / path.name).symlink_to(path, target_is_directory=True)
        if (copy / INSTALLED[0]).exists():
            # The stamp of a virtual environment names its checkout.
            stamp = hashlib.sha256(str(copy.resolve()).encode()).hexdigest()
            (copy / INSTALLED[0] / ".capstan-venv").write_text(stamp)
        for name in BUILT:
            if (root / name).exists():
                shutil.copytree(root / name, copy / name)

    @contextmanager
    def with_fault(self, mutation: Mutation) -> Iterator[None]:
        """The copy has the fault inside this context."""
        path = self.copy / mutation.file
        good, bad = path.read_bytes(), mutation.mutated(self.copy).encode()
        try:
            path.write_bytes(bad)
            yield
        finally:
            path.write_bytes(good)

    def run(self, tests: Sequence[str]) -> Outcome:
        """Run these tests in the copy up to the first failure, without those that take minutes. Raises MutationError if
        pytest could not run them."""
        python = self.copy / ".venv/bin/python"
        command = [python if python.exists() else sys.executable, "-P", "-m", "pytest", "-x", "-q", "--no-header"]
        command += ["-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", "not extended", "-o", f"timeout={SECONDS}"]
        begun = time.monotonic()
        done = subprocess.run(
            [*command, *tests], cwd=self.copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        seconds = time.monotonic() - begun
        if not done.returncode:
            return Outcome("", seconds)
        failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode != FAILED or not failed:
            words = " ".join(done.stdout.split()[-60:])
            raise MutationError(f"pytest ended with status {done.returncode}: {words}")
        return Outcome(failed[1], seconds)
