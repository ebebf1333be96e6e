"""Handles the requests that the worker passes on, one at a time: the worker imports this module."""

from __future__ import annotations

import asyncio
import json
import math
import traceback
from typing import Any

from .._js import host_calls
from .._js.js_errors import require_memory, spent
from ..errors import OutOfMemoryError
from ..host.spans import span
from ..host.tracing import begin_trace
from .answers import ANSWERS
from .page_session import PageSession
from .read_request import read_request

__all__ = ["begin_trace", "cancel", "handle", "handler", "look_after_weights"]


class RequestHandler:
    """Answers requests for one session, and cancels them by their numbers, which rise from request to request."""

    def __init__(self) -> None:
        self.session = PageSession()
        self.running: asyncio.Task[Any] | None = None
        self.number = 0
        """The number of the running request, or of the last one."""
        self.stopped: set[int] = set()
        """Requests that were cancelled before they began."""
        self.verify_after = math.inf
        """Seconds without a request until stored weights are compared with their digests."""

    async def handle(self, text: str, number: int, attached: Any = None) -> str:
        """Answer one request; the request and the reply are JSON. Every error becomes a reply with its type, message
        and traceback. `attached` are the attachments (web/src/wire/protocol.ts, Attached).
        """
        self.running, self.number = asyncio.current_task(), number
        host_calls.be_interrupted_once()
        try:
            if number in self.stopped:
                raise asyncio.CancelledError
            await self.session.idle.stop()
            await self.session.kept.stop()
            self.session.leave_unrecorded()
            request = read_request(text)
            hears = hasattr(attached, "to_memoryview")
            self.session.samples = attached.to_memoryview() if hears else None
            self.session.pictures = None if hears else attached
            with span(f"answer: {request['kind']}", request=number):
                reply = {"ok": True, "result": await ANSWERS[request["kind"]](self.session, request)}
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            host_calls.be_interrupted_no_more()
            reply = failure("KeyboardInterrupt", "stopped by the user", error)
        except BaseException as error:  # including a script's SystemExit
            host_calls.be_interrupted_no_more()
            reply = failure_of(error)
        finally:
            self.running = self.session.samples = self.session.pictures = None
            self.stopped.discard(number)
            self.session.idle.begin(self.verify_after)
            self.session.kept.begin()
        return json.dumps(reply)

    def look_after_weights(self, milliseconds: float) -> None:
        """Compare stored weights with their digests after that number of milliseconds without a request; math.inf means
        never.
        """
        self.verify_after = milliseconds / 1000

    def cancel(self, number: int) -> None:
        """Stop a request at its next await, or before it begins; without effect for a request that has ended."""
        if number > self.number:
            self.stopped.add(number)
        elif number == self.number and self.running is not None:
            self.running.cancel()


def failure_of(error: BaseException) -> dict[str, Any]:
    """The reply for an error; if memory is full, the reply gives that as the reason instead."""
    try:
        if isinstance(error, MemoryError):
            raise spent(error) from error
        require_memory()
    except OutOfMemoryError as full:
        error = full
    return failure(type(error).__name__, str(error), error)


def failure(kind: str, message: str, error: BaseException) -> dict[str, Any]:
    shown = "".join(traceback.format_exception(error))
    return {"ok": False, "error": {"type": kind, "message": message, "traceback": shown}}


handler = RequestHandler()
handle, cancel, look_after_weights = handler.handle, handler.cancel, handler.look_after_weights
