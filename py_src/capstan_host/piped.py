"""Text from a pipe or a file at the standard input, which follows the prompt."""

from __future__ import annotations

import os
import stat
import sys
import threading

from .command_errors import CommandError
from .terminal import say

__all__ = ["is_piped", "read_piped", "with_piped"]

QUIET_SECONDS = 3.0
"""A pipe that takes longer to end is reported: a program may have left its end open by mistake."""


def is_piped() -> bool:
    """Whether the standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def read_piped() -> str:
    """The text of the standard input without the line ends at its end. Raises CommandError if it is not UTF-8."""
    notice = threading.Timer(
        QUIET_SECONDS, say, ["reading the standard input to its end (</dev/null where nothing is piped)"]
    )
    notice.daemon = True
    notice.start()
    try:
        return sys.stdin.buffer.read().decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CommandError(f"the piped text is not UTF-8 ({error}): convert it, as with iconv") from None
    finally:
        notice.cancel()


def with_piped(prompt: str | None, piped: str) -> str:
    """The prompt with the piped text after it; one of the two may be missing. Raises CommandError without both."""
    text = "\n\n".join(part for part in (prompt, piped) if part)
    if not text:
        raise CommandError("the prompt is empty, and so is the piped text: give at least one character")
    return text
