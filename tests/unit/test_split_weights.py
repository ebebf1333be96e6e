"""Weights in parts of a binding's size: onnxruntime on the CPU computes the same numbers from them as from the whole.

One-node models have every form of a weight; nano models and GGUF files go through the passes as they are loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph import Beside, Narrow, Part, Turn, Unpack, WeightEntry
from capstan.graph.onnx_pb2 import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from capstan.graph.split_weights import SplitWeight, split_weights
from capstan.graph.weight_inputs import DTYPES, made_of
from capstan.graph.weight_ranges import NotInRangesError, columns_of, ranges_of, rows_of, step_of
from capstan.graph.wiring import value_info
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_models import FURTHER, MIXED, make
from tests.unit.graph_runs import NUMPY, operators, outputs
from tests.weight_bytes import bytes_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 300, 7, 511, 128, 127, 0]
"""Ids of every part, at both ends of one."""


class Made:
    """A model of one node under construction, and its data file."""

    def __init__(self, op_type: str, **attributes: int) -> None:
        self.model = ModelProto(ir_version=10)
        self.model.opset_import.add(domain="", version=21)
        self.model.opset_import.add(domain="com.microsoft", version=1)
        domain = "com.microsoft" if op_type in ("MatMulNBits", "GatherBlockQuantized") else ""
        self.node = self.model.graph.node.add(op_type=op_type, name="/node", domain=domain, output=["y"])
        for name, value in attributes.items():
            self.node.attribute.add(name=name, type=AttributeProto.INT, i=value)
        self.data = b""
        self.random = np.random.default_rng(7)

    def input(self, name: str, kind: int, *dims: int | str) -> Made:
        self.model.graph.input.append(value_info(name, kind, dims))
        self.node.input.append(name)
        return self

    def output(self, kind: int, *dims: int | str) -> Made:
        self.model.graph.output.append(value_info("y", kind, dims))
        return self

    def weight(self, name: str, kind: int, *dims: int, change: Any = None, inline: bool = False) -> Made:
        """One more input that is a weight of random bytes; with `change`, rearranged on the way."""
        count = int(np.prod(dims))
        dtype, bits = DTYPES[kind]
        data = self.random.integers(0, 256, count * bits // 8, np.uint8).tobytes()
        if dtype.startswith("float"):
            data = self.random.standard_normal(count).astype(NUMPY[dtype]).tobytes()
        if inline:
            self.model.graph.initializer.add(name=name, data_type=kind, dims=dims, raw_data=data)
        else:
            self.data += bytes(-len(self.data) % 16)
            parts = [Part(len(self.data), len(data), change)]
            self.model.graph.initializer.append(made_of(name, kind, dims, "data", parts))
            self.data += data
        self.node.input.append(name)
        return self

    def run(self, model: ModelProto, feeds: Mapping[str, Any]) -> Any:
        return outputs(model, feeds, self.data)[0]


def sizes(model: ModelProto) -> list[int]:
    return [entry.length for entry in graph.external_entries(model)]


FLOAT, HALF, INT64, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.UINT8


def table(kind: int = FLOAT, rows: int = 512, change: Any = None) -> Made:
    made = Made("Gather").weight("table", kind, rows, 24, change=change)
    return made.input("ids", INT64, "batch", "positions").output(kind, "batch", "positions", 24)


def blocks(zeros: bool, bits: int = 4) -> Made:
    """A table in blocks of 16."""
    made = Made("GatherBlockQuantized", bits=bits, block_size=16, gather_axis=0, quantize_axis=1)
    made.weight("table", UINT8, 512, 64 * bits // 8).input("ids", INT64, "batch", "positions")
    made.weight("scales", FLOAT, 512, 4)
    if zeros:
        made.weight("zeros", UINT8, 512, 4 * bits // 8)
    return made.output(FLOAT, "batch", "positions", 64)


def product(
    *, zeros: bool = False, bias: bool = False, bits: int = 4, flat: bool = False, inline: bool = False
) -> Made:
    """A product by 512 rows of 64 in blocks of 16; `flat` scales are a vector, `inline` zero points in the graph."""
    made = Made("MatMulNBits", N=512, K=64, bits=bits, block_size=16).input("x", FLOAT, 1, "positions", 64)
    made.weight("w", UINT8, 512, 4, 2 * bits)
    made.weight("scales", FLOAT, *([2048] if flat else [512, 4]))
    if zeros or bias:
        made.weight("zeros", UINT8, 512, bits // 2, inline=inline)
    if bias:
        made.node.input.append("")
        made.weight("bias", FLOAT, 512)
    return made.output(FLOAT, 1, "positions", 512)


def dense(change: Any = None, columns: int = 512) -> Made:
    made = Made("MatMul").input("x", FLOAT, 1, "positions", 48).weight("w", FLOAT, 48, columns, change=change)
    return made.output(FLOAT, 1, "positions", columns)


def affine(*dims: int, bias: bool = False, **attributes: int) -> Made:
    made = Made("Gemm", **attributes).input("x", FLOAT, "positions", 48).weight("w", FLOAT, *dims)
    if bias:
        made.weight("bias", FLOAT, 512)
    return made.output(FLOAT, "positions", 512)


FORMS = {
    "a table": (table(), 16384, 4),
    "a table in float16": (table(HALF), 16384, 2),
    "a table whose last part is shorter": (table(rows=500), 16384, 4),
    "a table in int4": (blocks(False), 8192, 2),
    "a table in int4 with zero points": (blocks(True), 4096, 4),
    "a table in int8 with zero points": (blocks(True, 8), 8192, 4),
    "a product in int4": (product(), 8192, 2),
    "with zero points": (product(zeros=True), 4096, 4),
    "with zero points and a bias": (product(zeros=True, bias=True), 4096, 4),
    "with zero points in the graph": (product(zeros=True, inline=True), 4096, 4),
    "with scales in a vector": (product(flat=True), 4096, 4),
    "a product in int8": (product(zeros=True, bits=8), 8192, 4),
    "a dense product": (dense(), 32768, 4),
    "a dense product whose last part is narrower": (dense(columns=500), 32768, 4),
    "a product with a bias": (affine(48, 512, bias=True), 32768, 4),
    "a product with a bias by rows": (affine(512, 48, bias=True, transB=1), 32768, 4),
    "a product by rows without one": (affine(512, 48, transB=1), 32768, 4),
    "a product by a turned matrix": (dense(Turn(512, 48, 32, False)), 32768, 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_parts_make_the_same_numbers(form: str) -> None:
    made, largest, parts = FORMS[form]
    model = made.model
    before = graph.serialize(model)
    found, told, _ = split_weights(model, largest)
    assert graph.serialize(model) == before
    large = {entry.name: entry.length for entry in graph.external_entries(model) if entry.length > largest}
    assert [(each.name, each.bytes, each.why) for each in told] == [(name, large[name], "") for name in large]
    assert told[0].parts == parts
    assert max(sizes(found)) <= largest
    assert sum(sizes(found)) == sum(sizes(model))
    kind = model.graph.node[0].op_type
    assert operators(found)[kind] == told[0].parts + (2 if kind == "Gather" else 0) + ("shorter" in form)
    feeds = {"ids": np.array([PROMPT[:4], PROMPT[4:]]) % 500}
    for positions in (1, 3):
        size = 48 if kind in ("MatMul", "Gemm") else 64
        feeds["x"] = np.random.default_rng(positions).standard_normal((1, positions, size)).astype(np.float32)
        feeds["x"] = feeds["x"][0] if kind == "Gemm" else feeds["x"]
        np.testing.assert_allclose(made.run(found, feeds), made.run(model, feeds), rtol=0, atol=1e-5)


def test_without_larger_weights_nothing_is_changed() -> None:
    model = table().model
    assert split_weights(model, 0) == split_weights(model, max(sizes(model))) == (model, (), ())


def test_a_table_that_is_a_products_weights_shares_its_parts() -> None:
    """Reshaped in each run, as the model builder writes it."""
    made = product()
    product_node = made.model.graph.node[0]
    made.model.graph.initializer.add(name="shape", data_type=INT64, dims=[2]).int64_data.extend([512, 32])
    made.model.graph.node.insert(0, NodeProto(op_type="Reshape", input=["w", "shape"], output=["table"]))
    look = NodeProto(op_type="GatherBlockQuantized", domain="com.microsoft", input=["table", "ids", "scales"])
    for name, value in {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}.items():
        look.attribute.add(name=name, type=AttributeProto.INT, i=value)
    look.output.append("found")
    made.model.graph.node.insert(1, look)
    product_node.input[0] = "found"
    made.model.graph.input[0].CopyFrom(value_info("ids", INT64, [1, "positions"]))
    found, told, _ = split_weights(made.model, 8192)
    assert told == (SplitWeight("w", 16384, 2),)
    by_parts = Counter(entry.parts for entry in graph.external_entries(found))
    assert sorted(by_parts.values()) == [1, 1, 2, 2], "the scales are one tensor, the weights two of the same parts"
    assert operators(found)["Reshape"] == 1, "that of the numbers of the parts"
    feeds = {"ids": np.array([PROMPT])}
    np.testing.assert_array_equal(made.run(found, feeds), made.run(made.model, feeds))


def test_what_is_rearranged_into_a_weight_is_bound_too() -> None:
    """A table in float16 of one in float32, which has twice as many bytes."""
    made = table(HALF)
    [tensor] = made.model.graph.initializer
    narrow = [Part(0, 512 * 24 * 4, Narrow())]
    made.model.graph.initializer[0].CopyFrom(made_of(tensor.name, HALF, tensor.dims, "data", narrow))
    made.data = np.random.default_rng(2).standard_normal((512, 24), np.float32).tobytes()
    found, [told], _ = split_weights(made.model, 512 * 24 * 2)
    assert told == SplitWeight("table", 512 * 24 * 4, 2)
    assert max(part.length for entry in graph.external_entries(found) for part in entry.pieces) == 512 * 24 * 2
    feeds = {"ids": np.array([PROMPT])}
    np.testing.assert_array_equal(made.run(found, feeds), made.run(made.model, feeds))
    assert split_weights(made.model, 512 * 24 * 4)[1] == ()


def whole_bias() -> Made:
    made = Made("Gemm", transB=1).input("x", FLOAT, "positions", 48).weight("w", FLOAT, 512, 48)
    return made.weight("bias", FLOAT, 1, 512).output(FLOAT, "positions", 512)


def by_the_second_axis() -> Made:
    made = Made("Gather", axis=1).weight("w", FLOAT, 24, 512)
    return made.input("ids", INT64, 1).output(FLOAT, 24, 1)


def turned() -> Made:
    """Weights that the file has as [K, N]."""
    made = Made("MatMulNBits", N=512, K=64, bits=4, block_size=16).input("x", FLOAT, 1, "positions", 64)
    made.weight("w", UINT8, 512, 4, 8, change=Turn(64, 512, 4, True)).weight("scales", FLOAT, 512, 4)
    return made.output(FLOAT, 1, "positions", 512)


def odd_columns() -> Made:
    made = Made("MatMul").input("x", HALF, 1, "positions", 48).weight("w", HALF, 48, 501)
    return made.output(HALF, 1, "positions", 501)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (whole_bias(), r"\(Gemm\) reads it whole: bias has \[1, 512\] instead of one for each of 512"),
        (by_the_second_axis(), r"\(Gather\) reads it whole: it is not looked up by its first axis"),
        (turned(), r"\(MatMulNBits\) reads it whole: its rows are columns in the file"),
        (odd_columns(), r"\(MatMul\) reads it whole: the rows of its last columns are not whole words"),
    ],
)
def test_what_stays_whole_is_told_with_the_reason(made: Made, why: str) -> None:
    before = graph.serialize(made.model)
    found, [told], _ = split_weights(made.model, 8192)
    assert graph.serialize(found) == before
    assert told.parts == 0
    assert re.match(f"node /node {why}", told.why)


def test_a_weight_that_one_of_its_readers_needs_whole_stays_so() -> None:
    made = table()
    made.model.graph.node.append(NodeProto(op_type="Abs", name="abs", input=["table"], output=["sizes"]))
    made.model.graph.output.append(value_info("sizes", FLOAT, [512, 24]))
    found, [told], _ = split_weights(made.model, 16384)
    assert (told.parts, told.why.split(":")[0]) == (0, "node abs (Abs) reads it whole")
    assert "table" in {tensor.name for tensor in found.graph.initializer}


@pytest.mark.parametrize(
    ("total", "row", "largest", "wanted"),
    [
        (128256, 4096, 1 << 27, [32064] * 4),
        (128256, 1024, 1 << 27, [128256]),
        (151936, 2048, 1 << 27, [50656, 50656, 50624]),
        (100, 10, 330, [32, 32, 32, 4]),
        (96, 10, 639, [32, 32, 32]),
        (96, 10, 640, [64, 32]),
        (96, 10, 320, [32, 32, 32]),
        (96, 10, 319, None),
        (256, 4, 1023, [128, 128]),
        (50257, 4096, 1 << 27, [25152, 25105]),
    ],
)
def test_ranges_are_few_and_alike(total: int, row: int, largest: int, wanted: list[int] | None) -> None:
    if wanted is None:
        with pytest.raises(NotInRangesError, match=r"32 of its rows take 320 bytes"):
            ranges_of(total, row, largest)
        return
    found = ranges_of(total, row, largest)
    assert [count for _, count in found] == wanted
    assert [first for first, _ in found] == [sum(wanted[:place]) for place in range(len(wanted))]
    assert max(wanted) * row <= largest


LARGEST = {"nano-llama": 16384, "nano-blocks": 16384, "nano-mixed": 16384, "nano-float": 32768, "nano-qwen3": 16384}


@pytest.mark.parametrize("name", LARGEST)
def test_nano_models_in_parts_give_the_same_logits_and_caches(name: str) -> None:
    model = graph.parse((FIXTURES / name / "model.onnx").read_bytes())
    data = (FIXTURES / name / "model.onnx.data").read_bytes()
    found, told, _ = split_weights(model, LARGEST[name])
    assert [each.name for each in told if each.parts < 2] == []
    feeds: dict[str, Any] = {"input_ids": np.array([PROMPT])}
    feeds["attention_mask"] = (np.arange(64) < len(PROMPT)).astype(np.int64)[None]
    decoder = parse_genai_config((FIXTURES / name / "genai_config.json").read_bytes()).decoder
    for pair in graph.describe(model, decoder).cache:
        feeds[pair.past] = np.zeros((1, pair.heads, 64, pair.head_size), np.float32)
    for mine, theirs in zip(outputs(found, feeds, data), outputs(model, feeds, data), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    last, why = graph.last_token_logits(found)
    assert why == ""
    whole = outputs(model, feeds, data)[0]
    np.testing.assert_allclose(outputs(last, feeds, data)[0], whole[:, -1:], rtol=0, atol=1e-5 * np.abs(whole).max())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("types", "largest"),
    [
        ({"": GgmlType.Q4_1}, 32768),
        ({"": GgmlType.Q4_0}, 9216),
        ({"": GgmlType.Q4_0}, 12288),
        ({"": GgmlType.F16}, 65536),
        ({"": GgmlType.F32}, 65536),
        (MIXED, 20000),
        ({"": GgmlType.Q8_0, "token_embd": GgmlType.Q6_K, "output": GgmlType.Q6_K}, 18432),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_files_in_parts_give_the_same_logits(types: Mapping[str, GgmlType], largest: int, tied: bool) -> None:
    """Tables, products with and without minima, and those of q, k and v, whose rows change places within heads."""
    kinds = {**types, "output": types.get("token_embd", types[""])}
    made = make("llama", kinds, FURTHER["llama"], tied, vocabulary=512 if largest in (12288, 32768) else 96)
    found, told, _ = split_weights(made.graph(), largest)
    assert [each for each in told if each.parts < 2] == []
    assert max(sizes(found)) <= largest
    assert {"model.embed_tokens", "lm_head"} <= {".".join(each.name.split(".")[:2]).split(".Mat")[0] for each in told}
    sums = [node for node in found.graph.node if node.name.startswith("/lm_head") and node.op_type == "Add"]
    assert len(sums) == (3 if types == {"": GgmlType.Q4_1} else 0), "minima are added to each part"

    ids = [5, 60, 95, 31, 32, 64]
    logits = []
    for session in (made.session(), made.session(lambda model: split_weights(model, largest)[0])):
        feeds: dict[str, Any] = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        for value in session.get_inputs():
            if value.name.startswith("past"):
                feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        logits.append(session.run(["logits"], feeds)[0])
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-5 * np.abs(logits[0]).max())


def entry(kind: int, dims: tuple[int, ...], *parts: Part) -> WeightEntry:
    [found] = graph.external_entries(
        ModelProto(graph=GraphProto(initializer=[made_of("w", kind, dims, "data", parts)]))
    )
    return found


def test_rows_of_several_parts_of_a_file() -> None:
    """Joined weights, whose parts are somewhere else in the file, and floats that become smaller ones."""
    data = np.random.default_rng(5).standard_normal(2048, np.float32).tobytes()
    joined = entry(UINT8, (160, 8), Part(4096, 512), Part(16, 256), Part(1024, 512))
    narrow = entry(HALF, (64, 4), Part(64, 64 * 4 * 4, Narrow()))
    flipped = entry(UINT8, (64, 4), Part(128, 256, Turn(512, 1, 4, True)))
    for whole, total in ((joined, 160), (narrow, 64), (flipped, 64)):
        wanted = bytes_of(whole, data)
        found = [rows_of(whole, total, first, 32) for first in range(0, total, 32)]
        made = [entry(whole.onnx_type, (32, *whole.dims[1:]), *parts) for parts in found]
        assert b"".join(bytes_of(each, data) for each in made) == wanted
    with pytest.raises(NotInRangesError, match="some rows start within a byte"):
        rows_of(joined, 100, 0, 32)
    with pytest.raises(NotInRangesError, match="some rows come from several parts of the file"):
        rows_of(entry(UINT8, (64, 8), Part(0, 260), Part(512, 252)), 64, 0, 32)


def test_ranges_hold_whole_heads_whose_halves_change_places() -> None:
    how = Unpack(GgmlType.Q4_0, "values", 480, 32, 32, halves=40)
    assert step_of([entry(FLOAT, (480, 32), Part(0, 480 * 18, how))]) == 160, "of 32 rows and of 40"


def test_columns_of_matrices_beside_one_another() -> None:
    data = np.random.default_rng(5).integers(0, 256, 8192, np.uint8).tobytes()
    parts = [Part(16, 12 * 128, Beside(128, 320)), Part(4096, 12 * 192, Beside(192, 320))]
    whole = entry(FLOAT, (12, 80), *parts)
    wanted = np.frombuffer(bytes_of(whole, data), np.uint8).reshape(12, 320)
    for first, count in ((0, 16), (16, 32), (64, 16), (0, 80)):
        found = b"".join(data[part.offset : part.offset + part.length] for part in columns_of(whole, first, count))
        assert found == wanted[:, 4 * first : 4 * (first + count)].tobytes()
        assert all(part.change is None for part in columns_of(whole, first, count))
