"""Rewrites model.onnx into the graph for the CPU provider, and notes it for later page loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ... import graph
from ...graph import Activations, GraphDescription, UnpackedWeight, WeightEntry, WideWeight
from ...graph.description import warn_growing_caches
from ...graph.graph_passes import rewritten
from ...graph.onnx_pb2 import ModelProto
from ...graph.rewriting import Rewriting
from ...host.notes import Notes, build
from ...host.ready_results import ReadyGraphs
from ...model_files.genai_config import GenaiConfig
from ..lora_weights import LoraGraph
from ..noted_graphs import OpenWeights, as_text, made_from, read_entries, reader, ready_or_noted
from ..rope_tables import RopeTables, read_tables

__all__ = ["ALL_WIDE", "WasmGraph", "prepare", "ready_graph", "wasm_graph"]

ALL_WIDE = 1 << 62
"""Stands for no limit on bytes of float32 weights: a program keeps weights packed."""

FIRST_LOGITS = "capstan_first_logits"
"""The input with the first position that gives logits; web/src/worker/wasm.ts feeds it."""


@dataclass(frozen=True)
class WasmGraph:
    """A model's graph for this device."""

    model: bytes
    about: GraphDescription
    lora: LoraGraph
    """Inputs for adapters. Every run feeds them: onnxruntime-web accepts no input that has a default."""
    weights: tuple[WeightEntry, ...]
    made: tuple[WideWeight | UnpackedWeight, ...]
    """The weights that are made while the model loads."""
    activations: Activations
    data: tuple[tuple[str, int], ...]
    """The data files by location, with the bytes of each that are needed."""
    tables: RopeTables | None = None
    """The rotary tables of a model with long rope, which are read at each load; no note has them."""

    @property
    def wide_bytes(self) -> int:
        """The bytes of float32 weights that were made in place of packed weights."""
        return sum(each.bytes for each in self.made if isinstance(each, WideWeight))


READ = reader(WasmGraph)


def prepare(
    parsed: ModelProto,
    config: GenaiConfig,
    wide_bytes: int,
    defaults: Mapping[str, bytes] | None = None,
    file: bytes = b"",
) -> WasmGraph:
    """Rewrite the model: its logits are cut to the last positions where that is possible, and it gets at most
    `wide_bytes` bytes of float32 weights in place of packed ones. `defaults` are the bytes of adapters' defaults in
    data files; runs without an adapter need these bytes.

    Raises ModelFileError, UncomputedError, UnsupportedModelError.
    """
    facts = Rewriting(config, first_logits=FIRST_LOGITS, wide_bytes=wide_bytes, defaults=defaults or {}, file=file)
    with graph.contradictions():
        entries, activations = graph.data_entries(parsed), graph.activations(parsed)
        made = rewritten(parsed, "wasm", facts)
        on_disk = {table.entry for table in facts.disk_tables}
        ends = tuple(graph.ends_of(entry for entry in entries if entry not in on_disk).items())
        weights, lora = tuple(graph.external_entries(made)), LoraGraph(facts.lora, facts.others)
        return WasmGraph(
            graph.serialize(made), facts.about, lora, weights, (*facts.from_gguf, *facts.wide), activations, ends
        )


def ready_graph(data: bytes, config: GenaiConfig) -> str:
    """The text of a GGUF file's graph, which a site keeps ready-made."""
    return as_text(prepare(graph.parse(data, config.decoder.filename), config, 0))


async def wasm_graph(
    data: bytes,
    config: GenaiConfig,
    wide_bytes: int,
    open_weights: OpenWeights,
    folder: str,
    notes: Notes | None,
    ready: ReadyGraphs | None = None,
) -> WasmGraph:
    """The graph of a model folder. It is `ready`, if that was made from the same files; it comes from the notes, if
    model.onnx, the configuration, Capstan and `wide_bytes` are unchanged; else model.onnx is rewritten. With `notes`, a
    new graph is noted unless it holds constants from the data files.

    Raises ModelFileError, UncomputedError, UnsupportedModelError.
    """
    about = made_from(data, config)
    key, name = json.dumps([build(), about, wide_bytes]), f"graph on the CPU of {folder}"
    if config.decoder.inputs.hidden_states:
        name += ", of its head"
    if wide_bytes == ALL_WIDE:
        name += " for a program"
    # A site has no graphs for activations in float16.
    right = ready.wasm or None if ready is not None and ready.about == about else None
    text = await ready_or_noted(notes, name, key, right)
    if text is not None:
        found: WasmGraph = READ(json.loads(text))
    else:
        parsed = graph.parse(data, config.decoder.filename)
        defaults = await read_entries(graph.lora_defaults(parsed, config.decoder), open_weights)
        with graph.changing(parsed):
            found = prepare(parsed, config, wide_bytes, defaults, data)
        if notes and not defaults:
            await notes.write(name, key, as_text(found))
    warn_growing_caches(found.about)
    return replace(found, tables=await read_tables(found.about.rope, data, open_weights))
