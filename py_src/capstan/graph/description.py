"""Describes a decoder's graph for a session: inputs, outputs, cache pairs and element types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from ..fallback import fall_back
from .capture import LeftOut, Uncapturable, left_out, uncapturable
from .carried import (
    DIMENSIONS,
    FLOATS,
    CachePair,
    StateTensor,
    TensorInfo,
    cache_pairs,
    cross_names,
    growing_caches,
    part_name,
    reject_state,
    require_caches,
    state_tensors,
    tensor_info,
)
from .disk_tables import DiskTable
from .long_rope import LongRope
from .lora_inputs import LoraSlot
from .model_file import require_decoder
from .onnx_pb2 import GraphProto, ModelProto, NodeProto, TensorProto
from .quantized_caches import with_bits
from .sliding_caches import SlidingCaches
from .split_caches import whole_because

if TYPE_CHECKING:
    from ..model_files.genai_config import DecoderConfig

__all__ = ["ELEMENT_BYTES", "GraphDescription", "describe", "warn_growing_caches", "warn_fixed_size_caches"]

ELEMENT_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True)
class GraphDescription:
    """The result of `describe`. `inputs` are the run-time inputs, without the weights that became inputs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    cache: tuple[CachePair, ...]
    num_layers: int
    cache_dtype: str
    vocab_size: int
    input_ids: str
    logits: str
    logits_dtype: str
    last_token_only: bool
    mask: str
    """Empty if the graph has no mask."""
    mask_dtype: str
    position_ids: str | None
    needs_f16: bool
    uncapturable: tuple[Uncapturable, ...]
    left_out: tuple[LeftOut, ...]
    """The attention windows and soft caps that a captured run ignores."""
    max_positions: int = 0
    """Positions of the longest sequence, if that is less than the model's context length; else 0."""
    growing: str = ""
    """The reason why the caches, [batch, heads, positions so far, head size], grow with each run; empty if they have
    one size.
    """
    states: tuple[StateTensor, ...] = ()
    cache_bits: int = 0
    """Bits of an element of quantized caches, 8 or 4; 0 for caches of `cache_dtype`."""
    fewer_bits: tuple[int, ...] = ()
    """The smaller `cache_bits` that the model could have on WebGPU, the largest first."""
    lora: tuple[LoraSlot, ...] = ()
    """The inputs that each sequence gets for its LoRA adapters."""
    rope: LongRope | None = None
    """The inputs that each sequence gets for its rotary factors; None if there is only one kind of factors."""
    sliding: SlidingCaches | None = None
    """The caches that hold only the positions of a window; None if all hold every position."""
    whole: str = ""
    """The reason why caches cannot be split by heads; empty without one."""
    why_fixed_size: str = ""
    """The reason why caches of attention over a window hold every position; empty without one."""
    ids_dtype: str = "int64"
    cross: tuple[TensorInfo, ...] = ()
    """The inputs for an encoder's outputs, in order, with fixed sizes for one sequence."""
    hidden: TensorInfo | None = None
    """The output that a multi-token-prediction head reads, [batch, tokens, hidden size]; None for a model without a
    head.
    """
    reads_hidden: TensorInfo | None = None
    """The input of such a head for the output `hidden` of its model or of its own last run."""
    others: tuple[TensorInfo, ...] = ()
    """Further run-time inputs, which device.run_inputs feeds or refuses."""
    tables: tuple[DiskTable, ...] = ()
    """The tables on disk, whose rows are inputs."""
    looked_up: int = 0
    """The bytes of all tables that only lookups of tokens read, on disk or not."""

    @property
    def has_position_ids(self) -> bool:
        return self.position_ids is not None

    @property
    def capturable(self) -> bool:
        return not self.uncapturable and not self.growing

    def rows_of(self, pair: CachePair) -> str:
        """The element type and number in a cache's rows: 'float16', 'float32', or 'int8 17' for 17 words, of which the
        first is a scale.
        """
        if not self.cache_bits:
            return self.cache_dtype
        return f"int{self.cache_bits} {pair.head_size * ELEMENT_BYTES[self.cache_dtype] // 4}"

    def with_cache_bits(self, bits: int) -> GraphDescription:
        """The same graph with caches of one of `fewer_bits`."""
        width = 8 * ELEMENT_BYTES[self.cache_dtype]
        fewer = tuple(each for each in self.fewer_bits if each < bits)
        return replace(
            self, cache=with_bits(self.cache, self.cache_bits, bits, width), cache_bits=bits, fewer_bits=fewer
        )

    def head_by_head(self) -> GraphDescription:
        """The same graph with each head of its caches as a separate cache."""
        sliding = self.sliding.pasts if self.sliding is not None else ()
        parts = (
            replace(pair, past=part_name(pair.past, part), present=part_name(pair.present, part), heads=1)
            for pair in self.cache
            if pair.past not in sliding
            for part in range(pair.heads)
        )
        return replace(self, cache=(*parts, *(pair for pair in self.cache if pair.past in sliding)))

    def slides(self, capacity: int, chunk: int) -> bool:
        """Whether some caches have fewer positions than a sequence of `capacity` positions."""
        return self.sliding is not None and self.sliding.slides(capacity, chunk)

    def positions(self, pair: CachePair, capacity: int, chunk: int) -> int:
        """The capacity of a cache in a sequence of `capacity` positions, if a run adds at most `chunk` positions."""
        if self.sliding is None or pair.past not in self.sliding.pasts:
            return capacity
        return self.sliding.room(capacity, chunk)

    @property
    def alone(self) -> bool:
        """Whether several rows run as separate steps, one after another, instead of as one step."""
        return bool(self.states or self.tables)

    def context_within(self, context_length: int) -> int:
        """The number of positions of the longest sequence, at most the configuration's `context_length`."""
        return min(context_length, self.max_positions or context_length)

    def left_out_within(self, capacity: int) -> list[LeftOut]:
        """The attention windows and soft caps that a captured run over up to `capacity` positions ignores."""
        return [within for found in self.left_out if (within := found.within(capacity))]

    def obstacle(self, capacity: int, *, put_back: bool = False) -> str | None:
        """The reason why runs over sequences of up to `capacity` positions cannot be captured, or None. With
        `put_back`, Capstan's kernels compute what onnxruntime-web ignores.
        """
        if self.growing:
            return self.growing
        if self.uncapturable:
            return str(self.uncapturable[0])
        found = [] if put_back else self.left_out_within(capacity)
        if not found:
            return None
        if any(each.softcap for each in found):
            return str(found[0])
        return f"{found[0]}, and max_length is {capacity}; use at most {min(each.window for each in found)}"


def describe(
    model: ModelProto,
    decoder: DecoderConfig,
    vocab_size: int | None = None,
    weights: Collection[str] = (),
    rope: LongRope | None = None,
    unrecognised: str = "",
    sliding: SlidingCaches | None = None,
) -> GraphDescription:
    """Check a graph against its configuration and describe it; run it before `weights_to_inputs`, or after it with the
    names of the weights. `rope` is the result of `long_rope`, `unrecognised` that of `group_query_attention`, `sliding`
    that of `sliding_caches`.

    Raises UnsupportedModelError, naming the input, output or dtype: no token ids, a state that Capstan does not know,
    caches that are neither float32 nor float16, sizes that differ from the configuration.
    """
    graph = model.graph
    names = decoder.inputs
    require_decoder(model, names.input_ids)
    pairs, states = cache_pairs(decoder, graph), state_tensors(decoder, graph)
    carried: list[CachePair | StateTensor] = [*pairs, *states]
    pasts = {each.past for each in carried}
    crosses = cross_names(decoder.cross, decoder.num_hidden_layers)
    known = {names.input_ids, names.attention_mask, names.position_ids, *pasts, *crosses}
    read = {source for node in graph.node for source in node.input}
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = [tensor_info(value) for value in graph.input if value.name not in initialized]
    outputs = [tensor_info(value) for value in graph.output]
    reject_state(graph, decoder, {each.present for each in carried})
    runtime = tuple(info for info in inputs if info.name in known)
    found = {info.name: info for info in [*runtime, *outputs]}
    for pair in pairs:
        for name in (pair.past, pair.present):
            if name not in found:
                raise UnsupportedModelError(
                    f"model.onnx has no {'input' if name == pair.past else 'output'} {name}; "
                    f"genai_config.json declares {decoder.num_hidden_layers} layers of it"
                )
    growing = growing_caches(graph, pairs, unrecognised)
    if names.attention_mask not in found and not crosses:
        raise UnsupportedModelError(
            f"model.onnx has no input {names.attention_mask}; export a decoder with an attention mask"
        )
    logits = found.get(decoder.outputs.logits)
    if logits is None:
        raise UnsupportedModelError(f"model.onnx has no output {decoder.outputs.logits}; export it with its lm_head")
    others = tuple(info for info in inputs if info.name not in {*known, *weights} and info.name in read)
    if logits.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"output {logits.name} is {logits.dtype}, expected float32 or float16; export with -p int4 or fp16"
        )
    cache_dtype = require_caches(found, pairs, decoder)
    last = logits.dims[-1] if logits.dims else None
    vocabulary = last if isinstance(last, int) else vocab_size
    if vocabulary is None or (vocab_size is not None and vocabulary != vocab_size):
        raise UnsupportedModelError(
            f"output {logits.name} has {last} columns; genai_config.json model.vocab_size is {vocab_size}"
        )
    mask = found.get(names.attention_mask, TensorInfo("", "int64", ()))
    hidden = hidden_states(found, "output", decoder.outputs.hidden_states)
    reads_hidden = hidden_states({info.name: info for info in inputs}, "input", names.hidden_states)
    return GraphDescription(
        inputs=runtime,
        outputs=tuple(outputs),
        cache=pairs,
        num_layers=decoder.num_hidden_layers,
        cache_dtype=cache_dtype,
        vocab_size=vocabulary,
        input_ids=names.input_ids,
        logits=logits.name,
        logits_dtype=logits.dtype,
        last_token_only=len(logits.dims) == 3 and logits.dims[1] == 1,
        mask=mask.name,
        mask_dtype=mask.dtype,
        position_ids=names.position_ids if names.position_ids in found else None,
        needs_f16=needs_f16(graph),
        uncapturable=tuple(uncapturable(model, mask.name)),
        left_out=tuple(left_out(model)),
        max_positions=decoder.long_rope_from if rope is None else rope.positions,
        growing=growing and (unrecognised or growing),
        states=states,
        cache_bits=decoder.kv_cache_bits,
        rope=rope,
        sliding=sliding,
        whole=whole_because(model, pairs),
        ids_dtype=found[names.input_ids].dtype,
        cross=tuple(cross_input(found, name) for name in crosses),
        hidden=hidden,
        reads_hidden=reads_hidden,
        others=others,
    )


def cross_input(found: Mapping[str, TensorInfo], name: str) -> TensorInfo:
    """The decoder's input for an encoder's output, for one sequence. Raises UnsupportedModelError."""
    info = found.get(name)
    if info is None:
        raise UnsupportedModelError(
            f"model.onnx has no input {name}, which genai_config.json names as an encoder's output"
        )
    sizes = tuple(size for size in info.dims[1:] if isinstance(size, int))
    if info.dtype not in FLOATS or len(info.dims) != DIMENSIONS or len(sizes) != DIMENSIONS - 1:
        shape = ", ".join(map(str, info.dims))
        raise UnsupportedModelError(
            f"input {name} is {info.dtype} [{shape}], expected floats of fixed sizes after the batch"
        )
    return replace(info, dims=(1, *sizes))


def hidden_states(found: Mapping[str, TensorInfo], kind: str, name: str) -> TensorInfo | None:
    """The graph's input or output of hidden states; None without a name. Raises UnsupportedModelError if it is missing
    or has another shape than [batch, tokens, hidden size].
    """
    if not name:
        return None
    info = found.get(name)
    if info is None or info.dtype not in FLOATS or len(info.dims) != 3 or not isinstance(info.dims[2], int):
        has = "is missing" if info is None else f"is {info.dtype} [{', '.join(map(str, info.dims))}]"
        raise UnsupportedModelError(
            f"{kind} {name} {has}, expected floats [batch, tokens, hidden size], as genai_config.json model.mtp says; "
            'export the model again, or leave the head out with the overlay {"model": {"mtp": {"enabled": false}}}'
        )
    return info


def warn_growing_caches(about: GraphDescription) -> None:
    """Count growing caches as a fallback, with the reason."""
    if about.growing:
        instead = "caches grow with each run, and decode steps are run eagerly"
        fall_back("attention over caches of one size", about.growing, instead)


def warn_fixed_size_caches(about: GraphDescription) -> None:
    """If caches of windows hold every position, count that as a fallback, with the reason."""
    if about.why_fixed_size:
        instead = "they hold all positions of a sequence"
        fall_back("caches as long as the window of their attention", about.why_fixed_size, instead)


def needs_f16(graph: GraphProto) -> bool:
    """Whether any tensor is float16, so that the adapter must have shader-f16."""
    half = TensorProto.FLOAT16
    if any(tensor.data_type == half for tensor in graph.initializer):
        return True
    if any(value.type.tensor_type.elem_type == half for value in [*graph.input, *graph.output, *graph.value_info]):
        return True
    return any(casts_to_half(node) for node in graph.node)


def casts_to_half(node: NodeProto) -> bool:
    return any(
        (item.name == "to" and node.op_type == "Cast" and item.i == TensorProto.FLOAT16)
        or (item.name == "value" and item.t.data_type == TensorProto.FLOAT16)
        for item in node.attribute
    )
