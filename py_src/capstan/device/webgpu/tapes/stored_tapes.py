"""Stores tapes as data. A tape is made and checked once, and restored over other buffers without a recording.

A stored tape names the weights, the buffers of its sequence and the parts of buffers that its kernels bind; it
describes the buffers that it allocates itself. It is valid only under the same key and the same `facts` of StoredTapes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ....errors import OutOfMemoryError, TapeError
from ....fallback import fall_back
from ....host.notes import Notes, build
from ....tape import TapeKey
from ..gpu_engine import GpuEngine
from ..sequence_buffers import SequenceBuffers

__all__ = ["Restored", "Span", "StoredTapes", "expects_stored"]

Span = tuple[int, int, int]
"""Handle, offset, bytes."""
NAMED = "named"
"""Marks a binding of a buffer's part, which is stored by the part's name."""


@dataclass(frozen=True)
class Restored:
    """A tape that was restored."""

    tape: int
    passes: dict[str, str]
    """The effect of each pass, for reports."""


async def expects_stored(notes: Notes | None, model: str) -> bool:
    """Whether this build stored tapes of the model, which makes a recording unlikely."""
    return notes is not None and await notes.read(f"tapes of {model}", build()) is not None


class StoredTapes:
    """The stored tapes of one model. Without notes only the sequences of this loaded model share them.

    `facts` is everything that the tapes depend on besides their keys and the adapter. Tapes fit buffers of exactly a
    sequence's sizes; the sizes of larger buffers, which kernels can read, are part of the facts. `spans` are the parts
    of buffers that kernels of a tape bind, by name; by default only the sampler's state. `noted` is whether a note
    lists tapes; if not, the first restored tape writes the note.
    """

    def __init__(
        self,
        engine: GpuEngine,
        notes: Notes | None,
        model: str,
        facts: str,
        weights: Mapping[str, int],
        noted: bool = True,
    ) -> None:
        self._engine = engine
        self._notes = notes
        self._model = model
        self._facts = json.dumps([facts, engine.adapter()], sort_keys=True)
        self._weights = weights
        """Buffers by name."""
        self._in_memory: dict[str, str] = {}
        """Stored tapes by the names of their notes."""
        self._noted = noted

    def in_memory(self, what: str, key: TapeKey, buffers: SequenceBuffers) -> bool:
        """Whether this page stored or restored the tape of `what`."""
        return self._name(what, key, buffers) in self._in_memory

    async def restore(
        self, what: str, key: TapeKey, buffers: SequenceBuffers, spans: Mapping[str, Span] | None = None
    ) -> Restored | None:
        """The tape of `what` over these buffers; None if none is stored. A tape that cannot be restored is a step
        down.
        """
        name = self._name(what, key, buffers)
        text = self._in_memory.get(name)
        if text is None and self._notes is not None:
            text = await self._notes.read(name, self._key(key))
        if text is None:
            return None
        stored = json.loads(text)
        there = self._there(buffers)
        parts = {name: ["span", *span] for name, span in (spans or state_of(buffers)).items()}
        stored["tape"]["fused"]["owner"] = buffers.owner
        try:
            for kernel in stored["tape"]["fused"]["kernels"]:
                bindings = kernel["bindings"].items()
                kernel["bindings"] = {name: parts[bound[1]] if bound[0] == NAMED else bound for name, bound in bindings}
            given = {int(id_): there[name] for id_, name in stored["names"].items()}
            tape = await self._engine.restore_tape(stored["tape"], given, buffers.owner)
        except (TapeError, OutOfMemoryError, KeyError) as error:
            if not self._engine.healthy():
                raise
            fall_back("a stored tape", str(error), "the step is recorded and checked again")
            return None
        self._in_memory[name] = text
        if not self._noted:
            await self._note(what)
        return Restored(tape, stored["passes"])

    async def keep(
        self,
        what: str,
        key: TapeKey,
        buffers: SequenceBuffers,
        tape: int,
        passes: Mapping[str, str],
        spans: Mapping[str, Span] | None = None,
    ) -> None:
        """Store a checked tape; a tape that cannot be stored is a fallback."""
        names = {self._engine.recorded_id(handle): name for name, handle in self._there(buffers).items()}
        try:
            found = await self._engine.store_tape(tape, list(names))
            name_spans(found, spans or state_of(buffers))
        except TapeError as error:
            fall_back(f"the stored tape of {what}", str(error), "each page records and checks it again")
            return
        used = {id_: names[id_] for id_ in found["given"]}
        text = json.dumps({"tape": found, "names": used, "passes": dict(passes)})
        name = self._name(what, key, buffers)
        self._in_memory[name] = text
        if self._notes is not None:
            await self._notes.write(name, self._key(key), text)
            await self._note(what)

    async def _note(self, what: str) -> None:
        """Note for later loads that there are stored tapes."""
        self._noted = True
        if self._notes is not None:
            await self._notes.write(f"tapes of {self._model}", build(), what)

    def _there(self, buffers: SequenceBuffers) -> dict[str, int]:
        """Buffers that a tape may bind, by name."""
        bound = {f"sequence {name}": handle for name, handle in buffers.bound().items()}
        return {**bound, **{f"weight {name}": handle for name, handle in self._weights.items()}}

    def _name(self, what: str, key: TapeKey, buffers: SequenceBuffers) -> str:
        larger = json.dumps(buffers.larger(), sort_keys=True) if buffers.larger() else ""
        of = hashlib.sha256(larger.encode()).hexdigest()[:16]
        over = f" over given buffers {of}" if larger else ""
        return f"tape of {what} for {key.max_length} positions{over} of {self._model}"

    def _key(self, key: TapeKey) -> str:
        return json.dumps([self._facts, asdict(key)], sort_keys=True)


def state_of(buffers: SequenceBuffers) -> dict[str, Span]:
    """The sampler's state, a part of a buffer that differs from sequence to sequence."""
    state = buffers.spans["state"]
    return {"state": (state.buffer.handle, state.offset, state.length)}


def name_spans(found: dict[str, Any], spans: Mapping[str, Span]) -> None:
    """In a stored tape, replace each part of a buffer that a kernel binds by the part's name. Raises TapeError."""
    names = {("span", *span): name for name, span in spans.items()}
    for kernel in found["fused"]["kernels"]:
        for binding, bound in kernel["bindings"].items():
            if bound[0] == "span":
                name = names.get(tuple(bound))
                if name is None:
                    raise TapeError("a kernel of the tape binds part of a buffer that has no name")
                kernel["bindings"][binding] = [NAMED, name]
