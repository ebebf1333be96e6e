"""The graph of a decoder with 14 billion weights in 4 bits, without its data: nano-blocks in that shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from benches.shapes.repeated_layers import repeated
from capstan.model_files.genai_config import GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config

__all__ = ["CONTEXT", "config_of", "graph_of"]

BLOCKS = Path(__file__).parents[1] / "fixtures" / "nano-blocks"
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY, CONTEXT = 40, 5120, 17408, 40, 8, 128, 151936, 40960
SIZES = {64: HIDDEN, 128: INNER, 512: VOCABULARY}
"""The sizes of products, by those of nano-blocks."""
BYTES: dict[int, int] = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.UINT8: 1}


def config_of() -> GenaiConfig:
    config = parse_genai_config((BLOCKS / "genai_config.json").read_bytes(), "large")
    decoder = replace(
        config.decoder, num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS, hidden_size=HIDDEN, head_size=HEAD
    )
    return replace(config, decoder=decoder, vocab_size=VOCABULARY, context_length=CONTEXT)


def graph_of() -> onnx.ModelProto:
    """All weights are in one data file, one behind the other."""
    model = repeated(onnx.load(BLOCKS / "model.onnx", load_external_data=False), 2, LAYERS)
    dims = {
        "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
        "cos_cache": [CONTEXT, HEAD // 2],
        "sin_cache": [CONTEXT, HEAD // 2],
    }
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            set_attributes(node, num_heads=HEADS, kv_num_heads=KV_HEADS)
        if node.op_type == "MatMulNBits":
            inner, outer = (SIZES.get(attribute(node, name), KV_HEADS * HEAD) for name in ("K", "N"))
            inner = HEADS * HEAD if "o_proj" in node.name else inner
            outer = HEADS * HEAD if "q_proj" in node.name else outer
            set_attributes(node, K=inner, N=outer)
            blocks = inner // attribute(node, "block_size")
            dims |= dict(
                zip(node.input[1:], ([outer, blocks, 64], [outer, blocks], [outer, -(-blocks // 2)]), strict=True)
            )
    at = 0
    for tensor in model.graph.initializer:
        tensor.dims[:] = dims.get(tensor.name, [HIDDEN])
        length = BYTES[tensor.data_type]
        for size in tensor.dims:
            length *= size
        place = {"location": "model.onnx.data", "offset": at, "length": length}
        del tensor.external_data[:]
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        at = -(-(at + length) // 4096) * 4096
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_value:
                dimension.dim_value = VOCABULARY if value.name == "logits" else KV_HEADS
    return model


def attribute(node: onnx.NodeProto, name: str) -> int:
    return next(each.i for each in node.attribute if each.name == name)


def set_attributes(node: onnx.NodeProto, **values: int) -> None:
    for each in node.attribute:
        each.i = values.get(each.name, each.i)
