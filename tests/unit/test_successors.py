"""The next ids of the bench's models with random weights."""

from __future__ import annotations

import numpy as np
import pytest

from benches.shapes.successors import successors

VOCAB = 20_000


@pytest.mark.parametrize("right", [0.6, 0.8, 1.0])
def test_a_draft_model_is_right_for_a_share_of_the_ids(right: float) -> None:
    model, draft = successors(VOCAB), successors(VOCAB, right)
    for found in (model, draft):
        assert sorted(found) == list(range(VOCAB)), "each id has another successor"
    assert np.mean(model == draft) == pytest.approx(right, abs=0.02)
