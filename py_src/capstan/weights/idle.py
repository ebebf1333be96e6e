"""Compares stored weights with their digests while the page has no requests.

A load does not check the stored bytes, since hashing takes longer than reading. This comparison finds changes on disk.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable

from ..errors import StorageError
from ..fallback import fall_back
from ..host.unused_time import UnusedTime
from .records import StoredRecord
from .store import Verification, WeightStore, is_sound

__all__ = ["IdleVerification", "taken_as_it_is"]

PAUSE_SECONDS = 0.05
"""The pause between two shards, in which the machine can do other work."""

unverified: dict[str, str] = {}
"""The sources of stored files that were loaded without a comparison, by content hash, in the order of loading."""


def taken_as_it_is(content: str, source: str) -> None:
    """Note that a stored file was loaded without a comparison with its digests."""
    unverified.setdefault(content, source)


class IdleVerification:
    """Compares each file that was loaded from the store with its digests, once, shard by shard, while nothing else
    runs.

    It works between `begin` and `stop`, and resumes unfinished files after the next `begin`. A damaged shard is marked,
    so that the next load fetches it again. A pass that finds damage reports it once, by a FallbackWarning and to
    `notify`. A file that cannot be opened is left to the next load.
    """

    def __init__(
        self, store: WeightStore, notify: Callable[[Verification], None], others: Callable[[], Awaitable[object]]
    ) -> None:
        """`others` returns when no other work between two requests, such as a load, is left."""
        self.counters: Counter[str] = Counter()
        """Counts: compared `files` and `shards`, `damaged` shards, and interruptions (`stopped`)."""
        self.distrusted = False
        """Whether damage was found since this was set to False; then the weights on the device may be wrong, too."""
        self._store = store
        self._notify = notify
        self._time = UnusedTime(others, self._verify_all)
        self._done: set[str] = set()
        self._next: dict[str, int] = {}
        """The shard to continue with, by content hash."""

    def begin(self, after: float) -> None:
        """Begin after `after` seconds without requests; with math.inf never."""
        if not math.isinf(after):
            self._time.begin(after)

    async def stop(self) -> None:
        """Stop for a request: release every file, and return."""
        self.counters["stopped"] += self._time.working
        await self._time.stop(cancel=True)

    async def _verify_all(self) -> None:
        while unverified:
            content, source = next(iter(unverified.items()))
            if content not in self._done:
                await self._verify(content, source)
                self._done.add(content)
            del unverified[content]

    async def _verify(self, content: str, source: str) -> None:
        damaged: list[int] = []
        count = 0
        try:
            record = await self._store.find_content(content)
            if record is None:
                return  # It was evicted.
            count = len(record.manifest.shards)
            while (shard := self._next.get(content, 0)) < count:
                if shard not in record.suspect and not await self._reads_sound(record, shard):
                    damaged.append(shard)
                    record = record.marked(record.suspect | {shard})
                    await self._store.repaired(record, record.suspect)
                self.counters["shards"] += 1
                self._next[content] = shard + 1
                await asyncio.sleep(PAUSE_SECONDS)
            self.counters["files"] += 1
        except StorageError:
            return  # Another tab is writing the file, or it is gone; the next load finds out.
        finally:
            if damaged:
                self._note_damage(Verification(content, (source,), count, tuple(damaged)))

    async def _reads_sound(self, record: StoredRecord, shard: int) -> bool:
        """Whether a shard has its digest. The file is open for this shard only, since other tabs may want it."""
        manifest = record.manifest
        backing = await self._store.backing()
        assert backing is not None
        file = await backing.open(record.data, manifest.size, manifest.shard_size, write=False)
        try:
            return await is_sound(file, manifest, shard)
        finally:
            file.close()

    def _note_damage(self, found: Verification) -> None:
        self.counters["damaged"] += len(found.damaged)
        self.distrusted = True
        numbers = ", ".join(map(str, found.damaged[:8])) + (", ..." if len(found.damaged) > 8 else "")
        fall_back(
            "stored weights",
            f"{found.sources[0]}: {len(found.damaged)} of {found.shards} shards ({numbers}) changed on disk since they "
            "were stored",
            "the next load fetches them again; answers of a model that was loaded from them may be wrong",
        )
        self._notify(found)
