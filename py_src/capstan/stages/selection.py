"""Picks a token from the edited logits: greedily, or at random after temperature, top_k and top_p."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from .option import Option, switch
from .stage import Stage, StageOptions
from .weight import temperature_scale

__all__ = ["Selection"]


def _sampled(word: int, options: Any) -> int:
    return 0 if options.greedy else word


@dataclass(frozen=True)
class Selection(StageOptions):
    """The options of the pick.

    - `do_sample` false, `top_k` 1 or `temperature` 0 is greedy: the largest logit, the lowest id among equals.
    - `temperature` (>= 0), then `top_k` (0 = off), then `top_p` (0 to 1; both limits turn it off) over the tokens that
      `top_k` left.
    - `random_seed` (-1 = draw one; 0 to 2**64 - 1). `seed` is the number in use, even if it was drawn.
    """

    do_sample: bool = False
    top_k: int = 50
    top_p: float = 1.0
    temperature: float = 1.0
    random_seed: int = -1
    seed: int = field(default=-1, repr=False)

    options: ClassVar[tuple[Option, ...]] = (
        Option.real(
            "temperature",
            "at least 0, which is greedy search",
            lambda t: t >= 0,
            help="sample, with the logits divided by T; 0 takes the likeliest token at each step",
            metavar="T",
            drawing=True,
            stated=True,
            page=True,
        ),
        Option.integer(
            "top_k",
            0,
            help="sample from the N likeliest tokens; 0 turns it off",
            drawing=True,
            stated=True,
            page=True,
        ),
        Option.real(
            "top_p",
            "from 0 to 1",
            lambda p: 0 <= p <= 1,
            "either end turns it off",
            help="sample from the likeliest tokens that make up P",
            metavar="P",
            drawing=True,
            stated=True,
            page=True,
        ),
        Option.integer(
            "random_seed",
            -1,
            2**64 - 1,
            help="sample with this seed; -1 draws one",
            flag="seed",
            drawing=True,
            page=True,
        ),
        Option.integer("seed", -1, 2**64 - 1),
    )
    # Its kernels are in web/src/worker/shaders; `sampler_program` chooses those of a step.
    stage: ClassVar[Stage | None] = Stage(
        "selection",
        active=lambda options: not options.greedy,
        words={
            "top_k": lambda options: _sampled(options.top_k, options),
            "top_p": lambda options: _sampled(options.top_p_bits, options),
            "scale": lambda options: temperature_scale(options.temperature or 1.0)[0],
            "shift": lambda options: temperature_scale(options.temperature or 1.0)[1] & 0xFFFFFFFF,
            "seed_low": lambda options: options.seed & 0xFFFFFFFF,
            "seed_high": lambda options: options.seed >> 32,
        },
    )

    def check(self) -> None:
        switch("do_sample", self.do_sample)
        self._set("top_p", self.top_p or 1.0)
        if self.random_seed >= 0:
            self._set("seed", self.random_seed)
        elif self.seed < 0:
            self._set("seed", secrets.randbits(53))  # 53 bits: exact in a JSON reader that has only doubles

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, without a random number."""
        return not self.do_sample or self.top_k == 1 or self.temperature == 0

    @property
    def top_p_bits(self) -> int:
        """`top_p` as a fraction of 2**32, at least 1; 0 when it is off."""
        bits = max(1, round(Fraction(self.top_p) * 2**32))
        return 0 if bits >= 2**32 else bits
