"""Implements the engine, which answers several requests at once. Each request has turns, and events report them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from ..errors import OptionError
from ..generation.generator import Generator as CapstanGenerator
from ..generation.generator_params import GeneratorParams as CapstanParams
from ..generation.row_pool import RowPool, poolable
from .events import EngineCapabilities
from .genai_model import Model
from .request import EngineEvent, Generated, Request, RequestOptions, count
from .speculative import speculation_stats

__all__ = ["Engine", "EngineEventBuffer"]


class EngineEventBuffer:
    """The events of one `Engine.run`; `Engine.create_event_buffer` makes it."""

    def __init__(self) -> None:
        raise TypeError("EngineEventBuffer: No constructor defined!")

    @classmethod
    def _of(cls, engine: Engine, capacity: int) -> EngineEventBuffer:
        made = cls.__new__(cls)
        made._engine, made._capacity, made._events = weakref.ref(engine), capacity, []
        return made

    _engine: weakref.ref[Engine]
    _capacity: int
    _events: list[EngineEvent]

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, place: int, /) -> EngineEvent:
        if not 0 <= place < len(self._events):
            raise IndexError(f"event {place} does not exist; the buffer has {len(self._events)} events")
        return self._events[place]


class Engine:
    """Answers several requests in turn: every `run` generates a token for each. Requests that pick by the same options
    are rows of one step, and join and leave it at any time (generation/row_pool.py). A request with a seed, a grammar
    or other limits has a separate generator. A request that is dropped leaves the engine.
    """

    def __init__(self, model: Model, /) -> None:
        self._model = model
        self._requests: list[weakref.ref[Request]] = []
        self._pools: weakref.WeakValueDictionary[str, RowPool] = weakref.WeakValueDictionary()
        """The shared rows, by the options with which their sequences pick."""
        self._turn = 0
        """The index of the request that is served first if the buffer does not hold all events."""

    def create_request(self, *, options: RequestOptions | None = None) -> Request:
        """A request without turns."""
        search = self._model.capstan.search
        limit = int(search.max_length or self._model.capstan.config.context_length)
        if options is not None and options.max_session_tokens:
            context = self._model.capstan.config.context_length
            if options.max_session_tokens > context:
                raise OptionError(
                    f"max_session_tokens ({options.max_session_tokens}) cannot be greater than the model's "
                    f"context_length ({context})"
                )
            limit = options.max_session_tokens
        request = Request._of(self._model, self._sequence, limit)
        self._requests.append(weakref.ref(request))
        return request

    def create_event_buffer(self, capacity: int) -> EngineEventBuffer:
        """A buffer for the events of a run."""
        return EngineEventBuffer._of(self, count("capacity", capacity))

    def get_capabilities(self) -> EngineCapabilities:
        """The limits of the engine."""
        return EngineCapabilities()

    def get_speculative_stats(self) -> dict[str, Any]:
        """Statistics of speculation. All counts are 0."""
        return speculation_stats(None)

    def has_pending_requests(self) -> bool:
        """Whether a turn is under way."""
        return any(True for _ in self._active())

    def max_draft_tokens_per_proposal(self) -> int:
        """Always 0: the engine accepts no drafts."""
        return 0

    def run(self, buffer: EngineEventBuffer) -> EngineEventBuffer:
        """Generate the next token of each request with a turn under way, up to the buffer's number of events. Raises
        OptionError for another engine's buffer.
        """
        if buffer._engine() is not self:
            raise OptionError(
                "run: the buffer belongs to another engine; make one with this engine's create_event_buffer"
            )
        active = list(self._active())
        buffer._events.clear()
        if not active:
            return buffer
        first = self._turn % len(active) if buffer._capacity < len(active) else 0
        for request in [*active[first:], *active[:first]][: buffer._capacity]:
            buffer._events.append(request._advance())
        self._turn = first + buffer._capacity
        return buffer

    def _sequence(self, params: CapstanParams) -> Generated:
        """The sequence for these options: a row of a shared pool if that gives the same tokens, else a generator."""
        if not poolable(self._model.capstan, params):
            return CapstanGenerator(self._model.capstan, params)
        key = repr(params.search)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = RowPool(self._model.capstan, params)
        return pool.join()

    def _active(self) -> Iterator[Request]:
        self._requests = [known for known in self._requests if known() is not None]
        for known in self._requests:
            request = known()
            if request is not None and request._current() is not None:
                yield request
