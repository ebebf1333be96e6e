"""onnxruntime-web's QMoE on both devices, against a float64 definition: the facts behind one_row_only and the rows for
QMoE of capstan.graph.uncomputed.RULES."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.uncomputed import uncomputed
from tests.browser.page_scripts import PageScripts
from tests.expert_nodes import ExpertNode

MANY = range(60, 72)
REFUSED = {
    "zero_points": ExpertNode(1, extra="zero_points"),
    "router_weights": ExpertNode(1, extra="router_weights"),
    "fc3": ExpertNode(1, extra="fc3"),
    "relu": ExpertNode(1, activation="relu"),
    "geglu": ExpertNode(1, activation="geglu"),
    "one block": ExpertNode(1, inner=128, block=64),
}
SIZES = {
    f"{width} x {inner} in {block}": ExpertNode(1, width=width, inner=inner, block=block)
    for width, inner, block in (
        *((64, 32, 32), (64, 128, 16), (128, 64, 64), (128, 64, 16), (64, 64, 64), (192, 128, 64)),
        *((64, 32, 64), (64, 96, 64), (64, 128, 64), (64, 128, 128)),
    )
}
"""Whole blocks, then blocks that rows do not fill, or one block before several."""
ROUNDED = ("128 x 64 in 64", "192 x 128 in 64")
"""Refused on webgpu for GPUs with subgroups, which round the activations to int8; the software adapter does not."""


def computed(scripts: PageScripts, device: str, nodes: dict[str, ExpertNode]) -> dict[str, Any]:
    """The output of each node, or its error."""
    given = {}
    for name, node in nodes.items():
        tensors = node.tensors()
        feeds = {key: [b64encode(tensors[key].tobytes()).decode(), list(tensors[key].shape)] for key in ("x", "router")}
        given[name] = [b64encode(node.model()).decode(), feeds]
    found: dict[str, Any] = scripts.run("attention_nodes", "outputs", nodes=given, device=device)
    return found


def wrong_rows(result: Any, node: ExpertNode) -> int:
    wanted = node.expected()
    assert not isinstance(result, str), result
    off = np.abs(np.array(result).reshape(wanted.shape) - wanted).max(axis=1)
    return int((off > 1e-4 * np.abs(wanted).max()).sum())


@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_experts_of_one_row_are_computed(device: str, scripts: PageScripts) -> None:
    found = computed(scripts, device, {"one": ExpertNode(1)})
    assert wrong_rows(found["one"], ExpertNode(1)) == 0


def test_experts_of_many_rows_are_computed_on_wasm_and_some_rows_are_lost_on_webgpu(scripts: PageScripts) -> None:
    nodes = {str(rows): ExpertNode(rows) for rows in MANY}
    on_cpu, on_gpu = (computed(scripts, device, nodes) for device in ("wasm", "webgpu"))
    assert [wrong_rows(on_cpu[name], node) for name, node in nodes.items()] == [0] * len(nodes)
    lost = [wrong_rows(on_gpu[name], node) for name, node in nodes.items()]
    assert any(lost), "QMoE computes runs of several tokens now: let prompts have them"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_what_experts_are_not_computed_with_is_in_the_rules(device: str, scripts: PageScripts) -> None:
    scripts.expect("QMoE")
    found = computed(scripts, device, REFUSED)
    for name, node in REFUSED.items():
        told = uncomputed(graph.parse(node.model()), device, "")
        assert bool(told) == isinstance(found[name], str), f"{name}: {told}, {found[name]}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_experts_in_blocks_that_no_rule_forbids_are_computed(device: str, scripts: PageScripts) -> None:
    scripts.expect("QMoE")
    found = computed(scripts, device, SIZES)
    right = {
        name: not isinstance(found[name], str) and not wrong_rows(found[name], node) for name, node in SIZES.items()
    }
    allowed = {name: not uncomputed(graph.parse(node.model()), device, "") for name, node in SIZES.items()}
    rounded = ROUNDED if device == "webgpu" else ()
    assert allowed == right | dict.fromkeys(rounded, False)
    assert 4 < sum(right.values()) < len(SIZES)


def test_a_session_of_any_model_with_experts_steps_down(scripts: PageScripts) -> None:
    model = b64encode(ExpertNode(1).model()).decode()
    refused = scripts.run("attention_nodes", "placed", model=model, providers=["WebGpuExecutionProvider"])
    assert refused == (
        "UncomputedError: node experts (QMoE): onnxruntime-web loses rows of runs of several tokens; "
        "use device='wasm' for it"
    )
    providers = ["WebGpuExecutionProvider", "CPUExecutionProvider"]
    assert scripts.run("attention_nodes", "placed", model=model, providers=providers) == "CPUExecutionProvider"
