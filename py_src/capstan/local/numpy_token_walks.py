"""Implements capstan.guidance.masks.TokenWalks on CPython. With numpy, all tokens are walked together, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..guidance import TokenBytes

__all__ = ["LocalTokenWalks"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """The different beginnings of tokens that have one length."""

    parents: Integers
    """The index, in the previous level, of the beginning that is a byte shorter."""
    bytes: Integers
    """The last byte of each beginning."""


class LocalTokenWalks:
    """Implements TokenWalks. Beginnings that several tokens share are walked once."""

    def __init__(self, tokens: TokenBytes) -> None:
        starts = np.array(tokens.ends, np.int64) & 0x7FFFFFFF
        data = np.frombuffer(tokens.data.tobytes(), np.uint8)
        lengths = np.diff(starts)
        self.levels: list[Level] = []
        self.nodes: Integers = np.zeros(len(lengths), np.int64)
        """The index of each token's result among those of all levels; 0, the root's, for tokens without bytes."""
        within, total = np.zeros(len(lengths), np.int64), 1
        for depth in count():
            [longer] = np.nonzero(lengths > depth)
            if not len(longer):
                break
            keys, found = np.unique(within[longer] << 8 | data[starts[longer] + depth], return_inverse=True)
            self.levels.append(Level(keys >> 8, keys & 255))
            within[longer] = found
            self.nodes[longer] = total + found
            total += len(keys)

    def walk(self, classes: bytes, step: Callable[[int, int], int]) -> LocalTokenWalk:
        return LocalTokenWalk(self, classes, step)


class LocalTokenWalk:
    """Implements TokenWalk. Its table has 0 for unknown entries."""

    def __init__(self, walks: LocalTokenWalks, classes: bytes, step: Callable[[int, int], int]) -> None:
        self._walks = walks
        self._step = step
        self._width = max(classes) + 1
        self._symbols = [np.frombuffer(classes, np.uint8)[level.bytes].astype(np.int64) for level in walks.levels]
        self._table: NDArray[Any] = np.zeros(64 * self._width, np.int64)

    def mask(self, start: int) -> bytes:
        found = [np.array([-1])]
        positions = np.array([start])
        for level, symbols in zip(self._walks.levels, self._symbols, strict=True):
            before = positions[level.parents]
            positions = np.full(len(before), -1)
            [fitting] = np.nonzero(before > 0)
            if len(fitting):
                positions[fitting] = self._after(before[fitting] * self._width + symbols[fitting])
            found.append(positions)
        fits = np.concatenate(found)[self._walks.nodes] > 0
        packed = np.packbits(fits, bitorder="little").tobytes()
        return packed + bytes(-len(packed) % 4)

    def _after(self, places: Integers) -> Integers:
        """The entries at these places."""
        while len(self._table) <= places.max():
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        found: Integers = self._table[places]
        if not found.all():
            for place in np.unique(places[found == 0]).tolist():
                self._table[place] = self._step(*divmod(place, self._width))
            found = self._table[places]
        return found

    def close(self) -> None:
        self._table = self._table[:0]
