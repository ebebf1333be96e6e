"""JavaScript errors as the exceptions of capstan.errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyodide.ffi import JsException

from .. import errors
from ..host.storage import BrokenDownloadError

__all__ = ["storage_errors", "typed_errors"]

ENDED_PROCESS = re.compile(r"instance (dropped|reference)", re.IGNORECASE)
"""In what Chromium says of each call whose GPU process is gone."""


class TypedErrors:
    """Raises an EngineError of web/src/errors.ts as the exception its code names; others as DeviceError. Whatever fails
    since the GPU process ended is a DeviceLostError.

    A generator with `contextmanager` would tie exception and frames into a cycle: the tensors of a failed call would
    stay until the next collection.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, JsException):
            raise typed(error) from error


TYPED = TypedErrors()


def typed_errors() -> TypedErrors:
    """Turns errors of the JavaScript that is called inside into typed ones."""
    return TYPED


def typed(error: JsException) -> Exception:
    code = getattr(error, "code", None)
    if code != "DeviceLostError" and ENDED_PROCESS.search(str(error)):
        return errors.DeviceLostError(f"the browser's GPU process ended ({error.message}); load the model again")
    kind = getattr(errors, code, None) if isinstance(code, str) else None
    if kind is None:
        return errors.DeviceError(f"{error.name}: {error.message}")
    found: Exception = kind(error.message)
    return found


@contextmanager
def storage_errors() -> Iterator[None]:
    """`typed_errors`, and the error of a download that may be tried again."""
    try:
        with typed_errors():
            yield
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, JsException) and getattr(cause, "code", None) == "BrokenDownloadError":
            raise BrokenDownloadError(cause.message, _seconds(cause)) from cause
        raise


def _seconds(error: Any) -> float | None:
    """The server's requested wait (Retry-After) in an EngineError of web/src/errors.ts."""
    asked = getattr(error, "retryAfter", None)
    return float(asked) if isinstance(asked, (int, float)) else None
