"""Makes the key of a tape: every value that must be unchanged for a replay to be valid."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import TapeKeyError

__all__ = ["TapeKey"]


@dataclass(frozen=True)
class TapeKey:
    """A tape may be replayed only if every part of its key is the same."""

    model: str
    batch: int
    max_length: int
    adapter: str
    options: str

    def require(self, other: TapeKey) -> None:
        """Raise TapeKeyError, with expected and got, for the first part in which `other` differs."""
        for field in fields(self):
            expected, got = getattr(self, field.name), getattr(other, field.name)
            if expected != got:
                raise TapeKeyError(
                    f"this tape was recorded for {field.name}={expected!r}, got {got!r}; record a tape for {got!r}"
                )
