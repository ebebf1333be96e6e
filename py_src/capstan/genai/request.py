"""Implements a request of an engine: its turns, their options and their events."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import tokenizer as capstan_tokenizer
from ..errors import ArgumentTypeError, ClosedError, OptionError, PromptError
from ..generation.generator import Generator as CapstanGenerator
from ..generation.generator_params import GeneratorParams as CapstanParams
from ..generation.row_pool import PooledSequence
from ..text.stream import TextStream
from .events import EngineErrorCode, EngineEventFlags, FinishReason, TurnUsage
from .genai_model import Model
from .genai_tensors import token_rows

__all__ = ["EngineEvent", "Generated", "Request", "RequestOptions", "TurnOptions", "count"]

Generated = CapstanGenerator | PooledSequence
"""The sequence of a request: a separate generator, or a row of shared steps."""


@dataclass(frozen=True)
class EngineEvent:
    """An event of a request."""

    request: Request
    turn_id: int
    flags: EngineEventFlags
    token: int | None = None
    finish_reason: FinishReason = FinishReason.NONE
    matched_stop_string_index: int | None = None
    error_code: EngineErrorCode = EngineErrorCode.NONE
    usage: TurnUsage = field(default_factory=TurnUsage)


class RequestOptions:
    """Limits of a request."""

    def __init__(self) -> None:
        self.max_session_tokens = 0

    def set_max_session_tokens(self, tokens: int, /) -> None:
        """Tokens that the request may reach over all turns, prompts included; 0 means the model's max_length."""
        self.max_session_tokens = count("max_session_tokens", tokens)


def count(name: str, value: int) -> int:
    """A number that native code takes as unsigned. Raises ArgumentTypeError for a negative one, like the native
    package.
    """
    if value < 0:
        raise ArgumentTypeError(f"{name} is {value}; give a number from 0")
    return int(value)


class TurnOptions:
    """The options of one turn of a request; the model's configuration gives the defaults."""

    def __init__(self, request: Request, /) -> None:
        self._request = weakref.ref(request)
        self.reset()

    def reset(self) -> None:
        """Reset all options."""
        self._search: dict[str, Any] = {}
        self._most = self._least = 0
        self._stops: list[str] = []
        self._guidance: tuple[str, str] | None = None

    def set_do_sample(self, value: bool, /) -> None:
        """Whether tokens are sampled (True) or the largest logit is taken (False)."""
        self._search["do_sample"] = bool(value)

    def set_temperature(self, value: float, /) -> None:
        """The sampling temperature; 0 takes the largest logit."""
        self._search["temperature"] = float(value)

    def set_top_k(self, value: int, /) -> None:
        """Draw a token from the `value` most probable ones; 0 disables it."""
        self._search["top_k"] = value

    def set_top_p(self, value: float, /) -> None:
        """The share of the weight from which a token is sampled, from 0 to 1; both 0 and 1 turn it off."""
        self._search["top_p"] = float(value)

    def set_seed(self, value: int, /) -> None:
        """The seed of the turn's draws."""
        self._search["random_seed"] = count("seed", value)

    def clear_seed(self) -> None:
        """Draw a seed."""
        self._search.pop("random_seed", None)

    def set_repetition_penalty(self, value: float, /) -> None:
        """Penalty of tokens that are in the sequence, greater than 0."""
        self._search["repetition_penalty"] = float(value)

    def set_no_repeat_ngram_size(self, value: int, /) -> None:
        """N-grams of this size do not repeat; 0 turns it off."""
        self._search["no_repeat_ngram_size"] = value

    def set_max_generated_tokens(self, value: int, /) -> None:
        """Most tokens of the turn; 0 sets no limit."""
        self._most = count("max_generated_tokens", value)

    def set_min_generated_tokens(self, value: int, /) -> None:
        """The fewest tokens before an end of sequence; 0 sets no limit."""
        self._least = count("min_generated_tokens", value)

    def set_stop_strings(self, texts: Sequence[str], /) -> None:
        """Texts that end the turn; [] means none. Raises OptionError for an empty text."""
        for place, text in enumerate(texts):
            if not text:
                raise OptionError(f"stop string {place} is empty; leave it out")
        self._stops = list(texts)

    def set_guidance(self, kind: str, data: str, /) -> None:
        """Constrain the turn by a grammar."""
        self._guidance = (kind, data)

    def clear_guidance(self) -> None:
        """Remove the grammar."""
        self._guidance = None


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
    def _of(cls, model: Model, sequence: Callable[[CapstanParams], Generated], limit: int) -> Request:
        """`sequence` makes the sequence in which turns are generated."""
        made = cls.__new__(cls)
        made._model, made._sequence, made._limit = model, sequence, limit
        made._turns, made._last, made._options = [], 0, {}
        made._generator, made._closed = None, False
        return made

    _model: Model
    _sequence: Callable[[CapstanParams], Generated]
    _limit: int
    _turns: list[Turn]
    _last: int
    _options: dict[str, Any]
    _generator: Generated | None
    _closed: bool

    def begin_turn(self, tokens: Any, turn_options: TurnOptions | None = None) -> int:
        """Append a prompt for the engine to answer; returns the turn's number, counted from 1."""
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
            raise PromptError(f"begin_turn: the tokens are {rows[:2]}; give one row with at least one token")
        start = 0 if self._generator is None else self._generator.token_count()
        if start + len(rows[0]) >= self._limit:
            raise PromptError(
                f"begin_turn: {start} tokens and {len(rows[0])} new ones leave no room for a generated token within "
                f"max_session_tokens ({self._limit})"
            )
        generator = self._generator_for(turn_options, start + len(rows[0]))
        generator.append_tokens(rows[0])
        self._generator = generator
        self._last += 1
        stops = turn_options._stops
        stream = TextStream(capstan_tokenizer.Tokenizer(self._model.capstan).decode) if stops else None
        self._turns.append(Turn(self._last, start, len(rows[0]), turn_options._most, list(stops), stream))
        return self._last

    def cancel_turn(self, turn_id: int, /) -> bool:
        """End a turn; the engine's next run reports it. Returns False if the turn is not under way. Raises OptionError
        before any turn.
        """
        if not self._last:
            raise OptionError("cancel_turn: no turn has begun")
        turn = self._current()
        if turn is None or turn.number != turn_id or turn.cancelled:
            return False
        turn.cancelled = True
        return True

    def rewind_to_start_of_turn(self, turn_id: int) -> None:
        """Remove a finished turn and those after it."""
        if self._current() is not None or not self._last:
            raise OptionError(
                "rewind_to_start_of_turn: no turn has begun, or one is under way; wait for its end, or cancel it"
            )
        found = [place for place, turn in enumerate(self._turns) if turn.number == turn_id]
        if not found:
            raise OptionError(f"rewind_to_start_of_turn: turn {turn_id} is unknown, or was rewound already")
        assert self._generator is not None
        self._generator.rewind_to(self._turns[found[0]].start)
        del self._turns[found[0] :]

    def set_draft_tokens(self, tokens: Any, /) -> None:
        """Always raises an error, because Capstan finds drafts only by look-up. `Engine.max_draft_tokens_per_proposal`
        is 0.
        """
        raise OptionError(
            "set_draft_tokens: drafts of the caller are not verified, and max_draft_tokens_per_proposal() is 0; "
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

    def _generator_for(self, options: TurnOptions, length: int) -> Generated:
        """The present generator or, for other options, a new one that begins with its sequence."""
        search = dict(options._search)
        if options._least:
            search["min_length"] = min(length + options._least, self._limit)
        wanted = {"search": search, "guidance": options._guidance}
        if self._generator is not None and wanted == self._options:
            return self._generator
        params = CapstanParams(self._model.capstan)
        params.set_search_options(max_length=self._limit, **search)
        if options._guidance is not None:
            params.set_guidance(*options._guidance)
        made = self._sequence(params)
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
        if generator.hit_eos:
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
