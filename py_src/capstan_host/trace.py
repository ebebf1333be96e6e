"""`--trace FILE`: the file is tried before the work begins, and gets the page's trace at its end."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .command_errors import CommandError, raise_remote
from .terminal import say

if TYPE_CHECKING:
    from capstan.host.tracing import TraceFile

    from .headless.headless_page import HeadlessPage

__all__ = ["add_trace_argument", "trace_file", "trace_query", "write_trace"]


def add_trace_argument(parser: argparse._ActionsContainer) -> None:
    """The option of commands that can be traced."""
    what = "write there where the time went, in Chrome's trace format: open it in Perfetto (ui.perfetto.dev)"
    parser.add_argument("--trace", metavar="FILE.json", help=what)


def trace_file(path: str | None) -> TraceFile | None:
    """The file of the option's value, None without it. Raises CommandError if it cannot be written."""
    if path is None:
        return None
    from capstan.errors import OptionError
    from capstan.host.tracing import TraceFile

    try:
        return TraceFile(path)
    except OptionError as error:
        raise CommandError(f"--trace: {error}") from None


def trace_query(file: TraceFile | None) -> str:
    """The query of a page that is traced into this file."""
    return "" if file is None else "?trace"


async def write_trace(page: HeadlessPage, file: TraceFile) -> None:
    """End the trace of a page and write it."""
    from capstan.errors import OptionError

    reply = await page.request({"kind": "trace", "action": "stop"})
    if not reply["ok"]:
        raise_remote(reply["error"])
    trace = reply["result"]
    try:
        file.write(trace)
    except OptionError as error:
        raise CommandError(f"--trace: {error}") from None
    about = trace["otherData"]
    events = sum(event["ph"] == "X" for event in trace["traceEvents"])
    lacking = f"; no GPU times: {about['no_gpu_times']}" if about["no_gpu_times"] else ""
    dropped = f"; {about['dropped_spans']} spans were too many" if about["dropped_spans"] else ""
    say(f"trace: {events} spans in {file.path}{lacking}{dropped}; open it in Perfetto (ui.perfetto.dev)")
