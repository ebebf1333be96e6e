"""Turns JavaScript errors into the exceptions of capstan.errors, and undoes calls whose caller was cancelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyodide.ffi import JsException

from .. import errors
from ..host.storage_interface import BrokenDownloadError
from .own_host import capstan_host

__all__ = ["or_undone", "require_memory", "spent", "storage_errors", "typed_errors"]

T = TypeVar("T")

ENDED_PROCESS = re.compile(r"instance (dropped|reference)", re.IGNORECASE)
"""Part of Chromium's message for each call after its GPU process has ended."""


FULL = re.compile(r"offset is out of bounds|WebAssembly\.Memory")
"""Part of the RangeErrors of a copy into a full heap."""
NO_ARRAY = re.compile(r"allocation failed|out of memory", re.IGNORECASE)
"""Part of the RangeErrors of JavaScript's own memory, which do not affect Python's."""
LEFT_BYTES = 16 << 20
"""A heap that is not full can allocate this number of bytes."""

full: str | None = None
"""The reason why this interpreter is not used any more."""


class TypedErrors:
    """Converts errors of JavaScript calls. An EngineError of web/src/wire/errors.ts becomes the exception that its code
    names; any other error becomes a DeviceError. After the end of the GPU process every error is a DeviceLostError.

    A failed copy into Python is an OutOfMemoryError, and ends the use of this interpreter (`spent`): every later call
    raises the same error, since JavaScript may have written outside of the memory that Python failed to allocate.

    This class is not a generator with `contextmanager`, because that would tie the exception and the frames into a
    cycle. The tensors of a failed call would then stay in memory until the next garbage collection.
    """

    def __enter__(self) -> None:
        if full is not None:
            raise errors.OutOfMemoryError(full)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MemoryError) or (isinstance(error, JsException) and is_full(error)):
            raise spent(error) from error
        if isinstance(error, JsException):
            raise typed(error) from error


TYPED = TypedErrors()


def typed_errors() -> TypedErrors:
    """Turns errors of JavaScript calls inside the block into typed ones."""
    return TYPED


def is_full(error: JsException) -> bool:
    """Whether a JavaScript error was caused by a full heap, or is Python's own MemoryError that passed through
    JavaScript.
    """
    message = str(error.message)
    return (error.name == "RangeError" and FULL.search(message) is not None) or message.endswith("MemoryError\n")


def spent(error: BaseException) -> errors.OutOfMemoryError:
    """The error of an interpreter whose memory is full; its worker is replaced after the request."""
    global full
    if full is None:
        full = (
            f"Python has no memory left ({type(error).__name__}), and is not used any more; try again with a smaller "
            "model or after closing others: the page starts another worker, and other pages must be loaded again"
        )
        capstan_host.spent(full)
    return errors.OutOfMemoryError(full)


def require_memory() -> None:
    """Raise OutOfMemoryError if Python has no memory left, since other errors are unreliable then. The check is an
    allocation, because a browser may refuse to grow a heap long before its limit; it grows the heap at most once.
    """
    with typed_errors():
        bytearray(LEFT_BYTES)


def typed(error: JsException) -> Exception:
    code = getattr(error, "code", None)
    if code != "DeviceLostError" and ENDED_PROCESS.search(str(error)):
        return errors.DeviceLostError(f"the browser's GPU process ended ({error.message}); load the model again")
    if error.name == "RangeError" and NO_ARRAY.search(str(error.message)):
        return errors.OutOfMemoryError(
            f"the browser has no memory left for JavaScript ({error.message}); close other models or pages, or take a "
            "smaller model"
        )
    kind = getattr(errors, code, None) if isinstance(code, str) else None
    if kind is None:
        return errors.DeviceError(" ".join(f"{error.name}: {error.message}".split()))
    found: Exception = kind(error.message)
    return found


@contextmanager
def storage_errors() -> Iterator[None]:
    """Convert errors like `typed_errors`, and also the error of a broken download that may be tried again."""
    try:
        with typed_errors():
            yield
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, JsException) and getattr(cause, "code", None) == "BrokenDownloadError":
            raise BrokenDownloadError(cause.message, _seconds(cause)) from cause
        raise


def _seconds(error: Any) -> float | None:
    """The server's requested wait (Retry-After) in an EngineError of web/src/wire/errors.ts."""
    asked = getattr(error, "retryAfter", None)
    return float(asked) if isinstance(asked, (int, float)) else None


async def or_undone(making: Coroutine[Any, Any, T], undo: Callable[[T], object]) -> T:
    """Await an object that JavaScript makes. JavaScript cannot cancel this work: if the caller is cancelled, `undo` is
    called with the finished object.
    """

    def undone(made: asyncio.Future[T]) -> None:
        if not made.cancelled() and made.exception() is None:
            undo(made.result())

    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(undone)
        raise
