"""Keeps the one model of a kind that a worker has for its page, such as the voice."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Protocol, TypeVar

from .._js import host_calls
from ..errors import OptionError
from ..model_files.hub import HubRepository

__all__ = ["LoadedOne"]


class Closing(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closing)


class LoadedOne(Generic[T]):
    """Keeps a model until the next one of its kind is loaded."""

    def __init__(self, kind: str, request: str) -> None:
        self._missing = f"no {kind} is loaded; send {request} first"
        self._model: T | None = None

    def get(self) -> T:
        """The model. Raises OptionError if none was loaded."""
        if self._model is None:
            raise OptionError(self._missing)
        return self._model

    async def load(self, folder: str | HubRepository, model: Awaitable[T]) -> T:
        """Close the model that was loaded before, then wait for the new one."""
        if self._model is not None:
            await self._model.aclose()
            self._model = None
        host_calls.emit({"kind": "status", "text": f"loading {folder}"})
        self._model = await model
        return self._model
