"""The engine: several requests at once, each with turns, told by events."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import tokenizer as capstan_tokenizer
from ..errors import ClosedError, OptionError, PromptError
from ..generation.generator import Generator as CapstanGenerator
from ..generation.generator_params import GeneratorParams as CapstanParams
from ..generation.row_pool import PooledSequence, RowPool, poolable
from ..generation.stream import TextStream
from .events import (
    EngineCapabilities,
    EngineErrorCode,
    EngineEvent,
    EngineEventBuffer,
    EngineEventFlags,
    FinishReason,
    TurnUsage,
)
from .model import Model
from .speculative import speculation_stats
from .tensors import token_rows
from .turn_options import RequestOptions, TurnOptions, count

__all__ = ["Engine", "Request"]


@dataclass
class Turn:
    """A turn under way or finished."""

    number: int
    start: int
    prompt: int
    most: int
    stops: list[str] = field(default_factory=list)
    stream: TextStream | None = None
    text: str = ""
    generated: int = 0
    cancelled: bool = False
    finished: bool = False


class Request:
    """A sequence of turns; `Engine.create_request` makes it."""

    def __init__(self) -> None:
        raise TypeError("Request: No constructor defined!")

    @classmethod
    def _of(cls, engine: Engine, limit: int) -> Request:
        made = cls.__new__(cls)
        made._engine, made._limit = engine, limit
        made._turns, made._last, made._options = [], 0, {}
        made._generator, made._closed = None, False
        return made

    _engine: Engine
    _limit: int
    _turns: list[Turn]
    _last: int
    _options: dict[str, Any]
    _generator: CapstanGenerator | PooledSequence | None
    _closed: bool

    def begin_turn(self, tokens: Any, turn_options: TurnOptions | None = None) -> int:
        """Append a prompt and have the engine answer it; the turn's number, counted from 1."""
        if self._closed:
            raise ClosedError("begin_turn: the request was closed; create another one")
        if self._current() is not None:
            raise OptionError(f"begin_turn: turn {self._last} is under way; wait until it is finished, or cancel it")
        if turn_options is None:
            turn_options = TurnOptions(self)
        if turn_options._request() is not self:
            raise OptionError("begin_turn: the turn options belong to another request")
        rows = token_rows(tokens)
        if len(rows) != 1 or not rows[0]:
            raise PromptError(f"begin_turn: one row with at least one token is expected, not {rows[:2]}")
        start = 0 if self._generator is None else self._generator.token_count()
        if start + len(rows[0]) >= self._limit:
            raise PromptError(
                f"begin_turn: {start} and {len(rows[0])} tokens leave no room for a generated one before "
                f"max_session_tokens ({self._limit})"
            )
        generator = self._generator_for(turn_options, start + len(rows[0]))
        generator.append_tokens(rows[0])
        self._generator = generator
        self._last += 1
        stops = turn_options._stops
        stream = TextStream(capstan_tokenizer.Tokenizer(self._engine._model.capstan).decode) if stops else None
        self._turns.append(Turn(self._last, start, len(rows[0]), turn_options._most, list(stops), stream))
        return self._last

    def cancel_turn(self, turn_id: int, /) -> bool:
        """End a turn; the engine's next run tells of it. False if it is not under way. OptionError before any turn."""
        if not self._last:
            raise OptionError("cancel_turn: no turn has begun")
        turn = self._current()
        if turn is None or turn.number != turn_id or turn.cancelled:
            return False
        turn.cancelled = True
        return True

    def rewind_to_start_of_turn(self, turn_id: int) -> None:
        """Forget a finished turn and those after it."""
        if self._current() is not None or not self._last:
            raise OptionError("rewind_to_start_of_turn: only after a turn is finished")
        found = [place for place, turn in enumerate(self._turns) if turn.number == turn_id]
        if not found:
            raise OptionError(f"rewind_to_start_of_turn: turn {turn_id} is unknown, or was rewound already")
        assert self._generator is not None
        self._generator.rewind_to(self._turns[found[0]].start)
        del self._turns[found[0] :]

    def set_draft_tokens(self, tokens: Any, /) -> None:
        """Refused: drafts are found by look-up alone. `Engine.max_draft_tokens_per_proposal` is 0."""
        raise OptionError(
            "set_draft_tokens: drafts of the caller's are not verified, and max_draft_tokens_per_proposal() is 0; "
            "set_speculative_options(ngram_size=3) lets a Generator draft from its sequence"
        )

    def close(self) -> None:
        """Leave the engine. Closing twice is harmless."""
        self._closed = True
        self._turns.clear()
        if self._generator is not None:
            self._generator.close()
            self._generator = None

    def _current(self) -> Turn | None:
        """The turn under way."""
        return self._turns[-1] if self._turns and not self._turns[-1].finished else None

    def _generator_for(self, options: TurnOptions, length: int) -> CapstanGenerator | PooledSequence:
        """The generator so far, or with other options another one, which begins with its sequence."""
        search = dict(options._search)
        if options._least:
            search["min_length"] = min(length + options._least, self._limit)
        wanted = {"search": search, "guidance": options._guidance}
        if self._generator is not None and wanted == self._options:
            return self._generator
        params = CapstanParams(self._engine._model.capstan)
        params.set_search_options(max_length=self._limit, **search)
        if options._guidance is not None:
            params.set_guidance(*options._guidance)
        made = self._engine._sequence(params)
        if self._generator is not None:
            present = self._generator.get_sequence(0)
            if present:
                made.append_tokens(present)
            self._generator.close()
        self._options = wanted
        return made

    def _advance(self) -> EngineEvent:
        """Generate one token of the turn under way."""
        turn, generator = self._turns[-1], self._generator
        assert generator is not None
        if turn.cancelled:
            return self._finish(turn, FinishReason.CANCELLED)
        try:
            generator.generate_next_token()
        except Exception:
            turn.finished = True
            raise
        if generator.finish_reason == "eos":
            return self._finish(turn, FinishReason.EOS)
        (token,) = generator.get_next_tokens()
        turn.generated += 1
        if turn.stream is not None:
            turn.text += turn.stream.push(token)
            for place, stop in enumerate(turn.stops):
                if stop in turn.text:
                    return self._finish(turn, FinishReason.STOP_STRING, token, place)
        if turn.generated == turn.most:
            return self._finish(turn, FinishReason.MAX_GENERATED_TOKENS, token)
        if generator.token_count() >= self._limit:
            return self._finish(turn, FinishReason.MAX_SESSION_TOKENS, token)
        return EngineEvent(self, turn.number, EngineEventFlags.TOKEN, token)

    def _finish(
        self, turn: Turn, reason: FinishReason, token: int | None = None, stop: int | None = None
    ) -> EngineEvent:
        turn.finished = True
        if isinstance(self._generator, PooledSequence):
            self._generator.park()
        flags = EngineEventFlags.TURN_FINISHED | (EngineEventFlags.NONE if token is None else EngineEventFlags.TOKEN)
        usage = TurnUsage(turn.prompt, turn.generated)
        return EngineEvent(self, turn.number, flags, token, reason, stop, EngineErrorCode.NONE, usage)


class Engine:
    """Answers several requests in turn, a token of each in every `run`. Those that pick by the same options are rows of
    one step, and join and leave it at any time (capstan.row_pool); with a seed, a grammar or other limits a request has
    a generator of its own. A request that is dropped leaves the engine."""

    def __init__(self, model: Model, /) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"Engine: a Model is expected, not {type(model).__name__}")
        self._model = model
        self._requests: list[weakref.ref[Request]] = []
        self._pools: weakref.WeakValueDictionary[str, RowPool] = weakref.WeakValueDictionary()
        """The shared rows, by the options with which their sequences pick."""
        self._turn = 0
        """The place of the request that is served first where the buffer does not hold all."""

    def create_request(self, *, options: RequestOptions | None = None) -> Request:
        """A request without a turn yet."""
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
        request = Request._of(self, limit)
        self._requests.append(weakref.ref(request))
        return request

    def create_event_buffer(self, capacity: int) -> EngineEventBuffer:
        """Room for the events of a run."""
        return EngineEventBuffer._of(count("capacity", capacity))

    def get_capabilities(self) -> EngineCapabilities:
        """How much the engine takes."""
        return EngineCapabilities()

    def get_speculative_stats(self) -> dict[str, Any]:
        """Counts of speculation, all 0."""
        return speculation_stats(None)

    def has_pending_requests(self) -> bool:
        """Whether a turn is under way."""
        return any(True for _ in self._active())

    def max_draft_tokens_per_proposal(self) -> int:
        """0: drafts are not taken."""
        return 0

    def run(self, buffer: EngineEventBuffer) -> EngineEventBuffer:
        """Generate the next token of each request with a turn under way, as many as the buffer holds events."""
        if not isinstance(buffer, EngineEventBuffer):
            raise TypeError(f"run: an EngineEventBuffer is expected, not {type(buffer).__name__}")
        active = list(self._active())
        buffer._events.clear()
        if not active:
            return buffer
        first = self._turn % len(active) if buffer._capacity < len(active) else 0
        for request in [*active[first:], *active[:first]][: buffer._capacity]:
            buffer._events.append(request._advance())
        self._turn = first + buffer._capacity
        return buffer

    def _sequence(self, params: CapstanParams) -> CapstanGenerator | PooledSequence:
        """The sequence for these options: a row of a shared pool if that gives the same tokens, else a generator."""
        if not poolable(params):
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
