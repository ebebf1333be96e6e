"""A model's graphs as WebGPU sessions are made from them: rewritten once, then noted for later page loads."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ... import graph
from ...errors import UncomputedError
from ...fallback import fall_back
from ...graph import GraphDescription
from ...host.notes import Notes, build
from ...model_files.config import GenaiConfig
from ...weights.weight_file import WeightFile
from ..decoder_graph import decoder_graph, tell_growing
from ..lora import LoraGraph

__all__ = ["Graphs", "model_graphs", "rewrite"]

OpenWeights = Callable[[str], Awaitable[WeightFile]]
"""Opens a data file by its location."""


@dataclass(frozen=True)
class Graphs:
    """A model's two graphs, serialized: the prefill one keeps the logits of the last position only, and is fed the
    sequence's lengths unless it computes them in a way of its own."""

    prefill: bytes
    decode: bytes
    captured_prefill: bytes
    """The prefill graph before its lengths were made inputs and soft caps were taken apart: what it computes can be
    captured."""
    description: GraphDescription
    weights: tuple[graph.WeightEntry, ...]
    activations: graph.Activations
    """The activations of the prefill graph."""
    products: tuple[graph.NBitsProduct, ...]
    lengths: graph.FedLengths | None
    """Inputs of the prefill graph; None if it sums the mask, which is then read back in every run."""
    unfed: str
    """Why `lengths` is None; else empty."""
    unpacked: str
    """Why some product by weights with DequantizeLinear is no MatMulNBits; empty if there is no such product."""
    one_row: str
    """Why each run must have one token only; empty if it may have more."""
    projection: str
    """Why the output projection of a prompt is over all its positions; empty if it is over the last one alone."""
    lora: tuple[graph.LoraInput, ...]
    """The inputs of model.onnx that adapters fill."""
    own: bool
    """Whether everything here is from model.onnx, nothing from the data files."""

    def serialize(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), default=lambda data: b64encode(data).decode())

    @classmethod
    def parse(cls, text: str) -> Graphs:
        """The graphs from the text of `serialize`."""
        found: Graphs = rebuilt(cls, json.loads(text))
        return found


PLAIN = (str, int, float, bool, int | str)


def rebuilt(kind: Any, tree: Any) -> Any:
    """A frozen dataclass of tuples, bytes, names, numbers and its like, out of its JSON."""
    if tree is None or kind in PLAIN:
        return tree
    if kind is bytes:
        return b64decode(tree)
    if isinstance(kind, UnionType):
        (kind,) = (part for part in get_args(kind) if is_dataclass(part))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(tree) if item in PLAIN else tuple(rebuilt(item, part) for part in tree)
    types = types_of(kind)
    return kind(**{name: rebuilt(types[name], value) for name, value in tree.items()})


types_of = cache(get_type_hints)
"""The types of a class's fields."""


HELD = frozenset({"float32", "float16", "int64", "int32", "uint32", "uint8", "bool", "int4", "uint4"})
"""Element types of weights that may be GPU buffers."""

PACKED_ATTENTION = 9
"""Storage buffers that onnxruntime-web's rotary embedding of packed q, k and v binds in a captured run."""


async def rewrite(
    data: bytes, config: GenaiConfig, open_weights: OpenWeights, storage_buffers: int, rank: int | None = None
) -> Graphs:
    """model.onnx as written by a model builder -> the graphs that WebGPU sessions are made from, on an adapter whose
    kernels may bind so many storage buffers: for LoRA adapters of that rank, or for none.

    Raises ModelFileError, UncomputedError, UnsupportedModelError.
    """
    with graph.contradictions():
        return await rewritten(data, config, open_weights, storage_buffers, rank)


async def rewritten(
    data: bytes, config: GenaiConfig, open_weights: OpenWeights, storage_buffers: int, rank: int | None
) -> Graphs:
    exported = graph.parse(data)
    lora = LoraGraph(graph.lora_inputs(exported, config.decoder))
    if rank is not None:
        exported = graph.with_lora_rank(exported, lora.inputs, rank)
    elif lora.inputs:
        exported = graph.without_lora(exported, lora.inputs)
    slots = () if rank is None else lora.slots(rank)
    parsed, short_rope_to, unrecognised = decoder_graph(graph.float_islands_in_half(exported), config, "webgpu")
    parsed = graph.smooth_softmax_as_sinks(graph.total_length_on_gpu(parsed))
    parsed, unpacked = graph.quantized_products(parsed, config.decoder.qdq_accuracy)
    parsed = graph.joined_products(graph.turned_weights(parsed), packed=storage_buffers >= PACKED_ATTENTION)
    constants = {}
    for entry in graph.constants_to_inline(parsed):
        file = await open_weights(entry.location)
        try:
            constants[entry.name] = await file.read(entry.offset, entry.length)
        finally:
            file.close()
    decode, weights = graph.weights_to_inputs(parsed, constants)
    require_held(weights)
    names = [entry.name for entry in weights] + [slot.name for slot in slots]
    description = graph.describe(decode, config.decoder, config.vocab_size, names, short_rope_to, unrecognised)
    description = replace(description, lora=slots)
    prefill, projection = graph.last_token_logits(decode, description.logits)
    if description.last_token_only:
        projection = ""
    elif projection:
        prefill = graph.logits_cut(decode, description.logits)
    captured_prefill = graph.serialize(prefill)
    prefill, lengths, reason = graph.lengths_as_inputs(prefill, description.mask)
    prefill = graph.soft_caps_apart(prefill, {pair.past: pair.head_size for pair in description.cache})
    return Graphs(
        graph.serialize(prefill),
        graph.serialize(decode),
        captured_prefill,
        description,
        tuple(weights),
        graph.activations(prefill),
        graph.nbits_products(decode),
        lengths,
        "" if lengths else reason,
        unpacked,
        graph.one_row_only(decode),
        projection,
        lora.inputs,
        not constants,
    )


def require_held(weights: Sequence[graph.WeightEntry]) -> None:
    """Raise UncomputedError for weights that cannot be GPU buffers."""
    for entry in weights:
        if entry.dtype not in HELD:
            raise UncomputedError(
                f"weight {entry.name} is {entry.dtype}, for which onnxruntime-web takes no GPU buffer; take another "
                "dtype of the model, or use device='wasm'"
            )


async def model_graphs(
    data: bytes,
    config: GenaiConfig,
    open_weights: OpenWeights,
    folder: str,
    notes: Notes | None,
    storage_buffers: int,
    rank: int | None = None,
) -> Graphs:
    """The graphs of a model folder, for LoRA adapters of that rank or for none. They are read from the notes if
    model.onnx, the configuration, Capstan and the number of storage buffers are unchanged, else rewritten and noted.
    Without `notes` they are always rewritten."""
    told = [build(), hashlib.sha256(data).hexdigest(), repr(config.decoder), config.vocab_size, storage_buffers]
    key, name = json.dumps(told), f"graphs of {folder}" + ("" if rank is None else f" with LoRA of rank {rank}")
    text = await notes.read(name, key) if notes else None
    if text is not None:
        graphs = Graphs.parse(text)
    else:
        graphs = await rewrite(data, config, open_weights, storage_buffers, rank)
        if notes and graphs.own:
            await notes.write(name, key, graphs.serialize())
    tell_growing(graphs.description)
    if graphs.lengths is None and not graphs.description.growing:
        fall_back("attention lengths known to the host", graphs.unfed, "the mask is read back in every prefill run")
    if graphs.projection:
        instead = "it is computed for all positions"
        fall_back("the output projection of a prompt's last position", graphs.projection, instead)
    if graphs.unpacked:
        fall_back("products by quantized weights", graphs.unpacked, "weights are brought into floats in every run")
    if graphs.one_row:
        fall_back("prompts in runs of several tokens", graphs.one_row, "prompts are run token by token")
    return graphs
