"""Rewrites model.onnx into the prefill and decode graphs for WebGPU, and notes them for later page loads.

The page's host calls `model_graphs` while it loads a model. The bytes of model.onnx and the configuration go in; Graphs
come out: the bytes from which WebGPU sessions are made, with facts about the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Never

from ... import graph
from ...fallback import fall_back
from ...graph import GraphDescription
from ...graph.description import warn_fixed_size_caches, warn_growing_caches
from ...graph.graph_passes import rewritten
from ...graph.onnx_pb2 import ModelProto
from ...graph.rewriting import Rewriting
from ...host.notes import Notes, build
from ...host.ready_results import ReadyGraphs
from ...model_files.genai_config import GenaiConfig
from ..model_memory import capacity_for
from ..noted_graphs import OpenWeights, as_text, made_from, read_entries, reader, ready_or_noted
from ..rope_tables import RopeTables, read_rows, read_tables

__all__ = ["Graphs", "OpenWeights", "SessionGraph", "model_graphs", "rewrite"]


@dataclass(frozen=True)
class SessionGraph:
    """The graph of one kind of session."""

    model: bytes
    inputs: tuple[str, ...]
    """The inputs other than weights."""

    @classmethod
    def of(cls, model: ModelProto, weights: Sequence[graph.WeightEntry]) -> SessionGraph:
        held = {entry.name for entry in weights}
        names = tuple(value.name for value in model.graph.input if value.name not in held)
        return cls(graph.serialize(model), names)


@dataclass(frozen=True)
class Graphs:
    """A model's serialized graphs, with the facts that rewriting them found."""

    sessions: dict[str, SessionGraph]
    """The graphs by name. 'decoder' is for steps. 'prefill' outputs the logits of the last position only; it takes the
    sequence's lengths as inputs, or computes them itself if `lengths` is None. 'captured prefill' is the same for graph
    capture: it computes the lengths itself, and attention keeps its soft caps. 'placed prefill', in models that see, is
    'prefill' for ids among which features of pictures stand.
    """
    description: GraphDescription
    weights: tuple[graph.WeightEntry, ...]
    activations: graph.Activations
    """The activations of the prefill graph."""
    products: tuple[graph.NBitsProduct, ...]
    lengths: graph.FedLengths | None
    """Inputs of the prefill graph that hold the lengths; None if it sums the mask, which is then read back in every
    run.
    """
    unfed: str
    """The reason why `lengths` is None; else empty."""
    unpacked: str
    """The reason why a product with weights from DequantizeLinear did not become a MatMulNBits; empty without one."""
    one_row: str
    """The reason why each run must have only one token; empty if it may have more."""
    projection: str
    """The reason why the output projection of a prompt is over all its positions; empty if it is only over the last
    one.
    """
    split: tuple[graph.SplitWeight, ...]
    """The weights of the file that are larger than the GPU adapter binds."""
    tables: tuple[graph.SplitTable, ...]
    """The split tables in whose parts ids are looked up."""
    cache_parts: tuple[graph.SplitCache, ...]
    """The caches that are larger, in sequences of the requested length."""
    lora: tuple[graph.LoraInput, ...]
    """The inputs of model.onnx that adapters fill."""
    others: tuple[str, ...]
    """The inputs of model.onnx with a default that adapters do not fill."""
    own: bool
    """Whether all of this comes from model.onnx, without the data files."""
    rope_tables: RopeTables | None = None
    """The rotary tables of a model with long rope, which are read at each load; no note has them."""
    window_tables: tuple[bytes, ...] = ()
    """The rows of the tables of sliding caches, in order; no note has them."""

    def serialize(self) -> str:
        """The graphs as JSON."""
        return as_text(self)

    @classmethod
    def parse(cls, text: str) -> Graphs:
        """The graphs from the text of `serialize`."""
        found: Graphs = GRAPHS(json.loads(text))
        return found


GRAPHS = reader(Graphs)

PACKED_ATTENTION = 9
"""Storage buffers that onnxruntime-web's rotary embedding of packed q, k and v binds in a captured run."""
LEAST_LARGEST = 128 << 20
"""The bytes of a binding that every WebGPU adapter allows."""


async def rewrite(
    data: bytes,
    config: GenaiConfig,
    open_weights: OpenWeights,
    storage_buffers: int,
    rank: int | None = None,
    largest: int = 0,
) -> Graphs:
    """Rewrite model.onnx, as a model builder wrote it, into the graphs of its WebGPU sessions.

    `storage_buffers` is the most storage buffers that a kernel may bind on the GPU adapter; `rank` is the rank of the
    LoRA adapters, None without adapters; `largest` is the most bytes of a weight that the adapter binds, 0 for no
    limit. Raises ModelFileError, UncomputedError, UnsupportedModelError.
    """
    packed = storage_buffers >= PACKED_ATTENTION
    room = capacity_for(config.room, config.context_length)
    facts = Rewriting(config, lora_rank=rank, packed=packed, file=data, largest=largest, room=room)
    with graph.contradictions():
        model = graph.parse(data, config.decoder.filename)
        facts.defaults = await read_entries(graph.lora_defaults(model, config.decoder), open_weights)
        # Each graph is made from the graph before it, which is already serialized.
        with graph.changing(model):
            model = rewritten(model, "webgpu", facts)
            facts.constants = await read_entries(graph.constants_to_inline(model), open_weights)
            model = rewritten(model, "decode", facts)
            sessions = {"decoder": SessionGraph.of(model, facts.weights)}
            products, one_row = graph.nbits_products(model), graph.one_row_only(model)
            model = rewritten(model, "captured prefill", facts)
            sessions["captured prefill"] = SessionGraph.of(model, facts.weights)
            model = rewritten(model, "prefill", facts)
            sessions["prefill"] = SessionGraph.of(model, facts.weights)
            if facts.placing is not None:
                placed = rewritten(model, "placed prefill", facts)
                sessions["placed prefill"] = SessionGraph.of(placed, facts.weights)
        return Graphs(
            sessions,
            facts.about,
            facts.weights,
            graph.activations(model),
            products,
            facts.lengths,
            "" if facts.lengths else facts.unfed,
            facts.unpacked,
            one_row,
            facts.projection,
            facts.split,
            facts.tables,
            facts.cache_parts,
            facts.lora,
            facts.others,
            not facts.constants and not facts.defaults,
        )


async def ready_graphs(data: bytes, config: GenaiConfig) -> str:
    """The graphs of a GGUF file as JSON, for GPU adapters with common limits. Sites store this text ready-made."""

    async def open_weights(location: str) -> Never:
        raise AssertionError(f"the graph of a GGUF file reads nothing from {location}")

    graphs = await rewrite(data, config, open_weights, PACKED_ATTENTION, largest=LEAST_LARGEST)
    return graphs.serialize()


def is_right(
    ready: ReadyGraphs, data: bytes, config: GenaiConfig, buffers: int, rank: int | None, largest: int
) -> bool:
    """Whether ready-made graphs equal those that `rewrite` makes."""
    enough = buffers >= PACKED_ATTENTION and (largest >= LEAST_LARGEST or not largest)
    return rank is None and enough and ready.about == made_from(data, config)


async def model_graphs(
    data: bytes,
    config: GenaiConfig,
    open_weights: OpenWeights,
    folder: str,
    notes: Notes | None,
    storage_buffers: int,
    rank: int | None = None,
    largest: int = 0,
    ready: ReadyGraphs | None = None,
) -> Graphs:
    """The graphs of a model folder, for LoRA adapters of `rank`, or without adapters.

    `ready` graphs are taken if they fit this adapter. Otherwise graphs are read from the notes if model.onnx, the
    configuration, Capstan and the adapter's limits are unchanged, and rewritten if not. With `notes`, new graphs are
    noted unless they hold constants from the data files.
    """
    key = json.dumps([build(), made_from(data, config), storage_buffers, largest])
    name = f"graphs of {folder}" + ("" if rank is None else f" with LoRA of rank {rank}")
    is_ready = ready is not None and is_right(ready, data, config, storage_buffers, rank, largest)
    right = ready.webgpu if ready is not None and is_ready else None
    text = await ready_or_noted(notes, name, key, right)
    if text is not None:
        graphs = Graphs.parse(text)
    else:
        graphs = await rewrite(data, config, open_weights, storage_buffers, rank, largest)
        if notes and graphs.own:
            await notes.write(name, key, graphs.serialize())
    warn_growing_caches(graphs.description)
    warn_fixed_size_caches(graphs.description)
    warn_split(graphs.split, graphs.cache_parts, largest)
    if graphs.lengths is None and not graphs.description.growing:
        fall_back("attention lengths known to the host", graphs.unfed, "the mask is read back in every prefill run")
    if graphs.projection:
        instead = "it is computed for all positions"
        fall_back("the output projection of a prompt's last position", graphs.projection, instead)
    if graphs.unpacked:
        fall_back("products by quantized weights", graphs.unpacked, "every run converts the weights to floats")
    if graphs.one_row:
        fall_back("prompts in runs of several tokens", graphs.one_row, "prompts are run token by token")
    about = graphs.description
    windows = [table.rows for table in about.sliding.tables] if about.sliding is not None else []
    return replace(
        graphs,
        rope_tables=await read_tables(about.rope, data, open_weights),
        window_tables=tuple(await read_rows(windows, data, open_weights)),
    )


def warn_split(split: Sequence[graph.SplitWeight], caches: Sequence[graph.SplitCache], largest: int) -> None:
    """Warn of weights and caches that are read in parts, as a fallback; a load refuses those that cannot be in
    parts.
    """
    for what, found in (("weights", split), ("caches", caches)):
        parted = [each for each in found if each.parts]
        if parted:
            first = max(parted, key=lambda each: each.bytes)
            more = f" (and {len(parted) - 1} more are too large)" if parted[1:] else ""
            reason = f"{first.name} has {first.bytes} bytes{more}; this adapter binds at most {largest}"
            instead = f"they are read in up to {max(each.parts for each in parted)} parts"
            fall_back(f"{what} in one binding each", reason, instead)
