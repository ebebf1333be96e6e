"""The harness page in a headless browser, for the commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from capstan.errors import OptionError

from .errors import CommandError
from .headless import page
from .headless.browser import BrowserError
from .terminal import Event, say

__all__ = ["open_harness"]


@contextlib.asynccontextmanager
async def open_harness(
    url: str,
    browser: Path,
    on_event: Callable[[Event], None],
    debug: bool = False,
    on_input: Callable[[], Awaitable[str | None]] | None = None,
    trace: bool = False,
    device: str = "auto",
) -> AsyncIterator[page.HarnessPage]:
    """See capstan_host.headless.page; a browser's or a page's failure is a CommandError."""
    opened = page.open_harness(
        url, on_event, program=browser, say=say, debug=debug, on_input=on_input, trace=trace, device=device
    )
    try:
        async with opened as harness:
            yield harness
    except (BrowserError, OptionError) as error:
        raise CommandError(str(error), detail=getattr(error, "detail", "")) from error
