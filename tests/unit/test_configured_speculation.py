"""A genai_config.json that sets speculation has the same effect as with onnxruntime-genai, or is refused by name."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest

import capstan
from capstan import ConfigError, FallbackWarning, Generator, GeneratorParams, Model, OptionError, genai
from capstan.stages.speculation_options import Speculation
from tests.unit.config_variants import changed, draft

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALL = "small/model.onnx"
PROMPT = [1, 5, 6, 7, 5, 6, 7, 5, 6]
LENGTH = 90


def made(folder: Path, change: Callable[[str], str]) -> Path:
    """nano-float's folder with another configuration, and with nano-llama below it."""
    shutil.copytree(FIXTURES / "nano-float", folder)
    shutil.copytree(FIXTURES / "nano-llama", folder / "small")
    file = folder / "genai_config.json"
    file.write_text(change(file.read_text()))
    return folder


def speculative(**options: Any) -> Callable[[str], str]:
    return lambda text: changed(text, speculative=options)


def drafted(text: str) -> str:
    return changed(draft(SMALL, text), speculative={"max_draft_tokens": 3})


def generated(og: ModuleType, folder: Path) -> tuple[list[int], dict[str, Any]]:
    """The greedy sequence, and the statistics of speculation."""
    config = og.Config(str(folder))
    config.clear_providers()
    model = og.Model(config)
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=LENGTH)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(PROMPT, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)], generator.get_speculative_stats()


@pytest.mark.parametrize("change", [speculative(ngram_size=2, max_draft_tokens=3), drafted], ids=["search", "model"])
def test_what_a_folder_asks_for_is_done_as_by_onnxruntime_genai(change: Callable[[str], str], tmp_path: Path) -> None:
    folder = made(tmp_path / "m", change)
    expected, found = generated(native, folder), generated(genai, folder)
    assert found[0] == expected[0] == generated(native, made(tmp_path / "plain", str))[0]
    # Found drafts are tried where steps over them are faster.
    for _, stats in (expected, found) if change is drafted else (expected,):
        assert 0 < stats["draft_tokens_proposed"] <= 3 * stats["rounds"]
        assert (stats["ngram_lookup_hits"] == 0) == (change is drafted)
    assert found[1]["formula_supported"]
    assert expected[1]["formula_supported"]


def test_generators_have_the_files_options(tmp_path: Path) -> None:
    folder = made(tmp_path / "m", speculative(ngram_size=4, max_draft_tokens=7, cooldown=True))
    model = Model(str(folder))
    params = GeneratorParams(model)
    assert params.speculation == Speculation(4, 7, chained=False)
    params.set_search_options(batch_size=3)
    rows = Generator(model, params)
    assert rows.speculation is None
    rows.close()
    params.set_speculation(None)
    assert GeneratorParams(Model(str(FIXTURES / "nano-float"))).speculation is None


def test_the_callers_draft_model_is_preferred(tmp_path: Path) -> None:
    for number, change in enumerate((speculative(ngram_size=4, max_draft_tokens=7), drafted)):
        folder = made(tmp_path / str(number), change)
        model = Model(str(folder), draft_model=str(FIXTURES / "nano-shape"))
        assert model.draft_model is not None
        assert model.draft_model.folder == f"{FIXTURES / 'nano-shape'}/"
        assert GeneratorParams(model).speculation == Speculation(max_draft_tokens=3 if number else 7)


def test_a_plan_counts_the_folders_draft_model(tmp_path: Path) -> None:
    folder = str(made(tmp_path / "m", drafted))
    model = Model(folder)
    loaded = model.query_memory_requirements(1, 64)
    assert asyncio.run(capstan.plan(folder, max_length=64)).requirements == loaded
    assert loaded.draft == Model(str(FIXTURES / "nano-llama")).query_memory_requirements(1, 64)
    small = model.draft_model
    assert small is not None
    model.close()
    assert not small.healthy()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            speculative(foo=1),
            ConfigError,
            r"genai_config\.json: speculative\.foo: 'foo' is not a speculative option",
        ),
        (
            speculative(ngram_size=17),
            ConfigError,
            r"speculative\.ngram_size: .*17; it must be from 2 to 16;",
        ),
        (speculative(cooldown=1), ConfigError, r"speculative\.cooldown: cooldown is 1; it must be True or False"),
        (speculative(ngram_chained_lookup=True), OptionError, "ngram_size is 0; set ngram_size from 2 to 16"),
        (
            lambda text: changed(drafted(text), speculative={"ngram_size": 3}),
            OptionError,
            r"ngram_size is 3, and the model has a draft model in model\.draft; set ngram_size to 0, or take",
        ),
        (
            lambda text: draft(SMALL, text, num_hidden_layers=0),
            ConfigError,
            r"model\.draft\.num_hidden_layers",
        ),
        (lambda text: draft("../x.onnx", text), ConfigError, r"model\.draft\.filename: expected a file below"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    change: Callable[[str], str], error: type[Exception], said: str, tmp_path: Path
) -> None:
    folder = str(made(tmp_path / "m", change))
    with pytest.raises(error, match=said):
        Model(folder)


def test_a_draft_model_of_a_model_that_sees_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", tmp_path / "m"))
    tree = json.loads((folder / "genai_config.json").read_text())
    tree["model"]["draft"] = tree["model"]["decoder"]
    (folder / "genai_config.json").write_text(json.dumps(tree))
    with pytest.raises(capstan.UnsupportedModelError, match=r"model\.draft: the model, of type gemma3, hears or sees"):
        Model(str(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            speculative(ngram_size=3, min_adaptive_k=3),
            r"steps of min_adaptive_k \(3\) drafts: a step has",
        ),
        (
            lambda text: changed(text, model__dflash2={"filename": "x"}),
            r"model\.dflash2 \(drafts of whole blocks\)",
        ),
    ],
)
def test_what_has_no_effect_is_told(change: Callable[[str], str], said: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "m", change)
    with pytest.warns(FallbackWarning, match=said):
        Model(str(folder))
