"""A model with an input of a new kind: one class is all that feeds it, on WebGPU from a tape and on the CPU."""

from __future__ import annotations

from typing import Any

from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from tests import oracle
from tests.browser.model_variants import LLAMA, Variants, add_node, rename_output
from tests.browser.page_scripts import PageScripts

PROMPT = [5, 6, 7, 8, 9]
COUNT = 12


def with_factor(model: ModelProto) -> None:
    """The same with a float32 [1] that multiplies the logits."""
    rename_output(model, "logits", "logits_before")
    value = model.graph.input.add(name="factor")
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    value.type.tensor_type.shape.dim.add().dim_value = 1
    add_node(model, "Mul", ["logits_before", "factor"], "logits")


def test_an_input_of_a_new_kind_is_fed_on_every_device(variants: Variants, scripts: PageScripts) -> None:
    name = variants.graph("nano-multiplied", with_factor)
    asked: dict[str, Any] = {"model": name, "prompt": PROMPT, "count": COUNT, "values": [1.0, -1.0]}
    plain, turned = scripts.run("feeding", "factors", name, device="webgpu", **asked)
    assert (plain["ids"], plain["capture"]) == (oracle.greedy(LLAMA, PROMPT, COUNT), "tape")
    assert turned["capture"] == "tape"
    assert turned["ids"] != plain["ids"]
    on_cpu = scripts.run("feeding", "factors", name, device="wasm", **asked)
    assert [each["ids"] for each in on_cpu] == [plain["ids"], turned["ids"]]
