"""Loads a model folder on CPython, with onnxruntime's CPU provider and NumPy.

This reference device defines what the other devices must compute, so it is as simple as possible. It runs the unchanged
model file, except for the rewriting pass of long rope. The mask is as long as the sequence, each call is one run, the
logits are on the host, and `capstan.sampling` picks the tokens.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime

from ... import graph
from ...errors import ClosedError, ModelFileError
from ...graph import LongRope
from ...graph.graph_passes import rewritten
from ...graph.onnx_pb2 import ModelProto
from ...graph.rewriting import Rewriting
from ...host.disk_file import open_file, read_file
from ...host.storage_interface import MOST_GRAPH_BYTES
from ...model_files.bounded_json import MOST_BYTES
from ...model_files.genai_config import DECODER, GenaiConfig
from ...model_files.genai_config_file import parse_genai_config
from ...model_files.session_settings import QDQ_ACCURACY
from ..host_sampled import PREFILL_CHUNK, HostSampledDecoder, HostSampledModel
from ..lora_weights import LoraGraph
from ..model_memory import ModelMemory
from ..rope_tables import RopeTables, places
from ..table_reader import TableReader
from .reference_device import ReferenceDevice
from .reference_sequence import ReferenceRunner, ReferenceSequence
from .reference_session import PROVIDER, one_line
from .unpacked import made_weights

__all__ = ["ReferenceModel", "reference_memory"]

NOTE = "the reference device has no GPU commands to record"


def reference_memory(data: bytes, config: GenaiConfig) -> ModelMemory:
    """The memory on this machine of a model on disk. Raises ModelFileError, UnsupportedModelError."""
    return described(graph.parse(data, config.decoder.filename), config)[0]


def described(
    model: ModelProto, config: GenaiConfig, defaults: Mapping[str, bytes] | None = None, file: bytes = b""
) -> tuple[ModelMemory, LoraGraph, ModelProto]:
    """The model's memory, the inputs that adapters fill, and the graph that runs: the file's graph, unless a pass
    changed it. `defaults` are the bytes of those inputs' defaults in data files, `file` those of the graph's file.
    """
    facts = Rewriting(config, defaults=defaults or {}, file=file)
    made = rewritten(model, "reference", facts)
    runs = model if made == model else made
    held = made if facts.experts_widened or facts.disk_tables else model
    weights = tuple(graph.external_entries(held))
    context = facts.about.context_within(config.context_length)
    sizes = (weights, PREFILL_CHUNK, context, graph.activations(model))
    encoder = config.weights_beside
    memory = ModelMemory(ReferenceDevice(), facts.about, *sizes, encoder=encoder)
    return memory, LoraGraph(facts.lora, facts.others), runs


class ReferenceModel(HostSampledModel):
    """A model folder on the CPU; see model_interface.DeviceModel. Raises ModelFileError, ConfigError,
    UnsupportedModelError."""

    device = "reference"
    adapter = "cpu (onnxruntime)"

    def __init__(
        self, folder: str | Path, config: GenaiConfig | None = None, graphs: Mapping[str, bytes] | None = None
    ) -> None:
        """Reads the folder's genai_config.json without `config`, and graphs that are missing in `graphs`."""
        self.folder = Path(folder)
        self.config = config or parse_genai_config(read_file(self.folder / "genai_config.json", MOST_BYTES))
        decoder = self.config.decoder
        onnx = (graphs or {}).get(DECODER)
        data = onnx or read_file(self.folder / decoder.filename, MOST_GRAPH_BYTES)
        parsed = graph.parse(data, decoder.filename)
        self.graph_digest = hashlib.sha256(data).hexdigest()
        self.data_files = tuple(graph.data_ends(parsed))
        for location in self.data_files:
            # onnxruntime would wait for a named pipe.
            open_file(self.folder / decoder.folder / location).close()
        defaults = {}
        for entry in graph.lora_defaults(parsed, decoder):
            with open_file(self.folder / decoder.folder / entry.location) as data_file:
                data_file.seek(entry.offset)
                defaults[entry.name] = data_file.read(entry.length)
        self.memory, self.lora, runs = described(parsed, self.config, defaults, data)
        self.about = self.memory.description
        self.disk: TableReader | None = None
        """Reads the rows of tables on disk; set by the load, after the model is made."""
        self._tables = read_rope(self.about.rope, data, self.folder / decoder.folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry(QDQ_ACCURACY, str(decoder.qdq_accuracy))
        if made := made_weights(runs, self.folder / decoder.folder):
            options.add_external_initializers(list(made), list(made.values()))
        if runs is not parsed:
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
        return ReferenceSequence(self._session, self.about, positions, self.lora, self._tables, self.disk)

    async def trim(self) -> None:
        """Does nothing: this device keeps no released decoders."""

    async def settled(self) -> None:
        """This device makes no tapes."""

    def _decoder(self, capacity: int) -> HostSampledDecoder:
        return HostSampledDecoder(ReferenceRunner(self.sequence(capacity)), capacity, NOTE, milliseconds)

    def healthy(self) -> bool:
        return self._session is not None

    async def close(self) -> None:
        self._session = None
        if self.disk is not None:
            self.disk.close()


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
