"""Adapters that bind less than a weight has: it is read in parts, from tapes, and the ids are native's.

The largest weight is a number of the test's, since a fixture's weights are small; the last tests have a device with
WebGPU's least limits, and a table that is larger than those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.onnx_pb2 import AttributeProto, ModelProto
from capstan.model_files.gguf.header import GgmlType
from capstan.tape import PASSES
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import generate_request
from tests import oracle
from tests.browser.least_limits import LEAST
from tests.browser.model_variants import Variants, quantized_embedding
from tests.browser.page_scripts import PageScripts
from tests.gguf_models import make, write
from tests.lora_models import LORA
from tests.lora_runs import RUNS, expected

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 300, 7, 511, 128, 127]
CHUNK = [(37 * i + 11) % 509 for i in range(64)]
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.MatMul.weight"


def limited(scripts: PageScripts, name: str, largest: int | None, **given: Any) -> dict[str, Any]:
    call = {"model": name, "prompt": PROMPT, "count": 8, "times": 1, "limits": {}, "largest": largest, **given}
    found: dict[str, Any] = scripts.run("adapters", "limited", name, **call)
    return found


def in_parts(scripts: PageScripts, name: str, largest: int, script: str, function: str, **given: Any) -> dict[str, Any]:
    call = {"largest": largest, "script": script, "function": function, "model": name, **given}
    found: dict[str, Any] = scripts.run("adapters", "in_parts", name, **call)
    return found


def told(found: dict[str, Any], largest: int) -> str:
    """The step down of a load in parts, without its ends."""
    [text] = found["told"]
    front, end = "weights in one binding each: ", f"; this adapter binds at most {largest}"
    assert text.startswith(front)
    assert text.endswith(end)
    return str(text).removeprefix(front).removesuffix(end)


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("name", "largest", "parts"),
    [
        ("nano-blocks", 16384, {TABLE: 8, f"{HEAD}_Q4": 2}),
        ("nano-float", 32768, {TABLE: 4, HEAD: 4}),
        pytest.param("nano-mixed", 16384, {TABLE: 8, f"{HEAD}_Q8G32": 2}, marks=pytest.mark.extended),
    ],
)
def test_models_in_parts_pick_the_ids_of_native_from_tapes(
    name: str, largest: int, parts: dict[str, int], scripts: PageScripts
) -> None:
    """A step has as many operations as one over whole weights; the second prompt is run from a tape, too."""
    found = limited(scripts, name, largest, prompt=CHUNK, times=2)
    assert found["ids"] == [oracle.greedy(FIXTURES / name, CHUNK, 8)] * 2
    assert found["split"] == [[weight, number, ""] for weight, number in parts.items()]
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert found["passes"]["fused"].endswith(" operations became 12, 0 of them as recorded")
    assert found["passes"]["prefill"].startswith("64 positions: ")
    assert "not used" not in found["passes"]["prefill"]


@pytest.mark.extended
def test_a_tied_table_in_int4_is_looked_up_in_parts_for_all_rows(variants: Variants, scripts: PageScripts) -> None:
    """Its parts are those of the output projection."""
    name = variants.graph("parts-tied", quantized_embedding, FIXTURES / "nano-qwen3")
    prompts = [[5, 300, 7], [400, 300, 200], [511, 8, 256]]
    found = in_parts(scripts, name, 8192, "rows", "generated", prompts=prompts, cases=[{"max_length": 16}])
    [rows] = found["found"]
    assert rows["sequences"] == oracle.rows(variants.place / name, prompts, max_length=16).sequences
    assert "rows" in rows["said"], rows["stepped down"]
    assert told(found, 8192) == f"{HEAD}_Q4 has 16384 bytes"


@pytest.mark.extended
def test_the_weights_of_a_gguf_file_are_in_parts(scripts: PageScripts, site: SiteServer, tmp_path: Path) -> None:
    """A table, and products with minima, which those of their parts add."""
    made = make("llama", {"": GgmlType.Q4_1, "token_embd": GgmlType.Q4_0}, {"block_count": 1}, vocabulary=512)
    name = "parts-gguf"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    prompt, count = [5, 60, 417, 80, 333, 2], 16
    try:
        given = in_parts(scripts, name, 40960, "gguf", "picked", prompt=prompt, count=count)
    finally:
        del site.models[name]
    found = given["found"]
    wanted = made.defined([*prompt, *found["ids"]])[len(prompt) - 1 :]
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found["logits"], wanted[0], rtol=0, atol=1e-3 * largest)
    picked = wanted[np.arange(count), found["ids"]]
    assert np.all(wanted[:count].max(-1) - picked <= 2e-3 * largest), found
    assert found["capture"] == ["tape", None]
    # The halves of a gated layer are four products, and the last sum is of two.
    assert found["passes"]["fused"].endswith(" operations became 11, 3 of them as recorded")
    largest_one = "model.layers.0.attn.qkv_proj.MatMul.weight_Q4 has 81920 bytes"
    assert told(given, 40960) == f"{largest_one} (and 11 more are too large)"


@pytest.mark.extended
def test_adapters_of_lora_add_to_products_in_parts(scripts: PageScripts, variants: Variants) -> None:
    folder = variants.folder("parts-lora", LORA)
    runs = [RUNS[name] for name in ("none", "first", "after some tokens")]
    found = in_parts(scripts, folder.name, 2048, "lora", "drive", runs=runs)
    wanted = [[expected(name)] for name in ("none", "first", "after some tokens")]
    assert [each["sequences"] for each in found["found"]["runs"]] == wanted
    assert {each["capture"] for each in found["found"]["runs"]} == {"tape"}
    assert told(found, 2048) == "lm_head.MatMul.weight_Q4 has 16384 bytes (and 9 more are too large)"


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


HALF = 2 * 16 * 4 * 512 - 1
"""One less than the bytes of a cache of 512 positions."""
IN_PARTS: dict[str, Any] = {"device": "webgpu", "capture": "tape", "max_length": 512}
TOGETHER = [name for name in PASSES if name not in ("direct", "prefill")]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen3"])
def test_caches_in_parts_of_heads_pick_the_ids_of_native(name: str, scripts: PageScripts) -> None:
    """In eager runs, from the tape of a step and from that of a prompt."""
    found = limited(scripts, name, HALF, prompt=CHUNK, times=2, load={"max_length": 512})
    assert found["ids"] == [oracle.greedy(FIXTURES / name, CHUNK, 8)] * 2
    assert (found["capture"], found["note"], found["healthy"]) == ("tape", None, True)
    assert found["caches"] == 8 * [(HALF + 1) // 2], "two layers, two heads, keys and values"
    assert "not used" not in found["passes"]["prefill"]


@pytest.mark.parametrize("dtype", [None, pytest.param("int8", marks=[pytest.mark.extended])])
def test_sequences_over_caches_in_parts_are_rewound_and_go_on(dtype: str | None, scripts: PageScripts) -> None:
    actions: list[Any] = [("append", CHUNK), ("generate", 6), ("rewind", 40), ("append", PROMPT), ("generate", 6)]
    given = {"actions": actions, "load": {**IN_PARTS, "kv_cache_dtype": dtype}}
    largest = HALF if dtype is None else 20 * 512
    made = in_parts(scripts, "nano-llama", largest, "sliding", "driven", **given)["found"]
    if dtype is None:
        prompts = [CHUNK, [*CHUNK[:40], *PROMPT]]
        assert made["ids"] == [oracle.greedy(FIXTURES / "nano-llama", prompt, 6) for prompt in prompts]
    else:
        whole: dict[str, Any] = {**given, "load": {"kv_cache_dtype": dtype}}
        assert made["ids"] == scripts.run("sliding", "driven", "nano-llama", model="nano-llama", **whole)["ids"]
    assert len(made["caches"]) == 8
    assert made["recomputed"] == 0


@pytest.mark.extended
@pytest.mark.parametrize("beams", [1, 3])
def test_rows_and_beams_have_caches_in_parts(beams: int, scripts: PageScripts) -> None:
    prompts = [CHUNK[:20], CHUNK[20:40]][: 2 if beams == 1 else 1]
    search: dict[str, Any] = {"max_length": 44, "num_beams": beams}
    load = {**IN_PARTS, "passes": TOGETHER}
    given = {"prompts": prompts, "count": 24, "load": load, "batch_size": len(prompts), **search}
    found = in_parts(scripts, "nano-llama", HALF, "sliding", "rows", **given)["found"]
    wanted = oracle.rows(FIXTURES / "nano-llama", prompts, **search).sequences
    assert found["sequences"] == wanted[: len(found["sequences"])]
    # The kernels that take q, k and v apart are recorded for one row.
    assert [told for told in found["counted"] if told.startswith("several rows in one step: ")], found


@pytest.mark.extended
def test_the_prefix_cache_has_rows_of_caches_in_parts(scripts: PageScripts) -> None:
    prompts = [CHUNK, [*CHUNK, 5, 6], CHUNK[:30]]
    given = {"prompts": prompts, "count": 4, "load": {"device": "webgpu", "max_length": 512}}
    found = in_parts(scripts, "nano-llama", HALF, "sliding", "alike", **given)["found"]
    assert [ids for ids, _ in found] == [oracle.greedy(FIXTURES / "nano-llama", prompt, 4) for prompt in prompts]
    assert [reused for _, reused in found][1] == len(CHUNK)


def test_a_length_whose_caches_are_too_large_is_told_before_a_weight_is_asked_for(
    scripts: PageScripts, variants: Variants
) -> None:
    """A head of a layer is larger than a binding, so that no part fits."""
    most = 1 << 24
    folder = variants.folder("nano-llama-endless", FIXTURES / "nano-llama")
    config = folder / "genai_config.json"
    tree = json.loads(config.read_text())
    tree["model"]["context_length"] = most
    config.write_text(json.dumps(tree))
    asked: list[str] = []
    scripts.harness.page.context.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))

    def answered(*wanted: dict[str, Any]) -> list[str]:
        given = {"prompt_ids": PROMPT, "capture": "off"}
        requests = [generate_request(folder.name, **given, **each) for each in wanted]
        found: list[str] = scripts.run("adapters", "answered", requests=requests, limits=LEAST)
        return found

    for told in answered({"search": {"max_length": most}}, {"max_new_tokens": most}):
        assert re.search(rf" with batch_size 1 and max_length {most}; webgpu allows 134217728 bytes in ", told)
        assert re.search(r"; use a max_length of at most \d{6,}", told), told
    assert ("model.onnx" in asked, "model.onnx.data" in asked) == (True, False)
    assert answered({"max_new_tokens": 1}) == [""]
    assert "model.onnx.data" in asked


def test_a_machine_that_is_too_small_is_told_before_a_load(scripts: PageScripts) -> None:
    gib = 2.0**-20
    found = scripts.run("adapters", "on_machine", "nano-llama", model="nano-llama", gib=gib)
    told = f"it takes {found['bytes']} bytes with max_length 256; the browser reports 1024 bytes"
    assert found["fits"], found
    assert found["tight"].startswith(told), found
    assert [each.split(": ")[0] for each in found["told"]] == ["room for the model in this machine"]
    roomy = scripts.run("adapters", "on_machine", "nano-llama", model="nano-llama", gib=4)
    assert (roomy["tight"], roomy["told"]) == ("", [])
