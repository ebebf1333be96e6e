"""Keeps snapshots of a state that each run overwrites, and finds the positions to which they can restore it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["EMPTY", "Snapshots"]

EMPTY = -1
"""Stands for a slot: the state before the first token, which is zero."""

SPACING = 8
"""The smallest number of positions between snapshots of decode steps; running them again takes less time than one more
burst.
"""


@dataclass
class Snapshots:
    """The positions of a sequence's live state and of its snapshots. `keep` copies the live state into a slot, `bring`
    copies a slot to the live state.

    Slot 0 holds the state before the last run of the prompt, so that an answer can be generated again. The other slots
    hold the states before the last bursts, so that steps that ran ahead can be discarded.
    """

    slots: int
    keep: Callable[[int], None]
    bring: Callable[[int], None]
    live: int | None = 0
    """None while it is unknown, such as in a run or after a cancelled wait."""
    taken: dict[int, int] = field(default_factory=dict)
    """Positions by slot."""
    _undrafted: int | None = None
    """The position before the last run over drafts."""

    def nearest(self, length: int) -> int:
        """The last position, at most `length`, from which a run can continue."""
        known = [*self.taken.values(), *([] if self.live is None else [self.live])]
        return max((position for position in known if position <= length), default=0)

    def go_to(self, position: int) -> None:
        """Restore the state of `position`, which `nearest` gave. Later snapshots are dropped, since other tokens may
        follow.
        """
        slot = next((slot for slot, place in self.taken.items() if place == position), EMPTY)
        self.taken = {slot: place for slot, place in self.taken.items() if place <= position}
        if self.live != position or position == 0:
            if slot == EMPTY and position:
                raise ValueError(
                    f"there is no snapshot of position {position}; snapshots exist of {sorted(self.taken.values())}"
                )
            self.bring(slot)
        self.live = position

    def before_last_run(self) -> None:
        """Note that the last run of a prompt comes next; keep a snapshot, unless no token has been run."""
        if self.live:
            self._take(0, self.live)

    def before_burst(self) -> None:
        """Note that decode steps come next; keep a snapshot if the last one is far enough back."""
        if self.live is not None and self.live >= max(self.taken.values(), default=0) + SPACING:
            free = [slot for slot in range(1, self.slots) if slot not in self.taken]
            self._take(free[0] if free else min(range(1, self.slots), key=self.taken.__getitem__), self.live)

    def before_drafts(self) -> None:
        """Note that a run over drafts comes next; keep a snapshot in one more slot, which `refuse_drafts` restores."""
        self._undrafted = self.live
        self.keep(self.slots)

    def refuse_drafts(self) -> None:
        """Restore the state before the run over drafts."""
        self.bring(self.slots)
        self.live = self._undrafted

    def _take(self, slot: int, position: int) -> None:
        self.keep(slot)
        self.taken[slot] = position
