"""The rules by which Whisper's timestamps are picked: in pairs, in order, and where they are likelier than text.

The definition is openai's `ApplyTimestampRules`, and transformers' `WhisperTimeStampLogitsProcessor`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .speech_tokens import SpeechTokens

__all__ = ["TimestampRules"]

Logits = np.ndarray[Any, np.dtype[np.float32]]


class TimestampRules:
    """A logits processor; see capstan.GeneratorParams."""

    def __init__(self, tokens: SpeechTokens, prompt: int, vocabulary: int) -> None:
        """`prompt` is the number of tokens before a window's first one."""
        self._tokens, self._prompt = tokens, prompt
        self._never = np.array([each for each in tokens.suppressed if each < vocabulary], np.int64)
        self._never_first = np.array([each for each in tokens.suppressed_first if each < vocabulary], np.int64)

    def __call__(self, sequence: list[int], logits: memoryview[float]) -> None:
        """Exclude the tokens that must not come next."""
        known, row = self._tokens, np.asarray(logits)
        begin, picked = known.timestamps, sequence[self._prompt :]
        row[self._never] = -np.inf
        row[known.without_timestamps] = -np.inf
        if not picked:
            row[self._never_first] = -np.inf
            row[:begin] = -np.inf
            row[begin + known.initial_timestamp + 1 :] = -np.inf
        else:
            row[begin : self._least(picked)] = -np.inf
            if picked[-1] >= begin:
                if len(picked) < 2 or picked[-2] >= begin:
                    row[begin:] = -np.inf
                else:
                    row[: known.end] = -np.inf
        if timestamps_are_likelier(row, begin):
            row[:begin] = -np.inf

    def _least(self, picked: list[int]) -> int:
        """The first timestamp that may come: the last one again only at the end of its pair."""
        begin = self._tokens.timestamps
        last = next((each for each in reversed(picked) if each >= begin), begin - 1)
        ends_text = picked[-1] >= begin and len(picked) > 1 and picked[-2] < begin
        return last if ends_text else last + 1


def timestamps_are_likelier(row: Logits, begin: int) -> bool:
    """Whether the probabilities of all timestamps add up to more than that of any other token."""
    times = row[begin:]
    best = times.max(initial=-np.inf)
    if best == -np.inf:
        return False
    return bool(best + np.log(np.exp(times - best).sum(dtype=np.float32)) > row[:begin].max())
