"""Generators with LoRA adapters in the page: ids are onnxruntime-genai's, and a switch makes no session."""

from __future__ import annotations

import pytest

from capstan.device.lora_file import read_adapter
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.lora_models import DEFAULTS, LORA
from tests.lora_runs import PROMPT, PROMPTS, RUNS, expected

CHEAP = ("none", "first", "another of the same rank", "after some tokens", "after the prompt")
"""Those of one rank: each further one records a step, which takes a software adapter seconds."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_ids_are_the_oracles(device: str, scripts: PageScripts) -> None:
    names = list(RUNS) if device == "wasm" else CHEAP
    runs = [RUNS[name] for name in names]
    found = scripts.run("lora", "drive", "nano-lora", model="nano-lora", runs=runs, device=device)
    assert [each["sequences"] for each in found["runs"]] == [[expected(name)] for name in names]
    assert {each["capture"] for each in found["runs"]} == {"tape" if device == "webgpu" else "off"}
    assert found["fallbacks"] == {}
    if device == "webgpu":
        # From the second run on: no session of the model, one for adapters of its rank and one for its decode step.
        assert found["sessions"][1:] == [2, 0, 0, 0]
        tensors = read_adapter((LORA / "first.onnx_adapter").read_bytes(), "first").tensors.values()
        assert found["adapters"] == 2 * sum(len(tensor.data) for tensor in tensors)


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("what", DEFAULTS)
def test_defaults_with_elements_count_where_no_adapter_fills_them(
    what: str, device: str, scripts: PageScripts, variants: Variants
) -> None:
    name = f"defaults {list(DEFAULTS).index(what)} {device}".replace(" ", "-")
    folder = variants.folder(name, LORA.parent / "nano-apart")
    DEFAULTS[what].make(folder)
    plain = [("append", PROMPTS[0]), ("generate", 12)]
    runs = [plain, [("adapter", "all"), *plain], [("adapter", "queries"), *plain]]
    found = scripts.run("lora", "drive", name, model=name, runs=runs, device=device)
    assert [each["sequences"] for each in found["runs"]] == [[oracle.drive(folder, run).sequence] for run in runs]


@pytest.mark.extended
def test_rows_of_a_batch_have_the_adapter(scripts: PageScripts) -> None:
    actions = [("adapter", "first"), ("append", PROMPTS), ("generate", 8)]
    found = scripts.run("lora", "drive", "nano-lora", model="nano-lora", runs=[actions], prompts=2, max_length=13)
    assert found["runs"][0]["sequences"] == oracle.rows(LORA, PROMPTS, adapter="first", max_length=13).sequences


def test_a_lost_device_is_told_and_model_and_adapter_can_be_loaded_again(scripts: PageScripts) -> None:
    found = scripts.run("lora", "lost", "nano-lora", model="nano-lora", prompt=PROMPT, count=16)
    assert "load the model again" in found["error"], found
    assert (found["ids"], found["recoveries"]) == (expected("first"), 0)
    scripts.harness.errors.clear()
