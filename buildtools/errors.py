"""The errors that `build.py` prints as one line."""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(Exception):
    """What the user has to know and do, in one line; `build.py` prints it and exits with `status`."""

    def __init__(self, message: str, status: int = 2, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail
        """What only `--debug` shows: a traceback or the output of a tool."""
