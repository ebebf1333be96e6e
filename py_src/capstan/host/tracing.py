"""Records traces: one file has the times of load, Python, submits, waits, copies and the GPU, and opens in Perfetto.

The format is Chrome's (JSON Object Format): complete events in microseconds on one clock, and the names of the tracks.
Spans that overlap without containing each other, such as the waits for queued bursts, are on separate lanes.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import OptionError
from . import current_host, spans
from .spans import HostSpans, Span, Spans

__all__ = ["Trace", "TraceFile", "begin_trace", "chrome_trace", "end_trace", "trace"]

TRACKS = ("load", "Python", "submit", "wait", "copy", "GPU")
"""In the order in which they are shown."""
PROCESS = 1


class TraceFile:
    """The file of a trace. It is tested before the work begins, and then written as a whole or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises OptionError if the file cannot be written."""
        self.path = Path(path)
        with self._writing():
            # A link stays a link to the trace.
            self.path = self.path.resolve()
            self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
            if self.path.exists() and not self.path.is_file():
                raise OptionError(
                    f"the trace cannot be written to {path}, which is not a file: give the path of a file"
                )
            self._part.touch()
            self._part.unlink()

    def write(self, content: dict[str, Any]) -> None:
        """Write the trace. Raises OptionError, and then leaves an existing file unchanged."""
        with self._writing():
            try:
                self._part.write_text(json.dumps(content), encoding="utf-8")
                self._part.replace(self.path)
            except BaseException:
                self._part.unlink(missing_ok=True)
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OptionError(
                f"the trace cannot be written to {self.path} ({error.strerror}): give a path in an existing, writable "
                "folder with room"
            ) from error


class Trace:
    """A trace, finished or under way."""

    _content: dict[str, Any] | None = None

    @property
    def content(self) -> dict[str, Any]:
        """The trace as data for a JSON file. Raises OptionError while it is under way."""
        if self._content is None:
            raise OptionError("the trace is under way: read it after the block of `async with capstan.trace()`")
        return self._content


@asynccontextmanager
async def trace(path: str | os.PathLike[str] | None = None) -> AsyncIterator[Trace]:
    """Trace the work in the block, including loads; with `path` the trace is written there at the end, even if the
    block raises.

    There is one trace at a time, of all models. Raises OptionError if one is under way, or if the file cannot be
    written.
    """
    file = None if path is None else TraceFile(path)
    taken = Trace()
    begin_trace()
    try:
        yield taken
    finally:
        taken._content = await end_trace()
        if file is not None:
            file.write(taken._content)


def begin_trace() -> None:
    """Begin a trace. Raises OptionError if another trace is under way."""
    host = current_host()
    spans.begin(host.now)
    host.begin_trace()


async def end_trace() -> dict[str, Any]:
    """End the trace, and return it as data for a JSON file. Raises OptionError if no trace is under way."""
    ended = spans.end()
    return chrome_trace(ended, await current_host().end_trace())


def chrome_trace(ours: Spans, host: HostSpans) -> dict[str, Any]:
    """Merge Python's spans and the host's spans into a trace in Chrome's format."""
    events: list[dict[str, Any]] = [metadata("process_name", 0, name="Capstan")]
    slices: list[dict[str, Any]] = []
    tid = 0
    for track in TRACKS:
        found = [Slice(span, host.origin) for span in (*ours.kept, *host.spans) if span.track == track]
        for number, lane in enumerate(lanes(found), 1):
            tid += 1
            events.append(metadata("thread_name", tid, name=track if number == 1 else f"{track} {number}"))
            events.append(metadata("thread_sort_index", tid, sort_index=tid))
            slices += [each.event(tid) for each in lane]
    other: dict[str, Any] = {
        "capstan": capstan_version(),
        "python": platform.python_version(),
        **host.about,
        "no_gpu_times": host.no_gpu_times or None,
        "unusable_gpu_times": host.unusable,
        "dropped_spans": ours.dropped + host.dropped,
    }
    return {"traceEvents": events + slices, "displayTimeUnit": "ms", "otherData": other}


class Slice:
    """A span in whole microseconds since 1970, which doubles hold exactly."""

    def __init__(self, span: Span, origin: float) -> None:
        self.span = span
        self.begin = round(1000 * (origin + span.begin))
        self.end = max(self.begin, round(1000 * (origin + span.end)))

    def event(self, tid: int) -> dict[str, Any]:
        """A complete event of Chrome's format."""
        span = self.span
        times = {"ts": self.begin, "dur": self.end - self.begin}
        args = {"args": span.given} if span.given else {}
        return {"name": span.name, "cat": span.track, "ph": "X", "pid": PROCESS, "tid": tid, **times, **args}


class Lane:
    """Holds slices in the order of their starts. Any two of them are nested or disjoint."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._ends: list[int] = []
        """The ends of the slices that contain the last one, and its own."""

    def takes(self, later: Slice) -> bool:
        """Whether a slice fits after the last slice or into it. The slice must not begin earlier than the last
        slice.
        """
        while self._ends and self._ends[-1] <= later.begin:
            self._ends.pop()
        return not self._ends or later.end <= self._ends[-1]

    def add(self, later: Slice) -> None:
        self.slices.append(later)
        self._ends.append(later.end)


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Assign the slices of a track to lanes: each slice goes to the first lane that has room for it."""
    found: list[Lane] = []
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        lane = next((lane for lane in found if lane.takes(each)), None)
        if lane is None:
            found.append(lane := Lane())
        lane.add(each)
    return [lane.slices for lane in found]


def metadata(name: str, tid: int, /, **args: Any) -> dict[str, Any]:
    """An event that names or orders a track."""
    return {"name": name, "ph": "M", "pid": PROCESS, "tid": tid, "args": args}


def capstan_version() -> str | None:
    """The version of the installed package; None for sources that are not installed."""
    try:
        return version("capstan-webgpu")
    except PackageNotFoundError:
        return None
