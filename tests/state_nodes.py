"""Models of one node with a state, and plain float64 definitions of what they compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

__all__ = ["ConvolutionNode", "RecurrentNode", "StateNode"]

Array = np.ndarray[Any, np.dtype[Any]]
CHANNELS, TAPS = 24, 4
QUERY_HEADS, HEADS, KEY_SIZE, VALUE_SIZE = 2, 4, 16, 16


@dataclass(frozen=True)
class StateNode:
    """A node over `tokens` tokens behind a state; its first output is "output", its second the new state "present"."""

    tokens: int
    attributes: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Array]:
        """By the names of its inputs."""
        raise NotImplementedError

    def node(self) -> tuple[str, dict[str, Any]]:
        """Its operator, and the attributes common to all such nodes."""
        raise NotImplementedError

    def expected(self) -> dict[str, Array]:
        """Its two outputs."""
        raise NotImplementedError

    def model(self, output: str) -> bytes:
        """The serialized model, whose only output is one of the node's, by the name "output"."""
        tensors = self.tensors()
        operator, attributes = self.node()
        outputs = ["output", "present"] if output == "output" else ["result", "output"]
        node = helper.make_node(
            operator, list(tensors), outputs, name="node", domain="com.microsoft", **attributes, **self.attributes
        )
        fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in tensors.items()]
        made = [helper.make_tensor_value_info("output", TensorProto.FLOAT, self.expected()[output].shape)]
        serialized: bytes = helper.make_model(
            helper.make_graph([node], "state", fed, made),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        ).SerializeToString()
        return serialized

    def normal(self, *shape: int) -> Array:
        random = np.random.default_rng([self.tokens, *shape])
        return random.standard_normal(shape).astype(np.float32)


class ConvolutionNode(StateNode):
    """CausalConvWithState: each channel by itself, over the last TAPS positions, SiLU behind it."""

    def node(self) -> tuple[str, dict[str, Any]]:
        return "CausalConvWithState", {"ndim": 1, "activation": "silu"}

    def tensors(self) -> dict[str, Array]:
        return {
            "x": self.normal(1, CHANNELS, self.tokens),
            "weight": self.normal(CHANNELS, 1, TAPS),
            "bias": self.normal(CHANNELS),
            "past": self.normal(1, CHANNELS, TAPS - 1),
        }

    def expected(self) -> dict[str, Array]:
        given = {name: value.astype(float) for name, value in self.tensors().items()}
        seen = np.concatenate([given["past"], given["x"]], axis=2)
        windows = np.lib.stride_tricks.sliding_window_view(seen, TAPS, axis=2)
        result = (windows * given["weight"][:, 0][None, :, None]).sum(axis=3) + given["bias"][None, :, None]
        return {"output": result / (1 + np.exp(-result)), "present": seen[:, :, -(TAPS - 1) :]}


class RecurrentNode(StateNode):
    """LinearAttention with the gated delta rule: S = exp(g) S, then S += k (beta (v - S k)), the result S q."""

    def node(self) -> tuple[str, dict[str, Any]]:
        sizes = {"q_num_heads": QUERY_HEADS, "kv_num_heads": HEADS}
        return "LinearAttention", {"update_rule": "gated_delta", "scale": 1.0, **sizes}

    def tensors(self) -> dict[str, Array]:
        keys = self.normal(1, self.tokens, QUERY_HEADS * KEY_SIZE + 1)[..., 1:]
        return {
            "query": self.normal(1, self.tokens, QUERY_HEADS * KEY_SIZE),
            "key": np.ascontiguousarray(keys) / 4,
            "value": self.normal(1, self.tokens, HEADS * VALUE_SIZE),
            "past": self.normal(1, HEADS, KEY_SIZE, VALUE_SIZE),
            "decay": -np.abs(self.normal(1, self.tokens, HEADS)),
            "beta": (1 / (1 + np.exp(-self.normal(1, self.tokens, HEADS)))).astype(np.float32),
        }

    def expected(self) -> dict[str, Array]:
        given = {name: value[0].astype(float) for name, value in self.tensors().items()}
        state = given["past"].copy()
        query, key = (given[name].reshape(self.tokens, QUERY_HEADS, KEY_SIZE) for name in ("query", "key"))
        value = given["value"].reshape(self.tokens, HEADS, VALUE_SIZE)
        result = np.zeros((self.tokens, HEADS, VALUE_SIZE))
        for token in range(self.tokens):
            for head in range(HEADS):
                of = head * QUERY_HEADS // HEADS
                state[head] *= np.exp(given["decay"][token, head])
                missing = value[token, head] - key[token, of] @ state[head]
                state[head] += np.outer(key[token, of], given["beta"][token, head] * missing)
                result[token, head] = query[token, of] @ state[head]
        return {"output": result.reshape(1, self.tokens, -1), "present": state[None]}
