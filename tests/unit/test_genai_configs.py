"""Variants of a genai_config.json do what they do with onnxruntime-genai, but for those in docs/genai_configs.md."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest

from capstan import genai
from tests.unit.config_variants import FILES, VARIANTS
from tests.unit.genai_cases import FOLDER, PROMPT

ROOT = Path(__file__).parents[2]
TAKEN, REFUSED, OTHER = "takes it", "refuses it", "does otherwise"


@cache
def table() -> dict[str, tuple[str, str]]:
    """The documented behaviour of onnxruntime-genai and Capstan, by variant, out of docs/genai_configs.md."""
    found = {}
    for line in (ROOT / "docs/genai_configs.md").read_text().splitlines():
        if line.startswith("| `"):
            names, here, there, reason = (cell.strip() for cell in line.strip("|").split("|"))
            assert reason, line
            for name in re.findall(r"`([^`]+)`", names):
                assert name not in found, f"{name} is in the table twice"
                found[name] = (here, there)
    return found


def test_the_table_has_variants_that_there_are() -> None:
    assert set(table()) <= set(VARIANTS)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """nano-llama's folder with another genai_config.json."""
    source = Path(FOLDER)
    for name in FILES:
        shutil.copy(source / name, tmp_path)
    shutil.copy(source / "model.onnx", tmp_path / "copy.onnx")
    text = VARIANTS[request.param]((source / "genai_config.json").read_text())
    (tmp_path / "genai_config.json").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
@pytest.mark.parametrize(("folder", "name"), [(name, name) for name in VARIANTS], indirect=["folder"], ids=VARIANTS)
def test_a_variant_does_what_it_does_with_onnxruntime_genai_or_is_in_the_table(folder: Path, name: str) -> None:
    expected, found = outcome(native, folder, name), outcome(genai, folder, name)
    if name not in table():
        assert found == expected
        return
    assert found != expected, f"{name} does the same now; take it out of the table"
    both = "refused" not in (found, expected)
    kinds = [REFUSED if end == "refused" else OTHER if both else TAKEN for end in (expected, found)]
    assert table()[name] == ((TAKEN, OTHER) if both else tuple(kinds))


def outcome(og: ModuleType, folder: Path, name: str) -> Any:
    """The model's type and device, ids of its tokenizer, search options and what it generates, or that it is refused,
    be it when a generator runs."""
    try:
        config = og.Config(str(folder))
        if "provider_options" not in name:
            config.clear_providers()
        model = og.Model(config)
        tokenizer = og.Tokenizer(model)
        ids = tokenizer.bos_token_id, [int(end) for end in tokenizer.eos_token_ids], tokenizer.pad_token_id
        params = og.GeneratorParams(model)
        options, speculative = params.get_search_options(), params.get_speculative_options()
        rows = int(options["batch_size"])
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([PROMPT] * rows, np.int32))
        for _ in range(8):
            if not generator.is_done():
                generator.generate_next_token()
        sequences = [generator.get_sequence(row).tolist() for row in range(rows)]
    except RuntimeError:
        return "refused"
    return model.type, model.device_type, ids, options, speculative, sequences, generator.is_done()
