"""The facts that the passes over a graph share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .description import GraphDescription
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
    """The facts for the passes over one model, and those that passes find out for later passes and for the caller."""

    config: GenaiConfig | None = None
    """Every graph has it but a session's."""
    lora_rank: int | None = None
    """The rank of the LoRA adapters that a graph for WebGPU is for; None is for none."""
    packed: bool = True
    """Whether the rotary embedding of packed q, k and v has enough storage buffers."""
    largest: int = 0
    """Bytes of the largest weight or cache that the GPU adapter binds; 0 for no limit."""
    room: int = 0
    """Positions that caches must have room for; 0 if no length is told."""
    first_logits: str = ""
    """An input that is to say from which position on logits are computed; "" for the last position only."""
    wide_bytes: int = 0
    """Bytes of float32 weights that may be made in place of packed ones, for the CPU."""
    constants: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of weights that become constants of the graph, by name (`constants_to_inline`)."""
    defaults: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of defaults of LoRA inputs in data files, by name (`lora_defaults`)."""
    file: bytes = b""
    """The bytes that the model was parsed from; without them the places of tensors in it are not told."""
    run_length: int | None = None
    """Tokens of the one run that the graph is for; None where sequences of any length are run."""

    lora: tuple[LoraInput, ...] = ()
    """The inputs of the file's graph that LoRA adapters fill."""
    others: tuple[str, ...] = ()
    """Its inputs with a default that adapters do not fill."""
    slots: tuple[LoraSlot, ...] = ()
    """The inputs that each sequence gets for LoRA adapters of that rank."""
    unrecognised: str = ""
    """Why attention over caches that grow was not recognised; empty if it was, or if there is none."""
    rope: LongRope | None = None
    """The rotary tables that became inputs; None if there is one kind of rotary factors."""
    sliding: SlidingCaches | None = None
    """The caches whose positions count from a base."""
    unslid: str = ""
    """Why those of attention over a window do not; empty if they do, or if there is none."""
    unpacked: str = ""
    """Why some product by weights with DequantizeLinear is no MatMulNBits; empty if there is no such product."""
    split: tuple[SplitWeight, ...] = ()
    """The weights that are larger."""
    tables: tuple[SplitTable, ...] = ()
    """The tables among them that are in parts."""
    cache_parts: tuple[SplitCache, ...] = ()
    """The caches of so many positions that are larger."""
    placing: Placing | None = None
    """How features of pictures take the place of embeddings; None in a graph of text."""
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
    """Why the output projection of a prompt is over all its positions; empty if it is over the last one alone."""
    lengths: FedLengths | None = None
    unfed: str = ""
    """Why `lengths` is None; else empty."""

    @property
    def decoder(self) -> DecoderConfig:
        return self.whole.decoder

    @property
    def whole(self) -> GenaiConfig:
        assert self.config is not None, "only the graph of a session has no configuration"
        return self.config

    @property
    def about(self) -> GraphDescription:
        assert self.description is not None, "the pass `describe` comes first"
        return self.description
