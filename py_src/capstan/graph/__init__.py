"""Rewrites ONNX graphs, with pure functions over `onnx_pb2.ModelProto` that are tested without a GPU.

    parse(data, name)                 model.onnx bytes -> ModelProto; ModelFileError if they are not a model
    without_weights(read, ...)        the file of a graph that has its weights inside -> the same with external data
    serialize(model)                  ModelProto -> bytes for InferenceSession.create
    total_length_on_gpu(model)        Shape(attention_mask) -> ReduceSum/ReduceMax, so that the graph can be captured
    last_token_logits(model)          the output projection reads the last position only (for the prefill session)
    every_position(model)             undoes last_token_logits and logits_cut
    logits_cut(model)                 like last_token_logits, for a graph whose output projection is not found
    lengths_as_inputs(model)          attention's lengths are fed, not summed from the mask (for the prefill session)
    quantized_products(model, level)  DequantizeLinear and MatMul become MatMulNBits; the reasons why some did not
    angle_tables(model)               rotary tables that are computed from constants become weights
    turned_weights(model)             weights that each run would transpose are transposed as they are loaded
    split_weights(model, largest)     weights larger than a binding in parts; which, and which not
    disk_tables.tables_as_rows(...)   the rows of a run's tokens become inputs in place of tables that only lookups read
    split_caches(model, pairs, most)  caches larger than a binding in parts of some heads each; which
    joined_products(model)            one matrix product makes q, k and v of an attention, instead of three
    lora_inputs(model, decoder)       the inputs that LoRA adapters fill; lora_defaults(model, decoder): their defaults
                                      in data files
    with_lora_rank(model, ...)        those inputs for adapters of one rank; without_lora(model, ...): for none;
                                      lora_fed(model, ...): for any rank
    weights_to_inputs(model, ...)     external initializers become graph inputs; returns the manifest too
    data_ends(model)                  the data files of any graph, and how many bytes it needs of each
    prepared(model)                   any graph, made ready for kept_tensors and weights_to_inputs
    kept_tensors(model)               its weights that stay initializers, with why; make_inline(tensor, data) keeps one
    spliced_embedding.spliced_embedding(...)  a decoder after its embedding graph, with features of pictures in places;
                                      without_places(model) leaves these out, with_places(model, placing) puts them back
    speech_decoder(model, ...)        a decoder of speech gets the inputs of a text decoder, a mask and positions
    group_query_attention(model, ...) attention in primitive operations over growing caches -> GroupQueryAttention
    float_islands_in_half(model)      norms and rotary embedding between casts to float32 and back in float16
    simplified_norms(model)           norms in primitive operations -> SimplifiedLayerNormalization
    logits_of_all(model)              num_logits_to_keep becomes the constant 0
    last_logits(model, logits)        the logits of the last position alone
    pooled(model, hidden, sentence)   one vector a row out of an encoder's hidden states
    sliding_caches(model)             positions of attention over a window count from the base of its caches
    long_rope(model)                  tables with two kinds of rotary factors become inputs; where their rows are
    smooth_softmax_as_sinks(model)    attention with smooth softmax with sinks of 0, which can be captured
    whole_caches(model)               attention over a window has all positions in its caches
    unpacked_weights(model)           the weights of a GGUF file in float32 (for the CPU)
    wide_products(model, most)        MatMulNBits nodes become products with float32 weights (for the CPU)
    norms_apart(model)                norms of q and k in attention become nodes before it (for the CPU)
    soft_caps_apart(model, ...)       attention with a soft cap in other operators (for the prefill session)
    shared_caches_apart(model, ...)   attention over another layer's caches in other operators (for the CPU)
    one_row_only(model)               why each run on WebGPU must have one token; "" if it may have more
    require_computed(model, device)   UncomputedError for what the kernels of onnxruntime-web leave out or refuse
    describe(model, decoder)          what a session over this graph needs, as a frozen dataclass
    uncapturable(model)               the nodes that onnxruntime-web cannot capture, and why
    left_out(model)                   what a captured run leaves out of attention; attention_window(model): the least
    caches_in_place(model)            inputs and outputs that attention takes in one buffer, if they are bound to one
    nbits_products(model)             the MatMulNBits nodes by their weights
    sums_by_products(model)           sums of blocks become matrix products with ones (for the prefill session)
    slices.layer_slices(model)        its nodes in parts, a layer's together; slice_model(...): a part as a model
    activations(model)                the intermediate tensors of a run, for an estimate of its scratch memory

A pass returns a new model and leaves its argument alone, except within `changing`. `graph_passes.PASSES`
has their order and the graphs that need each; `graph_passes.rewritten` makes a graph.
"""

from __future__ import annotations

from .activation_memory import Activations, activations
from .angle_tables import angle_tables
from .capture import LeftOut, Uncapturable, attention_window, left_out, smooth_softmax_as_sinks, uncapturable
from .carried import CachePair, StateTensor, TensorInfo, cache_pairs, caches_in_place
from .description import GraphDescription, describe
from .disk_tables import DiskTable, looked_up_bytes
from .fed_lengths import FedLengths, lengths_as_inputs
from .float_islands import float_islands_in_half
from .inline_weights import without_weights
from .joined_products import joined_products
from .last_token import every_position, last_token_logits, logits_cut
from .logits_to_keep import logits_of_all
from .long_rope import LongRope, RopeTable, TableRows, long_rope, rope_of_length
from .lora_inputs import LoraInput, LoraSlot, lora_defaults, lora_fed, lora_inputs, with_lora_rank, without_lora
from .model_file import contradictions, parse, serialize
from .nbits_products import NBitsProduct, nbits_products, sums_by_products
from .norms_apart import norms_apart
from .parts import Angles, Beside, Change, Narrow, Part, Turn, Unpack, change_of, fields_of
from .plain_attention import group_query_attention
from .plain_norms import simplified_norms
from .plain_recurrence import plain_recurrence
from .pooling import hidden_output, last_logits, pooled, sentence_output
from .quantized_products import quantized_products
from .rotary_nodes import ComputedRows
from .session_initializers import data_ends, data_entries, ends_of, kept_tensors, make_inline, prepared
from .sliding_caches import SlidingCaches, WindowTable, sliding_caches, whole_caches
from .soft_caps import shared_caches_apart, soft_caps_apart
from .speech_decoder import speech_decoder
from .split_caches import SplitCache, split_caches
from .split_weights import SplitTable, SplitWeight, split_weights
from .text_positions import text_positions
from .total_length import total_length_on_gpu
from .turned_weights import turned_weights
from .uncomputed import one_row_only, require_computed
from .unpacked_weights import UnpackedWeight, unpacked_weights
from .weight_inputs import WeightEntry, constants_to_inline, external_entries, known_external_entries, weights_to_inputs
from .wide_products import WideWeight, wide_products
from .wiring import changing

__all__ = [
    "Activations",
    "Angles",
    "Beside",
    "CachePair",
    "Change",
    "ComputedRows",
    "DiskTable",
    "FedLengths",
    "GraphDescription",
    "LeftOut",
    "LongRope",
    "LoraInput",
    "LoraSlot",
    "NBitsProduct",
    "Narrow",
    "Part",
    "RopeTable",
    "SlidingCaches",
    "SplitCache",
    "SplitTable",
    "SplitWeight",
    "StateTensor",
    "TableRows",
    "TensorInfo",
    "Turn",
    "Uncapturable",
    "Unpack",
    "UnpackedWeight",
    "WeightEntry",
    "WideWeight",
    "WindowTable",
    "activations",
    "angle_tables",
    "attention_window",
    "cache_pairs",
    "caches_in_place",
    "change_of",
    "changing",
    "constants_to_inline",
    "contradictions",
    "data_ends",
    "data_entries",
    "describe",
    "ends_of",
    "external_entries",
    "fields_of",
    "float_islands_in_half",
    "group_query_attention",
    "hidden_output",
    "joined_products",
    "kept_tensors",
    "known_external_entries",
    "every_position",
    "last_logits",
    "last_token_logits",
    "left_out",
    "lengths_as_inputs",
    "logits_cut",
    "logits_of_all",
    "long_rope",
    "looked_up_bytes",
    "lora_defaults",
    "lora_fed",
    "lora_inputs",
    "make_inline",
    "nbits_products",
    "norms_apart",
    "one_row_only",
    "parse",
    "plain_recurrence",
    "pooled",
    "prepared",
    "quantized_products",
    "require_computed",
    "rope_of_length",
    "sentence_output",
    "serialize",
    "simplified_norms",
    "sliding_caches",
    "smooth_softmax_as_sinks",
    "shared_caches_apart",
    "soft_caps_apart",
    "speech_decoder",
    "split_caches",
    "split_weights",
    "sums_by_products",
    "text_positions",
    "total_length_on_gpu",
    "turned_weights",
    "uncapturable",
    "unpacked_weights",
    "weights_to_inputs",
    "whole_caches",
    "wide_products",
    "with_lora_rank",
    "without_lora",
    "without_weights",
]
