"""Loads a model for onnxruntime-web's CPU execution provider, in pages without WebGPU or with only a software
adapter.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ...graph import CachePair, GraphDescription
from ...model_files.genai_config import GenaiConfig
from ..cache_rows import PictureSpan
from ..carried_tensor import CarriedTensor, carried
from ..device_interface import BoundSpan
from ..disk_rows import bring_rows, disk_reads
from ..element_types import byte_count
from ..host_memory import view_of
from ..host_sampled import PREFILL_CHUNK, HostSampledDecoder, HostSampledModel, undraftable
from ..lora_weights import LoraGraph, LoraWeights, silent
from ..model_memory import ModelMemory
from ..picture_encoder import host_tensor
from ..rope_tables import RopeTables
from ..row_interface import Counters
from ..run_input import HostTensor, Room, RunInput
from ..run_inputs import Ids, LongRope, Mask, Placed, Positions, give_hidden, run_inputs
from ..speech_encoder import on_host
from ..table_reader import TableReader
from .cpu_graph import WasmGraph
from .wasm_device import WasmDevice

__all__ = ["WasmModel", "WasmSession", "wasm_memory"]

MADE_IN_JAVASCRIPT = (Ids, Mask, Positions)
"""The kinds of inputs that web/src/worker/wasm.ts makes itself for each run; it also keeps caches and states."""

HEAP_BYTES = 3 << 30
"""The size of onnxruntime-web's heap is 4 GiB. While a session is made, the heap holds one weight twice; a table that
is also a product's weight stays there twice.
"""


class WasmSequence(Protocol):
    """One sequence of the session, with its KV cache."""

    def step(self, ids: bytes, past: int, kept: int) -> Awaitable[array[float]]:
        """float32 [kept, vocab]: the logits of the last `kept` positions of int64 ids [n] after `past` positions."""

    def carried(self, name: str) -> bytes:
        """The bytes of the whole cache or state, by the name of its input."""

    def keep_states(self, slot: int) -> None: ...

    def bring_states(self, slot: int) -> None: ...

    def hidden_states(self) -> bytes:
        """The hidden states of all tokens of the last step, for a multi-token-prediction head."""

    def copy_from(self, other: Any) -> None: ...

    def adopt(self, other: Any, length: int) -> None: ...

    def write(self, name: str, data: bytes | memoryview, length: int) -> None:
        """Make the first `length` positions of a cache these bytes, [heads, length, head size]."""

    def close(self) -> None:
        """Free the caches; onnxruntime-web's are freed with the last reference to them."""

    def feed(self, tensors: Sequence[HostTensor]) -> None:
        """Feed these inputs from now on, in place of inputs of the same names."""


class WasmSession(Protocol):
    """The engine's one session (web/src/worker/wasm.ts)."""

    def sequence(self, spec: dict[str, Any]) -> WasmSequence:
        """Make a sequence; web/src/worker/wasm.ts documents `spec`."""

    async def close(self) -> None: ...


def wasm_memory(device: WasmDevice, found: WasmGraph, config: GenaiConfig) -> ModelMemory:
    """The WebAssembly memory that a model needs."""
    context = found.about.context_within(config.context_length)
    sizes = (found.weights, PREFILL_CHUNK, context, found.activations)
    encoder = config.weights_beside
    return ModelMemory(device, found.about, *sizes, encoder=encoder, room=config.room, most=HEAP_BYTES)


class WasmModel(HostSampledModel):
    """One CPU session; the KV cache of each decoder is kept in JavaScript."""

    device = "wasm"

    def __init__(
        self,
        session: WasmSession,
        memory: ModelMemory,
        now: Callable[[], float],
        about: str,
        reason: str | None = None,
        lora: LoraGraph | None = None,
        tables: RopeTables | None = None,
        disk: TableReader | None = None,
    ):
        """`about` describes how the model runs; `reason` is why this device was chosen, if it was not requested; `lora`
        has the inputs that adapters fill, `tables` the rotary tables if they depend on the sequence's length, `disk`
        reads the rows of tables on disk.
        """
        self.lora = lora or LoraGraph()
        self._note = about + (f" (wasm, since {reason})" if reason else "")
        self._session = session
        self.memory = memory
        self.adapter = memory.interface.about().adapter
        self._about = memory.description
        self._tables = tables
        self._disk = disk
        self._now = now

    async def trim(self) -> None:
        """Does nothing: this device keeps no released decoders."""

    async def settled(self) -> None:
        """This device makes no tapes."""

    def _decoder(self, capacity: int) -> HostSampledDecoder:
        runner = WasmRunner(self._session, self._about, capacity, self.lora, self._tables, self._disk)
        return HostSampledDecoder(runner, capacity, self._note, self._now)

    def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        await self._session.close()
        if self._disk is not None:
            self._disk.close()


class WasmRunner:
    """One sequence over a cache of `capacity` positions."""

    def __init__(
        self,
        session: WasmSession,
        about: GraphDescription,
        capacity: int,
        lora: LoraGraph,
        tables: RopeTables | None = None,
        disk: TableReader | None = None,
    ):
        self._session, self.about = session, about
        self.stateful = bool(about.states)
        length = 0 if about.growing else capacity
        caches = [(pair.past, pair.present, about.cache_dtype, pair.dims(1, length)) for pair in about.cache]
        states = [(state.past, state.present, state.dtype, state.dims(1)) for state in about.states]
        spec = {
            "ids": about.input_ids,
            "idsType": about.ids_dtype,
            "mask": about.mask or None,
            "positions": about.position_ids,
            "logits": about.logits,
            "hidden": None if about.hidden is None else about.hidden.name,
            "caches": caches,
            "states": states,
        }
        self._sequence = session.sequence(spec)
        self._vocab = about.vocab_size
        self.undraftable = undraftable(not about.last_token_only)
        self._lora = lora
        self._long = False
        inputs = run_inputs(about, Room(capacity, PREFILL_CHUNK, rope=tables, disk=disk))
        self._inputs = [each for each in inputs if not isinstance(each, MADE_IN_JAVASCRIPT)]
        self._each_run = [each for each in self._inputs if type(each).on_host is not RunInput.on_host]
        """The providers whose tensors change with each run."""
        self._feed([*silent(lora), *self._fixed()])

    @property
    def reads(self) -> Counters:
        return disk_reads(self._inputs)

    async def run(self, ids: Sequence[int], past: int) -> array[float]:
        return await self._run(ids, past, 1)

    async def run_each(self, ids: Sequence[int], past: int) -> list[array[float]]:
        found, vocab = await self._run(ids, past, len(ids)), self._vocab
        return [found[start : start + vocab] for start in range(0, len(found), vocab)]

    async def _run(self, ids: Sequence[int], past: int, kept: int) -> array[float]:
        if self._each_run:
            await bring_rows(self._each_run, ids)
            self._feed([tensor for each in self._each_run for tensor in each.on_host(ids, past)])
        return await self._sequence.step(array("q", ids).tobytes(), past, kept)

    def set_lora(self, lora: LoraWeights | None) -> None:
        if lora is None:
            self._feed(silent(self._lora))
        else:
            slots, spans = lora.graph.slots(lora.rank), lora.spans
            self._feed([HostTensor(each.name, each.dtype, each.dims, view_of(spans[each.name])) for each in slots])

    def rotate(self, long: bool) -> None:
        if long != self._long:
            self._long = long
            self._feed(self._fixed())

    def hear(self, heard: Mapping[str, BoundSpan]) -> None:
        self._feed(on_host(heard))

    def see(self, features: BoundSpan | None, places: Sequence[int], pictures: Sequence[PictureSpan] = ()) -> None:
        for each in self._inputs:
            if isinstance(each, Placed):
                each.see(host_tensor(features), places)
                self._feed(each.fixed_on_host(self._long))
            elif isinstance(each, LongRope) and each.see(pictures):
                self._feed(each.fixed_on_host(self._long))

    def _fixed(self) -> list[HostTensor]:
        """The inputs that stay the same until the sequence is rotated."""
        return [tensor for each in self._inputs for tensor in each.fixed_on_host(self._long)]

    def _feed(self, tensors: Sequence[HostTensor]) -> None:
        if tensors:
            self._sequence.feed(tensors)

    async def carried(self, name: str, valid: int) -> CarriedTensor:
        found = carried(self.about, name)
        return CarriedTensor.read(self.about, found, self._sequence.carried(found.past), valid)

    def keep_states(self, slot: int) -> None:
        self._sequence.keep_states(slot)

    def bring_states(self, slot: int) -> None:
        self._sequence.bring_states(slot)

    def give_hidden(self, rows: bytes | memoryview) -> None:
        give_hidden(self._inputs, rows)

    def hidden_states(self) -> bytes:
        return self._sequence.hidden_states()

    def copy_from(self, other: WasmRunner) -> None:
        self._sequence.copy_from(other._sequence)

    def cache_bytes(self, length: int) -> int:
        return sum(byte_count(self.about.cache_dtype, pair.dims(1, length)) for pair in self.about.cache)

    def kept(self, length: int) -> WasmRunner:
        made = WasmRunner(self._session, self.about, length, LoraGraph())
        made.adopt(self, length)
        return made

    def adopt(self, other: WasmRunner, length: int) -> None:
        self._sequence.adopt(other._sequence, length)

    def write(self, pair: CachePair, data: bytes | memoryview, length: int) -> None:
        self._sequence.write(pair.past, data, length)

    def close(self) -> None:
        self._sequence.close()
