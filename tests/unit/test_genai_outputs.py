"""get_input and get_output show what onnxruntime-genai shows, tensor for tensor."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest

from capstan import CapstanError, genai
from tests.unit.genai_cases import LORA, PROMPT, adapters, generator, loaded, tokenizer

ROOT = Path(__file__).parents[2]
INPUTS = ("input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.1.value")
OUTPUTS = ("logits", "present.0.key", "present.1.value")
APART = '{"search": {"past_present_share_buffer": false}}'
"""With this overlay caches grow with the sequence."""


def shown(og: ModuleType, tokens: Any = PROMPT, picks: int = 0, overlay: str = "", **options: Any) -> dict[str, Any]:
    one = generator(og, tokens, overlay, **options)
    for _ in range(picks):
        one.generate_next_token()
    return {name: one.get_input(name) for name in INPUTS} | {name: one.get_output(name) for name in OUTPUTS}


@pytest.mark.parametrize("overlay", ["", APART], ids=["one buffer", "apart"])
@pytest.mark.parametrize("picks", [0, 1, 3])
@pytest.mark.parametrize(
    ("tokens", "options"),
    [(PROMPT, {}), ([[5, 6, 7], [8, 9, 10]], {"batch_size": 2})],
    ids=["a prompt", "a batch"],
)
def test_tensors_of_the_last_run(tokens: Any, options: dict[str, Any], picks: int, overlay: str) -> None:
    expected, found = (shown(og, tokens, picks, overlay, **options) for og in (native, genai))
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        np.testing.assert_allclose(found[name], tensor, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("picks", [0, 2])
def test_states_that_each_run_overwrites(picks: int) -> None:
    outcomes = []
    for og in (native, genai):
        config = og.Config(str(ROOT / "tests/fixtures/families/lfm2"))
        config.clear_providers()
        model = og.Model(config)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=16)
        one = og.Generator(model, params)
        one.append_tokens([5, 6, 7])
        for _ in range(picks):
            one.generate_next_token()
        outcomes.append(
            [one.get_input("past.0.conv"), one.get_output("present.0.conv"), one.get_output("present.1.key")]
        )
    for expected, found in zip(*outcomes, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("picks", [0, 2])
def test_positions_of_three_axes(picks: int) -> None:
    outcomes = []
    for og in (native, genai):
        model = loaded(og, folder=str(ROOT / "tests/fixtures/families/qwen2_5_vl_text"))
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=16, batch_size=2)
        one = og.Generator(model, params)
        one.append_tokens([[5, 6, 7], [8, 9, 10]])
        for _ in range(picks):
            one.generate_next_token()
        outcomes.append(one.get_input("position_ids"))
    assert outcomes[0].shape[0] == 3
    np.testing.assert_array_equal(*outcomes)


def test_tensors_of_beams_behind_their_prompt() -> None:
    expected, found = (shown(og, num_beams=2) for og in (native, genai))
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-4, err_msg=name)
    one = generator(genai, num_beams=2)
    one.generate_next_token()
    one.generate_next_token()
    with pytest.raises(CapstanError, match="only directly after the prompt"):
        one.get_output("present.0.key")


def test_tensors_of_a_run_with_an_adapter_are_refused() -> None:
    model = loaded(genai, folder=LORA)
    one = genai.Generator(model, genai.GeneratorParams(model))
    one.set_active_adapter(adapters(genai), "first")
    one.append_tokens(PROMPT)
    with pytest.raises(CapstanError, match="with an adapter are not shown"):
        one.get_output("present.0.key")
    assert one.get_logits().shape == (1, 1, 512)


def test_the_mask_leaves_padding_out() -> None:
    texts = ["def fibonacci(n):", "class A"]
    masks = []
    for og in (native, genai):
        one = generator(og, tokenizer(og).encode_batch(texts), batch_size=2)
        one.generate_next_token()
        one.generate_next_token()
        masks.append(one.get_input("attention_mask"))
    np.testing.assert_array_equal(*masks)
    assert masks[0].min() == 0


def test_a_padded_row_has_zeros_where_its_padding_is() -> None:
    one = generator(genai, [[5, 6, 7], [8, 9, 2]], batch_size=2)
    caches = one.get_output("present.0.key")
    alone = generator(genai, [8, 9]).get_output("present.0.key")
    np.testing.assert_allclose(caches[1, :, :2], alone[0, :, :2], atol=1e-5)
    assert not caches[1, :, 2:].any()
    assert one.get_output("logits")[1, 1].any()
    assert not one.get_output("logits")[1, 2].any()


def test_before_a_run_there_are_empty_caches_only() -> None:
    for name in ("present.0.key", "present.1.value"):
        expected, found = (generator(og, None).get_output(name) for og in (native, genai))
        np.testing.assert_array_equal(found, expected)
    one = generator(genai, None)
    for look, name in ((one.get_output, "logits"), (one.get_input, "input_ids")):
        with pytest.raises(CapstanError, match="append tokens first"):
            look(name)


def test_looking_changes_nothing() -> None:
    one, other = generator(genai), generator(genai)
    for _ in range(8):
        one.get_output("present.1.key")
        one.get_output("logits")
        one.generate_next_token()
        other.generate_next_token()
    assert one.get_sequence(0).tolist() == other.get_sequence(0).tolist()


@pytest.mark.parametrize("name", ["present.2.key", "present.0.kex", "past_key_values.0.key", "logit", "hidden_states"])
def test_an_output_that_is_not_there(name: str) -> None:
    for og in (native, genai):
        with pytest.raises(RuntimeError):
            generator(og).get_output(name)
