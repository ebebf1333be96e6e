"""Provides the inputs and outputs of a decoder's runs. Each kind of input has one provider, which every device uses. A
provider knows whether the graph has its tensors and how much memory a sequence needs for them, and writes them before a
run. For devices whose runs take tensors of the host, the provider makes these tensors. A new kind of input needs a
class here and a place in KINDS.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from ..memory import SNAPSHOTS, DeviceSpan, PoolItem, pool_item, round_up
from ..model_files.genai_config import FEATURES, PLACES
from .device_interface import DeviceInterface
from .disk_rows import DiskRows
from .element_types import byte_count
from .run_input import (
    AFTER,
    BEFORE,
    FREE,
    STATE_BYTES,
    STEP,
    WRITTEN,
    HostTensor,
    Room,
    Run,
    RunInput,
    RunTensor,
    SequenceMemory,
)
from .span_checks import INDEX_BYTES

if TYPE_CHECKING:
    from ..graph import GraphDescription, TensorInfo
    from .cache_rows import PictureSpan

__all__ = [
    "KINDS",
    "CrossCaches",
    "HiddenStates",
    "Ids",
    "LongRope",
    "Mask",
    "Placed",
    "Positions",
    "require_fed",
    "give_hidden",
    "run_inputs",
    "sequence_items",
]

CODES = {"int64": "q", "int32": "i"}


class Caches(RunInput):
    """Key/value caches. Attention reads them. It writes them in place, to separate buffers, or to caches that grow with
    each run.
    """

    pool = "persistent"

    def feeds(self, run: Run) -> list[RunTensor]:
        return [
            RunTensor(pair.past, f"kv {pair.past}", self.about.cache_dtype, pair.dims(1, length))
            for pair, length in zip(self.about.cache, self._lengths(BEFORE), strict=True)
        ]

    def fetches(self, run: Run) -> list[RunTensor]:
        written = written_caches(self.about, self.room.apart)
        return [
            RunTensor(pair.present, f"{written}kv {pair.past}", self.about.cache_dtype, pair.dims(1, length))
            for pair, length in zip(self.about.cache, self._lengths(AFTER), strict=True)
        ]

    def carried(self) -> list[str]:
        return [f"kv {pair.past}" for pair in self.about.cache]

    def _lengths(self, growing: int) -> list[int]:
        about, room = self.about, self.room
        return [growing if about.growing else about.positions(each, room.capacity, room.chunk) for each in about.cache]


def written_caches(about: GraphDescription, apart: bool) -> str:
    """The prefix of the names of the items to which attention writes its caches; empty if it writes them in place."""
    return "grown " if about.growing else "apart " if apart else ""


class Mask(RunInput):
    """The mask: ones for valid positions, zeros for later ones."""

    def feeds(self, run: Run) -> list[RunTensor]:
        length = AFTER if self.about.growing else self.room.capacity
        return [RunTensor(self.about.mask, "mask", self.about.mask_dtype, (1, length))]

    def hold(self, memory: SequenceMemory, valid: int) -> None:
        memory.device.zero(memory.spans["mask"])
        self._grow(memory, 0, valid)

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        if valid is None:
            self.hold(memory, past + len(ids))
        else:
            # The mask may have zeros before `valid`, where a sequence ended within a burst.
            self._grow(memory, valid, past)
            self._grow(memory, past, past + len(ids))

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        self.hold(memory, position + 1)

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        length, dtype = past + len(ids), self.about.mask_dtype
        return [HostTensor(self.about.mask, dtype, (1, length), array(CODES[dtype], [1] * length).tobytes())]

    def _grow(self, memory: SequenceMemory, old: int, new: int) -> None:
        """Change the mask from ones in the first `old` positions to ones in the first `new`."""
        dtype, capacity = self.about.mask_dtype, self.room.capacity
        whole = memory.spans["mask"].sub(0, capacity * INDEX_BYTES[dtype])
        memory.device.update_attention_mask(whole, dtype, capacity, [old], [new])


class Logits(RunInput):
    """The logits of the last position of a run, or of every position."""

    def fetches(self, run: Run) -> list[RunTensor]:
        kept = run.tokens if run.every else 1
        return [RunTensor(self.about.logits, "logits", self.about.logits_dtype, (1, kept, self.about.vocab_size))]

    def carried(self) -> list[str]:
        return ["logits"]


class Ids(RunInput):
    """The token ids of a run."""

    def feeds(self, run: Run) -> list[RunTensor]:
        return [RunTensor(self.about.input_ids, f"{run.which} ids", self.about.ids_dtype, (1, run.tokens))]

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        self._write(memory.device, memory.spans["prompt ids"], ids)

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        self._write(memory.device, memory.spans["input ids"], [token])

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        dtype = self.about.ids_dtype
        return [HostTensor(self.about.input_ids, dtype, (1, len(ids)), array(CODES[dtype], ids).tobytes())]

    def _write(self, device: DeviceInterface, span: DeviceSpan, ids: Sequence[int]) -> None:
        data = array(CODES[self.about.ids_dtype], ids)
        device.copy_cpu_to_device(span.sub(0, data.itemsize * len(ids)), data)


class Positions(RunInput):
    """The position of each id, if the graph has such an input."""

    def feeds(self, run: Run) -> list[RunTensor]:
        if self.about.position_ids is None:
            return []
        item = "positions" if run.which == "input" else "prompt positions"
        return [RunTensor(self.about.position_ids, item, "int64", (1, run.tokens))]

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        if self.about.position_ids is not None:
            span = memory.spans["prompt positions"].sub(0, 8 * len(ids))
            memory.device.update_position_ids(span, "int64", [past], len(ids))

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        if self.about.position_ids is not None:
            memory.device.update_position_ids(memory.spans["positions"].sub(0, 8), "int64", [position], 1)

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        name = self.about.position_ids
        if name is None:
            return []
        [declared] = [info for info in self.about.inputs if info.name == name]
        # A position may have several axes; text has the same number in all.
        axes = [3] * (len(declared.dims) - 2)
        data = array("q", range(past, past + len(ids))).tobytes() * 3 ** len(axes)
        return [HostTensor(name, "int64", (*axes, 1, len(ids)), data)]


class States(RunInput):
    """States that each run overwrites, and memory for snapshots of them."""

    pool = "persistent"

    def items(self) -> list[PoolItem]:
        items = super().items()
        # The bytes of all states, both the read and the written ones.
        size = SNAPSHOTS * sum(item.bytes for item in items) // 2
        return [*items, pool_item("snapshots", self.pool, size, bound=False)] if items else []

    def feeds(self, run: Run) -> list[RunTensor]:
        return [RunTensor(each.past, each.past, each.dtype, each.dims(1)) for each in self.about.states]

    def fetches(self, run: Run) -> list[RunTensor]:
        return [RunTensor(each.present, each.present, each.dtype, each.dims(1)) for each in self.about.states]

    def carried(self) -> list[str]:
        return [state.past for state in self.about.states]


class CrossCaches(RunInput):
    """The outputs of an encoder, which each step reads; they arrive when the sequence hears a sound."""

    pool = "persistent"
    changes = False

    def feeds(self, run: Run) -> list[RunTensor]:
        return [
            RunTensor(each.name, f"cross {each.name}", each.dtype, tuple(n for n in each.dims if isinstance(n, int)))
            for each in self.about.cross
        ]

    def carried(self) -> list[str]:
        return [tensor.item for tensor in self.feeds(STEP)]


class Placed(RunInput):
    """Features of pictures, and the row of features at each position of a run. There are none until a sequence sees
    pictures; steps have none.
    """

    pool = "persistent"
    changes = False

    def __init__(self, about: GraphDescription, room: Room) -> None:
        super().__init__(about, room)
        info = next(info for info in about.others if info.name == FEATURES)
        self._dtype, self._hidden = info.dtype, tuple(size for size in info.dims[1:] if isinstance(size, int))
        self._features: HostTensor | None = None
        self._places: Sequence[int] = ()

    def see(self, features: HostTensor | None, places: Sequence[int]) -> None:
        """Place these features: `places` has a row of them for each position, beginning with the first; -1 stands for
        none.
        """
        self._features, self._places = features, places

    def any(self, start: int, count: int) -> bool:
        """Whether some of the `count` positions after `start` have features."""
        return any(place >= 0 for place in self._places[start : start + count])

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        if self.any(past, len(ids)):
            memory.device.copy_cpu_to_device(memory.spans["prompt places"].sub(0, 4 * len(ids)), self._rows(ids, past))

    def _rows(self, ids: Sequence[int], past: int) -> array[int]:
        found = array("i", self._places[past : past + len(ids)])
        found.extend([-1] * (len(ids) - len(found)))
        return found

    def feeds(self, run: Run) -> list[RunTensor]:
        return [
            RunTensor(FEATURES, "features", self._dtype, (self.room.capacity, *self._hidden)),
            RunTensor(PLACES, f"{run.which} places", "int32", (1, run.tokens)),
        ]

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        return [HostTensor(PLACES, "int32", (1, len(ids)), self._rows(ids, past).tobytes())]

    def fixed_on_host(self, long: bool) -> list[HostTensor]:
        dims = (1, *self._hidden)
        none = HostTensor(FEATURES, self._dtype, dims, bytes(byte_count(self._dtype, dims)))
        return [self._features or none]


class HiddenStates(RunInput):
    """The hidden states that a model gives to its multi-token-prediction head, or that the head reads, one for each
    token of a run.
    """

    given: bytes | memoryview = b""
    """Those that the next run of a head reads, for a device that takes tensors of the host."""
    source: tuple[DeviceSpan, int] | None = None
    """Those that later runs of a head read, and the position of the first one."""
    kept: tuple[int, int] = (0, 0)
    """The position of the first hidden state of runs over prompts that is kept, and their number."""

    def items(self) -> list[PoolItem]:
        items = super().items()
        kept = [item for item in items if self._gives and item.name == "prompt hidden"]
        return [*items, *(pool_item("kept hidden", self.pool, item.bytes) for item in kept)]

    def keep(self, memory: SequenceMemory, which: str, position: int, count: int) -> None:
        """Keep the hidden states of a run over `count` tokens from a position on, after those of the runs before it if
        there is room for them.
        """
        if not self._gives:
            return
        [each] = self.fetches(Run(which, 1))
        size = byte_count(each.dtype, each.dims)
        start, held = self.kept
        if start + held != position or (held + count) * size > memory.spans["kept hidden"].length:
            start, held = position, 0
        rows, place = memory.spans[each.item].sub(0, count * size), memory.spans["kept hidden"]
        memory.device.copy_tensors([(rows, place.sub(held * size, rows.length))])
        self.kept = start, held + count

    @property
    def _gives(self) -> bool:
        """Whether the model has a head, and is not one itself."""
        return self.about.hidden is not None and self.about.reads_hidden is None

    def feeds(self, run: Run) -> list[RunTensor]:
        info = self.about.reads_hidden
        return [] if info is None else [hidden_tensor(info, f"{run.which} hidden states", run.tokens)]

    def fetches(self, run: Run) -> list[RunTensor]:
        info = self.about.hidden
        return [] if info is None else [hidden_tensor(info, f"{run.which} hidden", run.tokens)]

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        self._copy(memory, "prompt", past, len(ids))

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        self._copy(memory, "input", position, 1)

    def _copy(self, memory: SequenceMemory, which: str, position: int, count: int) -> None:
        if self.source is not None:
            span, first = self.source
            [each] = self.feeds(Run(which, 1))
            size = byte_count(each.dtype, each.dims)
            rows = span.sub((position - first) * size, count * size)
            memory.device.copy_tensors([(rows, memory.spans[each.item].sub(0, rows.length))])

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        feeds = self.feeds(Run("prompt", len(ids)))
        return [HostTensor(each.name, each.dtype, each.dims, self.given) for each in feeds]


def hidden_tensor(info: TensorInfo, item: str, tokens: int) -> RunTensor:
    """Hidden states of a run over these tokens."""
    return RunTensor(info.name, item, info.dtype, (1, tokens, *(n for n in info.dims[2:] if isinstance(n, int))))


def give_hidden(inputs: Sequence[RunInput], rows: bytes | memoryview) -> None:
    """Have the next run of a multi-token-prediction head read these hidden states."""
    for each in inputs:
        if isinstance(each, HiddenStates):
            each.given = rows


class Lora(RunInput):
    """The tensors of LoRA adapters, copied to the sequence's memory on the device."""

    pool = "weights"
    changes = False

    def feeds(self, run: Run) -> list[RunTensor]:
        return [RunTensor(each.name, f"lora {each.name}", each.dtype, each.dims) for each in self.about.lora]


class LongRope(RunInput):
    """The rotary tables of a model with a long rope, for the sequence's length."""

    pool = "weights"
    pictures: tuple[PictureSpan, ...] = ()
    """The pictures of the sequence; they determine the tables of a model with positions of three axes."""

    def see(self, pictures: Sequence[PictureSpan]) -> bool:
        """Rotate by the positions of a sequence with these pictures; returns whether that changes the tables."""
        before, self.pictures = self.pictures, tuple(pictures)
        return self.pictures != before

    def feeds(self, run: Run) -> list[RunTensor]:
        positions, tables = self.room.capacity, self.about.rope.tables if self.about.rope is not None else ()
        return [RunTensor(each.name, f"rope {each.name}", each.dtype, (positions, each.width)) for each in tables]

    def rotate(self, memory: SequenceMemory, long: bool) -> None:
        if self.room.rope is None:
            return
        tables = zip(self.feeds(STEP), self.room.rope.rows(long, self.room.capacity, self.pictures), strict=True)
        with memory.device.batch():
            for table, rows in tables:
                padded = rows.ljust(round_up(len(rows), WRITTEN), b"\0")
                memory.device.copy_cpu_to_device(memory.spans[table.item].sub(0, len(padded)), array("B", padded))

    def fixed_on_host(self, long: bool) -> list[HostTensor]:
        contents = self.room.rope
        if contents is None:
            return []
        tables = zip(self.feeds(STEP), contents.rows(long, self.room.capacity, self.pictures), strict=True)
        return [HostTensor(each.name, each.dtype, each.dims, rows) for each, rows in tables]


class WindowBase(RunInput):
    """The first position that sliding caches hold; webgpu.sliding writes it."""

    def feeds(self, run: Run) -> list[RunTensor]:
        found = self.about.sliding
        return [] if found is None else [RunTensor(found.base, "window base", "int32", (1,))]


class WindowTables(RunInput):
    """The rows of the rotary tables for sliding caches, beginning with their first position; webgpu.sliding writes
    them.
    """

    pool = "weights"

    def feeds(self, run: Run) -> list[RunTensor]:
        found = self.about.sliding
        if found is None:
            return []
        rows = found.room(self.room.capacity, self.room.chunk)
        return [RunTensor(each.name, f"window {each.name}", each.dtype, (rows, each.width)) for each in found.tables]


class Picks(RunInput):
    """The sampler's state and its ring of picked ids, which only Capstan's kernels bind."""

    def items(self) -> list[PoolItem]:
        sizes = {"state": STATE_BYTES, "ring": 4 * self.room.capacity}
        return [pool_item(name, "persistent", size, bound=False) for name, size in sizes.items()]


KINDS: list[type[RunInput]] = [
    Caches,
    Mask,
    Logits,
    Ids,
    Positions,
    States,
    CrossCaches,
    Placed,
    HiddenStates,
    Lora,
    LongRope,
    DiskRows,
    WindowBase,
    WindowTables,
    Picks,
]
"""The providers in the order in which their memory is allocated."""


def run_inputs(about: GraphDescription, room: Room) -> tuple[RunInput, ...]:
    """The providers of a sequence. A graph over growing caches may have no mask; most graphs place no features and have
    no tables on disk.
    """
    without = {
        Mask: not about.mask,
        Placed: all(info.name != FEATURES for info in about.others),
        DiskRows: not about.tables,
    }
    return tuple(kind(about, room) for kind in KINDS if not without.get(kind))


def sequence_items(about: GraphDescription, capacity: int, chunk: int, *, apart: bool = False) -> tuple[PoolItem, ...]:
    """The memory of every tensor of a sequence of `capacity` positions, in the order of allocation.

    `chunk` is the most prompt tokens of one run; with `apart` attention does not write its caches to the buffers that
    it reads.
    """
    return tuple(item for each in run_inputs(about, Room(capacity, chunk, apart)) for item in each.items())


def require_fed(about: GraphDescription) -> None:
    """Raise UnsupportedModelError for an input of the graph that no provider feeds."""
    runs = (STEP, Run("prompt", FREE))
    fed = {tensor.name for each in run_inputs(about, Room(1, 1)) for run in runs for tensor in each.feeds(run)}
    for info in about.others:
        if info.name not in fed:
            shape = ", ".join(map(str, info.dims))
            raise UnsupportedModelError(
                f"model.onnx has an input {info.name} [{shape}] that Capstan cannot feed; export the model without it"
            )
