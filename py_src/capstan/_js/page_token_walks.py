"""The page's masks (web/src/worker/token_walks.ts), as capstan.guidance asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyodide.ffi import create_proxy

__all__ = ["PageTokenWalks"]


class PageTokenWalks:
    """See capstan.guidance.TokenWalks."""

    def __init__(self, walks: Any) -> None:
        self._js = walks

    def walk(self, classes: bytes, step: Callable[[int, int], int]) -> PageTokenWalk:
        return PageTokenWalk(self._js, classes, step)


class PageTokenWalk:
    """See capstan.guidance.TokenWalk."""

    def __init__(self, walks: Any, classes: bytes, step: Callable[[int, int], int]) -> None:
        self._step = create_proxy(step)
        self._js = walks.walk(classes, self._step)

    def mask(self, start: int) -> bytes:
        return bytes(self._js.mask(start).to_bytes())

    def close(self) -> None:
        self._js = None
        self._step.destroy()
