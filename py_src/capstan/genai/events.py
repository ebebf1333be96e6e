"""Events of an engine, and the enumerations in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Request

__all__ = [
    "EngineCapabilities",
    "EngineErrorCode",
    "EngineEvent",
    "EngineEventBuffer",
    "EngineEventFlags",
    "FinishReason",
    "TurnUsage",
]


class Numbered(Enum):
    """An enumeration whose members convert to int without being one."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class FinishReason(Numbered):
    """Why a turn ended."""

    NONE = 0
    EOS = 1
    STOP_STRING = 2
    MAX_GENERATED_TOKENS = 3
    MAX_SESSION_TOKENS = 4
    CANCELLED = 5
    FAILED = 6


class EngineErrorCode(Numbered):
    """The reason of a failure."""

    NONE = 0
    CAPACITY_DEFERRED = 1
    EXECUTION_CAPACITY_EXCEEDED = 2
    RETRYABLE_EXECUTION = 3
    REQUEST_UNSERVICEABLE = 4
    ENGINE_CONTRACT_FAILURE = 5
    ENGINE_EXECUTION_FAILURE = 6


class EngineEventFlags(IntFlag):
    """The facts that an event reports."""

    NONE = 0
    TOKEN = 1
    TURN_FINISHED = 2
    CAPACITY_BLOCKED = 4
    FAILED = 8
    RETRYABLE = 16


@dataclass(frozen=True)
class TurnUsage:
    """Tokens of a turn, told when it is finished."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(frozen=True)
class EngineCapabilities:
    """`configured_max_batch_size` requests at once (0: any number); `max_request_length` and `max_scheduled_tokens`
    are 0, as in the native package where nothing limits them."""

    configured_max_batch_size: int = 0
    max_request_length: int = 0
    max_scheduled_tokens: int = 0


@dataclass(frozen=True)
class EngineEvent:
    """One thing that happened to a request."""

    request: Request
    turn_id: int
    flags: EngineEventFlags
    token: int | None = None
    finish_reason: FinishReason = FinishReason.NONE
    matched_stop_string_index: int | None = None
    error_code: EngineErrorCode = EngineErrorCode.NONE
    usage: TurnUsage = TurnUsage()


class EngineEventBuffer:
    """The events of one `Engine.run`; `Engine.create_event_buffer` makes it."""

    def __init__(self) -> None:
        raise TypeError("EngineEventBuffer: No constructor defined!")

    @classmethod
    def _of(cls, capacity: int) -> EngineEventBuffer:
        made = cls.__new__(cls)
        made._capacity, made._events = capacity, []
        return made

    _capacity: int
    _events: list[EngineEvent]

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, place: int, /) -> EngineEvent:
        if not 0 <= place < len(self._events):
            raise IndexError(f"event {place}: there are {len(self._events)}")
        return self._events[place]
