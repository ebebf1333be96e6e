"""Options of an engine's requests and of their turns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import OptionError

if TYPE_CHECKING:
    from .engine import Request

__all__ = ["RequestOptions", "TurnOptions", "count"]


class RequestOptions:
    """Limits of a request."""

    def __init__(self) -> None:
        self.max_session_tokens = 0

    def set_max_session_tokens(self, tokens: int, /) -> None:
        """Tokens that the request may reach over all turns, prompts included; 0 takes the model's max_length."""
        self.max_session_tokens = count("max_session_tokens", tokens)


def count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise TypeError(f"{name}: a number from 0 is expected, not {value!r}")
    return int(value)


class TurnOptions:
    """How one turn of a request generates; what is not set is as the model's configuration says."""

    def __init__(self, request: Request, /) -> None:
        if not hasattr(request, "begin_turn"):
            raise TypeError(f"TurnOptions: a Request is expected, not {type(request).__name__}")
        self._request = weakref.ref(request)
        self.reset()

    def reset(self) -> None:
        """Forget everything that was set."""
        self._search: dict[str, Any] = {}
        self._most = self._least = 0
        self._stops: list[str] = []
        self._guidance: tuple[str, str] | None = None

    def set_do_sample(self, value: bool, /) -> None:
        """Whether tokens are drawn (True) or the largest logit is taken (False)."""
        self._search["do_sample"] = bool(value)

    def set_temperature(self, value: float, /) -> None:
        """The sampling temperature; 0 takes the largest logit."""
        self._search["temperature"] = float(value)

    def set_top_k(self, value: int, /) -> None:
        """Draw a token from the `value` most probable ones; 0 disables it."""
        self._search["top_k"] = value

    def set_top_p(self, value: float, /) -> None:
        """The share of the weight from which a token is drawn, from 0 to 1; either end turns it off."""
        self._search["top_p"] = float(value)

    def set_seed(self, value: int, /) -> None:
        """The seed of the turn's draws."""
        self._search["random_seed"] = count("seed", value)

    def clear_seed(self) -> None:
        """Draw a seed."""
        self._search.pop("random_seed", None)

    def set_repetition_penalty(self, value: float, /) -> None:
        """Penalty of tokens that are in the sequence, greater than 0."""
        self._search["repetition_penalty"] = float(value)

    def set_no_repeat_ngram_size(self, value: int, /) -> None:
        """N-grams of this size do not repeat; 0 turns it off."""
        self._search["no_repeat_ngram_size"] = value

    def set_max_generated_tokens(self, value: int, /) -> None:
        """Most tokens of the turn; 0 sets no limit."""
        self._most = count("max_generated_tokens", value)

    def set_min_generated_tokens(self, value: int, /) -> None:
        """Least tokens before an end of sequence; 0 sets no limit."""
        self._least = count("min_generated_tokens", value)

    def set_stop_strings(self, texts: Sequence[str], /) -> None:
        """Texts of which any ends the turn; [] is none. OptionError for an empty text."""
        if isinstance(texts, str):
            raise TypeError("set_stop_strings: a sequence of texts is expected, not one text")
        for place, text in enumerate(texts):
            if not text:
                raise OptionError(f"stop string {place} is empty; leave it out")
        self._stops = list(texts)

    def set_guidance(self, kind: str, data: str, /) -> None:
        """Constrain the turn by a grammar."""
        self._guidance = (kind, data)

    def clear_guidance(self) -> None:
        """No grammar."""
        self._guidance = None
