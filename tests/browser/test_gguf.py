"""Models of GGUF files in a page: what their steps compute is the definition in float32, up to near ties."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan.graph.gguf.gguf_types import PACKED
from capstan.model_files.gguf.header import GgmlType
from capstan_host.site_server import SiteServer
from tests.browser.page_scripts import PageScripts
from tests.gguf_experts import EXPERT_TYPES
from tests.gguf_keys import QWEN35
from tests.gguf_models import FURTHER, MIXED, before, make, write

ODD = {"embedding_length": 224, "attention.key_length": 64, "feed_forward_length": 416}
PROMPT = [5, 60, 17, 80, 33, 2]
COUNT = 16
MODELS = {
    "llama": {"": GgmlType.Q4_0, "token_embd": GgmlType.Q6_K},
    "qwen2": {"": GgmlType.Q4_1, "token_embd": GgmlType.Q8_0},
    "gemma3": MIXED,
    "gemma2": {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0},
    "smollm3": {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0},
    "lfm2": MIXED,
    "qwen3moe": {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0},
    "gpt-oss": {"": GgmlType.Q8_0, **dict.fromkeys(EXPERT_TYPES, GgmlType.MXFP4)},
    "gemma4": MIXED,
}
"""Products without minima, with them, and two types for q, k and v; two kinds of table that the output shares. Soft
caps, which onnxruntime-web's attention leaves out. A layer whose heads are not rotated, convolutions with a state.
Experts of two types, and experts with biases below attention with sinks."""
LAYERS = {"llama": 1, "smollm3": 4, "lfm2": 3, "qwen3moe": 1, "gpt-oss": 2, "gemma4": 4}
VOCABULARIES = {"gemma2": 515}
"""Behind an odd one the logits' buffer has an element that onnxruntime-web writes and our kernels do not."""
WIDTHS = {"qwen3moe": 192, "gpt-oss": 192}
"""Rows of experts for which onnxruntime-web rounds no activations in float32."""
LEFT = {
    "llama": 1,
    "qwen2": 1,
    "gemma3": 2,
    "gemma2": 2,
    "smollm3": 9,
    "lfm2": 1,
    "qwen3moe": 9,
    "gpt-oss": 21,
    "gemma4": 57,
}
"""Operations that stay as recorded: the lookup of embeddings, a factor of these, attention without rotation, experts,
and what each layer of gemma4 does with embeddings and a factor of its own."""
PROMPTS = {"gemma4": [(37 * i + 11) % 509 for i in range(30)]}
"""Longer than a window over the caches of another layer."""


@pytest.mark.one_in
@pytest.mark.parametrize("family", list(MODELS))
def test_ids_are_the_definition_s(family: str, scripts: PageScripts, site: SiteServer, tmp_path: Path) -> None:
    further = {key: value for key, value in FURTHER[family].items() if key != "block_count"}
    given = {**further, "block_count": LAYERS.get(family, 2), "embedding_length": WIDTHS.get(family, 256)}
    made = make(family, MODELS[family], given, vocabulary=VOCABULARIES.get(family, 512))
    name, prompt = f"gguf-{family}", PROMPTS.get(family, PROMPT)
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    try:
        found = scripts.run("gguf", "picked", name, model=name, prompt=prompt, count=COUNT)
    finally:
        del site.models[name]
    wanted = made.defined([*prompt, *found["ids"]])[len(prompt) - 1 :]
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found["logits"], wanted[0], rtol=0, atol=1e-3 * largest)
    picked = wanted[np.arange(COUNT), found["ids"]]
    assert np.all(wanted[:COUNT].max(-1) - picked <= 2e-3 * largest), found
    assert (found["device"], found["capture"]) == ("webgpu", ["tape", None])
    assert found["passes"]["fused"].endswith(f" {LEFT[family]} of them as recorded"), found["passes"]


ON_CPU = {
    "llama": {"": GgmlType.Q4_1, "token_embd": GgmlType.Q8_0},
    "gemma3": MIXED,
    "phi3": {"": GgmlType.Q4_K, "ffn_down": GgmlType.Q6_K, "token_embd": GgmlType.F16},
    "lfm2": MIXED,
    "qwen3moe": MIXED,
    "gpt-oss": MIXED,
    "gemma4": MIXED,
}
LONG = [(37 * i + 11) % 509 for i in range(250)]
"""The caches get more room in the steps after it."""


@pytest.mark.one_in
@pytest.mark.parametrize("family", list(ON_CPU))
def test_the_cpu_picks_the_definition_s_ids(
    family: str, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    """onnxruntime-web's activations are in float32. Beside a software adapter a page takes the CPU by itself."""
    software = os.environ.get("CAPSTAN_ADAPTER", "software") == "software"
    sizes = {"block_count": LAYERS.get(family, 2), "context_length": 600}
    made = make(family, ON_CPU[family], {**FURTHER[family], **sizes}, vocabulary=512)
    name = f"gguf-cpu-{family}"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    device = "auto" if software else "wasm"
    try:
        call = {"model": name, "device": device, "prompt": LONG, "count": COUNT, "capture": "off"}
        found = scripts.run("gguf", "picked", name, **call)
    finally:
        del site.models[name]
    wanted = made.defined([*LONG, *found["ids"]])[len(LONG) - 1 :]
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found["logits"], wanted[0], rtol=0, atol=1e-3 * largest)
    picked = wanted[np.arange(COUNT), found["ids"]]
    assert np.all(wanted[:COUNT].max(-1) - picked <= 1e-3 * largest), found
    assert (found["device"], found["capture"][0]) == ("wasm", "off")


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("kind", [GgmlType.Q5_K, GgmlType.Q6_K], ids=lambda kind: kind.name)
def test_ids_are_the_same_with_a_table_on_disk(
    kind: GgmlType, device: str, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    made = make("gemma4", {**MIXED, "per_layer_token_embd": kind}, FURTHER["gemma4"], vocabulary=512)
    name = f"gguf-disk-{kind.name}"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    given = {"model": name, "prompt": PROMPTS["gemma4"], "count": COUNT, "device": device}
    given["capture"] = "tape" if device == "webgpu" else "off"
    try:
        held = scripts.run("gguf", "picked", name, **given, embedding_tables="memory")
        found = scripts.run("gguf", "picked", name, **given, embedding_tables="disk")
    finally:
        del site.models[name]
    assert (found["ids"], found["capture"]) == (held["ids"], held["capture"])
    np.testing.assert_allclose(found["logits"], held["logits"], rtol=0, atol=1e-5 * np.abs(held["logits"]).max())
    # A token that follows itself has its rows already.
    assert 0 <= found["counters"]["table_reads"] <= COUNT


WHOLE: dict[str, dict[str, Any]] = {
    "phi3": {
        "block_count": 1,
        "rope.dimension_count": 32,
        "rope.scaling.original_context_length": 12,
        "rope.scaling.attn_factor": 1.2,
    },
    "qwen35": {**QWEN35, "ssm.group_count": 2, "block_count": 2},
}
"""A long rope, whose graph chooses by the length of the sequence that it is given whole, and recurrent layers."""


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("family", list(WHOLE))
def test_ids_are_those_of_runs_of_whole_sequences(
    family: str, device: str, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    types = {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0}
    made = make(family, types, WHOLE[family], vocabulary=512)
    name = f"gguf-whole-{family}"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    try:
        found = scripts.run("gguf", "picked", name, model=name, device=device, prompt=PROMPT, count=COUNT)
    finally:
        del site.models[name]
    session = made.session()
    fed = before(session)
    for place, picked in enumerate(found["ids"]):
        ids = np.array([[*PROMPT, *found["ids"][:place]]])
        [logits] = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **fed})
        assert logits[0, -1].max() - logits[0, -1, picked] <= 2e-3 * np.abs(logits).max(), (place, found)
    assert (found["device"], found["capture"][0]) == (device, "tape" if device == "webgpu" else "off")
    if device == "webgpu" and family == "qwen35":
        assert found["passes"]["fused"].endswith(" 1 of them as recorded"), found["passes"]


def test_weights_that_are_too_large_for_the_cpu_are_not_read(
    scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    made = make("llama", ON_CPU["llama"], {"block_count": 1}, vocabulary=512)
    name = "gguf-large"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    try:
        found = scripts.run("gguf", "too_large", name, model=name, most=3 << 20)
    finally:
        del site.models[name]
    assert found["error"].startswith("OutOfMemoryError: weights takes ")
    assert "a model of at most 0 million parameters fits: use a smaller model, or WebGPU" in found["error"]
    assert found["told"] == []


PRODUCTS = {
    "Q4_1": {"": GgmlType.Q4_1, "token_embd": GgmlType.Q8_0},
    "Q4_K_M": {"": GgmlType.Q4_K, "attn_v": GgmlType.Q6_K, "token_embd": GgmlType.Q6_K, "ffn_down": GgmlType.Q5_K},
}
"""Products with minima of 4 bits, and of 8 beside one without, as in a K mix."""


@pytest.mark.extended
@pytest.mark.parametrize("mix", list(PRODUCTS))
def test_prompts_over_affine_types_run_from_tapes(
    mix: str, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    """No product is left as recorded. Subgroup matrices, which a hardware adapter is to have, make those of many rows;
    else they are made in int8, which the graph allows here and which takes no blocks of 16. The last 6 of 70 ids are in
    a run of 8."""
    hardware = os.environ.get("CAPSTAN_ADAPTER", "software") == "hardware"
    types = PRODUCTS[mix] if hardware else {**PRODUCTS[mix], "attn_v": GgmlType.Q8_0}
    made = make("llama", types, {"block_count": 2, "context_length": 1024}, vocabulary=512)
    name = f"gguf-prompts-{mix}"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    given = {"count": 8, "dtype": "fp16" if hardware else "fp32", "int8": not hardware}
    try:
        for length in (512, 70) if hardware else (70,):
            prompt = [(37 * i + 11) % 509 for i in range(length)]
            found = scripts.run("gguf", "prompted", name, model=name, prompt=prompt, **given)
            assert "not used" not in found["report"], found["report"]
            kinds = {int(rows): set(each) for rows, each in found["kinds"].items()}
            many = {"MatrixMatMul" if hardware else "MatMul"}
            assert kinds == {rows: {"MatVec"} if rows <= 32 else many for rows in kinds}, found
            assert max(kinds) > 32 or (hardware and length == 70), found
            for ids in found["ids"]:
                wanted = made.defined([*prompt, *ids])[length - 1 : -1]
                picked = wanted[np.arange(8), ids]
                assert np.all(wanted.max(-1) - picked <= 0.03 * np.abs(wanted).max()), found
            # In float16 a near tie may go either way.
            assert hardware or found["ids"][1:] == found["ids"][:-1]
    finally:
        del site.models[name]


AFFINE = [kind for kind, packing in PACKED.items() if packing.shift is not None]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", AFFINE, ids=lambda kind: kind.name)
def test_steps_over_affine_types_are_fused_as_those_over_others(
    kind: GgmlType, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    """The lookup alone stays as recorded. Blocks of a row of 224 are 7, for which onnxruntime-web has other kernels."""
    sizes = {"block_count": 1} if kind.block[0] == 256 else {**ODD, "block_count": 1}
    made = make("llama", {"": kind, "token_embd": GgmlType.Q8_0}, sizes, vocabulary=512)
    name = f"gguf-{kind.name}"
    site.models[name] = write(made, tmp_path / name / "a model.gguf").parent
    try:
        found = scripts.run("gguf", "picked", name, model=name, prompt=PROMPT, count=COUNT)
    finally:
        del site.models[name]
    assert found["passes"]["fused"].endswith("operations became 7, 1 of them as recorded"), found["passes"]
    assert "left out" not in found["passes"]
    ids = [*PROMPT, *found["ids"]]
    wanted = made.defined(ids)[len(PROMPT) - 1 :]
    picked = wanted[np.arange(COUNT), found["ids"]]
    assert np.all(wanted[:COUNT].max(-1) - picked <= 2e-3 * np.abs(wanted).max()), found
