"""Norms in primitive operations become one node each where they are what they look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto
from tests.unit.graph_runs import outputs

OPTIMUM = Path(__file__).parents[1] / "fixtures" / "repositories" / "nano-optimum" / "onnx" / "model.onnx"
WIDTH = 24


class Norm:
    """y = norm(x) by nodes that a test may change before they are put together."""

    def __init__(self, half: bool = False) -> None:
        self.power, self.epsilon, self.axis, self.numerator = 2.0, 1e-3, -1, 1.0
        self.inverse = "Div"
        self.squared = "x"
        self.half = half

    def model(self) -> ModelProto:
        kind = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        dtype = np.float16 if self.half else np.float32
        nodes = [helper.make_node("Cast", ["in"], ["x"], to=TensorProto.FLOAT)]
        nodes += [helper.make_node("Neg", ["x"], ["other"]), helper.make_node("Pow", [self.squared, "power"], ["p"])]
        nodes += [helper.make_node("ReduceMean", ["p"], ["mean"], axes=[self.axis])]
        nodes += [helper.make_node("Add", ["mean", "epsilon"], ["sum"]), helper.make_node("Sqrt", ["sum"], ["root"])]
        if self.inverse == "direct":
            nodes += [helper.make_node("Div", ["x", "root"], ["normed"])]
        else:
            one = ["root"] if self.inverse == "Reciprocal" else ["numerator", "root"]
            nodes += [helper.make_node(self.inverse, one, ["i"]), helper.make_node("Mul", ["x", "i"], ["normed"])]
        nodes += [helper.make_node("Cast", ["normed"], ["cast"], to=kind)]
        nodes += [helper.make_node("Mul", ["weight", "cast"], ["y"])]
        constants = {"power": self.power, "epsilon": self.epsilon, "numerator": self.numerator}
        made = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()]
        weight = (np.arange(WIDTH) / 8).astype(dtype)
        made += [numpy_helper.from_array(weight, "weight")]
        x, y = (helper.make_tensor_value_info(name, kind, ["n", WIDTH]) for name in ("in", "y"))
        whole = helper.make_model(
            helper.make_graph(nodes, "norm", [x], [y], made), opset_imports=[helper.make_opsetid("", 14)], ir_version=8
        )
        return graph.parse(whole.SerializeToString())


def computed(model: ModelProto, half: bool = False) -> np.ndarray[Any, np.dtype[Any]]:
    x = np.random.default_rng(3).normal(size=(5, WIDTH)).astype(np.float16 if half else np.float32)
    found: np.ndarray[Any, np.dtype[Any]] = outputs(model, {"in": x}, as_it_is=True)[0]
    return found


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("inverse", ["Div", "Reciprocal", "direct"])
def test_a_norm_is_one_node_that_computes_the_same(inverse: str) -> None:
    norm = Norm()
    norm.inverse = inverse
    one = graph.simplified_norms(norm.model())
    assert kinds(one)[-1] == "SimplifiedLayerNormalization"
    assert set(kinds(one)) == {"Cast", "SimplifiedLayerNormalization"}
    np.testing.assert_allclose(computed(one), computed(norm.model()), atol=1e-6)


def test_in_float16_it_takes_the_float16_values() -> None:
    norm = Norm(half=True)
    one = graph.simplified_norms(norm.model())
    assert kinds(one) == ["SimplifiedLayerNormalization"]
    assert list(one.graph.node[0].input) == ["in", "weight"]


OTHERS: dict[str, Callable[[Norm], None]] = {
    "cubes": lambda norm: setattr(norm, "power", 3.0),
    "first axis": lambda norm: setattr(norm, "axis", 0),
    "two": lambda norm: setattr(norm, "numerator", 2.0),
    "of another tensor": lambda norm: setattr(norm, "squared", "other"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_none_stays(what: str) -> None:
    norm = Norm()
    OTHERS[what](norm)
    assert "SimplifiedLayerNormalization" not in kinds(graph.simplified_norms(norm.model()))


def test_all_norms_of_an_optimum_export_are_found() -> None:
    model = graph.simplified_norms(graph.parse(OPTIMUM.read_bytes()))
    assert kinds(model).count("SimplifiedLayerNormalization") == 5
    assert {"Pow", "ReduceMean", "Sqrt"}.isdisjoint(kinds(model))
    assert {round(node.attribute[2].f, 8) for node in model.graph.node if "Simplified" in node.op_type} == {1e-5}
