"""Implements beam search as in onnxruntime-genai: it scores beams, and keeps the best hypotheses.

A beam's score is the sum of its tokens' log-probabilities. All continuations of a prompt's beams are considered, best
first: an end-of-sequence id among the first `num_beams` of them makes its beam a hypothesis, other tokens become the
next beams, until there are `num_beams`. A hypothesis of n tokens (including prompt and padding, without the
end-of-sequence id) counts score / n ** length_penalty; the best `num_beams` are kept. A prompt is done when it has
`num_beams` hypotheses and, unless `early_stopping`, its best continuation is not better than the worst of them. At the
end the beams of a prompt that is not done become hypotheses too.

Scores are float32, like the native package's. If two differ by the last place of a float32, their order may differ from
the native one, because its sums of exponentials round after each addition. Equal scores are ordered by beam, then by
id. In contrast to the native package, prompts of a batch do not depend on each other: without `early_stopping` version
0.18 compares each prompt after the first with scores of the prompt before it. It also considers only 2 * num_beams
continuations, which may all be ends if there are several end-of-sequence ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from ..device.beam_interface import Continuation, Round
from ..device.shortlist import LARGEST, Shortlist
from ..errors import LogitsError
from ..stages.sampling import float32
from ..stages.search import SearchOptions

__all__ = ["Beams", "continuations", "looked_at", "ranked", "without_numbers"]

UNLIKELY = -1e9
"""The initial score of all beams but the first: the beams are equal then, so that one of them is enough."""


@dataclass(frozen=True)
class Hypothesis:
    """A whole sequence, with its score for its length."""

    score: float
    ids: list[int]


@dataclass
class Beams:
    """The beams of one prompt."""

    count: int
    length_penalty: float
    early_stopping: bool
    ends: Set[int]
    """End-of-sequence ids."""
    pad: int
    scores: list[float] = field(init=False)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """Best first."""
    done: bool = False

    def __post_init__(self) -> None:
        self.scores = [0.0] + [float32(UNLIKELY)] * (self.count - 1)

    def choose(
        self, found: Sequence[Sequence[tuple[float, int]]], sequences: Sequence[list[int]]
    ) -> Sequence[Continuation]:
        """The beams of the next step, from the continuations of each beam (`continuations`) and its sequence so far;
        padding once the prompt is done."""
        return self.take(
            None if self.done else ranked(self.scores, found, self.ends), sequences.__getitem__, len(sequences[0])
        )

    def take(self, found: Round | None, sequence: Callable[[int], list[int]], length: int) -> Sequence[Continuation]:
        """The beams of the next step, from the results of a round after sequences of `length` tokens (`sequence` gives
        the sequence of a beam); padding once the prompt is done. LogitsError if all logits of a beam are NaN.
        """
        if self.done:
            return [Continuation(beam, self.pad, score) for beam, score in enumerate(self.scores)]
        if found is None:
            raise without_numbers()
        for beam, score in found.ends:
            self._keep(sequence(beam), score)
        self.scores = [each.score for each in found.chosen]
        full = len(self.hypotheses) == self.count
        self.done = full and (self.early_stopping or not self._can_improve(found.best, length))
        return found.chosen

    def best(self, count: int, sequences: Sequence[list[int]]) -> list[list[int]]:
        """The best `count` hypotheses if the search ended now."""
        if self.done:
            return [hypothesis.ids for hypothesis in self.hypotheses[:count]]
        ended = Beams(self.count, self.length_penalty, self.early_stopping, self.ends, self.pad)
        ended.hypotheses = list(self.hypotheses)
        for ids, score in zip(sequences, self.scores, strict=True):
            ended._keep(ids, score)
        return [hypothesis.ids for hypothesis in ended.hypotheses[:count]]

    def _keep(self, ids: Sequence[int], score: float) -> None:
        """Add a hypothesis, after equal ones, if it is among the best."""
        made = Hypothesis(self._for_length(score, len(ids)), list(ids))
        if len(self.hypotheses) == self.count:
            if made.score <= self.hypotheses[-1].score:
                return
            self.hypotheses.pop()
        place = len(self.hypotheses)
        while place and made.score > self.hypotheses[place - 1].score:
            place -= 1
        self.hypotheses.insert(place, made)

    def _can_improve(self, score: float, length: int) -> bool:
        return self.hypotheses[-1].score < self._for_length(score, length)

    def _for_length(self, score: float, length: int) -> float:
        try:
            divisor = float32(float(length) ** self.length_penalty)
        except OverflowError:
            divisor = math.inf
        return float32(score / divisor) if divisor else math.copysign(math.inf, score)


def ranked(scores: Sequence[float], found: Sequence[Sequence[tuple[float, int]]], ends: Set[int]) -> Round:
    """The round that beams.wgsl computes on the GPU: from each beam's score and its `continuations`."""
    candidates = [
        (float32(log + score), -beam, -token)
        for beam, (score, logs) in enumerate(zip(scores, found, strict=True))
        for log, token in logs
    ]
    best = sorted(candidates, reverse=True)
    chosen: list[Continuation] = []
    ended: list[tuple[int, float]] = []
    for place, (score, beam, token) in enumerate(best):
        if -token not in ends:
            chosen.append(Continuation(-beam, -token, score))
        elif place < len(found):
            ended.append((-beam, score))
        if len(chosen) == len(found):
            break
    return Round(tuple(chosen), tuple(ended), best[0][0])


def looked_at(options: SearchOptions) -> int:
    """The number of continuations of a beam that are considered: enough that num_beams of them are not ends."""
    return options.num_beams + max(options.num_beams, len(options.end_token_ids))


def continuations(shortlist: Shortlist) -> list[tuple[float, int]]:
    """Log-probabilities and tokens, best first. LogitsError if no logit is a number."""
    top, _ = shortlist.best[0]
    if top <= -LARGEST:
        raise without_numbers()
    total = float32(shortlist.total)
    return [(float32(float32(logit - top) - total), token) for logit, token in shortlist.best]


def without_numbers() -> LogitsError:
    return LogitsError(
        "the logits of a beam are all NaN or -inf: take the model in float32, whose numbers are larger; "
        "`await model.find_not_finite(ids)` names the node where it begins"
    )
