"""Runs one sequence on the reference device, and holds its caches and states."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ...errors import ClosedError, PromptError, ValidationError
from ...graph import CachePair, GraphDescription, StateTensor
from ...graph.logits_to_keep import logits_to_keep
from ..cache_rows import PictureSpan
from ..carried_tensor import CarriedTensor, carried
from ..device_interface import BoundSpan
from ..disk_rows import bring_rows, disk_reads
from ..host_memory import view_of
from ..host_sampled import undraftable
from ..lora_weights import LoraGraph, LoraWeights
from ..picture_encoder import host_tensor
from ..rope_tables import RopeTables
from ..run_input import HostTensor, Room
from ..run_inputs import LongRope, Placed, give_hidden, run_inputs
from ..snapshots import EMPTY
from ..table_reader import TableReader
from .reference_session import array_of, one_line

__all__ = ["ReferenceRunner", "ReferenceSequence"]


class ReferenceSequence:
    """One sequence: ids go in, the logits of the last position come out. Past and present are one buffer, unless the
    caches grow with each run.
    """

    def __init__(
        self,
        session: Any,
        about: GraphDescription,
        capacity: int,
        lora: LoraGraph | None = None,
        tables: RopeTables | None = None,
        disk: TableReader | None = None,
    ) -> None:
        self._session: Any = session
        self.about = about
        self.capacity = capacity
        self.length = 0
        """Positions in the cache that are valid."""
        length = 0 if about.growing else capacity
        shapes = {value.name: value.shape for value in session.get_inputs()}
        self._logits_to_keep = logits_to_keep(shapes)
        self._kept_shape = shapes.get(self._logits_to_keep, ())
        declared = next(value.shape for value in session.get_outputs() if value.name == about.logits)
        self.keeps_all = self._logits_to_keep is not None or declared[1] != 1
        """Whether the graph can give the logits of every position."""
        self._caches = {
            pair: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(pair.dims(1, length), about.cache_dtype))
            for pair in about.cache
        }
        self._states = {
            state: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(state.dims(1), state.dtype))
            for state in about.states
        }
        self._snapshots: dict[int, Any] = {}
        self._logits = array("f")
        self.hidden_states = b""
        """Those of all tokens of the last run, if a multi-token-prediction head reads them."""
        required = {value.name for value in session.get_inputs()}
        self._silent = {
            each.name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(each.sizes(1), each.dtype))
            for each in (lora or LoraGraph()).inputs
            if each.name in required
        }
        """The values, without an adapter, of adapters' inputs that have no default."""
        self._adapted = self._silent
        self._inputs = run_inputs(about, Room(capacity, capacity, rope=tables, disk=disk))
        self._heard: dict[str, Any] = {}
        """The outputs of an encoder."""
        self._fixed: dict[str, Any] = {}
        """The inputs that stay the same until `rotate`."""
        self.rotate(False)

    def prefill(self, ids: Sequence[int], every: bool = False) -> list[array[float]]:
        """Run the model on `ids` after the present positions. Returns the logits of the last position or, with `every`,
        of each: float32 [vocab]. Raises PromptError if there are no ids or no room for them, ValidationError if
        onnxruntime cannot run the graph.
        """
        if self._session is None:
            raise ClosedError("this sequence was closed; make a new one")
        if not ids:
            raise PromptError("the prompt is empty; it must have at least one token")
        if self.length + len(ids) > self.capacity:
            raise PromptError(
                f"{len(ids)} tokens after {self.length} exceed the cache's {self.capacity} positions; shorten the "
                "prompt"
            )
        about, end = self.about, self.length + len(ids)
        fed = arrays(tensor for each in self._inputs for tensor in each.on_host(ids, self.length))
        given = self._fixed | self._heard | fed
        if self._logits_to_keep is not None:
            given[self._logits_to_keep] = np.full(self._kept_shape, 0 if every else 1, np.int64)
        try:
            *presents, made = self._run_adapted(given) if self._adapted else self._run_in_place(given)
            kept = made.numpy()[0, -len(ids) if every else -1 :].astype(np.float32)
            if about.hidden is not None:
                self.hidden_states = presents.pop().numpy().tobytes()
        except Exception as error:
            raise ValidationError(
                f"onnxruntime could not run the model: {one_line(error)}; the graph and the configuration contradict "
                "each other: export the model again"
            ) from error
        if about.growing or self._adapted:
            self._caches = dict(zip(self._caches, presents, strict=False))
        self._states = dict(zip(self._states, presents[len(self._caches) :], strict=True))
        rows = [array("f", row.tobytes()) for row in kept]
        self._logits = rows[-1]
        self.length = end
        return rows

    async def bring(self, ids: Sequence[int]) -> None:
        """Read the rows on disk of these ids, on which `prefill` runs next."""
        await bring_rows(self._inputs, ids)

    @property
    def reads(self) -> dict[str, int]:
        """See Runner."""
        return disk_reads(self._inputs)

    def _run_in_place(self, given: Mapping[str, Any]) -> list[Any]:
        """Run the model, and return caches, states, hidden states for a head, and logits. Caches are written in place
        unless they grow.
        """
        about, binding = self.about, self._session.io_binding()
        for name, value in given.items():
            binding.bind_cpu_input(name, value)
        for pair, cache in self._caches.items():
            binding.bind_ortvalue_input(pair.past, cache)
            if about.growing:
                binding.bind_output(pair.present)
            else:
                binding.bind_ortvalue_output(pair.present, cache)
        for state, value in self._states.items():
            binding.bind_ortvalue_input(state.past, value)
            binding.bind_output(state.present)
        if about.hidden is not None:
            binding.bind_output(about.hidden.name)
        binding.bind_output(about.logits)
        self._session.run_with_iobinding(binding)
        return list(binding.get_outputs())

    def _run_adapted(self, given: Mapping[str, Any]) -> list[Any]:
        """Like `_run_in_place`, but with adapters, and into new arrays: a binding cannot feed an input that has a
        default.
        """
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in given.items()}
        feeds |= self._adapted
        feeds |= {pair.past: cache for pair, cache in self._caches.items()}
        feeds |= {state.past: value for state, value in self._states.items()}
        presents = [*(pair.present for pair in self._caches), *(state.present for state in self._states)]
        hidden = [] if self.about.hidden is None else [self.about.hidden.name]
        found: list[Any] = self._session.run_with_ort_values([*presents, *hidden, self.about.logits], feeds)
        return found

    def set_lora(self, lora: LoraWeights | None) -> None:
        """Run the model with these LoRA adapters; None removes them."""
        self._adapted = self._silent
        if lora is not None:
            self._adapted = {
                slot.name: onnxruntime.OrtValue.ortvalue_from_numpy(
                    np.frombuffer(view_of(lora.spans[slot.name]), slot.dtype).reshape(slot.dims)
                )
                for slot in lora.graph.slots(lora.rank)
            }

    def rotate(self, long: bool) -> None:
        """Rotate by the long factors of a long rope, or by the short ones; a change makes cached positions invalid.
        Without effect for a model with one kind.
        """
        self._fixed = arrays(tensor for each in self._inputs for tensor in each.fixed_on_host(long))

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        """Read these outputs of an encoder in later runs."""
        self._heard = {name: array_of(each) for name, each in heard.items()}

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        """Place these features in later runs."""
        for each in self._inputs:
            if isinstance(each, Placed):
                each.see(host_tensor(features), places)
                self._fixed |= arrays(each.fixed_on_host(False))
            elif isinstance(each, LongRope) and each.see(pictures):
                self._fixed |= arrays(each.fixed_on_host(False))

    def give_hidden(self, rows: bytes | memoryview) -> None:
        """Read these hidden states in the next run, in a multi-token-prediction head."""
        give_hidden(self._inputs, rows)

    def decode(self, token_id: int) -> None:
        """One decode step."""
        self.prefill([token_id])

    def logits(self) -> memoryview:
        """float32 [vocab], of the last position that was run."""
        return memoryview(self._logits)

    def cache(self, layer: int, kind: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The valid part of a layer's "key" or "value" cache: [kv heads, length, head size]."""
        pair = next(pair for pair in self._caches if (pair.layer, pair.kind) == (layer, kind))
        valid: np.ndarray[Any, np.dtype[Any]] = self._caches[pair].numpy()[0, :, : self.length].copy()
        return valid

    def carried(self, name: str, valid: int | None = None) -> CarriedTensor:
        """A cache, of all positions or of the first `valid` ones, or a state by its name in the graph. OptionError if
        there is none.
        """
        found = carried(self.about, name)
        value = self._states[found] if isinstance(found, StateTensor) else self._caches[found]
        length = self.length if valid is None else valid
        return CarriedTensor.read(self.about, found, value.numpy().tobytes(), length)

    @property
    def stateful(self) -> bool:
        """Whether the sequence has states that each run overwrites."""
        return bool(self._states)

    def keep_states(self, slot: int) -> None:
        """Keep the states as snapshot number `slot`, with their position."""
        self._snapshots[slot] = (self.length, self._states)

    def bring_states(self, slot: int) -> None:
        """Rewind to a snapshot, or for snapshots.EMPTY to before the first token."""
        if slot != EMPTY:
            self.length, self._states = self._snapshots[slot]
            return
        zeros = {state: np.zeros(state.dims(1), state.dtype) for state in self._states}
        self._states = {state: onnxruntime.OrtValue.ortvalue_from_numpy(value) for state, value in zeros.items()}
        self.length = 0

    def rewind(self, length: int) -> None:
        """Drop positions from `length` on; the logits are invalid until the next run.

        Raises PromptError for a length past the end, and if states that each run overwrites would have to be rewound.
        """
        if not 0 <= length <= self.length:
            raise PromptError(f"cannot rewind to {length}; the sequence has {self.length} tokens")
        if self._states and length != self.length:
            raise PromptError(
                f"cannot rewind to {length}: the states are those after {self.length} tokens, and each run overwrites "
                "them; restore a snapshot of an earlier position (bring_states) and run the tokens after it again"
            )
        if self.about.growing and length < self.length:
            for pair, cache in self._caches.items():
                kept = np.ascontiguousarray(cache.numpy()[:, :, :length])
                self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(kept)
        self.length = length

    def copy_from(self, other: ReferenceSequence) -> None:
        """Take over the length, the caches and the states of another sequence of the same model and capacity."""
        self.length, self._heard = other.length, other._heard
        for pair, cache in other._caches.items():
            self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(cache.numpy().copy())
        # Arrays may be shared: each run makes new ones.
        self._states = dict(other._states)

    def cache_bytes(self, length: int) -> int:
        """The bytes of `length` positions."""
        item = np.dtype(self.about.cache_dtype).itemsize
        return item * sum(math.prod(pair.dims(1, length)) for pair in self.about.cache)

    def adopt(self, other: ReferenceSequence, length: int) -> None:
        """Make the first `length` positions those of another sequence of the same model, of any capacity. The logits
        are invalid until the next run.
        """
        for pair, source in other._caches.items():
            rows = source.numpy()[:, :, :length]
            if self.about.growing:
                made = np.ascontiguousarray(rows)
            else:
                made = np.zeros(pair.dims(1, self.capacity), self.about.cache_dtype)
                made[:, :, :length] = rows
            self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(made)
        self.length = length

    def kept(self, length: int) -> ReferenceSequence:
        """A new sequence of only the first `length` positions."""
        made = ReferenceSequence(self._session, self.about, length)
        made.adopt(self, length)
        return made

    def write(self, pair: CachePair, data: bytes | memoryview, length: int) -> None:
        """Make the first `length` positions of a cache these bytes, [heads, length, head size]; the sequence has this
        length then. The logits are invalid until the next run.
        """
        made = np.zeros(pair.dims(1, length if self.about.growing else self.capacity), self.about.cache_dtype)
        made[:, :, :length] = np.frombuffer(data, self.about.cache_dtype).reshape(pair.dims(1, length))
        self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(made)
        self.length = length

    def close(self) -> None:
        self._session = None
        self._caches.clear()


class ReferenceRunner:
    """A sequence as HostSampledDecoder runs it: every call says how many past positions are still valid."""

    def __init__(self, sequence: ReferenceSequence) -> None:
        self._sequence = sequence
        self.about = sequence.about
        self.stateful = sequence.stateful
        self.undraftable = undraftable(sequence.keeps_all)

    @property
    def reads(self) -> dict[str, int]:
        return self._sequence.reads

    async def run_each(self, ids: Sequence[int], past: int) -> list[array[float]]:
        self._sequence.rewind(past)
        await self._sequence.bring(ids)
        return self._sequence.prefill(ids, every=True)

    async def run(self, ids: Sequence[int], past: int) -> array[float]:
        self._sequence.rewind(past)
        await self._sequence.bring(ids)
        self._sequence.prefill(ids)
        return array("f", self._sequence.logits())

    async def carried(self, name: str, valid: int) -> CarriedTensor:
        return self._sequence.carried(name, valid)

    def keep_states(self, slot: int) -> None:
        self._sequence.keep_states(slot)

    def bring_states(self, slot: int) -> None:
        self._sequence.bring_states(slot)

    def set_lora(self, lora: LoraWeights | None) -> None:
        self._sequence.set_lora(lora)

    def rotate(self, long: bool) -> None:
        self._sequence.rotate(long)

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        self._sequence.hear(heard)

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        self._sequence.see(features, places, pictures)

    def give_hidden(self, rows: bytes | memoryview) -> None:
        self._sequence.give_hidden(rows)

    def hidden_states(self) -> bytes:
        return self._sequence.hidden_states

    def copy_from(self, other: ReferenceRunner) -> None:
        self._sequence.copy_from(other._sequence)

    def cache_bytes(self, length: int) -> int:
        return self._sequence.cache_bytes(length)

    def kept(self, length: int) -> ReferenceRunner:
        return ReferenceRunner(self._sequence.kept(length))

    def adopt(self, other: ReferenceRunner, length: int) -> None:
        self._sequence.adopt(other._sequence, length)

    def write(self, pair: CachePair, data: bytes | memoryview, length: int) -> None:
        self._sequence.write(pair, data, length)

    def close(self) -> None:
        self._sequence.close()


def arrays(tensors: Iterable[HostTensor]) -> dict[str, Any]:
    """The arrays of tensors, by name."""
    return {each.name: np.frombuffer(each.data, each.dtype).reshape(each.dims) for each in tensors}
