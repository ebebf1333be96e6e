"""Mixture-of-experts models of one QMoE node, and a plain float64 definition of what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["ExpertNode"]

EXPERTS, CHOSEN = 4, 2
ALPHA, LIMIT = 1.702, 7.0
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ExpertNode:
    """`rows` tokens through 4 experts of int4 weights, 2 for each token, with the gate of gpt-oss."""

    rows: int
    activation: str = "swiglu"
    extra: str = ""
    """A further input: zero_points, fc3 or router_weights."""
    width: int = 64
    inner: int = 32
    block: int = 32

    def tensors(self) -> dict[str, Array]:
        random = np.random.default_rng(self.rows)

        def weights(rows: int, columns: int) -> Array:
            return random.integers(0, 256, (EXPERTS, rows, columns // 2), dtype=np.uint8)

        def normal(*shape: int, scale: float = 1.0) -> Array:
            return (scale * random.standard_normal(shape)).astype(np.float32)

        blocks = [-(-row // self.block) for row in (self.width, self.inner)]
        wide = 2 * self.inner if self.activation in ("swiglu", "geglu") else self.inner
        tensors = {
            "x": normal(self.rows, self.width),
            "router": normal(self.rows, EXPERTS),
            "fc1": weights(wide, self.width),
            "scales1": np.abs(normal(EXPERTS, wide, blocks[0], scale=0.05)),
            "bias1": normal(EXPERTS, wide),
            "fc2": weights(self.width, self.inner),
            "scales2": np.abs(normal(EXPERTS, self.width, blocks[1], scale=0.05)),
            "bias2": normal(EXPERTS, self.width),
        }
        further = {
            "zero_points": {
                "zeros1": np.full((EXPERTS, wide, 1), 0x88, np.uint8),
                "zeros2": np.full((EXPERTS, self.width, 1), 0x88, np.uint8),
            },
            "fc3": {"fc3": weights(self.inner, self.width), "scales3": normal(EXPERTS, self.inner, blocks[0])},
            "router_weights": {"router_weights": normal(self.rows, EXPERTS)},
        }
        return tensors | further.get(self.extra, {})

    def model(self) -> bytes:
        """The serialized model; all inputs but x and router are constants."""
        tensors = self.tensors()
        places = ["x", "router", "fc1", "scales1", "bias1", "fc2", "scales2", "bias2"]
        places += ["fc3", "scales3", "", "zeros1", "zeros2", "", "router_weights"]
        names = [name if name in tensors else "" for name in places]
        while not names[-1]:
            names.pop()
        node = helper.make_node(
            "QMoE",
            names,
            ["output"],
            name="experts",
            domain="com.microsoft",
            k=CHOSEN,
            activation_type=self.activation,
            activation_alpha=ALPHA,
            activation_beta=1.0,
            swiglu_limit=LIMIT,
            swiglu_fusion=1,
            normalize_routing_weights=1,
            expert_weight_bits=4,
            block_size=self.block,
        )
        fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, tensors[name].shape) for name in ("x", "router")]
        made = [helper.make_tensor_value_info("output", TensorProto.FLOAT, (self.rows, self.width))]
        constants = [numpy_helper.from_array(value, name) for name, value in tensors.items() if name in names[2:]]
        serialized: bytes = helper.make_model(
            helper.make_graph([node], "experts", fed, made, constants),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        ).SerializeToString()
        return serialized

    def expected(self) -> Array:
        """The right output of the node: [rows, self.width]."""
        tensors = self.tensors()
        first = dequantized(tensors["fc1"], tensors["scales1"], self.block)
        second = dequantized(tensors["fc2"], tensors["scales2"], self.block)
        result = np.zeros((self.rows, self.width))
        for row, (x, scores) in enumerate(
            zip(tensors["x"].astype(float), tensors["router"].astype(float), strict=True)
        ):
            chosen = np.argsort(-scores)[:CHOSEN]
            shares = np.exp(scores[chosen] - scores[chosen].max())
            for expert, share in zip(chosen, shares / shares.sum(), strict=True):
                both = first[expert] @ x + tensors["bias1"][expert]
                gate, up = np.minimum(both[0::2], LIMIT), np.clip(both[1::2], -LIMIT, LIMIT)
                inner = gate / (1 + np.exp(-ALPHA * gate)) * (up + 1)
                result[row] += share * (second[expert] @ inner + tensors["bias2"][expert])
        return result


def dequantized(packed: Array, scales: Array, block: int) -> Array:
    """[experts, rows, columns] of int4 around 8, low halves of bytes first, with a scale for each block of a row."""
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(float) - 8
    result: Array = values * np.repeat(scales.astype(float), block, axis=2)[:, :, : values.shape[2]]
    return result
