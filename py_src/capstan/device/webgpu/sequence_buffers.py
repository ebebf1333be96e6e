"""Allocates the buffers of one sequence. The pool `persistent` has its KV cache, sampler state and ring; the pool `io`
has ids, mask and logits.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...graph import CachePair, GraphDescription, LeftOut, StateTensor
from ...memory import SNAPSHOTS, BufferRequest, DeviceBuffer, DeviceSpan, Loan, pack
from ..cache_rows import PictureSpan
from ..device_interface import BoundSpan, DeviceInterface
from ..disk_rows import DiskRows, bring_rows
from ..element_types import byte_count
from ..lora_weights import LoraWeights
from ..rope_tables import RopeTables
from ..run_input import Room, Run, RunInput
from ..run_inputs import CrossCaches, HiddenStates, LongRope, Placed, run_inputs, sequence_items
from ..snapshots import EMPTY
from ..table_reader import TableReader
from .gpu_engine import BoundTensor
from .sliding import BASE, SlidingWindow

__all__ = ["SequenceBuffers", "left_out_by_cache"]

STATE_WORDS = 8
NOISE = 251
"""The period of the numbers of `hear_noise`: a prime, so that positions differ."""


@dataclass(frozen=True)
class SequenceBuffers:
    """The spans of one sequence by name, as `memory.sequence_items` lists them. Positions and capacity count tokens.

    Each span that onnxruntime-web binds has its own buffer; spans that only Capstan's kernels bind share one.
    """

    device: DeviceInterface
    about: GraphDescription
    owner: str
    capacity: int
    chunk: int
    inputs: tuple[RunInput, ...]
    """The providers of the inputs and outputs of its runs."""
    spans: Mapping[str, DeviceSpan]
    owned: tuple[DeviceBuffer, ...]
    """Buffers that were allocated here; `destroy` frees them."""
    given: Loan | None
    """Buffers of the user, held until `destroy`."""
    present: tuple[DeviceSpan, ...]
    """The spans to which attention writes its caches: the caches themselves, or separate buffers if the device or the
    graph needs them."""
    sliding: SlidingWindow | None = None
    """The caches that hold only the positions of a window; none if the graph has none."""
    every: bool = False
    """Whether runs give the logits of all their positions, not only of the last one."""

    @classmethod
    async def allocate(
        cls,
        device: DeviceInterface,
        about: GraphDescription,
        capacity: int,
        chunk: int,
        owner: str,
        *,
        offset_alignment: int,
        given: Loan | None = None,
        in_place: bool = True,
        tables: RopeTables | None = None,
        window_tables: Sequence[bytes] = (),
        disk: TableReader | None = None,
    ) -> SequenceBuffers:
        """Allocate all but the `given` buffers for `capacity` positions; nothing stays allocated on failure."""
        spans: dict[str, DeviceSpan] = dict(given.spans) if given is not None else {}
        inputs = run_inputs(about, Room(capacity, chunk, apart=not in_place, rope=tables, disk=disk))
        items = [item for each in inputs for item in each.items()]
        ours = [item for item in items if item.name not in spans]
        bound, packed = [item for item in ours if item.bound], [item for item in ours if not item.bound]
        requests = [BufferRequest(item.name, item.bytes, item.pool) for item in bound]
        if packed:
            # Spans that only our kernels bind share one buffer.
            packing = pack(packed, offset_alignment)
            label = " and ".join(item.name for item in packed)
            requests.append(BufferRequest(label, packing.bytes, packed[0].pool))
        made = await device.allocate_all(requests, owner)
        spans |= {item.name: buffer.span() for item, buffer in zip(bound, made, strict=False)}
        if packed:
            whole = made[len(bound)]
            spans |= {item.name: whole.span(packing.offsets[item.name], item.bytes) for item in packed}
        written = "grown " if about.growing else "" if in_place else "apart "
        present = tuple(spans[f"{written}kv {pair.past}"] for pair in about.cache)
        sliding = None
        if about.sliding is not None:
            room = about.sliding.room(capacity, chunk)
            sliding = SlidingWindow(device, about, about.sliding, window_tables, capacity, room, spans.__getitem__)
        buffers = cls(device, about, owner, capacity, chunk, inputs, spans, tuple(made), given, present, sliding)
        buffers.rotate(False)
        if about.cross:
            buffers.hear_noise()
        if about.reads_hidden is not None:
            read = [buffers.spans[f"{which} hidden states"] for which in ("prompt", "input")]
            buffers.fill_with_noise(read, about.reads_hidden.dtype)
        if sliding is not None:
            sliding.write_base()
            sliding.fill_tables()
        return buffers

    def scored(self, logits: DeviceBuffer) -> SequenceBuffers:
        """The same buffers for runs that write the logits of all positions to `logits`; do not destroy the result."""
        return replace(self, spans={**self.spans, "logits": logits.span()}, every=True)

    @property
    def base(self) -> int:
        """The first position that sliding caches hold."""
        return self.sliding.base if self.sliding is not None else 0

    @property
    def slides(self) -> bool:
        """Whether the sequence may become longer than some of its caches."""
        return self.sliding is not None and self.sliding.slides

    def room_of(self, pair: CachePair) -> int:
        """The capacity of a cache in positions."""
        return self.about.positions(pair, self.capacity, self.chunk)

    def make_room(self, length: int, count: int) -> None:
        """Make room for `count` positions after the first `length`; see SlidingWindow."""
        if self.sliding is not None:
            self.sliding.make_room(length, count)

    @property
    def most_ahead(self) -> int:
        """The largest number of positions for which `make_room` can make room."""
        return self.capacity if self.sliding is None else self.sliding.room - self.sliding.sliding.window

    @property
    def end(self) -> int:
        """The number of positions for which all caches have room at present."""
        return self.capacity if self.sliding is None else min(self.capacity, self.base + self.sliding.room)

    def slide_for_check(self, length: int) -> None:
        """Let the caches slide after `length` positions, so that compared steps have a base."""
        if self.sliding is not None:
            self.sliding.slide(self.sliding.probed_base(length), length)

    def larger(self) -> dict[str, int]:
        """Sizes of the given buffers that are larger than their tensors and that onnxruntime-web binds whole."""
        if self.given is None:
            return {}
        items = {item.name: item.bytes for item in sequence_items(self.about, self.capacity, self.chunk) if item.bound}
        sizes = {name: span.buffer.size for name, span in self.given.spans.items() if name in items}
        return {name: size for name, size in sizes.items() if size != items[name]}

    def tensors(self, which: str, length: int) -> tuple[list[BoundTensor], list[BoundTensor]]:
        """The inputs and outputs of a run over the sequence: over `length` ids of its 'input' or its 'prompt', or FREE
        for any number of ids."""
        run = Run(which, length, self.every)
        feeds = [tensor for each in self.inputs for tensor in each.feeds(run)]
        fetches = [tensor for each in self.inputs for tensor in each.fetches(run)]
        handle = self.handle
        return (
            [BoundTensor(each.name, handle(each.item), each.dtype, each.dims) for each in feeds],
            [BoundTensor(each.name, handle(each.item), each.dtype, each.dims) for each in fetches],
        )

    def handle(self, name: str) -> int:
        """The device's handle of the buffer of `name`, which onnxruntime-web binds whole."""
        handle: int = self.spans[name].buffer.handle
        return handle

    def bound(self) -> dict[str, int]:
        """The handles of the buffers that onnxruntime-web binds whole, by name."""
        items = sequence_items(self.about, self.capacity, self.chunk)
        return {item.name: self.handle(item.name) for item in items if item.bound}

    @property
    def cache_spans(self) -> tuple[DeviceSpan, ...]:
        """The caches as runs read them, in the order of `about.cache`."""
        return tuple(self.spans[f"kv {pair.past}"] for pair in self.about.cache)

    def carried_span(self, found: CachePair | StateTensor, held: int) -> DeviceSpan:
        """The span from which a run reads a state or a cache; a growing cache has `held` positions at present."""
        if isinstance(found, StateTensor):
            return self.spans[found.past]
        whole = self.spans[f"kv {found.past}"]
        return whole.sub(0, self._cache_bytes(found, held)) if self.about.growing else whole

    @property
    def cache(self) -> tuple[int, ...]:
        return tuple(self.handle(f"kv {pair.past}") for pair in self.about.cache)

    @property
    def logits(self) -> int:
        return self.handle("logits")

    @property
    def mask(self) -> int:
        return self.handle("mask")

    @property
    def input_ids(self) -> int:
        return self.handle("input ids")

    @property
    def positions(self) -> int | None:
        return self.handle("positions") if self.about.has_position_ids else None

    def recorded_positions(self, recorded_id: Callable[[int], int]) -> int | None:
        """The recorded buffer of a step's position, if the graph has that input."""
        return None if self.positions is None else recorded_id(self.positions)

    @property
    def in_place(self) -> bool:
        """Whether attention writes into the caches it reads."""
        return self.present == self.cache_spans

    @property
    def settled(self) -> bool:
        """Whether a run writes all its results to the buffers that the next run reads."""
        return self.in_place and not self.about.states

    def settle(self, valid: int) -> None:
        """After a run without a tape, copy its results to the buffers that the next run reads: states and, if they are
        written to separate buffers, caches, which have `valid` positions.
        """
        if not self.in_place:
            parts = []
            for pair, present, cache in zip(self.about.cache, self.present, self.cache_spans, strict=True):
                size = self._cache_bytes(pair, valid) if self.about.growing else cache.length
                parts.append((present.sub(0, size), cache.sub(0, size)))
            self.device.copy_tensors(parts)
        self.settle_states()

    def settle_states(self) -> None:
        """Copy the states that a run wrote to the buffers that the next run reads."""
        if self.about.states:
            self.device.copy_tensors(self.carried)

    @property
    def carried(self) -> list[tuple[DeviceSpan, DeviceSpan]]:
        """For each state the span that a run writes, and the span that the next run reads."""
        return [(self.spans[state.present], self.spans[state.past]) for state in self.about.states]

    def copy_from(self, other: SequenceBuffers, length: int) -> None:
        """Copy another sequence's buffers, of the same model and capacity, with `length` positions."""
        if self.sliding is not None:
            self.sliding.rebase(other.base)
        # Whole caches: the rows of each head would be a copy each, and Python plans every one.
        names = [name for each in self.inputs for name in each.carried()]
        for mine, theirs in zip(self.inputs, other.inputs, strict=True):
            if isinstance(mine, LongRope) and isinstance(theirs, LongRope) and mine.see(theirs.pictures):
                mine.rotate(self, False)
        self.device.copy_tensors([(other.spans[name], self.spans[name]) for name in names])
        with self.device.batch():
            self.set_mask(length)
            self.set_length(length)

    def set_lora(self, lora: LoraWeights) -> None:
        """Copy these adapters into the sequence's buffers."""
        pairs = [(span, self.spans[f"lora {name}"].sub(0, span.length)) for name, span in lora.spans.items()]
        self.device.copy_tensors(pairs)

    def read_hidden(self, rows: DeviceSpan | None, position: int) -> None:
        """Have later runs of a multi-token-prediction head read these hidden states, whose first one is for its
        `position`; without rows they read what is there.
        """
        for each in self.inputs:
            if isinstance(each, HiddenStates):
                each.source = None if rows is None else (rows, position)

    def keep_hidden(self, which: str, position: int, count: int) -> None:
        """Keep the hidden states of a run over `count` tokens of a prompt, if a multi-token-prediction head reads
        them.
        """
        for each in self.inputs:
            if isinstance(each, HiddenStates):
                each.keep(self, which, position, count)

    @property
    def kept_hidden(self) -> tuple[int, int]:
        """The position of the first hidden state that is kept, and their number."""
        [kept] = [each.kept for each in self.inputs if isinstance(each, HiddenStates)]
        return kept

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        """Copy an encoder's outputs into the sequence's buffers."""
        held = [(each.span, self.spans[f"cross {name}"]) for name, each in heard.items()]
        # onnxruntime-web's buffers may be larger than their tensors.
        self.device.copy_tensors([(source.sub(0, target.length), target) for source, target in held])

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        """Copy features into the sequence's buffer, and place their rows in later runs over prompts."""
        for each in self.inputs:
            if isinstance(each, Placed):
                each.see(None, places)
            elif isinstance(each, LongRope) and each.see(pictures):
                each.rotate(self, False)
        if features is not None:
            size = byte_count(features.dtype, features.dims)
            self.device.copy_tensors([(features.span.sub(0, size), self.spans["features"].sub(0, size))])

    def places_any(self, start: int, count: int) -> bool:
        """Whether features stand at some of these positions."""
        return any(isinstance(each, Placed) and each.any(start, count) for each in self.inputs)

    def hear_noise(self) -> None:
        """Fill the encoder's outputs with numbers, for steps that are compared before any sound."""
        spans = [self.spans[item] for each in self.inputs if isinstance(each, CrossCaches) for item in each.carried()]
        self.fill_with_noise(spans, self.about.cross[0].dtype)

    def fill_with_noise(self, spans: Sequence[DeviceSpan], dtype: str) -> None:
        """Fill spans of this element type with numbers."""
        first, *others = sorted(spans, key=lambda span: span.length, reverse=True)
        code = {"float16": "e", "float32": "f"}[dtype]
        numbers = struct.pack(f"<{NOISE}{code}", *((37 * place % NOISE - NOISE // 2) / NOISE for place in range(NOISE)))
        self.device.copy_cpu_to_device(first, (numbers * (first.length // len(numbers) + 1))[: first.length])
        self.device.copy_tensors([(first.sub(0, other.length), other) for other in others])

    def rotate(self, long: bool) -> None:
        """Fill the rotary tables with the long factors, or the short ones."""
        for each in self.inputs:
            each.rotate(self, long)

    def cut(self, old: int, new: int) -> None:
        """Cut growing caches of `old` positions to their first `new` positions."""
        if new:
            # A head's rows move over the old place of the next head's rows, so they go through the other buffer.
            moved = []
            for pair, cache, present in zip(self.about.cache, self.cache_spans, self.present, strict=True):
                was, kept = (self._cache_bytes(pair, length) // pair.heads for length in (old, new))
                moved += [(cache.sub(head * was, kept), present.sub(head * kept, kept)) for head in range(pair.heads)]
            self.device.copy_tensors(moved)
            self.settle(new)

    def _cache_bytes(self, pair: CachePair, length: int) -> int:
        """Bytes of a cache with `length` positions, over all heads."""
        return byte_count(self.about.cache_dtype, pair.dims(1, length))

    @property
    def states(self) -> list[DeviceSpan]:
        """The states as runs read them."""
        return [self.spans[state.past] for state in self.about.states]

    def clear_states(self) -> None:
        """Reset the states to their values before the first token."""
        with self.device.batch():
            for span in self.states:
                self.device.zero(span)

    def keep_states(self, slot: int) -> None:
        """Copy the states to one of their snapshots."""
        self.device.copy_tensors(list(zip(self.states, self._snapshot(slot), strict=True)))

    def bring_states(self, slot: int) -> None:
        """Restore the states from a snapshot, or their values before the first token."""
        if slot == EMPTY:
            self.clear_states()
        else:
            self.device.copy_tensors(list(zip(self._snapshot(slot), self.states, strict=True)))

    def _snapshot(self, slot: int) -> list[DeviceSpan]:
        """The spans of a snapshot; each is as long as its state."""
        whole = self.spans["snapshots"]
        offset, parts = slot * whole.length // SNAPSHOTS, []
        for span in self.states:
            parts.append(whole.sub(offset, span.length))
            offset += span.length
        return parts

    def written(self, *others: str) -> list[int]:
        """Buffers that runs over the 'input' bind and that change between replays, and the buffers named in
        `others`.
        """
        names = [
            tensor.item
            for run in (Run(which, 1) for which in ("input", *others))
            for each in self.inputs
            if each.changes
            for tensor in each.tensors(run)
        ]
        return [self.handle(name) for name in dict.fromkeys(names)]

    def destroy(self) -> None:
        """Free the buffers that were allocated here and release the given ones."""
        for buffer in self.owned:
            buffer.close()
        if self.given is not None:
            self.given.end()

    def set_mask(self, valid: int) -> None:
        """Mark the first `valid` positions, and no others, as valid."""
        for each in self.inputs:
            each.hold(self, valid)

    def write_prompt(self, ids: Sequence[int], past: int, valid: int | None = None) -> None:
        """Write the inputs of one prefill run of at most `chunk` ids after `past` positions.

        `valid` is the largest possible number of set positions of the mask; None if unknown.
        """
        with self.device.batch():
            for each in self.inputs:
                each.write_prompt(self, ids, past, valid)

    async def bring(self, ids: Sequence[int]) -> None:
        """Read from disk what the next run over these ids needs, before its inputs are written."""
        await bring_rows(self.inputs, ids)

    async def bring_pick(self, token: int) -> None:
        """Write the rows on disk of a token that the device picked; its kernels wrote the step's other inputs."""
        await self.bring([token])
        for each in self.inputs:
            if isinstance(each, DiskRows):
                each.write_step(self, token, 0)

    def set_input(self, token: int, position: int) -> None:
        """Write the inputs of one decode step of `token` at `position`."""
        with self.device.batch():
            for each in self.inputs:
                each.write_step(self, token, position)
            self.set_length(position + 1)

    def set_length(self, length: int) -> None:
        """Set the sampler's state at the start of a generation: `length` valid positions, an empty ring, not done."""
        words = array("I", [length, *([0] * (STATE_WORDS - 1))])
        words[BASE] = self.base
        self.device.copy_cpu_to_device(self.spans["state"], words)


def left_out_by_cache(
    left_out: Collection[LeftOut], buffers: SequenceBuffers, recorded_id: Callable[[int], int]
) -> dict[int, LeftOut]:
    """The attention inputs that captured runs omit, by the recorded buffer of the layer's keys."""
    handles = {pair.past: handle for pair, handle in zip(buffers.about.cache, buffers.cache, strict=True)}
    slide = buffers.sliding.sliding.pasts if buffers.sliding is not None and buffers.slides else ()
    return {recorded_id(handles[each.key]): replace(each, slides=each.key in slide) for each in left_out}
