"""Models with operators that a device lacks, or with less room than their context: refused or right, never wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capstan.graph.onnx_pb2 import ModelProto
from tests import oracle
from tests.browser.model_variants import (
    LLAMA,
    Variants,
    adding_to_logits,
    declaring_one,
    keeping_logits,
    norms_in_attention,
    quantized_embedding,
    soft_capped,
    telling_hidden_states,
    with_scalar_input,
)
from tests.browser.page_scripts import PageScripts
from tests.long_ropes import LONG_ROPE, ORIGINAL, one_kind

FIXTURES = Path(__file__).parents[1] / "fixtures"
QWEN3 = FIXTURES / "nano-qwen3"
PROMPT = [5, 6, 7, 8, 9]


def loaded(scripts: PageScripts, model: str, **options: Any) -> dict[str, Any]:
    arguments = {"prompt": PROMPT, "count": 12} | options
    found: dict[str, Any] = scripts.run("unfit", "loaded", model, model=model, **arguments)
    return found


@pytest.fixture(scope="module")
def capped(variants: Variants) -> str:
    return variants.graph("nano-capped", soft_capped(2.0))


@pytest.fixture(scope="module")
def smooth(variants: Variants) -> str:
    return variants.graph("nano-smooth", soft_capped(2.0, smooth=True))


@pytest.fixture(scope="module")
def tied(variants: Variants) -> str:
    """nano-qwen3 with a quantized embedding and norms in attention; nano-outside has the norms before attention, where
    onnxruntime-genai takes them."""

    def both(model: ModelProto) -> None:
        quantized_embedding(model)
        norms_in_attention(model)

    variants.graph("nano-outside", quantized_embedding, QWEN3)
    return variants.graph("nano-tied", both, QWEN3)


@pytest.fixture(scope="module")
def short_rope(variants: Variants) -> str:
    """Rotary factors for the first ORIGINAL positions alone."""
    return one_kind(variants.folder("nano-short-rope", LONG_ROPE)).name


@pytest.mark.extended
def test_a_soft_cap_with_more_is_refused_on_webgpu_before_any_weights_are_read(
    smooth: str, scripts: PageScripts
) -> None:
    found = loaded(scripts, smooth, device="webgpu")
    assert found["error"] == (
        "UncomputedError: node /model/layers.0/attn/GroupQueryAttention (GroupQueryAttention): "
        "onnxruntime-web ignores on webgpu softcap=2 (and 1 more); use device='wasm' for it"
    )
    assert found["read"] == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("device", "hardware"), [("webgpu", False), ("wasm", False), ("auto", True)])
def test_a_soft_cap_is_computed_on_every_device(
    device: str, hardware: bool, capped: str, variants: Variants, scripts: PageScripts
) -> None:
    found = loaded(scripts, capped, device=device, hardware=hardware)
    assert found["device"] == ("wasm" if device == "wasm" else "webgpu")
    assert found["ids"] == oracle.greedy(variants.place / capped, PROMPT, 12)
    assert found["ids"] != oracle.greedy(LLAMA, PROMPT, 12), "the soft cap changes nothing"
    assert found["counted"] == {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("device", "hardware"), [("wasm", False), ("auto", True)])
def test_a_soft_cap_with_more_is_computed_on_wasm_where_auto_steps_down_to(
    device: str, hardware: bool, smooth: str, variants: Variants, scripts: PageScripts
) -> None:
    found = loaded(scripts, smooth, device=device, hardware=hardware)
    assert found["device"] == "wasm"
    assert found["ids"] == oracle.greedy(variants.place / smooth, PROMPT, 12)
    if device == "auto":
        [(what, times)] = found["counted"].items()
        assert (times, len(found["warned"])) == (1, 1)
        assert what.startswith("device 'webgpu': node /model/layers.0/attn/GroupQueryAttention")
        assert found["warned"][0].endswith("device 'wasm' is used")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["wasm", "auto"])
def test_quantized_embeddings_and_norms_in_attention_run_on_wasm(
    device: str, tied: str, variants: Variants, scripts: PageScripts
) -> None:
    found = loaded(scripts, tied, device=device, count=96)
    assert found.get("error") is None
    assert (found["device"], found["counted"]) == ("wasm", {})
    wanted = oracle.greedy(variants.place / "nano-outside", PROMPT, 96)
    assert found["ids"] == wanted
    assert wanted[:24] != oracle.greedy(QWEN3, PROMPT, 24), "the embedding changes nothing"


@pytest.mark.extended
def test_sequences_and_plans_end_where_there_are_no_long_factors(short_rope: str, scripts: PageScripts) -> None:
    found = loaded(scripts, short_rope, device="webgpu", count=100)
    assert (found["context"], found["ids"]) == (ORIGINAL, oracle.greedy(LONG_ROPE, PROMPT, ORIGINAL - len(PROMPT)))
    [what] = found["counted"]
    assert what.startswith("positions from 64 to the model's context_length of 512: ")
    found = loaded(scripts, short_rope, device="webgpu", max_length=ORIGINAL + 1)
    assert found["error"] == (
        "OptionError: max_length (65) cannot be greater than the model's context_length (64); lower it"
    )
    found = scripts.run("unfit", "stretched", short_rope, model=short_rope, max_length=ORIGINAL + 1)
    assert found["longest"] == ORIGINAL
    assert found["error"].startswith("OptionError: batch_size 1, max_length 65: ")


@pytest.mark.extended
def test_options_of_the_configuration_that_mean_nothing_here_are_told(variants: Variants, scripts: PageScripts) -> None:
    options = {"custom_ops_library": "x.so", "provider_options": [{"webgpu": {"deviceId": "3", "validationMode": "x"}}]}
    name = variants.config("nano-optioned", model__decoder__session_options=options)
    found = loaded(scripts, name, device="webgpu")
    section = "model.decoder.session_options"
    [what] = found["counted"]
    assert f"{section}.custom_ops_library (a page loads no native library), " in what
    assert f"{section}.provider_options[0].webgpu.deviceId (the browser decides it)" in what
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("change", [adding_to_logits, keeping_logits, telling_hidden_states])
def test_a_graph_with_another_input_or_output_runs(
    change: Any, device: str, variants: Variants, scripts: PageScripts
) -> None:
    name = variants.graph(f"nano-{change.__name__}-{device}", change)
    found = loaded(scripts, name, device=device)
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 12)


def test_each_generation_after_a_failed_run_tells_the_same_error(variants: Variants, scripts: PageScripts) -> None:
    name = variants.graph("nano-declaring-one", declaring_one)
    scripts.expect("has shape {1,1,512}")
    first, *others = scripts.run("unfit", "failing", name, model=name, prompt=PROMPT, times=3)
    assert first.startswith("ValidationError: onnxruntime-web could not run the model, load it again: ")
    assert others == [first, first]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_an_input_that_nobody_feeds_is_found_at_load(device: str, variants: Variants, scripts: PageScripts) -> None:
    name = variants.graph(f"nano-factor-{device}", with_scalar_input)
    found = loaded(scripts, name, device=device)
    assert found["error"] == (
        "UnsupportedModelError: model.onnx has an input factor [] that Capstan cannot feed; export the model without it"
    )
    assert found["read"] == []
