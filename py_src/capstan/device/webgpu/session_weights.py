"""Loads the weights of any model's session into buffers that the whole page shares. They replace the initializers of
the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ... import graph
from ...fallback import fall_back
from ...graph.graph_passes import rewritten
from ...graph.rewriting import Rewriting
from ...host.storage_interface import ExternalData
from ...weights.shared import Lease
from .gpu_engine import BoundTensor, GpuBuffers
from .weight_lease import lease

__all__ = ["SessionWeights", "load_weights"]

SHOWN = 3
"""Names in a warning."""


@dataclass(frozen=True)
class SessionWeights:
    """A graph whose weights became inputs, and the buffers of these inputs, until `release`."""

    model: bytes
    tensors: tuple[BoundTensor, ...] = ()
    leases: Sequence[Lease] = ()
    contents: Sequence[str | None] = ()
    """The identity of each data file's contents, None for a file without one."""

    def again(self) -> SessionWeights:
        """The same weights for one more user, which releases them, too."""
        return replace(self, leases=[held.again() for held in self.leases])

    def release(self) -> None:
        """Free the buffers that have no other user; releasing twice is harmless."""
        for held in self.leases:
            held.release()


async def load_weights(engine: GpuBuffers, model: bytes, external: ExternalData) -> SessionWeights:
    """Turn the external initializers of a model into inputs, and load those that are not on the device yet.
    Initializers that cannot be inputs are read into the graph. Nothing stays allocated on failure."""
    facts = Rewriting()
    with graph.contradictions(external.folder), graph.changing(graph.parse(model)) as parsed:
        parsed = rewritten(parsed, "session", facts)
        kept = list(graph.kept_tensors(parsed))
    warn_kept(external.folder, [(entry.name or "a tensor of a node", why) for _, entry, why in kept if why])
    names = {entry.name for _, entry, _ in kept}
    weights = [entry for entry in graph.external_entries(parsed) if entry.name not in names]
    leases: list[Lease] = []
    buffers: dict[str, int] = {}
    contents: list[str | None] = []
    with ExitStack() as undo:
        for location, end in external.ends.items():
            entries = [entry for entry in weights if entry.location == location]
            file = await external.open(location)
            try:
                file.require(end)
                if entries:
                    place = external.folder + location
                    held = await lease(engine, engine.shared_weights(), file, entries, place, no_progress, ahead=False)
                    undo.callback(held.release)
                    leases.append(held)
                    buffers.update(zip((entry.name for entry in entries), held.buffers, strict=True))
                else:
                    # A file without weights to share is stored, too.
                    await file.load(engine.upload_weights([]), end, no_progress)
                for tensor, entry, _ in kept:
                    if entry.location == location:
                        graph.make_inline(tensor, await file.read(entry.offset, entry.length))
            finally:
                file.close()
            contents.append(file.content)
        with graph.contradictions(external.folder), graph.changing(parsed):
            fed = rewritten(parsed, "session on buffers", facts)
        tensors = tuple(BoundTensor(each.name, buffers[each.name], each.dtype, each.dims) for each in facts.weights)
        made = SessionWeights(graph.serialize(fed), tensors, leases, contents)
        undo.pop_all()
    return made


def no_progress(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def warn_kept(folder: str, kept: Sequence[tuple[str, str]]) -> None:
    """Warn of the weights that are not shared, as a fallback; `kept` has (name, reason) for each."""
    for reason in dict.fromkeys(why for _, why in kept):
        names = [name for name, why in kept if why == reason]
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        instead = "they are initializers, which each session copies"
        fall_back(f"shared weights of {folder}", f"{shown}: {reason}", instead)
