"""Simplifies the positions of a decoder of text. Each position is one number, which follows from the lengths.

If a GroupQueryAttention's query and key are rotated at the positions that Capstan feeds, it rotates them itself
instead, at the positions that follow from its lengths, which are the same. Decoders of vision-language models have
positions with three axes. In text the three are equal, and MRotaryEmbedding computes the same as RotaryEmbedding.
"""

from __future__ import annotations

from ..errors import UnsupportedModelError
from .long_rope import MROPE
from .node_writer import set_attribute, take_attribute
from .onnx_pb2 import GraphProto, ModelProto, NodeProto
from .wiring import Wiring, attribute, copy_of

__all__ = ["text_positions"]

PLAIN = "RotaryEmbedding"
X, POSITIONS, COS, SIN = range(4)
"""Inputs of MRotaryEmbedding."""
ATTENTION_COS, ATTENTION_SIN = 7, 8
"""Inputs of GroupQueryAttention."""
AXES, ONE_AXIS = 3, 2
"""The number of axes of positions in vision-language models, and the dimensions (batch and tokens) of positions with
one axis.
"""
MULTIPLE = 8
"""The CPU provider's attention needs rotary tables whose column count is a multiple of this."""


def text_positions(model: ModelProto, position_ids: str) -> ModelProto:
    """The model with positions of one axis, [batch, tokens], or without positions if no node needs them; a model
    without positions is returned unchanged.

    Raises UnsupportedModelError, with the node, if anything but rotary embedding reads positions of three axes.
    """
    given = next((value for value in model.graph.input if value.name == position_ids), None)
    dims = [] if given is None else list(given.type.tensor_type.shape.dim)
    several = len(dims) == AXES and dims[0].dim_value == AXES
    if not several and len(dims) != ONE_AXIS:
        return model
    result = copy_of(model)
    wiring = Wiring(result.graph)
    for node in wiring.consumers.get(position_ids, []) if several else []:
        if node.op_type != MROPE or list(node.input).index(position_ids) != POSITIONS:
            raise UnsupportedModelError(
                f"node {node.name or node.output[0]} ({node.op_type}) reads {position_ids}, positions of {AXES} axes, "
                f"which Capstan feeds only to {MROPE}; export the decoder with onnxruntime-genai's model builder"
            )
    for attention in [node for node in result.graph.node if node.op_type == "GroupQueryAttention"]:
        rotate_inside(result, wiring, attention, position_ids)
    for node in [node for node in result.graph.node if node.op_type == MROPE]:
        become_plain(node)
    place = next(i for i, value in enumerate(result.graph.input) if value.name == position_ids)
    if several:
        del result.graph.input[place].type.tensor_type.shape.dim[0]
    if not any(position_ids in node.input for node in result.graph.node):
        del result.graph.input[place]
    return result


def rotate_inside(model: ModelProto, wiring: Wiring, attention: NodeProto, position_ids: str) -> None:
    """Let an attention rotate q and k in place of two nodes before it, if it is their only reader and they rotate in
    the same way.
    """
    found = [wiring.producer.get(name) for name in attention.input[:2]]
    query, key = found if len(found) == 2 else (None, None)
    if query is None or key is None or query is key or attribute(attention, "do_rotary", 0):
        return
    if any(node.op_type not in (MROPE, PLAIN) or len(wiring.consumers[node.output[0]]) > 1 for node in (query, key)):
        return
    if any(node.input[POSITIONS] != position_ids or scaled(node) for node in (query, key)):
        return
    if list(query.input[POSITIONS:]) != list(key.input[POSITIONS:]) or not whole_table(model.graph, wiring, query):
        return
    if attribute(query, "interleaved", 0) != attribute(key, "interleaved", 0):
        return
    attention.input[0], attention.input[1] = query.input[X], key.input[X]
    while len(attention.input) <= ATTENTION_SIN:
        attention.input.append("")
    attention.input[ATTENTION_COS], attention.input[ATTENTION_SIN] = query.input[COS], query.input[SIN]
    set_attribute(attention, "do_rotary", 1)
    set_attribute(attention, "rotary_interleaved", attribute(query, "interleaved", 0))
    for node in (query, key):
        model.graph.node.remove(node)


def scaled(node: NodeProto) -> bool:
    return any(item.name == "scale" and item.f != 1.0 for item in node.attribute)


def whole_table(graph: GraphProto, wiring: Wiring, node: NodeProto) -> bool:
    """Whether the node rotates twice as many elements of each head as its tables have columns."""
    table = wiring.constants.get(node.input[COS])
    given = next((value for value in graph.input if value.name == node.input[COS]), None)
    dims = [] if given is None else [each.dim_value for each in given.type.tensor_type.shape.dim]
    dims = dims if table is None else list(table.dims)
    turned = attribute(node, "rotary_embedding_dim", 0)
    return len(dims) == 2 and dims[1] > 0 and not dims[1] % MULTIPLE and turned in (0, 2 * dims[1])


def become_plain(node: NodeProto) -> None:
    """Make a node one that takes positions of one axis."""
    node.op_type = PLAIN
    take_attribute(node, "mrope_section", "mrope_layout")
