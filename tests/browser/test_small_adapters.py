"""Adapters that bind less than a weight has: it is read in parts, from tapes, and the ids are native's.

The largest weight is a number of the test's, since a fixture's weights are small; the last tests have a device with
WebGPU's least limits, and a table that is larger than those.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.onnx_pb2 import AttributeProto, ModelProto
from tests import oracle
from tests.browser.least_limits import LEAST
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 300, 7, 511, 128, 127]
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.MatMul.weight"


def limited(scripts: PageScripts, name: str, largest: int | None, **given: Any) -> dict[str, Any]:
    call = {"model": name, "prompt": PROMPT, "count": 8, "times": 1, "limits": {}, "largest": largest, **given}
    found: dict[str, Any] = scripts.run("adapters", "limited", name, **call)
    return found


@pytest.mark.parametrize(
    ("name", "largest", "parts", "recorded"),
    [
        ("nano-blocks", 16384, {TABLE: 8, f"{HEAD}_Q4": 2}, 10 + 7 + 7),
        ("nano-float", 32768, {TABLE: 4, HEAD: 4}, 6 + 3 + 3),
        pytest.param("nano-mixed", 16384, {TABLE: 8, f"{HEAD}_Q8G32": 2}, 24, marks=pytest.mark.extended),
    ],
)
def test_models_in_parts_pick_the_ids_of_native_from_tapes(
    name: str, largest: int, parts: dict[str, int], recorded: int, scripts: PageScripts
) -> None:
    """Recorded are the lookups in the parts of the table and in those of ids, a comparison and a choice for each part
    but the first."""
    found = limited(scripts, name, largest)
    assert found["ids"] == [oracle.greedy(FIXTURES / name, PROMPT, 8)]
    assert found["split"] == [[weight, number, ""] for weight, number in parts.items()]
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert found["passes"]["fused"].endswith(f" {recorded} of them as recorded")


LARGE = 528384
"""Rows of a table that is larger than 128 MiB."""


def large_table(folder: Path) -> None:
    """Give a copy of nano-float a table with more rows than there are tokens."""
    path, data = folder / "model.onnx", folder / "model.onnx.data"
    model = ModelProto()
    model.CopyFrom(graph.parse(path.read_bytes()))
    [table] = [tensor for tensor in model.graph.initializer if tensor.name == TABLE]
    size, end = table.dims[1], data.stat().st_size
    table.dims[0] = LARGE
    del table.external_data[:]
    for key, value in {"location": data.name, "offset": end, "length": 4 * LARGE * size}.items():
        table.external_data.add(key=key, value=str(value))
    path.write_bytes(graph.serialize(model))
    with data.open("ab") as file:
        np.random.default_rng(3).standard_normal((LARGE, size), np.float32).tofile(file)


def large_vocabulary(folder: Path) -> None:
    """The same with as many tokens, and the output projection by the transposed table."""
    large_table(folder)
    path, config = folder / "model.onnx", folder / "genai_config.json"
    model = ModelProto()
    model.CopyFrom(graph.parse(path.read_bytes()))
    [head] = [node for node in model.graph.node if "logits" in node.output]
    place = list(model.graph.node).index(head)
    model.graph.node.insert(place, type(head)(op_type="Transpose", name="/turn", input=[TABLE], output=["turned"]))
    model.graph.node[place].attribute.add(name="perm", type=AttributeProto.INTS, ints=[1, 0])
    head.input[1] = "turned"
    for value in model.graph.output:
        if value.name == "logits":
            value.type.tensor_type.shape.dim[2].dim_value = LARGE
    path.write_bytes(graph.serialize(model))
    tree = json.loads(config.read_text())
    tree["model"]["vocab_size"] = LARGE
    config.write_text(json.dumps(tree))


WIDE = [5, LARGE - 1, 300, LARGE // 2, LARGE // 2 - 1, 400_000]


@pytest.mark.parametrize(
    ("change", "prompt", "parts"),
    [
        (large_table, PROMPT, {TABLE: 2}),
        pytest.param(large_vocabulary, WIDE, {TABLE: 2, f"{TABLE}_turned": 2}, marks=pytest.mark.extended),
    ],
)
def test_weights_larger_than_128_mib_run_on_a_device_with_the_least_limits(
    change: Callable[[Path], None], prompt: list[int], parts: dict[str, int], scripts: PageScripts, variants: Variants
) -> None:
    """Its browser refuses a larger binding, a ninth storage buffer and more workgroup memory."""
    folder = variants.folder(change.__name__, FIXTURES / "nano-float")
    change(folder)
    found = limited(scripts, folder.name, None, limits=LEAST, prompt=prompt)
    assert found["ids"] == [oracle.greedy(folder, prompt, 8)]
    assert found["split"] == [[name, number, ""] for name, number in parts.items()]
    assert found["healthy"]
