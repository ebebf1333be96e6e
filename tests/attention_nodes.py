"""GroupQueryAttention models of one node, and a plain float64 definition of every attribute and input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.attention import attended, rms_norm, rotated

__all__ = ["HEAD_SIZE", "AttentionNode"]

HEADS, KV_HEADS, HEAD_SIZE, CAPACITY = 4, 2, 16, 64
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class AttentionNode:
    """One run of `queries` positions after `past` others, over caches [1, kv heads, CAPACITY, head size].

    `attributes` are the node's but for the numbers of heads; `inputs` names optional inputs that are given: cos_cache,
    position_ids, attention_bias, head_sink, q_norm_weight.
    """

    queries: int
    past: int
    attributes: dict[str, float | int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    head_size: int = HEAD_SIZE

    @property
    def total(self) -> int:
        return self.past + self.queries

    def tensors(self) -> dict[str, Array]:
        """All that a node may be given, by name; the scores are large enough that each attribute changes much."""
        random = np.random.default_rng(7)

        def normal(*shape: int, scale: float = 1.0) -> Array:
            return (scale * random.standard_normal(shape)).astype(np.float32)

        angles = np.outer(np.arange(2 * CAPACITY), 10.0 ** -np.linspace(0, 2, self.head_size // 2))
        # As if the sequence had begun later: positions that the kernel cannot make up by itself.
        positions = np.arange(self.past, self.total) + 9
        return {
            "query": normal(1, self.queries, HEADS * self.head_size, scale=2),
            "key": normal(1, self.queries, KV_HEADS * self.head_size, scale=2),
            "value": normal(1, self.queries, KV_HEADS * self.head_size),
            "past_key": normal(1, KV_HEADS, CAPACITY, self.head_size, scale=2),
            "past_value": normal(1, KV_HEADS, CAPACITY, self.head_size),
            "seqlens_k": np.array([self.total - 1], np.int32),
            "total_sequence_length": np.array([self.total], np.int32),
            "cos_cache": np.cos(angles).astype(np.float32),
            "sin_cache": np.sin(angles).astype(np.float32),
            "position_ids": positions[None].astype(np.int64),
            "attention_bias": normal(1, HEADS, self.queries, self.total, scale=3),
            "head_sink": normal(HEADS, scale=3),
            "q_norm_weight": 1 + normal(self.head_size, scale=0.3),
            "k_norm_weight": 1 + normal(self.head_size, scale=0.3),
        }

    def names(self) -> list[str]:
        """The node's inputs in their order, "" for those that are not given."""
        given = {*self.inputs}
        if "cos_cache" in given:
            given.add("sin_cache")
        if "q_norm_weight" in given:
            given.add("k_norm_weight")
        always = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
        optional = ["cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"]
        optional += ["q_norm_weight", "k_norm_weight"]
        names = [*always, *(name if name in given else "" for name in optional)]
        while not names[-1]:
            names.pop()
        return names

    def model(self) -> bytes:
        """The serialized model; all inputs but query, key and value are constants."""
        tensors, names = self.tensors(), self.names()
        attributes: dict[str, Any] = dict(self.attributes)
        outputs = ["output", "present_key", "present_value"]
        node = helper.make_node(
            "GroupQueryAttention",
            names,
            outputs,
            name="attention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            **attributes,
        )
        fed = ["query", "key", "value"]
        graph = helper.make_graph(
            [node],
            "attention",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(tensors[name].shape)) for name in fed],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(tensors[name], name) for name in names if name and name not in fed],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        return serialized

    def expected(self) -> Array:
        """The output [1, queries, HEADS * self.head_size], in float64."""
        tensors = {name: array.astype(np.float64) for name, array in self.tensors().items()}
        query = tensors["query"].reshape(self.queries, HEADS, self.head_size)
        key = tensors["key"].reshape(self.queries, KV_HEADS, self.head_size)
        value = tensors["value"].reshape(self.queries, KV_HEADS, self.head_size)
        if "q_norm_weight" in self.inputs:
            epsilon = self.attributes.get("qk_norm_epsilon", 1e-6)
            query = rms_norm(query, tensors["q_norm_weight"], epsilon)
            key = rms_norm(key, tensors["k_norm_weight"], epsilon)
        if self.attributes.get("do_rotary"):
            positions = np.arange(self.past, self.total)
            if "position_ids" in self.inputs:
                positions = tensors["position_ids"][0].astype(np.int64)
            cos, sin = tensors["cos_cache"][positions, None], tensors["sin_cache"][positions, None]
            interleaved = bool(self.attributes.get("rotary_interleaved"))
            query, key = (rotated(part, cos, sin, interleaved) for part in (query, key))
        keys, values = (
            np.concatenate([tensors[name][0, :, : self.past], new.transpose(1, 0, 2)], axis=1)
            for name, new in (("past_key", key), ("past_value", value))
        )
        at, seen = np.arange(self.past, self.total)[:, None], np.arange(self.total)[None]
        hidden = np.zeros((self.queries, self.total), bool)
        if self.attributes.get("causal", 1):
            hidden |= seen > at
        window = self.attributes.get("local_window_size", -1)
        if window > 0:
            hidden |= seen <= at - window
        sinks = None
        if "head_sink" in self.inputs:
            sinks = tensors["head_sink"]
        elif self.attributes.get("smooth_softmax"):
            sinks = np.zeros(HEADS)
        result, _ = attended(
            query,
            keys,
            values,
            self.attributes.get("scale") or self.head_size**-0.5,
            seen=~hidden,
            softcap=self.attributes.get("softcap", 0.0),
            bias=tensors["attention_bias"][0] if "attention_bias" in self.inputs else None,
            sinks=sinks,
        )
        return result.reshape(1, self.queries, HEADS * self.head_size)
