"""Processes that share the cases of `build.py test --faults`, and survive cases that end a process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from capstan_host.terminal import say

from .deadline import is_late, under_way
from .report import Outcome

__all__ = ["spread"]


POLL_SECONDS = 0.5
COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "tests.faults")


def spread(given: Sequence[str], kinds: Sequence[str], processes: int) -> list[Outcome]:
    """The outcomes of so many processes that share the cases of these classes, added up."""
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        names = [f"{part}/{processes}" for part in range(1, processes + 1)]
        parts = [stack.enter_context(Part(given, kinds, name, folder)) for name in names]
        while [part for part in parts if not part.ended()]:
            time.sleep(POLL_SECONDS)
        for outcome in itertools.chain(*(part.outcomes for part in parts)):
            found.setdefault(outcome.kind, Outcome(outcome.kind)).add(outcome)
    return [*found.values()]


class Part:
    """The process that tries one part of the cases. If it dies or hangs, another one goes on with the next class."""

    def __init__(self, given: Sequence[str], kinds: Sequence[str], name: str, folder: str) -> None:
        self._given, self._name, self._folder = given, name, folder
        self._out = Path(folder) / f"{name.partition('/')[0]}.jsonl"
        self.outcomes: list[Outcome] = []
        """Those of each class that was tried."""
        self._start(kinds)

    def _start(self, kinds: Sequence[str]) -> None:
        self._left = list(kinds)
        self._out.write_text("")
        chosen = [f"--class={kind}" for kind in kinds]
        self._process = subprocess.Popen(
            [*COMMAND, *self._given, *chosen, f"--part={self._name}", f"--out={self._out}"],
            env={**os.environ, "TMPDIR": self._folder},
            start_new_session=True,
        )

    def ended(self) -> bool:
        """Whether all classes were tried."""
        if self._left and is_late(self._process.pid):
            # Python prints its stack.
            self._process.send_signal(signal.SIGABRT)
            self._process.wait()
        if self._left and (status := self._process.poll()) is not None:
            self._take(status)
        return not self._left

    def _take(self, status: int) -> None:
        """Take the outcomes of a process that ended; start another one if that was too early."""
        self._end()
        for line in self._out.read_text().splitlines():
            self.outcomes.append(Outcome.read(json.loads(line)))
            self._left.remove(self.outcomes[-1].kind)
        if self._left:
            died = Outcome(self._left.pop(0))
            died.fail(under_way(self._process.pid), f"process {self._name} ended with {status}, and the class with it")
            say(died.failures[0].line())
            self.outcomes.append(died)
        if self._left:
            self._start(self._left)

    def _end(self) -> None:
        """End what the process leaves, such as its browser."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
