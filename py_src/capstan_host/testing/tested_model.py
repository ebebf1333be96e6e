"""A model in a page as tests see it: greedy answers, their comparison with an oracle, their cost and their speed."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from capstan.errors import OptionError

from .answers import (
    TIE,
    TOP,
    Agreement,
    Answer,
    Counters,
    MismatchError,
    NearTie,
    NearTieWarning,
    margin,
    parting,
    reported_margin,
)
from .oracles import Expected, Oracle, oracle_named
from .timing import ROUNDS, TOLERANCE, Ratio, compare

__all__ = ["TestedModel"]


class TestedModel(ABC):
    """One model in one page. Prompts are texts, without special tokens added, or token ids."""

    __test__ = False
    """Keeps pytest from taking this class for a test class."""
    folder: Path | None
    """The model's files on this machine; None if they are elsewhere."""
    version: str
    """The version of this package, which is Capstan's."""

    @abstractmethod
    def answer(self, prompt: str | Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
        """At most `tokens` greedy ids after a prompt, each with the requested number of log probabilities."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The text's token ids, by the page's tokenizer."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The ids' text, by the page's tokenizer."""

    def assert_ids(
        self, prompt: str | Sequence[int], *, oracle: str | Oracle, tokens: int = 32, tie: float = TIE
    ) -> Agreement:
        """Assert that the page's greedy ids after a prompt are those of the oracle: 'genai', 'llama.cpp', or a Golden.

        In a near tie the page and the oracle both prefer their own tokens by less than `tie`, in log probabilities. It
        is reported by a NearTieWarning, and the rest is compared after the oracle's token. With `tie` 0 none is
        excused. For any other difference MismatchError names the token, the texts and the margins. Raises OracleError.
        """
        if tokens < 1:
            raise OptionError(f"tokens is {tokens}; it must be at least 1")
        asked = oracle_named(oracle)
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        expected = asked.expected(self, ids, tokens)
        ties: list[NearTie] = []
        begun = 0
        while begun < len(expected.ids):
            got = self.answer([*ids, *expected.ids[:begun]], tokens - begun).ids
            place = parting(got, expected.ids[begun:])
            if place is None:
                break
            tied = self._judge(ids, expected, asked, begun, place, got, tie)
            warnings.warn(
                f"near tie at token {tied.place}: the page picked {tied.page}, {expected.name} {tied.oracle}, with a "
                f"margin of {tied.margin:.4f} (tie={tie:.4g})",
                NearTieWarning,
                stacklevel=2,
            )
            ties.append(tied)
            begun = tied.place + 1
        return Agreement(expected.ids, ties)

    def counters(self, prompt: str | Sequence[int], tokens: int = 32) -> Counters:
        """The cost of an answer's decode steps."""
        answer = self.answer(prompt, tokens)
        return Counters(answer.counters, len(answer.ids))

    def seconds_per_token(self, prompt: str | Sequence[int], tokens: int = 32) -> float:
        """The page's own time for a token after the first one. Raises OptionError for an answer of one token."""
        answer = self.answer(prompt, tokens)
        if not answer.tokens_per_second:
            raise OptionError(f"the answer has {len(answer.ids)} tokens, too few for a speed: ask for more, or another")
        return 1 / answer.tokens_per_second

    def compare_speed(
        self,
        baseline: TestedModel,
        prompt: str | Sequence[int],
        *,
        tokens: int = 32,
        rounds: int = ROUNDS,
        tolerance: float = TOLERANCE,
    ) -> Ratio:
        """The ratio of a token's time to that of a baseline in the same browser; see capstan_host.testing.timing."""
        return compare(
            lambda: self.seconds_per_token(prompt, tokens),
            lambda: baseline.seconds_per_token(prompt, tokens),
            rounds=rounds,
            tolerance=tolerance,
        )

    def assert_not_slower(
        self,
        baseline: TestedModel,
        prompt: str | Sequence[int],
        *,
        tokens: int = 32,
        rounds: int = ROUNDS,
        tolerance: float = TOLERANCE,
    ) -> Ratio:
        """Raise MismatchError if the time for a token is shown to be more than `tolerance` above the baseline's. It
        names the ratio, and the slowest kernels if the page can time them.
        """
        ratio = self.compare_speed(baseline, prompt, tokens=tokens, rounds=rounds, tolerance=tolerance)
        if ratio.slower:
            raise MismatchError(f"a token takes {ratio}: {self._slower_kernels(baseline)}")
        return ratio

    def kernel_times(self) -> dict[str, float]:
        """Microseconds of the GPU in each kernel of a decode step, by the kernel's label; empty if the page does not
        report them.
        """
        return {}

    def _slower_kernels(self, baseline: TestedModel) -> str:
        """The kernels that contribute most to the difference, the worst first."""
        own, other = self.kernel_times(), baseline.kernel_times()
        more = {label: own[label] - other[label] for label in own.keys() & other.keys()}
        if not more:
            return "the pages tell no times of kernels that both have"
        worst = sorted(more, key=lambda label: -more[label])[:3]
        return "of a step's GPU time, " + "; ".join(
            f"'{label}' takes {own[label]:.0f} us, not {other[label]:.0f}" for label in worst
        )

    def _judge(
        self,
        prompt: Sequence[int],
        expected: Expected,
        oracle: Oracle,
        begun: int,
        place: int,
        got: Sequence[int],
        tie: float,
    ) -> NearTie:
        """The near tie at a place of an answer that follows the first `begun` tokens of the oracle. Raises
        MismatchError for another difference.
        """
        at = begun + place
        wanted = expected.ids[begun:]
        texts = f"\n  page:   {self.decode(got)!r}\n  oracle: {self.decode(wanted)!r}"
        title = f"token {at} after the prompt of {len(prompt)} differs from {expected.name}"
        if place == len(got) or place == len(wanted):
            ended = "the page" if place == len(got) else expected.name
            raise MismatchError(f"{title}: {ended} ended there{texts}")
        page, other = got[place], wanted[place]
        before = [*prompt, *expected.ids[:at]]
        title += f": the page picked {page} {self.decode([page])!r}, not {other} {self.decode([other])!r}"
        again = self.answer([*prompt, *expected.ids[:begun]], place + 1, log_probabilities=TOP)
        if again.ids != list(got[: place + 1]):
            raise MismatchError(
                f"{title}; asked again it picked {again.ids}: its answers are not the same each time{texts}"
            )
        if len(again.log_probabilities) <= place:
            raise MismatchError(f"{title}, which ends the answer; the page gives no margin for such a token{texts}")
        own, exact = margin(again.log_probabilities[place], page, other)
        theirs = oracle.margin(self, before, other, page)
        least = theirs is None and expected.margins is not None
        if least and expected.margins is not None:
            theirs = expected.margins[at]
        told = f"the page prefers its token by {reported_margin(own, exact)}"
        if theirs is not None:
            told += f", the oracle its own by {reported_margin(theirs, not least)}"
        if own < tie and exact and (theirs is None or theirs < tie):
            return NearTie(at, page, other, own)
        as_prompt = self.answer(before, 1).ids
        where = (
            f"as a prompt the same tokens lead to {as_prompt[0]}: the decode steps are at fault, not the weights"
            if as_prompt != [page]
            else "prompts and decode steps agree: a weight, a configuration or a kernel of both is at fault"
        )
        raise MismatchError(f"{title}{texts}\n  margin: {told}; no near tie (tie={tie:.4g})\n  {where}")
