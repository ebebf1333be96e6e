"""The ordered list of all passes over a model's graph, for every graph that Capstan makes from a model.

Graphs of a decoder are made from each other: `webgpu` is the graph of the file, with weights still in the data files;
`decode` is the same with weights as inputs; `captured prefill` computes only the last logits; `prefill` is the graph of
eager runs of prompts, `placed prefill` that of prompts with pictures. `wasm` and `reference` are for the CPU providers,
`layers on ...` for the search for a value that is not finite. `session` is the graph of any model, and `session on
buffers` is made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import OptionError
from .angle_tables import angle_tables
from .capture import attention_window, smooth_softmax_as_sinks
from .carried import CachePair, cache_pairs
from .description import ELEMENT_BYTES, describe
from .disk_tables import looked_up_bytes, tables_as_rows, without_unread
from .fed_lengths import lengths_as_inputs
from .float_experts import float_experts
from .float_islands import float_islands_in_half, in_half
from .joined_products import joined_products, packed_apart
from .last_token import last_token_logits, logits_cut
from .logits_to_keep import logits_of_all
from .long_rope import long_rope, picture_rope, rope_of_length
from .lora_inputs import lora_fed, lora_inputs, other_defaults, with_lora_rank, without_lora
from .mixed_attention import mixed_attention
from .named_outputs import named_outputs
from .nbits_products import sums_by_products
from .norms_apart import norms_apart
from .onnx_pb2 import ModelProto
from .plain_attention import group_query_attention
from .plain_norms import simplified_norms
from .plain_recurrence import plain_recurrence
from .products_apart import products_apart
from .quantized_caches import fewer_bits, quantized_caches, with_bits
from .quantized_products import quantized_products
from .rewriting import Rewriting
from .session_initializers import prepared
from .sliding_caches import SLACK, sliding_caches, whole_caches
from .soft_caps import has_soft_caps, shared_caches_apart, soft_caps_apart
from .speech_decoder import speech_decoder
from .spliced_embedding import with_places, without_places
from .split_caches import split_caches
from .split_weights import split_weights
from .text_positions import text_positions
from .total_length import total_length_on_gpu
from .turned_weights import turned_weights
from .uncomputed import require_computed
from .unpacked_weights import unpacked_weights
from .weight_inputs import DTYPES, require_held, weights_to_inputs
from .wide_products import wide_products
from .wiring import changed_in_place, changing, copy_of, delete

if TYPE_CHECKING:
    pass

__all__ = ["PASSES", "Made", "rewritten"]

Made = Literal[
    "webgpu",
    "decode",
    "captured prefill",
    "prefill",
    "placed prefill",
    "wasm",
    "reference",
    "layers on webgpu",
    "layers on wasm",
    "layers on reference",
    "session",
    "session on buffers",
]
"""A graph that passes make."""


class GraphPass(NamedTuple):
    """Describes a pass over a graph. A pass that returns its argument is a check or an observation."""

    name: str
    graphs: frozenset[Made]
    """The graphs that need this pass."""
    apply: Callable[[ModelProto, Rewriting], ModelProto]


def rewritten(model: ModelProto, made: Made, facts: Rewriting) -> ModelProto:
    """The graph `made`, which its passes make from a model. The model stays unchanged except within `wiring.changing`.

    Raises UncomputedError for nodes that onnxruntime-web does not compute on the device, UnsupportedModelError for
    graphs that Capstan cannot feed.
    """
    with changing(copy_of(model)) as model:
        for each in PASSES:
            if made in each.graphs:
                model = each.apply(model, facts)
    return model


def find_lora(model: ModelProto, facts: Rewriting) -> ModelProto:
    facts.lora = lora_inputs(model, facts.decoder, facts.defaults)
    facts.others = other_defaults(model, facts.decoder, facts.lora)
    return model


def lora_of_one_rank(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with inputs for LoRA adapters of the rank, or without any."""
    if facts.lora_rank is None:
        return without_lora(model, facts.lora) if facts.lora else model
    facts.slots = tuple(each.slot(facts.lora_rank) for each in facts.lora)
    return with_lora_rank(model, facts.lora, facts.lora_rank)


def as_text_decoder(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with a mask and positions, if it reads an encoder's outputs."""
    if not facts.decoder.cross:
        return model
    names, first = facts.decoder.inputs, cache_pairs(facts.decoder, model.graph)[0]
    return speech_decoder(model, first.past, names.input_ids, names.attention_mask, names.position_ids)


def attention_recognised(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with caches of one size in place of caches that grow with each run; otherwise `facts` get the
    reason.
    """
    decoder = facts.decoder
    pairs = caches_by_layer(model, facts)
    caches = [(key.past, value.past, key.present, value.present) for key, value in pairs]
    sizes = {(pair.heads, pair.head_size) for layer in pairs for pair in layer}
    if len(sizes) != 1:
        facts.unrecognised = facts.unrecognised or "its layers have caches of different sizes"
        return model
    heads = (decoder.num_attention_heads, *sizes.pop())
    names = decoder.inputs
    before = attentions(model)
    model, why = group_query_attention(
        model, caches, heads, facts.whole.context_length, names.attention_mask, names.position_ids
    )
    facts.unrecognised = facts.unrecognised or why
    return model if attentions(model) == before else simplified_norms(model)


def caches_by_layer(model: ModelProto, facts: Rewriting) -> list[tuple[CachePair, CachePair]]:
    """The caches of keys and values of each layer."""
    layers: dict[int, list[CachePair]] = {}
    for pair in cache_pairs(facts.decoder, model.graph):
        layers.setdefault(pair.layer, []).append(pair)
    return [(key, value) for key, value in layers.values()]


def all_layers_recognised(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with GroupQueryAttention in every layer, if only some layers have it; otherwise `facts` get the
    reason.
    """
    names = facts.decoder.inputs
    heads = facts.decoder.num_attention_heads
    model, why = mixed_attention(model, caches_by_layer(model, facts), heads, names.attention_mask, names.position_ids)
    facts.unrecognised = facts.unrecognised or why
    return model


def attentions(model: ModelProto) -> int:
    """The number of attention operators."""
    return sum(node.op_type == "GroupQueryAttention" for node in model.graph.node)


def computed_on_webgpu(model: ModelProto, facts: Rewriting) -> ModelProto:
    positions = facts.decoder.inputs.position_ids
    if not has_soft_caps(model):
        require_computed(model, "webgpu", positions)
        return model
    with changed_in_place(model) as twin:
        require_computed(caps_apart(twin, facts), "webgpu", positions)
    return model


def computed_on_wasm(model: ModelProto, facts: Rewriting) -> ModelProto:
    require_computed(model, "wasm", facts.decoder.inputs.position_ids)
    return model


def caps_apart(model: ModelProto, facts: Rewriting) -> ModelProto:
    return soft_caps_apart(model, head_sizes(model, facts))


def shared_apart(model: ModelProto, facts: Rewriting) -> ModelProto:
    return shared_caches_apart(model, head_sizes(model, facts))


def parts_attended(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with separate q, k and v, if the adapter has too few storage buffers for packed ones."""
    return model if facts.packed else packed_apart(model, head_sizes(model, facts))


def head_sizes(model: ModelProto, facts: Rewriting) -> dict[str, int]:
    """Head sizes, by the input of each cache."""
    return {pair.past: pair.head_size for pair in cache_pairs(facts.decoder, model.graph)}


def tables_on_disk(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with rows as inputs in place of the tables that stay on disk. Raises OptionError without one."""
    ids = facts.decoder.inputs.input_ids
    facts.looked_up = looked_up_bytes(model, ids)
    if not facts.decoder.tables_on_disk:
        return model
    model, facts.disk_tables = tables_as_rows(model, ids)
    if not facts.disk_tables:
        raise OptionError(
            f"embedding_tables is 'disk', but {facts.decoder.filename} has no table that only lookups of tokens read; "
            "leave the option out"
        )
    return model


def rotary_factors(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with one kind of rotary factors: those for its single run, or those that each sequence feeds."""
    mask, joined_at = facts.decoder.inputs.attention_mask, facts.decoder.rope_joined_at
    if facts.run_length is not None:
        return rope_of_length(model, facts.run_length, mask, joined_at)
    model, facts.rope = long_rope(model, mask, joined_at, facts.file)
    if facts.rope is None and facts.whole.vision is not None:
        model, facts.rope = picture_rope(model, facts.whole.context_length, facts.file)
    return model


def islands_in_half(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with float16 in place of float32 islands, and in place of the float32 tables that sequences feed to
    them.
    """
    rope = facts.rope
    if rope is None or not rope.sections:
        return float_islands_in_half(model)
    made = float_islands_in_half(model, [table.name for table in rope.tables])
    read = {name for node in made.graph.node for name in node.input}
    halves = [replace(each, name=in_half(each.name), dtype="float16", stored=each.dtype) for each in rope.tables]
    tables = tuple(each for each in (*rope.tables, *halves) if each.name in read)
    delete(made.graph.input, lambda value: value.name in {each.name for each in rope.tables} - read)
    facts.rope = replace(rope, tables=tables)
    return made


def caches_quantized(model: ModelProto, facts: Rewriting) -> ModelProto:
    bits = facts.decoder.kv_cache_bits
    longest = facts.whole.context_length
    return quantized_caches(model, cache_pairs(facts.decoder, model.graph), bits, longest) if bits else model


def windows_slide(model: ModelProto, facts: Rewriting) -> ModelProto:
    longest = facts.whole.context_length
    if attention_window(model, longest=True) + SLACK < longest:
        mask = facts.decoder.inputs.attention_mask
        model, facts.sliding, facts.why_fixed_size = sliding_caches(model, mask, facts.file)
    return model


def packed_products(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.unpacked = quantized_products(model, facts.decoder.qdq_accuracy)
    return model


def large_split(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.split, facts.tables = split_weights(model, facts.largest)
    return model


def caches_split(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with caches in parts that fit a binding, for sequences of the length given to the load."""
    if not facts.largest or not facts.room:
        return model
    bits, whole = facts.decoder.kv_cache_bits, cache_pairs(facts.decoder, model.graph)
    sliding = facts.sliding.pasts if facts.sliding is not None else ()
    told = {value.name: DTYPES[value.type.tensor_type.elem_type][1] for value in model.graph.input}
    sizes = {}
    for pair in whole:
        if pair.past in told and pair.past not in sliding:
            width = told[pair.past]
            [stored] = with_bits([pair], 0, bits, width)
            sizes[pair] = stored.head_size * width // 8 * facts.room
    model, facts.cache_parts = split_caches(model, sizes, facts.largest)
    return model


def weights_fed(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, weights = weights_to_inputs(model, facts.constants)
    facts.weights = tuple(weights)
    return model


def weights_held(model: ModelProto, facts: Rewriting) -> ModelProto:
    require_held(facts.weights)
    return model


def described(model: ModelProto, facts: Rewriting) -> ModelProto:
    fed = [*(each.name for each in facts.weights), *(each.name for each in facts.lora)]
    given = (facts.whole.vocab_size, fed, facts.rope, facts.unrecognised, facts.sliding)
    found = describe(model, facts.decoder, *given)
    width = 8 * ELEMENT_BYTES[found.cache_dtype]
    fewer = fewer_bits(model, found.cache, found.cache_bits, width, facts.whole.context_length)
    others = found.others if facts.placing is None else (*found.others, *facts.placing.inputs())
    facts.description = replace(
        found,
        lora=facts.slots,
        why_fixed_size=facts.why_fixed_size,
        fewer_bits=fewer,
        others=others,
        tables=facts.disk_tables,
        looked_up=facts.looked_up,
    )
    return model


def unread_ids_left_out(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph without the tokens, if all tables are on disk; onnxruntime would read unused inputs back."""
    return without_unread(model, facts.decoder.inputs.input_ids) if facts.disk_tables else model


def last_logits(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.projection = last_token_logits(model, facts.decoder.outputs.logits, facts.first_logits)
    return model


def cut_logits(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph with only the last position's logits, if the output projection is over all positions."""
    if facts.about.last_token_only:
        facts.projection = ""
    return logits_cut(model, facts.about.logits) if facts.projection else model


def weights_unpacked(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.from_gguf = unpacked_weights(model)
    return model


def experts_in_floats(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.experts_widened = float_experts(model)
    return model


def products_wide(model: ModelProto, facts: Rewriting) -> ModelProto:
    model, facts.wide = wide_products(model, facts.wide_bytes)
    return model


def places_left_out(model: ModelProto, facts: Rewriting) -> ModelProto:
    """The graph without features of pictures, since a decode step runs one id."""
    model, facts.placing = without_places(model)
    return model


def places_put_back(model: ModelProto, facts: Rewriting) -> ModelProto:
    return model if facts.placing is None else with_places(model, facts.placing)


def lengths_fed(model: ModelProto, facts: Rewriting) -> ModelProto:
    base = facts.sliding.base if facts.sliding is not None else ""
    model, facts.lengths, facts.unfed = lengths_as_inputs(model, facts.about.mask, base)
    return model


WEBGPU: frozenset[Made] = frozenset(["webgpu"])
LAYERS_ON_DEVICES: frozenset[Made] = frozenset(["layers on webgpu", "layers on wasm"])
DEVICES: frozenset[Made] = LAYERS_ON_DEVICES | {"webgpu", "wasm"}
WASM: frozenset[Made] = frozenset(["wasm", "layers on wasm"])

PASSES: tuple[GraphPass, ...] = (
    GraphPass("find_lora", frozenset(["webgpu", "wasm", "reference"]), find_lora),
    GraphPass("lora_of_one_rank", WEBGPU, lora_of_one_rank),
    GraphPass("lora_fed", frozenset(["wasm"]), lambda model, facts: lora_fed(model, facts.lora)),
    GraphPass("tables_on_disk", frozenset(["webgpu", "wasm", "reference"]), tables_on_disk),
    GraphPass("long_rope", DEVICES | {"reference", "layers on reference"}, rotary_factors),
    GraphPass("float_islands_in_half", WEBGPU, islands_in_half),
    GraphPass("speech_decoder", WEBGPU, as_text_decoder),
    GraphPass("mixed_attention", DEVICES | {"reference", "layers on reference"}, all_layers_recognised),
    GraphPass("text_positions", DEVICES, lambda model, facts: text_positions(model, facts.decoder.inputs.position_ids)),
    GraphPass("plain_recurrence", DEVICES, lambda model, _: plain_recurrence(model)),
    GraphPass("named_outputs", WEBGPU, lambda model, _: named_outputs(model)),
    GraphPass("group_query_attention", DEVICES, attention_recognised),
    GraphPass("whole_caches", DEVICES, lambda model, _: whole_caches(model)),
    GraphPass("norms_apart", WASM | {"reference"}, lambda model, _: norms_apart(model)),
    GraphPass("shared_caches_apart", WASM, shared_apart),
    GraphPass("computed_on_webgpu", DEVICES - WASM, computed_on_webgpu),
    GraphPass("computed_on_wasm", WASM, computed_on_wasm),
    GraphPass("logits_of_all", DEVICES | {"reference"}, lambda model, _: logits_of_all(model)),
    GraphPass("total_length_on_gpu", WEBGPU, lambda model, _: total_length_on_gpu(model)),
    GraphPass("smooth_softmax_as_sinks", WEBGPU, lambda model, _: smooth_softmax_as_sinks(model)),
    GraphPass("sliding_caches", WEBGPU, windows_slide),
    GraphPass("quantized_products", WEBGPU, packed_products),
    GraphPass("turned_weights", WEBGPU, lambda model, _: turned_weights(model)),
    GraphPass("turned_session_weights", frozenset(["session"]), lambda model, _: prepared(model)),
    GraphPass("products_apart", WEBGPU, lambda model, _: products_apart(model)),
    GraphPass("joined_products", WEBGPU, lambda model, facts: joined_products(model, packed=facts.packed)),
    GraphPass("packed_apart", WEBGPU, parts_attended),
    GraphPass("split_weights", WEBGPU, large_split),
    GraphPass("split_caches", WEBGPU, caches_split),
    GraphPass("quantized_caches", WEBGPU, caches_quantized),
    GraphPass("float_experts", frozenset(["wasm", "reference"]), experts_in_floats),
    GraphPass("without_places", frozenset(["decode"]), places_left_out),
    GraphPass("angle_tables", frozenset(["decode", "wasm"]), lambda model, _: angle_tables(model)),
    GraphPass("weights_to_inputs", frozenset(["decode", "session on buffers"]), weights_fed),
    GraphPass("weights_held", frozenset(["decode"]), weights_held),
    GraphPass("describe", frozenset(["decode", "wasm", "reference"]), described),
    GraphPass("unread_ids_left_out", frozenset(["decode"]), unread_ids_left_out),
    GraphPass(
        "last_token_logits", LAYERS_ON_DEVICES | {"captured prefill", "wasm", "layers on reference"}, last_logits
    ),
    GraphPass("unpacked_weights", frozenset(["wasm"]), weights_unpacked),
    GraphPass("wide_products", frozenset(["wasm"]), products_wide),
    GraphPass("logits_cut", frozenset(["captured prefill"]), cut_logits),
    GraphPass("lengths_as_inputs", frozenset(["prefill"]), lengths_fed),
    GraphPass("soft_caps_apart", frozenset(["prefill"]), caps_apart),
    GraphPass("sums_by_products", frozenset(["prefill"]), lambda model, _: sums_by_products(model)),
    GraphPass("with_places", frozenset(["placed prefill"]), places_put_back),
)
"""Every pass, in the order in which they run."""
