"""Deadlines of cases: one that hangs is a failure, and its input is kept even where the process has to end."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import DEADLINE_SECONDS, Outcome

__all__ = ["PAGE_SECONDS", "LateError", "deadline", "is_late", "kept_until_end", "under_way"]

RUNNING = Path(__file__).parents[2] / "build/faults/running"
"""The cases that are being tried, each in a file named by its process."""
MORE_SECONDS = 5.0
"""A case that awaits has ended at DEADLINE_SECONDS; one that holds Python is stopped so much later, again and again."""
END_SECONDS = 60.0
"""A case that no signal stops ends with its process, after so much more."""

PAGE_SECONDS = 600.0
"""A case that holds the page itself ends the process."""


class LateError(BaseException):
    """A case took too long; `except Exception` of what is tried lets it pass."""


@contextmanager
def deadline(outcome: Outcome, case: bytes, seconds: float = DEADLINE_SECONDS) -> Iterator[None]:
    """A case of Python or of what it waits for: a failure of `outcome` if it takes longer."""

    def stop(*_: object) -> None:
        raise LateError

    seconds += MORE_SECONDS
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with kept_until_end(case, seconds + END_SECONDS):
            signal.setitimer(signal.ITIMER_REAL, seconds, MORE_SECONDS)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except LateError as error:
        places = [place for place in traceback.extract_tb(error.__traceback__) if place.filename != __file__]
        where = f" at {places[-1].filename[-40:]}:{places[-1].lineno}" if places else ""
        outcome.fail(case, f"no end within {seconds:g} s{where}")
    finally:
        signal.signal(signal.SIGALRM, before)


@contextmanager
def kept_until_end(case: bytes, seconds: float) -> Iterator[None]:
    """Keep a case in a file meanwhile, and behind it if the process dies; `is_late` after so many seconds."""
    RUNNING.mkdir(parents=True, exist_ok=True)
    file, end = RUNNING / str(os.getpid()), time.time() + seconds
    # A file without its deadline would be late.
    written = file.with_suffix(".new")
    written.write_bytes(case)
    os.utime(written, (end, end))
    written.replace(file)
    try:
        yield
    except LateError:
        file.unlink()
        raise
    file.unlink()


def is_late(process: int) -> bool:
    """Whether the case of another process has no end for too long."""
    try:
        return (RUNNING / str(process)).stat().st_mtime < time.time()
    except FileNotFoundError:
        return False


def under_way(process: int) -> bytes:
    """The case during which a process ended, empty if it tried none."""
    file = RUNNING / str(process)
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    finally:
        file.unlink(missing_ok=True)
