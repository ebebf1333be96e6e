"""JavaScript errors as the exceptions of capstan.errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyodide.ffi import JsException

from .. import errors

__all__ = ["typed_errors"]


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise an EngineError of web/src/errors.ts as the exception its code names; others as DeviceError."""
    try:
        yield
    except JsException as error:
        code = getattr(error, "code", None)
        kind = getattr(errors, code, None) if isinstance(code, str) else None
        if kind is None:
            raise errors.DeviceError(f"{error.name}: {error.message}") from error
        raise kind(error.message) from error
