"""Defines the interface of a logits stage: its definition, and the data of a row and the sampler's GPU memory that it
needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from .option import Option

__all__ = ["NEGATIVE_INFINITY_KEY", "Keys", "Row", "Stage", "StageOptions"]


NEGATIVE_INFINITY_KEY = 0x007FFFFF


class Keys(Protocol):
    """The keys of a row's tokens, by id; see capstan.stages.sampling."""

    def __len__(self) -> int: ...
    def __getitem__(self, token: int, /) -> int: ...
    def __setitem__(self, token: int, key: int, /) -> None: ...
    def largest(self, start: int, stop: int, /) -> int:
        """The largest key of tokens from `start` to before `stop`; the key of -inf if there are none."""

    def exclude(self, start: int, stop: int, /) -> None:
        """Give these tokens the key of -inf."""


@dataclass(frozen=True)
class Row:
    """The facts about a row that a stage may use besides its logits."""

    length: int
    """The length of the sequence without padding: the tokens that the model was given so far."""
    tokens: Sequence[int] = ()
    """The sequence, prompt and generated; may be left out if no active stage has `counts` or `sequence`."""
    prompt: int = 0
    """The number of prompt tokens; later ones were picked since tokens were last appended."""
    allowed: bytes = b""
    """A bit for each token that can be picked, in u32 words; may be left out if no active stage has `allowed`."""


@dataclass(frozen=True)
class Stage:
    """A stage of the search. Functions take the `SearchOptions`; a WGSL function is named after the stage.

    Keys and weights are those of capstan.stages.sampling, which also defines the order of changes.
    """

    name: str
    active: Callable[[Any], bool]
    """Whether the stage has an effect with these options. Other stages are left out of the kernels."""
    words: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    """Its parameters, u32: fields of `params` in WGSL."""
    table: Callable[[Any, int], array[int]] | None = None
    """u32 words for the options and the vocabulary's size, of any number: `table_NAME(i)` in WGSL."""
    edit: Callable[[Keys, Any, Row], None] | None = None
    """Change the keys of a row, [vocabulary], in place."""
    due: Callable[[Any, Row], bool] = lambda _options, _row: True
    """Whether `edit` changes this row; for an unchanged row the reference sampler computes no keys."""
    edit_wgsl: str = ""
    """`fn edit_NAME(row: u32, token: u32, key: u32) -> u32`: the same for one token. It may read `params`,
    `state[row * STATE_STRIDE]` (the length), `table_NAME` and, with `counts`, `has_token(row, token)` and
    `picks_of(row, token)`."""
    ban_wgsl: str = ""
    """In place of `edit_wgsl`, for a stage that forbids tokens by the sequence: `fn ban_NAME(row: u32, part: u32,
    parts: u32)`, which calls `ban(row, token)`. All `parts` together must ban every such token; they run in a separate
    dispatch before the others. It may read the same, and `sequence_token(row, i)` and `sequence_length(row)`.
    """
    weigh: Callable[[Sequence[int], Any], list[int]] | None = None
    """The weights of the tokens that top_k and top_p have left, from their weights; the largest, 2**30, must stay."""
    weigh_wgsl: str = ""
    """`fn weigh_NAME(weight: u32) -> u32`: the same."""
    allowed: bool = False
    """Whether `edit` forbids the tokens that `Row.allowed` lacks, and does nothing else: `is_allowed(row, token)` in
    WGSL."""
    memory: Callable[[Any], int] = lambda _options: 0
    """The number of u32 words of the stage in a row's memory: from `memory_NAME(row)` on in WGSL. With any, the stage
    also has the following two.
    """
    mask_wgsl: str = ""
    """`fn makes_mask(row: u32) -> bool`, whether the GPU computes the mask itself, and `fn fits(row: u32, token: u32)
    -> bool`, whether a token is allowed; for the pass `constrain` before the others.
    """
    end_wgsl: str = ""
    """`fn settle_NAME(row: u32, token: u32) -> u32`, the pick in its final form, and `fn follow_NAME(row: u32, token:
    u32)`, called for every pick that the row continues with afterwards.
    """
    counts: bool = False
    """Whether it needs the tokens of the sequence, with the number of their picks since tokens were last appended."""
    sequence: bool = False
    """Whether it needs the sequence's ids in order."""
    uses: tuple[str, ...] = ()
    """Texts of WGSL functions that several stages call; each is in the kernels once."""


class StageOptions:
    """Options of a stage: base of a frozen dataclass with their names, defaults and docs."""

    stage: ClassVar[Stage | None] = None
    options: ClassVar[tuple[Option, ...]] = ()
    """The options with their limits, in the order in which they are read."""

    def check(self) -> None:
        """Check combinations of options. Raises OptionError for values that do not fit together."""

    def check_vocabulary(self, vocab: int) -> None:
        """Raise OptionError for an id outside the vocabulary of `vocab` tokens."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
