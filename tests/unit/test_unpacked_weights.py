"""The weights of GGUF files as the CPU of a page gets them: the page's code beside the definition, and the graphs over
them."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan.graph import Part, Unpack, UnpackedWeight, external_entries, unpacked_weights
from capstan.graph.float_experts import float_experts
from capstan.graph.gguf.gguf_types import DENSE
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_models import FURTHER, MIXED, make
from tests.gguf_tensors import float32_of, random_tensor
from tests.node import started

ROWS, COLUMNS = 24, 768
PACKED = {"MatMulNBits", "GatherBlockQuantized", "ReduceSum"}


@pytest.fixture(scope="module")
def node() -> subprocess.Popen[str]:
    return started(Path(__file__).with_name("unpacked_weights_server.mjs"))


def made_by_page(node: subprocess.Popen[str], weight: UnpackedWeight, data: bytes) -> bytes:
    assert node.stdin
    assert node.stdout
    begin = min(part.offset for part in weight.parts)
    end = max(part.offset + part.length for part in weight.parts)
    weight = replace(weight, parts=tuple(replace(part, offset=part.offset - begin) for part in weight.parts))
    told = {"weight": weight.as_json(), "data": b64encode(data[begin:end]).decode()}
    node.stdin.write(json.dumps(told) + "\n")
    node.stdin.flush()
    return b64decode(node.stdout.readline())


def values(node: subprocess.Popen[str], kind: GgmlType, data: bytes, bits: int = 32, halves: int = 0) -> Any:
    """[rows, columns] as the page makes them."""
    how = Unpack(kind, "values", ROWS, COLUMNS, bits, halves=halves)
    part = Part(3, len(data), how)
    made = made_by_page(node, UnpackedWeight("made", part.made, "file", (part,)), b"odd" + data)
    return np.frombuffer(made, np.float32 if bits == 32 else np.float16).reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
def test_values_are_those_of_the_file(kind: GgmlType, node: subprocess.Popen[str]) -> None:
    data = random_tensor(kind, ROWS, COLUMNS, seed=kind)
    wanted = float32_of(kind, data, ROWS)
    assert np.array_equal(values(node, kind, data).view(np.uint32), wanted.view(np.uint32))
    with np.errstate(over="ignore"):
        assert np.array_equal(values(node, kind, data, bits=16), wanted.astype(np.float16))
    turned = values(node, kind, data, halves=8).reshape(3, 2, 4, COLUMNS)
    assert np.array_equal(turned, wanted.reshape(3, 4, 2, COLUMNS).swapaxes(1, 2))


def test_float16_rounds_to_the_nearest_and_of_two_to_the_even_one(node: subprocess.Popen[str]) -> None:
    near = np.array([65504, 65519.9, 65520, 2**-24, 2**-25, 2.0**-25 * 1.001, 1 + 2**-11, 1 + 3 * 2**-11, 6.1e-5], "f")
    spread = np.ldexp(np.random.default_rng(7).standard_normal(ROWS * COLUMNS - 18), 0).astype("f")
    spread = np.concatenate([near, -near, spread * np.float32(2.0) ** np.arange(len(spread)).__mod__(50).__sub__(30)])
    found = values(node, GgmlType.F32, spread.astype("f").tobytes(), bits=16)
    with np.errstate(over="ignore"):
        assert np.array_equal(found.reshape(-1).view(np.uint16), spread.astype("f").astype(np.float16).view(np.uint16))


TYPES = {
    "mixed": MIXED,
    "tied Q4_1": {"": GgmlType.Q4_1},
    "tied F16": {"": GgmlType.F16},
    "tied F32": {"": GgmlType.F32},
    "Q6_K, its table in Q4_0": {"": GgmlType.Q6_K, "token_embd": GgmlType.Q4_0},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("types", list(TYPES))
@pytest.mark.parametrize("family", list(FURTHER))
def test_each_family_computes_what_its_weights_say(family: str, types: str, node: subprocess.Popen[str]) -> None:
    made = make(family, TYPES[types], FURTHER[family])
    ids = np.array([[5, 60, 17, 80, 33, 2, 90, 11]])
    rewritten, weights = unpacked_weights(float_experts(made.graph())[0])
    kinds = [each.op_type for each in rewritten.graph.node]
    assert not PACKED - {"ReduceSum"} & {*kinds}
    assert kinds.count("ReduceSum") == 1, "that of the mask"
    by_location = {each.location: each for each in weights}
    assert {entry.location for entry in external_entries(rewritten)} == by_location.keys()
    for tensor in rewritten.graph.initializer:
        location = {item.key: item.value for item in tensor.external_data}.get("location")
        if location is not None:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = made_by_page(node, by_location[location], made.data)
    found = ran(rewritten, ids)
    wanted = made.defined(ids[0])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


def ran(model: Any, ids: Any) -> Any:
    """The logits of all positions."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for value in session.get_inputs()[2:]:
        length = [ids.shape[1]] if value.shape[3:] else []
        feeds[value.name] = np.zeros((1, value.shape[1], *length, value.shape[-1]), np.float32)
    return session.run(["logits"], feeds)[0][0]


@pytest.mark.parametrize("kind", [*DENSE, GgmlType.Q4_1, GgmlType.Q8_0], ids=lambda kind: kind.name)
def test_a_table_and_the_product_by_it_are_one_weight(kind: GgmlType) -> None:
    made = make("llama", {"": kind}, {"block_count": 1})
    _, weights = unpacked_weights(made.graph())
    largest = made.tensors["token_embd.weight"].nbytes
    assert [each.bytes for each in weights].count(largest) == 1


@pytest.mark.parametrize("kind", [GgmlType.Q4_1, GgmlType.F16], ids=lambda kind: kind.name)
def test_activations_in_float16_are_widened_for_products_alone(kind: GgmlType) -> None:
    model = make("llama", {"": kind}, {"block_count": 1}).graph("float16")
    rewritten, weights = unpacked_weights(model)
    kinds = [each.op_type for each in rewritten.graph.node]
    assert kinds.count("FusedMatMul") == 6
    assert kinds.count("Cast") > 5
    matrices = [each for each in weights if each.bytes > 4096]
    changes = [part.change for each in matrices for part in each.parts]
    assert all(how is None or (isinstance(how, Unpack) and how.bits == 32) for how in changes)


def test_a_model_of_another_file_stays() -> None:
    model = make("llama", MIXED).graph()
    del model.graph.initializer[:]
    assert unpacked_weights(model) == (model, ())
