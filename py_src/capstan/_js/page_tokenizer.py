"""The page's tokenizer (web/src/worker/tokenizer_json.ts), as capstan.tokenizer drives it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["PageBackend"]


class PageBackend:
    """The object that web/src/worker/tokenizer_json.ts makes; ids cross as a typed array one way and as JSON the
    other."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens)
        return list(ids.to_py() if hasattr(ids, "to_py") else ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(json.dumps(list(ids)), skip_special_tokens))
