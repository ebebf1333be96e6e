"""Keys below a GGUF file's architecture: each computes what llama.cpp computes by it, or is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from capstan.errors import ConfigError, ModelFileError, UnsupportedModelError
from capstan.model_files.gguf.families import HARMLESS, NEUTRAL, NOWHERE, ONNX_ONLY, family_of
from capstan.model_files.gguf.header import GgmlType, GgufFile
from tests.gguf_keys import CASES, SCORED, ids_of, scores
from tests.gguf_models import FURTHER, Made, before, make

WANTED = scores()
APART = 2e-3
"""The most by which log probabilities may differ; those of other metadata differ by more."""


def log_probabilities(made: Made, length: int) -> list[float]:
    """The log probabilities in onnxruntime of the last ids of the sequence, each behind those before it."""
    session = made.session()
    ids = np.array([ids_of(length)])
    fed = before(session)
    [logits] = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **fed})
    rows = logits[0, -SCORED - 1 : -1].astype(np.float64)
    rows -= np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) + rows.max(-1, keepdims=True)
    return [float(row[picked]) for row, picked in zip(rows, ids[0, -SCORED:], strict=True)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", list(CASES))
def test_scores_are_those_of_llama_cpp(name: str) -> None:
    case = CASES[name]
    np.testing.assert_allclose(log_probabilities(case.made, case.length), WANTED[name], rtol=0, atol=APART)


@cache
def plain(family: str) -> Made:
    return make(family, {"": GgmlType.F32}, FURTHER[family] if family != "llama" else {})


def told(family: str, given: Mapping[str, Any]) -> Made:
    """A model with other metadata, arrays as a header has them."""
    made = plain(family)
    changed = {f"{family}.{name}": tuple(each) if isinstance(each, list) else each for name, each in given.items()}
    return replace(made, file=replace(made.file, metadata={**made.file.metadata, **changed}))


def refused(family: str, given: Mapping[str, Any]) -> Exception:
    with pytest.raises((ConfigError, UnsupportedModelError, ModelFileError)) as raised:
        told(family, given).graph()
    return raised.value


WRONG = {
    "rope.freq_base": (0, -(2**63), -1.0, 1, float("nan"), float("inf"), "a", True, [1.0]),
    "rope.freq_base_swa": (0, 0.5, float("nan")),
    "rope.scaling.factor": (-1.0, float("nan"), float("inf"), "4", False, [2.0]),
    "rope.scale_linear": (-1.0, float("nan")),
    "rope.scaling.attn_factor": (0.0, -1.0, float("nan"), 1e39),
    "rope.scaling.type": ("", "dynamic", 1, True),
    "rope.scaling.original_context_length": (0, -1, 1.5),
    "rope.dimension_count": (0, 63, 65, 1 << 40, 2.0),
    "attention.sliding_window_pattern": (-1, 1.5, "2", [], [True], [0.5, 1.0], [2, 1]),
    "attn_logit_softcapping": (0.0, -1.0, float("nan"), "50"),
    "final_logit_softcapping": (0.0, -1.0, float("inf")),
    "attention.sliding_window": (0, -1, 1.5, [4, 4]),
    "attention.layer_norm_rms_epsilon": (0.0, -1e-5, float("nan")),
    "feed_forward_length": (0, [512, 256], [512], "512"),
    "embedding_length_out": (128,),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_values_that_are_wrong(name: str) -> None:
    for value in WRONG[name]:
        error = refused("gemma2", {name: value})
        assert isinstance(error, ConfigError | UnsupportedModelError), (value, error)
        assert f"gemma2.{name}" in str(error), (value, error)


def test_values_of_experts_that_are_wrong_or_not_supported() -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "expert_count": (0, 8.0, "8"),
        "expert_used_count": (0, 7, True),
        "expert_feed_forward_length": (0, [64, 64]),
        "expert_gating_func": (2, 3, "softmax"),
        "expert_weights_norm": (False, 1.5),
        "expert_weights_scale": (2.5, "1"),
        "expert_group_count": (2,),
        "expert_shared_count": (1,),
    }
    for name, values in wrong.items():
        for value in values:
            assert f"qwen3moe.{name}" in str(refused("qwen3moe", {name: value})), (name, value)
    for name, value in {"expert_gating_func": 1, "expert_weights_norm": True, "expert_weights_scale": 1.0}.items():
        assert told("qwen3moe", {name: value}).graph() == plain("qwen3moe").graph()


def test_a_key_that_is_not_read_is_refused_by_its_name() -> None:
    """Among them those that llama.cpp reads for other families only."""
    others = {"attention.scale": 0.1, "logit_scale": 2.0, "num_loops": 2, "of nobody": [1], "expert_count": 8, "x": ""}
    for name, value in others.items():
        error = refused("llama", {name: value})
        assert isinstance(error, UnsupportedModelError), error
        assert re.search(
            rf"metadata llama\.{name} \(.*\) is not supported in a model of llama.*; use another", str(error)
        )


def test_keys_that_change_nothing() -> None:
    wanted = plain("llama").graph()
    for name, value in {**dict.fromkeys(HARMLESS, 3), **NEUTRAL}.items():
        assert told("llama", {name: value}).graph() == wanted, name
    for name, value in NEUTRAL.items():
        other = (not value) if isinstance(value, bool) else value + 1
        assert f"only {value!r} is" in str(refused("llama", {name: other})), name
    assert "llama.attention.causal (False)" in str(refused("llama", {"attention.causal": False}))


def test_sizes_may_be_told_layer_by_layer() -> None:
    given = {"attention.head_count": [4, 4], "attention.head_count_kv": [2, 2], "feed_forward_length": [512, 512]}
    assert told("llama", given).graph() == plain("llama").graph()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e-38])
def test_divisors_of_frequencies_that_are_no_numbers_above_0(value: float) -> None:
    made = make("llama", {"": GgmlType.F32}, {"rope.freq_base": 500000.0})
    tensor = made.file.tensors["rope_freqs.weight"]
    data = bytearray(made.data)
    data[tensor.offset + 8 : tensor.offset + 12] = np.float32(value).tobytes()
    made.data = bytes(data)
    with pytest.raises(
        ModelFileError, match=r"element 2 of rope_freqs\.weight is .*, expected a finite number above 0"
    ):
        made.graph()


def test_a_long_rope_with_one_kind_of_factors() -> None:
    made = make("phi3", {"": GgmlType.F32}, {"rope.scaling.original_context_length": 32})
    tensors = {name: each for name, each in made.file.tensors.items() if name != "rope_factors_long.weight"}
    made.file = replace(made.file, tensors=tensors)
    with pytest.raises(ModelFileError, match=r"rope_factors_long\.weight is missing beside rope_factors_short\.weight"):
        made.graph()


def test_families_that_run_from_onnx_only_say_why() -> None:
    for name, why in ONNX_ONLY.items():
        file = GgufFile("model.gguf", 3, {"general.architecture": name}, {}, 0)
        with pytest.raises(UnsupportedModelError, match=rf"architecture '{name}' has {why}; .*or an ONNX export"):
            family_of(file)
    for name, why in NOWHERE.items():
        file = GgufFile("model.gguf", 3, {"general.architecture": name}, {}, 0)
        with pytest.raises(UnsupportedModelError) as raised:
            family_of(file)
        assert why in str(raised.value)
        assert "ONNX" not in str(raised.value)
