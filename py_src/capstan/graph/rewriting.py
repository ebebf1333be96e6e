"""Holds the facts that the passes over a graph share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .description import GraphDescription
from .disk_tables import DiskTable
from .fed_lengths import FedLengths
from .long_rope import LongRope
from .lora_inputs import LoraInput, LoraSlot
from .sliding_caches import SlidingCaches
from .spliced_embedding import Placing
from .split_caches import SplitCache
from .split_weights import SplitTable, SplitWeight
from .unpacked_weights import UnpackedWeight
from .weight_inputs import WeightEntry
from .wide_products import WideWeight

if TYPE_CHECKING:
    from ..model_files.genai_config import DecoderConfig, GenaiConfig

__all__ = ["Rewriting"]


@dataclass
class Rewriting:
    """The facts for the passes over one model, and facts that passes find for later passes and for the caller."""

    config: GenaiConfig | None = None
    """The configuration; only a session's graph has none."""
    lora_rank: int | None = None
    """The rank of the LoRA adapters for which a graph for WebGPU is made; None without adapters."""
    packed: bool = True
    """Whether the adapter has enough storage buffers for the rotary embedding of packed q, k and v."""
    largest: int = 0
    """Bytes of the largest weight or cache that the GPU adapter binds; 0 for no limit."""
    room: int = 0
    """The capacity that caches must have, in positions; 0 if no length is given."""
    first_logits: str = ""
    """The name of the input with the first position that gives logits; "" for logits of only the last position."""
    wide_bytes: int = 0
    """Bytes of float32 weights that may be made in place of packed ones, for the CPU."""
    constants: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of weights that become constants of the graph, by name (`constants_to_inline`)."""
    defaults: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of defaults of LoRA inputs in data files, by name (`lora_defaults`)."""
    file: bytes = b""
    """The bytes from which the model was parsed; without them the places of tensors in it are unknown."""
    run_length: int | None = None
    """The number of tokens of the single run for which the graph is made; None for sequences of any length."""

    lora: tuple[LoraInput, ...] = ()
    """The inputs of the file's graph that LoRA adapters fill."""
    others: tuple[str, ...] = ()
    """The file's inputs with a default that adapters do not fill."""
    slots: tuple[LoraSlot, ...] = ()
    """The inputs that each sequence gets for LoRA adapters of that rank."""
    unrecognised: str = ""
    """The reason why attention over growing caches was not recognised; empty without one."""
    rope: LongRope | None = None
    """The rotary tables that became inputs; None if there is one kind of rotary factors."""
    looked_up: int = 0
    """The bytes of the tables that only lookups of tokens read."""
    disk_tables: tuple[DiskTable, ...] = ()
    """Those of these tables that stay on disk."""
    sliding: SlidingCaches | None = None
    """The caches whose positions count from a base."""
    why_fixed_size: str = ""
    """The reason why caches of attention over a window do not slide; empty without one."""
    unpacked: str = ""
    """The reason why some product by weights with DequantizeLinear did not become a MatMulNBits; empty without one."""
    split: tuple[SplitWeight, ...] = ()
    """The weights that are larger than `largest`."""
    tables: tuple[SplitTable, ...] = ()
    """The tables among these that are in parts."""
    cache_parts: tuple[SplitCache, ...] = ()
    """The caches that are larger, at the given capacity."""
    placing: Placing | None = None
    """The placing of features of pictures among embeddings; None in a graph of text."""
    weights: tuple[WeightEntry, ...] = ()
    """The weights that became inputs."""
    from_gguf: tuple[UnpackedWeight, ...] = ()
    """The float32 weights made of a GGUF file, for the CPU."""
    experts_widened: bool = False
    """Whether experts of a GGUF file became experts in float32."""
    wide: tuple[WideWeight, ...] = ()
    """Those float32 weights."""
    description: GraphDescription | None = None
    projection: str = ""
    """The reason why the output projection of a prompt is over all its positions; empty if it is only over the last
    one.
    """
    lengths: FedLengths | None = None
    unfed: str = ""
    """The reason why `lengths` is None; else empty."""

    @property
    def decoder(self) -> DecoderConfig:
        return self.whole.decoder

    @property
    def whole(self) -> GenaiConfig:
        assert self.config is not None, "only the graph of a session has no configuration"
        return self.config

    @property
    def about(self) -> GraphDescription:
        assert self.description is not None, "the pass `describe` runs first"
        return self.description
