"""Defines the enumerations and counts in the events of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag

__all__ = [
    "EngineCapabilities",
    "EngineErrorCode",
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
    """The reason for a turn's end."""

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
    """The token counts of a turn, reported when it is finished."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(frozen=True)
class EngineCapabilities:
    """The limits of an engine. It answers `configured_max_batch_size` requests at once (0: any number).
    `max_request_length` and `max_scheduled_tokens` are 0, as in the native package without limits.
    """

    configured_max_batch_size: int = 0
    max_request_length: int = 0
    max_scheduled_tokens: int = 0
