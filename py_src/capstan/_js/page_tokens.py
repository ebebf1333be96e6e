"""Gives Python the page's tokenizer and token masks (web/src/worker/tokenizer_json.ts, token_walks.ts)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["PageBackend", "PageTokenWalks"]


class PageBackend:
    """Calls the object that web/src/worker/tokenizer_json.ts makes. Ids go to Python as a typed array, and to
    JavaScript as JSON.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens)
        return list(ids.to_py() if hasattr(ids, "to_py") else ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(json.dumps(list(ids)), skip_special_tokens))


class PageTokenWalks:
    """Implements capstan.guidance.TokenWalks in a page."""

    def __init__(self, walks: Any) -> None:
        self._js = walks

    def walk(self, classes: bytes, step: Callable[[int, int], int]) -> PageTokenWalk:
        return PageTokenWalk(self._js, classes, step)


class PageTokenWalk:
    """Implements capstan.guidance.TokenWalk in a page."""

    def __init__(self, walks: Any, classes: bytes, step: Callable[[int, int], int]) -> None:
        # Tests drive PageBackend on CPython, over Node.
        from pyodide.ffi import create_proxy  # noqa: PLC0415  (tests drive the page's tokenizer on CPython, over Node)

        self._step = create_proxy(step)
        self._js = walks.walk(classes, self._step)

    def mask(self, start: int) -> bytes:
        return bytes(self._js.mask(start).to_bytes())

    def close(self) -> None:
        self._js = None
        self._step.destroy()
