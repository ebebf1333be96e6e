"""The errors that the command line prints as one line."""

from __future__ import annotations

from typing import Any

__all__ = ["CommandError", "raise_remote"]


class CommandError(Exception):
    """A problem that the user can solve, with the remedy, in one line; the exit status is `status`."""

    status = 2

    def __init__(self, message: str, status: int = 2, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail
        """Details that only `--debug` shows: a traceback or the output of a tool."""


def raise_remote(error: dict[str, Any]) -> None:
    """Raise an error of the page's Python as an error for this terminal."""
    if error["type"] == "KeyboardInterrupt":
        raise KeyboardInterrupt
    raise CommandError(error["message"] or error["type"], detail=error["traceback"])
