"""The next id of each id in models with random weights: a permutation of the vocabulary, the same in all shapes with a
vocabulary of that size. A draft model's may be right for a part of the ids only, so that the share of its drafts that a
larger model accepts is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["successors"]


def successors(vocab: int, right: float = 1.0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The next id of each id, int64 [vocab]; a share of about 1 - `right` of the ids, at random, have one another's."""
    draw = np.random.default_rng(vocab)
    found = draw.permutation(vocab)
    wrong = np.flatnonzero(draw.random(vocab) >= right)
    found[wrong] = found[np.roll(wrong, 1)]
    return found
