"""Drafts the next tokens cheaply and verifies the drafts in one step. The picks stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..stages.speculation_options import MAX_DRAFTS, Speculation

__all__ = ["ModelWorth", "NgramIndex", "SpeculationStats", "Worth"]


class NgramIndex:
    """The latest position of each n-gram in a growing sequence."""

    def __init__(self, options: Speculation) -> None:
        self._options = options
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        """By n-gram, the position after its latest occurrence, except for the n-gram at the end, which would find
        itself.
        """

    def __len__(self) -> int:
        return len(self._tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Index a sequence; only its new tokens take time."""
        known = len(self._tokens)
        if len(tokens) < known or tokens[:known] != self._tokens:
            self._tokens, self._after, known = [], {}, 0
        for token in tokens[known:]:
            self.push(token)

    def push(self, token: int) -> None:
        """Add a token to the sequence."""
        tokens, size = self._tokens, self._options.searched
        if len(tokens) >= size:
            self._after[tuple(tokens[-size:])] = len(tokens)
        tokens.append(token)

    def drafts(self) -> list[int]:
        """Drafts of the next tokens; empty if the last tokens did not occur earlier."""
        options, tokens = self._options, self._tokens
        at = self._after.get(tuple(tokens[-options.searched :]))
        if at is None:
            return []
        found = tokens[at : at + options.max_draft_tokens]
        while options.chained and len(found) < options.max_draft_tokens:
            found.append(found[len(found) - (len(tokens) - at)])
        return found


@dataclass
class SpeculationStats:
    """Statistics of speculation since the generator was made."""

    rounds: int = 0
    """The number of steps that verified drafts."""
    proposed: int = 0
    """The number of drafted tokens."""
    evaluated: int = 0
    """The number of accepted drafts, plus the first rejected one of each step."""
    accepted: int = 0
    full: int = 0
    """The number of steps that accepted all drafts, and so picked the token after them, too."""
    none: int = 0
    """The number of steps that accepted no draft."""
    emitted: int = 0
    """Tokens that drafted steps gave."""
    misses: int = 0
    """Steps for which nothing was drafted."""
    plain: int = 0
    """Tokens that steps of one token gave."""
    switched_on: int = 0
    switched_off: int = 0
    """The number of times that drafting stopped because it did not pay."""
    drafting_ms: float = 0.0
    """The host's time to find drafts, including a draft model's runs."""
    drafted_step_ms: float | None = None
    plain_step_ms: float | None = None
    """Averages in which the last steps weigh most; None before the first step."""
    accepted_by_step: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFTS + 1))
    """The number of steps by the number of accepted drafts."""

    def verified(self, proposed: int, emitted: int) -> None:
        """Count a step with `proposed` drafts that gave `emitted` tokens."""
        accepted = min(emitted - 1, proposed)
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        self.evaluated += min(accepted + 1, proposed)
        self.full += accepted == proposed
        self.none += accepted == 0
        self.emitted += emitted
        self.accepted_by_step[accepted] += 1

    @property
    def acceptance(self) -> float:
        """The share of evaluated drafts that were accepted."""
        return self.accepted / self.evaluated if self.evaluated else 0.0

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens of a drafted step."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def speedup(self) -> float:
        """The speed-up of drafted steps over steps of one token, from the last times of both; 0 if unknown."""
        if not self.drafted_step_ms or self.plain_step_ms is None:
            return 0.0
        return self.tokens_per_step * self.plain_step_ms / self.drafted_step_ms


GUESS = 2.0
"""The assumed time of a drafted step, in steps of one token, before the first measurement."""
BEGIN, LEAVE = 1.1, 1.0
"""The speed-up at which drafting starts, and the one below which it stops."""
TOKENS, TIMES = 0.25, 0.25
"""The weight of the latest step in the averages of tokens and of times."""


class Worth:
    """Decides whether drafting pays: the tokens of a drafted step against its time in plain steps.

    While steps are not drafted, the picked tokens still show how many drafts would have been accepted.
    """

    def __init__(self, stats: SpeculationStats, always: bool) -> None:
        self._stats = stats
        self._always = always
        self._tokens = 1.0
        self.on = always

    def gave(self, tokens: int) -> None:
        """Note that a drafted step gave `tokens` tokens, or would have given them."""
        self._tokens += TOKENS * (tokens - self._tokens)
        self._choose()

    def took(self, ms: float, drafted: bool) -> None:
        """Note the time of a step."""
        name = "drafted_step_ms" if drafted else "plain_step_ms"
        before = getattr(self._stats, name)
        setattr(self._stats, name, ms if before is None else before + TIMES * (ms - before))
        self._choose()

    def _choose(self) -> None:
        stats = self._stats
        ratio = GUESS
        if stats.drafted_step_ms is not None and stats.plain_step_ms:
            ratio = stats.drafted_step_ms / stats.plain_step_ms
        if not self.on and self._tokens > BEGIN * ratio:
            self.on = True
            stats.switched_on += 1
        elif self.on and not self._always and self._tokens < LEAVE * ratio:
            self.on = False
            stats.switched_off += 1


FIRST_PAUSE, PAUSE, LONGEST_PAUSE = 8, 128, 1024
"""Numbers of tokens that plain steps give before the first trial of a draft model, before its second trial, and at most
between two trials.
"""
TRIAL = 8
"""Drafted steps of a trial; later ones count in an average of about as many steps."""


class ModelWorth(Worth):
    """Decides whether a draft model pays. Only drafted steps show how many of its drafts are accepted, so it is tried:
    first when the time of a plain step is known, then again after pauses, each twice as long as the one before.
    """

    def __init__(self, stats: SpeculationStats, always: bool) -> None:
        super().__init__(stats, always)
        self._pause = FIRST_PAUSE
        self._passed = 0
        """Tokens of plain steps in this pause."""
        self._steps = 0
        """Drafted steps of this trial."""

    def gave(self, tokens: int) -> None:
        self._steps += 1
        self._tokens += (tokens - self._tokens) / min(self._steps, TRIAL)
        self._choose()

    def passed(self, tokens: int) -> None:
        """Note that plain steps gave `tokens` tokens."""
        self._passed += tokens
        if not self.on and self._passed >= self._pause and self._stats.plain_step_ms is not None:
            self.on, self._steps = True, 0
            self._stats.switched_on += 1

    def _choose(self) -> None:
        stats = self._stats
        if not self.on or self._always or self._steps < TRIAL or stats.drafted_step_ms is None:
            return
        if stats.plain_step_ms and self._tokens < LEAVE * stats.drafted_step_ms / stats.plain_step_ms:
            self.on, self._passed = False, 0
            self._pause = min(max(PAUSE, 2 * self._pause), LONGEST_PAUSE)
            stats.switched_off += 1
