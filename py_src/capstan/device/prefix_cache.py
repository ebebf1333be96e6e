"""Lets a prompt that begins like an earlier sequence take over that sequence's key/value rows, and run only the later
tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from ..errors import CapstanError, OptionError, OutOfMemoryError
from ..fallback import fall_back
from .cache_rows import CacheRows
from .row_interface import RowDecoder

__all__ = ["Content", "Prefix", "PrefixCache", "PrefixStats", "checked_limit", "common"]

LEAST = 16
"""The shortest prefix that is worth a copy: running the model on fewer tokens takes as long as a copy."""


@dataclass(frozen=True)
class Content:
    """A range of tokens that stand for other content, such as a picture: another picture may have the same ids."""

    start: int
    end: int
    digest: str


@dataclass(frozen=True)
class Prefix:
    """The key of a sequence's first tokens: two sequences with equal keys have equal key/value rows."""

    ids: array[int]
    contents: frozenset[Content] = field(default_factory=frozenset)

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, row: LiveRow, length: int) -> Prefix:
        """The key of a row's first `length` tokens, cut before a content that does not end within them."""
        end = min([length, *(each.start for each in row.contents if each.start < length < each.end)])
        return cls(array("q", row.tokens[:end]), frozenset(each for each in row.contents if each.end <= end))


class LiveRow(Protocol):
    """A row of a generator."""

    tokens: list[int]
    valid: int
    """The number of first tokens whose KV cache entries are known to be right."""

    @property
    def contents(self) -> Sequence[Content]:
        """The contents other than text among its tokens, in any order."""


class LiveRows(Protocol):
    """The rows of a generator's loop."""

    @property
    def rows(self) -> Sequence[LiveRow]: ...

    decoder: RowDecoder | None

    @property
    def cache_key(self) -> Hashable:
        """Everything besides the tokens that changes the caches' contents."""


@dataclass
class Kept:
    """A copy of the caches of a sequence that was closed."""

    tokens: Prefix
    key: Hashable
    caches: CacheRows
    bytes: int


@dataclass(frozen=True)
class PrefixStats:
    """Statistics of a model's prefix cache since the model was loaded, and its present contents."""

    reused: int
    """Prompt tokens whose rows were copied."""
    run: int
    """Prompt tokens that were run, in sequences that were looked up."""
    hits: int
    """Sequences that took over some tokens."""
    misses: int
    """Sequences that found no tokens."""
    evicted: int
    """Copies that were freed for others or because memory was short."""
    kept: int
    """The present number of copies."""
    bytes: int
    """Their size."""
    limit: int
    """The largest size that they may reach."""


class PrefixCache:
    """Key/value rows of a model's sequences by their tokens.

    Open generators share the rows in their own caches. When one is closed, its rows are copied, as long as all copies
    together have at most `limit` bytes; the least recently used are freed for new ones. A limit of 0 turns sharing
    off."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._live: WeakSet[LiveRows] = WeakSet()
        self._kept: list[Kept] = []
        """The copies, least recently used first."""
        self._closed = False
        self._reused = self._run = self._hits = self._misses = self._evicted = 0

    def stats(self) -> PrefixStats:
        """The counts of shared tokens, and the present contents."""
        counts = (self._reused, self._run, self._hits, self._misses, self._evicted)
        return PrefixStats(*counts, len(self._kept), self._bytes, self.limit)

    def follow(self, loop: LiveRows) -> None:
        """Share the contents of a generator's caches from now on."""
        if self.limit:
            self._live.add(loop)

    def waits(self, row: LiveRow, others: Sequence[LiveRow], there: Sequence[LiveRow]) -> bool:
        """Whether a row could take over more tokens from `others`, once they have run, than from rows that are present
        now.
        """
        if not self.limit:
            return False
        wanted = Prefix.of(row, len(row.tokens) - 1)

        def longest(rows: Sequence[LiveRow]) -> int:
            return max((common(wanted, Prefix.of(each, len(each.tokens))) for each in rows), default=0)

        return longest(others) >= max(row.valid, longest(there)) + LEAST

    async def bring(self, loop: LiveRows, number: int) -> int:
        """Copy the start of a row's tokens from another sequence into its caches. Returns the number of tokens that the
        row need not run, from `valid` to all but the last one.
        """
        decoder, row = loop.decoder, loop.rows[number]
        if not self.limit or decoder is None or len(row.tokens) - 1 < row.valid + LEAST:
            return row.valid
        if decoder.row(number).caches() is None:
            fall_back(
                "a prefix cache",
                "the model has states that each run overwrites, so that no earlier position is left",
                "each prompt is run as a whole",
            )
            return row.valid
        await decoder.rest()
        found, caches, kept = self._longest(loop, number)
        if caches is None or found < row.valid + LEAST:
            self._misses += 1
            self._run += len(row.tokens) - row.valid
            return row.valid
        decoder.row(number).adopt(caches, found)
        if kept is not None:
            self._kept.remove(kept)
            self._kept.append(kept)
        self._hits += 1
        self._reused += found - row.valid
        self._run += len(row.tokens) - found
        return found

    async def leave(self, loop: LiveRows, rows: Sequence[int]) -> None:
        """Keep these rows of a generator that is closed."""
        self._live.discard(loop)
        await self.keep(loop, rows)

    async def keep(self, loop: LiveRows, rows: Sequence[int]) -> None:
        """Copy these rows, which are about to be given up. A copy that cannot be kept is counted as a fallback."""
        decoder = loop.decoder
        if not self.limit or self._closed or decoder is None:
            return
        try:
            for number in rows:
                row = loop.rows[number]
                caches = decoder.row(number).caches()
                if caches is not None and row.valid > LEAST and caches.holds(row.valid):
                    await self._keep(Prefix.of(row, row.valid), loop.cache_key, caches)
        except CapstanError as error:
            fall_back("rows of a closed sequence in the prefix cache", str(error), "its tokens are run again")

    def clear(self) -> bool:
        """Free all copies; whether there were any."""
        found = bool(self._kept)
        while self._kept:
            self._evict()
        return found

    def lost(self) -> None:
        """Forget everything on a lost device."""
        self._kept.clear()
        self._live.clear()

    def close(self) -> None:
        """Free all copies; no more are kept."""
        self._closed = True
        self.clear()

    @property
    def _bytes(self) -> int:
        return sum(kept.bytes for kept in self._kept)

    def _sources(self, loop: LiveRows, number: int) -> Iterator[tuple[Prefix, CacheRows, Kept | None]]:
        """The sequences whose rows may be taken over, with the tokens that are known to be in them."""
        for kept in self._kept:
            if kept.key == loop.cache_key:
                yield kept.tokens, kept.caches, kept
        for live in self._live:
            if live.decoder is None or live.cache_key != loop.cache_key:
                continue
            for other, row in enumerate(live.rows):
                caches = live.decoder.row(other).caches() if (live, other) != (loop, number) and row.valid else None
                if caches is not None:
                    yield Prefix.of(row, row.valid), caches, None

    def _longest(self, loop: LiveRows, number: int) -> tuple[int, CacheRows | None, Kept | None]:
        """The longest cached start of a row's tokens, and its place. The last token always runs, for the logits after
        it.
        """
        row = loop.rows[number]
        wanted = Prefix.of(row, len(row.tokens) - 1)
        target = loop.decoder.row(number).caches() if loop.decoder is not None else None
        best: tuple[int, CacheRows | None, Kept | None] = (0, None, None)
        for tokens, caches, kept in self._sources(loop, number):
            length = common(wanted, tokens)
            if length > best[0] and caches.continues(target, length):
                best = length, caches, kept
        return best

    async def _keep(self, tokens: Prefix, key: Hashable, caches: CacheRows) -> None:
        """Copy a sequence's rows. If one copy is the start of another, only the longer one stays."""
        size = caches.size(len(tokens))
        if size > self.limit:
            return
        of_key = [kept for kept in self._kept if kept.key == key]
        if any(common(tokens, kept.tokens) == len(tokens) for kept in of_key):
            return
        for kept in of_key:
            if common(tokens, kept.tokens) == len(kept.tokens):
                self._free(kept)
        while self._bytes + size > self.limit:
            self._evict()
        while True:
            try:
                made = await caches.kept(len(tokens))
                break
            except OutOfMemoryError:
                if not self._kept:
                    raise
                self._evict()
        if self._closed:
            made.free()
        else:
            self._kept.append(Kept(tokens, key, made, size))

    def _evict(self) -> None:
        self._evicted += 1
        self._free(self._kept[0])

    def _free(self, kept: Kept) -> None:
        self._kept.remove(kept)
        kept.caches.free()


def common(one: Prefix, other: Prefix) -> int:
    """The length of the common start of two sequences: the same ids, with the same whole contents."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.ids[low:middle] == other.ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    cut = [each.start for each in one.contents | other.contents if each.start < low < each.end]
    return min([low, *cut, *(each.start for each in one.contents ^ other.contents)])


def checked_limit(limit: int) -> int:
    """A number of bytes. OptionError for a negative one."""
    if limit < 0:
        raise OptionError(
            f"prefix_cache is {limit!r}; it must be an integer from 0 (off): the most bytes of device memory for rows "
            "of closed generators"
        )
    return limit
