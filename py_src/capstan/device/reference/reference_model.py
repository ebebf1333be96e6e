"""The reference device: a model folder on CPython, with onnxruntime's CPU provider and NumPy.

It defines what the other devices must compute, so it takes the shortest way: the model file as it is on disk, no
rewriting pass but that of long rope, a mask as long as the sequence, one run for each call, the logits on the host and
`capstan.sampling` for the picks.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ... import graph
from ...errors import ClosedError, ModelFileError, PromptError, ValidationError
from ...graph import GraphDescription, LongRope, StateTensor
from ...graph.graph_passes import Rewriting, rewritten
from ...graph.logits_to_keep import logits_to_keep
from ...graph.onnx_pb2 import ModelProto
from ...host.disk_file import open_file, read_file
from ...host.storage_interface import MOST_GRAPH_BYTES
from ...model_files.bounded_json import MOST_BYTES
from ...model_files.genai_config import DECODER, GenaiConfig, parse_genai_config
from ...model_files.session_settings import QDQ_ACCURACY
from ..carried_tensor import CarriedTensor, carried
from ..host_memory import view_of
from ..host_sampled import PREFILL_CHUNK, HostSampledDecoder, HostSampledModel, undraftable
from ..lora_weights import LoraGraph, LoraWeights
from ..model_memory import ModelMemory
from ..rope_tables import RopeTables, places
from ..run_inputs import HostTensor, Room, run_inputs
from ..snapshots import EMPTY
from .reference_device import ReferenceDevice
from .reference_session import PROVIDER, one_line
from .unpacked import made_weights

__all__ = ["ReferenceModel", "ReferenceRunner", "ReferenceSequence", "reference_memory"]

NOTE = "the reference device has no GPU commands to record"


def reference_memory(data: bytes, config: GenaiConfig) -> ModelMemory:
    """The memory on this machine of a model on disk. Raises ModelFileError, UnsupportedModelError."""
    return described(graph.parse(data, config.decoder.filename), config)[0]


def described(
    model: ModelProto, config: GenaiConfig, defaults: Mapping[str, bytes] | None = None, file: bytes = b""
) -> tuple[ModelMemory, LoraGraph, ModelProto]:
    """The model's memory, the inputs that adapters fill, and the graph that runs: that of the file, unless it chooses
    rotary factors by the length of one run, with experts of a GGUF file in float32. `defaults` are the bytes of those
    inputs' defaults in data files, `file` the bytes of the graph's file."""
    facts = Rewriting(config, defaults=defaults or {}, file=file)
    made = rewritten(model, "reference", facts)
    runs = made if facts.rope is not None or facts.experts_widened else model
    weights = tuple(graph.external_entries(made if facts.experts_widened else model))
    context = facts.about.context_within(config.context_length)
    memory = ModelMemory(ReferenceDevice(), facts.about, weights, PREFILL_CHUNK, context, graph.activations(model))
    return memory, LoraGraph(facts.lora, facts.others), runs


class ReferenceModel(HostSampledModel):
    """A model folder on the CPU; see base.DeviceModel. Raises ModelFileError, ConfigError, UnsupportedModelError."""

    device = "reference"
    adapter = "cpu (onnxruntime)"

    def __init__(
        self, folder: str | Path, config: GenaiConfig | None = None, graphs: Mapping[str, bytes] | None = None
    ) -> None:
        """Without `config` it is read from the folder's genai_config.json, and so are those of the model's graphs that
        are not in `graphs`."""
        self.folder = Path(folder)
        self.config = config or parse_genai_config(read_file(self.folder / "genai_config.json", MOST_BYTES))
        decoder = self.config.decoder
        onnx = (graphs or {}).get(DECODER)
        data = onnx or read_file(self.folder / decoder.filename, MOST_GRAPH_BYTES)
        parsed = graph.parse(data, decoder.filename)
        for location in graph.data_ends(parsed):
            # onnxruntime would wait for a named pipe.
            open_file(self.folder / decoder.folder / location).close()
        defaults = {}
        for entry in graph.lora_defaults(parsed, decoder):
            with open_file(self.folder / decoder.folder / entry.location) as data_file:
                data_file.seek(entry.offset)
                defaults[entry.name] = data_file.read(entry.length)
        self.memory, self.lora, runs = described(parsed, self.config, defaults, data)
        self.about = self.memory.description
        self._tables = read_rope(self.about.rope, data, self.folder / decoder.folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry(QDQ_ACCURACY, str(decoder.qdq_accuracy))
        if made := made_weights(runs, self.folder / decoder.folder):
            options.add_external_initializers(list(made), list(made.values()))
        if made or self._tables is not None:
            onnx = runs.SerializeToString()
        file = self.folder / decoder.filename
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(file.parent))
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(file) if onnx is None else onnx, options, providers=[PROVIDER]
            )
        except Exception as error:
            raise ModelFileError(
                f"{self.folder / decoder.filename}: onnxruntime cannot load it ({one_line(error)})"
            ) from error

    def sequence(self, capacity: int | None = None) -> ReferenceSequence:
        """A new sequence over a cache of `capacity` positions (the model's context length unless given)."""
        if self._session is None:
            raise ClosedError("this model was closed; load it again")
        positions = capacity or self.memory.context_length
        return ReferenceSequence(self._session, self.about, positions, self.lora, self._tables)

    async def trim(self) -> None:
        """Decoders are not kept here."""

    def _decoder(self, capacity: int) -> HostSampledDecoder:
        return HostSampledDecoder(ReferenceRunner(self.sequence(capacity)), capacity, NOTE, milliseconds)

    def healthy(self) -> bool:
        return self._session is not None

    async def close(self) -> None:
        self._session = None


class ReferenceSequence:
    """One sequence: ids go in, the logits of the last position come out; past and present are one buffer, unless the
    caches grow with each run."""

    def __init__(
        self,
        session: Any,
        about: GraphDescription,
        capacity: int,
        lora: LoraGraph | None = None,
        tables: RopeTables | None = None,
    ) -> None:
        self._session: Any = session
        self._about = about
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
        required = {value.name for value in session.get_inputs()}
        self._silent = {
            each.name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(each.sizes(1), each.dtype))
            for each in (lora or LoraGraph()).inputs
            if each.name in required
        }
        """Inputs for adapters that have no default, where there is no adapter."""
        self._adapted = self._silent
        self._inputs = run_inputs(about, Room(capacity, capacity, rope=tables))
        self._fixed: dict[str, Any] = {}
        """The inputs that stay as they are until `rotate`."""
        self.rotate(False)

    def prefill(self, ids: Sequence[int], every: bool = False) -> list[array[float]]:
        """Run the model on `ids` after what is there; float32 [vocab] of the last position, or of `every` one. Raises
        PromptError if there are none or no room for them, ValidationError if onnxruntime cannot run the graph."""
        if self._session is None:
            raise ClosedError("this sequence was closed; make a new one")
        if not ids:
            raise PromptError("the prompt is empty; it must have at least one token")
        if self.length + len(ids) > self.capacity:
            raise PromptError(
                f"{len(ids)} tokens after {self.length} are more than the cache's {self.capacity}; shorten the prompt"
            )
        about, end = self._about, self.length + len(ids)
        given = self._fixed | arrays(tensor for each in self._inputs for tensor in each.on_host(ids, self.length))
        if self._logits_to_keep is not None:
            given[self._logits_to_keep] = np.full(self._kept_shape, 0 if every else 1, np.int64)
        try:
            *presents, made = self._run_adapted(given) if self._adapted else self._run_in_place(given)
            kept = made.numpy()[0, -len(ids) if every else -1 :].astype(np.float32)
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

    def _run_in_place(self, given: Mapping[str, Any]) -> list[Any]:
        """Caches, states and logits after a run that writes caches where they are, unless they grow."""
        about, binding = self._about, self._session.io_binding()
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
        binding.bind_output(about.logits)
        self._session.run_with_iobinding(binding)
        return list(binding.get_outputs())

    def _run_adapted(self, given: Mapping[str, Any]) -> list[Any]:
        """The same with adapters, in new values: a binding takes no input that has a default."""
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in given.items()}
        feeds |= self._adapted
        feeds |= {pair.past: cache for pair, cache in self._caches.items()}
        feeds |= {state.past: value for state, value in self._states.items()}
        presents = [*(pair.present for pair in self._caches), *(state.present for state in self._states)]
        found: list[Any] = self._session.run_with_ort_values([*presents, self._about.logits], feeds)
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
        """Rotate by the long factors of a long rope, or by the short ones; cached positions are void if that changes.
        Nothing changes in a model with one kind."""
        self._fixed = arrays(tensor for each in self._inputs for tensor in each.fixed_on_host(long))

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

    def carried(self, name: str) -> CarriedTensor:
        """A cache or state by its name in the graph. OptionError if there is none."""
        found = carried(self._about, name)
        value = self._states[found] if isinstance(found, StateTensor) else self._caches[found]
        return CarriedTensor.read(self._about, found, value.numpy().tobytes(), self.length)

    @property
    def stateful(self) -> bool:
        """Whether it has states that each run overwrites."""
        return bool(self._states)

    def keep_states(self, slot: int) -> None:
        """Keep the states as the snapshot of that number, with their position."""
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
        """Forget positions from `length` on; the logits are then those of no position until the next run.

        Raises PromptError past the end, and where states that each run overwrites would have to be rewound.
        """
        if not 0 <= length <= self.length:
            raise PromptError(f"cannot rewind to {length}; the sequence has {self.length} tokens")
        if self._states and length != self.length:
            raise PromptError(
                f"cannot rewind to {length}: the states are those after {self.length} tokens, and each run overwrites "
                "them; bring back a snapshot of an earlier position (bring_states) and run the tokens behind it again"
            )
        if self._about.growing and length < self.length:
            for pair, cache in self._caches.items():
                kept = np.ascontiguousarray(cache.numpy()[:, :, :length])
                self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(kept)
        self.length = length

    def copy_from(self, other: ReferenceSequence) -> None:
        """Take over the length, the caches and the states of another sequence of the same model and capacity."""
        self.length = other.length
        for pair, cache in other._caches.items():
            self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(cache.numpy().copy())
        # A run makes new ones, so that they may be shared.
        self._states = dict(other._states)

    def cache_bytes(self, length: int) -> int:
        """The bytes of `length` positions."""
        item = np.dtype(self._about.cache_dtype).itemsize
        return item * sum(math.prod(pair.dims(1, length)) for pair in self._about.cache)

    def adopt(self, other: ReferenceSequence, length: int) -> None:
        """Make the first `length` positions those of another sequence of the same model, of any capacity. The logits
        are then those of no position until the next run."""
        for pair, source in other._caches.items():
            rows = source.numpy()[:, :, :length]
            if self._about.growing:
                made = np.ascontiguousarray(rows)
            else:
                made = np.zeros(pair.dims(1, self.capacity), self._about.cache_dtype)
                made[:, :, :length] = rows
            self._caches[pair] = onnxruntime.OrtValue.ortvalue_from_numpy(made)
        self.length = length

    def kept(self, length: int) -> ReferenceSequence:
        """A sequence of just the first `length` positions."""
        made = ReferenceSequence(self._session, self._about, length)
        made.adopt(self, length)
        return made

    def close(self) -> None:
        self._session = None
        self._caches.clear()


class ReferenceRunner:
    """A sequence as HostSampledDecoder runs it: every call says how much of the past is still valid."""

    def __init__(self, sequence: ReferenceSequence) -> None:
        self._sequence = sequence
        self.stateful = sequence.stateful
        self.undraftable = undraftable(sequence.stateful, sequence.keeps_all)

    async def run_each(self, ids: Sequence[int], past: int) -> list[array[float]]:
        self._sequence.rewind(past)
        return self._sequence.prefill(ids, every=True)

    async def run(self, ids: Sequence[int], past: int) -> array[float]:
        self._sequence.rewind(past)
        self._sequence.prefill(ids)
        return array("f", self._sequence.logits())

    async def carried(self, name: str, valid: int) -> CarriedTensor:
        return self._sequence.carried(name)

    def keep_states(self, slot: int) -> None:
        self._sequence.keep_states(slot)

    def bring_states(self, slot: int) -> None:
        self._sequence.bring_states(slot)

    def set_lora(self, lora: LoraWeights | None) -> None:
        self._sequence.set_lora(lora)

    def rotate(self, long: bool) -> None:
        self._sequence.rotate(long)

    def copy_from(self, other: ReferenceRunner) -> None:
        self._sequence.copy_from(other._sequence)

    def cache_bytes(self, length: int) -> int:
        return self._sequence.cache_bytes(length)

    def kept(self, length: int) -> ReferenceRunner:
        return ReferenceRunner(self._sequence.kept(length))

    def adopt(self, other: ReferenceRunner, length: int) -> None:
        self._sequence.adopt(other._sequence, length)

    def close(self) -> None:
        self._sequence.close()


def arrays(tensors: Iterable[HostTensor]) -> dict[str, Any]:
    """By name."""
    return {each.name: np.frombuffer(each.data, each.dtype).reshape(each.dims) for each in tensors}


def read_rope(rope: LongRope | None, file: bytes, folder: Path) -> RopeTables | None:
    """The rotary tables of a long rope, from the bytes of the graph's file and from the files of its folder."""
    if rope is None:
        return None
    parts = []
    for place in places(rope):
        if not place.location:
            parts.append(file[place.offset : place.offset + place.length])
            continue
        with open_file(folder / place.location) as data:
            data.seek(place.offset)
            parts.append(data.read(place.length))
    return RopeTables.of(rope, parts)


def milliseconds() -> float:
    return time.perf_counter() * 1e3
