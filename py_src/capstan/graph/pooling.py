"""Pools an encoder's hidden states to one vector for each row.

    hidden [B, S, H], capstan_weights [B, 1, S] float32 -> Cast, MatMul -> capstan_pooled [B, 1, H] float32

The weights determine which tokens count: all of a text equally (mean), the first one (cls) or the last one. Every opset
has Cast and MatMul.
"""

from __future__ import annotations

from .last_token import last_token_logits, logits_cut
from .node_writer import new_node
from .onnx_pb2 import GraphProto, ModelProto, TensorProto, ValueInfoProto
from .wiring import copy_of, fresh_name, prune, value_info

__all__ = ["POOLED", "WEIGHTS", "hidden_output", "last_logits", "pooled", "sentence_output"]

WEIGHTS = "capstan_weights"
POOLED = "capstan_pooled"
HIDDEN = ("last_hidden_state", "token_embeddings", "hidden_states", "encoder_hidden_states")
SENTENCE = ("sentence_embedding", "sentence_embeddings", "text_embeds")
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16}


def sentence_output(model: ModelProto) -> str | None:
    """The output that already has one vector for each row, [B, H]; None if no output has it."""
    return next((value.name for value in model.graph.output if value.name in SENTENCE and is_float(value, 2)), None)


def hidden_output(model: ModelProto) -> str | None:
    """The output with the hidden states, [B, S, H]; None if there is none."""
    found = [value.name for value in model.graph.output if is_float(value, 3)]
    return next((name for name in HIDDEN if name in found), found[0] if len(found) == 1 else None)


def is_float(value: ValueInfoProto, rank: int) -> bool:
    """Whether a value is of floats and has `rank` dimensions or an unknown shape."""
    about = value.type.tensor_type
    return about.elem_type in FLOATS and (not about.HasField("shape") or len(about.shape.dim) == rank)


def last_logits(model: ModelProto, logits: str) -> ModelProto:
    """A model whose only output is POOLED: the output `logits` at the last position, in float32."""
    cut, reason = last_token_logits(model)
    return pooled(logits_cut(model) if reason else cut, None, logits)


def pooled(model: ModelProto, hidden: str | None, sentence: str | None = None) -> ModelProto:
    """A model with the one output POOLED: the output `hidden`, weighted by the input WEIGHTS; if `hidden` is None, the
    output `sentence` in float32.
    """
    result = copy_of(model)
    graph = result.graph
    if hidden is None:
        assert sentence is not None
        graph.node.append(new_node("Cast", [sentence], [POOLED], to=TensorProto.FLOAT))
        output = ValueInfoProto()
        output.CopyFrom(next(value for value in graph.output if value.name == sentence))
        output.name, output.type.tensor_type.elem_type = POOLED, TensorProto.FLOAT
    else:
        weigh(graph, hidden)
        output = value_info(POOLED, TensorProto.FLOAT, ("capstan_batch", 1, "capstan_width"))
    del graph.output[:]
    graph.output.append(output)
    prune(graph)
    return result


def weigh(graph: GraphProto, hidden: str) -> None:
    wide = fresh_name(graph, "/capstan/pooling/hidden")
    graph.node.append(new_node("Cast", [hidden], [wide], to=TensorProto.FLOAT))
    graph.node.append(new_node("MatMul", [WEIGHTS, wide], [POOLED]))
    graph.input.append(value_info(WEIGHTS, TensorProto.FLOAT, ("capstan_batch", 1, "capstan_tokens")))
