"""Attacks on the loading of weights: a server that cuts, spoils, shifts and changes its responses, page loads that are
given up in the middle. The load must accept the file's bytes only, and the store may have nothing else."""

from __future__ import annotations

import asyncio
import json
import warnings
from random import Random
from typing import Any
from unittest import mock

from capstan.errors import CapstanError, StorageError
from capstan.host import retrying
from capstan.weights.manifest import Manifest
from capstan.weights.store import WeightStore
from capstan.weights.weight_file import WeightFile
from tests.paper_weights import PaperBacking, PaperServer, PaperSink

__all__ = ["good", "run", "script"]

SIZE, SHARD = 950, 100
good = b'{"digests": false, "loads": []}'
FAULTS = ("break", "spoil", "change", "untold", "disk", "damage", "crash", "short", "none")


def script(random: Random, data: bytes) -> bytes:
    """The faults of the loads that follow one another, as JSON."""
    del data
    loads = [[random.choice(FAULTS), random.randrange(SIZE)] for _ in range(random.randrange(1, 5))]
    return json.dumps({"digests": random.random() < 0.5, "loads": loads}).encode()


async def run(data: bytes) -> None:
    """Play the faults, then load without any."""
    told = json.loads(data)
    content = Random(1).randbytes(SIZE)
    server, backing = PaperServer(content), PaperBacking()
    text = Manifest.of([content[at : at + SHARD] for at in range(0, SIZE, SHARD)], SHARD).serialize()

    async def manifest() -> bytes | None:
        return text.encode() if told["digests"] else None

    async def load() -> None:
        sink = PaperSink((0, SIZE))
        file = await WeightFile.open(server.open(), WeightStore(backing), manifest)
        await file.load(sink, SIZE, lambda done, total: None)
        assert bytes(sink.found[0]) == server.data, "other bytes than the server's were taken"

    def refuse_writes(operation: str, name: str) -> None:
        if operation in ("write", "append_text", "write_text"):
            raise StorageError(f"{name}: the disk is full")

    with warnings.catch_warnings(), mock.patch.object(retrying, "PAUSE_SECONDS", 0.0):
        warnings.simplefilter("ignore")
        for fault, place in told["loads"]:
            apply(fault, place, server, backing, told["digests"], refuse_writes)
            try:
                await asyncio.wait_for(load(), 10)
            except CapstanError:
                pass
            except CrashError:
                backing.open_files.clear()
            server.break_at, server.change_at = None, None
            server.corrupt.clear()
            server.size_reported = True
            backing.before = lambda operation, name: None
            server.etag = server.etag or "1"
        for stored in await WeightStore(backing).verify():
            damaged = bool(stored.damaged)
            assert not damaged or any(fault == "damage" for fault, _ in told["loads"]), "what is stored is damaged"
        await load()
        sink = PaperSink((0, SIZE))
        file = await WeightFile.open(server.open(), WeightStore(backing), manifest)
        await file.load(sink, SIZE, lambda done, total: None)
        assert bytes(sink.found[0]) == server.data, "another load took other bytes"


class CrashError(Exception):
    """The page is gone."""


def apply(fault: str, place: int, server: PaperServer, backing: PaperBacking, digests: bool, full: Any) -> None:
    """Make that go wrong in the next load."""
    match fault:
        case "break":
            server.break_at = place
        case "spoil" if digests:
            server.corrupt[place] = 1 + place % 5
        case "change" if not digests:
            server.change_at = 1
        case "untold":
            server.size_reported = False
        case "disk":
            backing.before = full
        case "damage":
            for name, file in backing.files.items():
                if name.endswith(".data") and place < len(file) and digests:
                    del file[place:]
        case "crash":
            left = place % 40

            def crash(operation: str, name: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise CrashError

            backing.before = crash
        case _:
            pass
