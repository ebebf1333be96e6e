"""Weights' surroundings made of paper: a server, a storage and a sink that tests can break, on CPython. The page's own
loop (web/src/worker/storage/weight_load.ts) runs between them, in Node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from capstan.errors import CapstanError, StorageError, WeightsChangedError
from capstan.host.storage_interface import BrokenDownloadError, LoadPlan, Outcome, Sink, SourceIdentity
from tests.node import started

__all__ = ["PaperBacking", "PaperServer", "PaperSink", "PaperSource"]


@cache
def node() -> subprocess.Popen[str]:
    """Node with the page's loop; it ends with this process."""
    return started(Path(__file__).with_name("paper_loop.mjs"))


runs = count(1)


def send(run: int, what: str, *about: Any) -> None:
    process = node()
    assert process.stdin
    process.stdin.write(json.dumps([run, what, *about]) + "\n")
    process.stdin.flush()


def receive(run: int) -> Any:
    process = node()
    assert process.stdout
    while True:
        line = process.stdout.readline()
        assert line, "Node has ended"
        found, *message = json.loads(line)
        if found == run:
            return message


class PaperServer:
    """One file at one URL. No response gets past the byte `break_at`; `corrupt` maps a byte's position to
    how many responses still spoil it; `change_at` is how many requests it takes until the file is another one. Nothing
    past the byte `stall_at` comes: once all before is stored the page's clocks tick, `stalled` is called, and the
    connection breaks."""

    def __init__(self, data: bytes, *, url: str = "https://host/m/data", etag: str | None = "1") -> None:
        self.data = data
        self.url = url
        self.etag = etag
        self.size_reported = True
        self.listed: str | None = None
        """The SHA-256 that a hub lists for the file."""
        self.sent = 0
        self.requests: list[tuple[int, int]] = []
        self.break_at: int | None = None
        self.stall_at: int | None = None
        self.stalled: Callable[[], None] = lambda: None
        self.corrupt: Counter[int] = Counter()
        self.change_at: int | None = None

    def open(self) -> PaperSource:
        return PaperSource(self)

    def identity(self) -> SourceIdentity:
        size = len(self.data) if self.size_reported else None
        if self.listed is not None:
            return SourceIdentity(self.url, size, f"sha256 {self.listed}")
        return SourceIdentity(self.url, size, f'etag "{self.etag}"' if self.etag else None)

    def respond(self, start: int, end: int | None) -> bytes:
        if self.change_at is not None and len(self.requests) >= self.change_at:
            self.etag = "changed"
        stop = len(self.data) if end is None else end
        self.requests.append((start, stop))
        found = bytearray(self.data[start:stop])
        for place in [place for place in self.corrupt if start <= place < stop and self.corrupt[place] > 0]:
            self.corrupt[place] -= 1
            found[place - start] ^= 1
        return bytes(found)


class PaperSource:
    ticks = False
    """Whether the page's clocks tick before each answer, so that what is done by the clock is done at all moments; else
    no time passes."""

    def __init__(self, server: PaperServer) -> None:
        self.server = server
        self.identity = server.identity()
        self.position: int | None = None
        self.end: int | None = None
        self._stream = b""

    async def look_elsewhere(self) -> None:
        """No other site stored it."""

    def offer(self, backing: Any, name: str) -> None:
        """No other site wants it."""

    async def load(
        self,
        plan: LoadPlan,
        file: Any,
        sink: Any,
        told: Callable[[int], None],
        hashed: Callable[[int, bytes], None] | None,
    ) -> Outcome:
        """The page's loop, over paper. A run that is left in its midst is not answered any more."""
        run = next(runs)
        answers: dict[str, Callable[..., Awaitable[Any]]] = {
            "seek": self.seek,
            "stream": self.read,
            "fetch": self.read_at,
            "accept": lambda start, data: sink.accept(start, b64decode(data)),
        }
        if file is not None:
            answers |= {"read": file.read, "append": file.backing.append_text}
            answers["write"] = lambda start, data: file.write(start, b64decode(data))
        about = {"name": file.name, "direct": sink.pours and file.exclusive} if file else None
        stream = {"position": self.position, "end": self.end}
        given = {"plan": plan.as_json(), "source": stream, "file": about}
        send(run, "run", given | {"spans": sink.spans, "hashes": hashed is not None})
        thrown: CapstanError | None = None
        stalled: list[Any] | None = None
        late: list[list[Any]] = []
        """Calls that are answered after a tick of the clocks, each after one."""
        while True:
            message = receive(run)
            if message[0] == "ticked":
                message = late.pop(0)
            elif message[0] == "stream" and self._stalls(message[-1]):
                stalled = message
                continue
            elif self.ticks and message[0] in answers and message[0] != "append":
                late.append(message)
                send(run, "tick")
                continue
            name, *arguments = message
            if name in ("outcome", "thrown"):
                assert arguments.pop(0) == 0, "a clock outlives the load"
            if name == "told":
                told(*arguments)
                if stalled and arguments == [self.position]:
                    late.append(stalled)
                    send(run, "tick")
            elif name == "hash":
                assert hashed is not None
                hashed(arguments[0], b64decode(arguments[1]))
            elif name == "outcome":
                return Outcome(**arguments[0])
            elif name == "thrown":
                assert thrown is not None, arguments
                raise thrown
            else:
                number, *arguments = arguments
                try:
                    found = await answers[name](*arguments)
                except CapstanError as error:
                    thrown = error
                    wait = getattr(error, "wait", None)
                    fault = {"code": type(error).__name__, "message": str(error), "wait": wait}
                    send(run, "answer", number, {"error": fault})
                else:
                    result = b64encode(found).decode() if isinstance(found, bytes) else found
                    send(run, "answer", number, {"result": result})
            # Others get their turn, as they do while a page waits.
            await asyncio.sleep(0)

    def memory(self, start: int, length: int) -> PaperSink:
        return PaperSink((start, length))

    def opened(self) -> None:
        """It is on a server."""

    async def seek(self, start: int, end: int | None) -> None:
        self._stream, self.position, self.end = self._request(start, end), start, end

    async def read(self, length: int) -> bytes:
        assert self.position is not None
        assert self.end is None or self.position + length <= self.end, "read past the end of what was asked for"
        if self._stalls(length):
            self.server.stalled()
            raise BrokenDownloadError("the connection stalled")
        cut = self.server.break_at
        if cut is not None and self.position + length > cut:
            self.server.sent += max(0, cut - self.position)
            raise BrokenDownloadError("the connection broke off")
        part, self._stream = self._stream[:length], self._stream[length:]
        self.position += len(part)
        return self._sent(part)

    def _stalls(self, length: int) -> bool:
        assert self.position is not None
        return self.server.stall_at is not None and self.position + length > self.server.stall_at

    async def read_at(self, start: int, length: int) -> bytes:
        return self._sent(self._request(start, start + length))

    def close(self) -> None:
        self.position = None

    def _sent(self, part: bytes) -> bytes:
        self.server.sent += len(part)
        return part

    def _request(self, start: int, end: int | None) -> bytes:
        found = self.server.respond(start, end)
        if self.server.identity() != self.identity:
            raise WeightsChangedError(f"{self.identity.name} changed")
        return found


class PaperBacking:
    """Files in a dictionary. `before` is called with (operation, name) ahead of each, and may raise."""

    kind = "opfs"

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.locked: set[str] = set()
        self.open_files: Counter[str] = Counter()
        self.free: int | None = None
        self.before: Callable[[str, str], None] = lambda operation, name: None

    async def names(self) -> list[str]:
        self.before("names", "")
        return list(self.files)

    async def read_text(self, name: str) -> str | None:
        self.before("read_text", name)
        return self.files[name].decode() if name in self.files else None

    async def write_text(self, name: str, text: str) -> None:
        self.before("write_text", name)
        self.files[name] = bytearray(text.encode())

    async def append_text(self, name: str, text: str) -> None:
        self.before("append_text", name)
        self.files.setdefault(name, bytearray()).extend(text.encode())

    async def read_bytes(self, name: str) -> bytes | None:
        self.before("read_bytes", name)
        return bytes(self.files[name]) if name in self.files else None

    async def write_bytes(self, name: str, data: bytes) -> None:
        self.before("write_bytes", name)
        self.files[name] = bytearray(data)

    async def remove(self, name: str) -> None:
        self.before("remove", name)
        if name in self.locked or self.open_files[name]:
            raise StorageError(f"{name}: another tab has it open")
        self.files.pop(name, None)

    async def open(self, name: str, size: int, shard_size: int, write: bool) -> PaperFile:
        self.before("open", name)
        if write:
            if name in self.locked or self.open_files[name]:
                raise StorageError(f"{name}: another tab has it open")
            self.files.setdefault(name, bytearray())
        elif len(self.files.get(name, b"")) != size:
            raise StorageError(f"{name}: {len(self.files.get(name, b''))} bytes are left of {size}")
        return PaperFile(self, name, exclusive=write or name not in self.locked)

    async def free_bytes(self) -> int | None:
        return self.free


class PaperFile:
    def __init__(self, backing: PaperBacking, name: str, exclusive: bool) -> None:
        self.backing = backing
        self.name = name
        self.exclusive = exclusive
        backing.open_files[name] += 1

    async def read(self, start: int, length: int) -> bytes:
        self.backing.before("read", self.name)
        if self.name not in self.backing.files:
            raise StorageError(f"{self.name}: it is gone")
        return bytes(self.backing.files[self.name][start : start + length])

    async def parts(self, places: Sequence[tuple[int, int]]) -> bytes:
        return b"".join([await self.read(*place) for place in places])

    async def write(self, start: int, data: bytes | bytearray | memoryview) -> str:
        self.backing.before("write", self.name)
        file = self.backing.files[self.name]
        file.extend(bytes(max(0, start + len(data) - len(file))))
        file[start : start + len(data)] = data
        return hashlib.sha256(data).hexdigest()

    async def flush(self) -> None:
        self.backing.before("flush", self.name)

    async def sha256(self, start: int, length: int) -> str | None:
        found = await self.read(start, length)
        return hashlib.sha256(found).hexdigest() if len(found) == length else None

    async def load(self, plan: LoadPlan, sink: Sink) -> Outcome:
        assert isinstance(sink, PaperSink)
        for at in range(plan.start, plan.end, plan.shard):
            found = await self.read(at, min(plan.shard, plan.end - at))
            if hashlib.sha256(found).hexdigest() != plan.digests[at // plan.shard]:
                return Outcome(at, (), (), "digest")
            await sink.accept(at, found)
        return Outcome(plan.end, (), (), None)

    def memory(self, start: int, length: int) -> PaperSink:
        return PaperSink((start, length))

    def close(self) -> None:
        self.backing.open_files[self.name] -= 1


class PaperSink:
    """Collects the bytes of (offset, length) spans."""

    pours = False
    """Whether stored files can do without a chunk."""

    def __init__(self, *spans: tuple[int, int]) -> None:
        self.spans = spans
        self.found = [bytearray() for _ in spans]
        self.finished = False

    async def accept(self, start: int, data: bytes) -> None:
        for (offset, size), found in zip(self.spans, self.found, strict=True):
            first, last = max(start, offset), min(start + len(data), offset + size)
            if first < last:
                assert len(found) == first - offset, "bytes were left out or came twice"
                found += data[first - start : last - start]

    def to_bytes(self) -> bytes:
        return bytes(self.found[0])

    async def finish(self) -> None:
        self.finished = True

    def close(self) -> None:
        """Nothing is held."""
