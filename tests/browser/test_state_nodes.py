"""onnxruntime-web's nodes with a state, on both devices, against float64 definitions: the facts behind states, and the
rows for them of capstan.graph.uncomputed.RULES."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.uncomputed import uncomputed
from tests.browser.page_scripts import PageScripts
from tests.state_nodes import ConvolutionNode, RecurrentNode, StateNode

KINDS = (ConvolutionNode, RecurrentNode)
OUTPUTS = ("output", "present")


def computed(scripts: PageScripts, device: str, nodes: Mapping[str, tuple[StateNode, str]]) -> dict[str, Any]:
    """The outputs of nodes, or their errors."""
    given = {}
    for name, (node, output) in nodes.items():
        feeds = {key: [b64encode(value.tobytes()).decode(), list(value.shape)] for key, value in node.tensors().items()}
        given[name] = [b64encode(node.model(output)).decode(), feeds]
    found: dict[str, Any] = scripts.run("attention_nodes", "outputs", nodes=given, device=device)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_a_state_and_what_comes_of_it_are_computed(device: str, scripts: PageScripts) -> None:
    nodes = {
        f"{kind.__name__} {tokens} {output}": (kind(tokens), output)
        for kind in KINDS
        for tokens in (1, 2, 7, 70)
        for output in OUTPUTS
    }
    found = computed(scripts, device, nodes)
    for name, (node, output) in nodes.items():
        assert not isinstance(found[name], str), f"{name}: {found[name]}"
        wanted = node.expected()[output].ravel()
        np.testing.assert_allclose(found[name], wanted, atol=1e-5 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_states_after_each_of_the_last_positions_are_refused(device: str, scripts: PageScripts) -> None:
    nodes = {kind.__name__: (kind(1, {"state_window": 2}), "output") for kind in KINDS}
    for operator in ("CausalConvWithState", "LinearAttention"):
        scripts.expect(operator)
    found = computed(scripts, device, nodes)
    for name, (node, output) in nodes.items():
        assert isinstance(found[name], str), name
        [told] = uncomputed(graph.parse(node.model(output)), device, "")
        assert told.asked == "state_window=2"
