"""Runs a decode step on WebGPU in one of three ways: replayed from a tape, through ORT's capture, or eagerly."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....tape import TapeKey
from ..gpu_engine import GpuEngine

__all__ = ["DecodeStep", "put_off"]


@dataclass(frozen=True)
class DecodeStep:
    """One way to run a decode step; handles of the engine, 0 where there is none."""

    engine: GpuEngine
    eager: int
    """The prefill session bound to a single input id."""
    capture: str
    """'tape', 'ort' or 'off'."""
    note: str | None
    """The reason why `capture` differs from the requested one."""
    session: int = 0
    captured: int = 0
    """The captured session and its binding."""
    tape: int = 0
    key: TapeKey | None = None
    passes: dict[str, str] = field(default_factory=dict)
    """The effect of each pass on the tape, or the reason why it changed nothing."""
    lasting: bool = True
    """Whether a later load may reuse the tape; not if memory was short when it was made."""
    unrecorded: bool = False
    """Whether its recording was postponed; it runs eagerly until then."""

    @property
    def binding(self) -> int:
        """The binding that ORT runs for a step without a tape."""
        return self.captured if self.capture == "ort" else self.eager

    async def release(self) -> None:
        """Close the tape, then the session whose buffers it uses."""
        if self.tape:
            self.engine.close_tape(self.tape)
        for binding in filter(None, (self.eager, self.captured)):
            self.engine.unbind(binding)
        if self.session:
            await self.engine.release_session(self.session)


def put_off(picks: int) -> str:
    """The note on a step that is recorded after `picks` picks."""
    if picks == 1:
        return "the decode step is recorded after the first token"
    return (
        f"the decode step is recorded after {picks} tokens: on a software adapter its check takes as long as these "
        "tokens"
    )
