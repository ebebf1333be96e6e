"""The list of models that are known to fit."""

from __future__ import annotations

import json
from datetime import date

import capstan
from buildtools import ROOT
from capstan.loading.repository import DTYPES
from capstan.model_files.gguf.families import FAMILIES


def test_each_model_can_be_named() -> None:
    assert len({known.id for known in capstan.models}) == len(capstan.models) > 3
    for known in capstan.models:
        assert (known.repository.id, known.repository.hub) == (known.id, "https://huggingface.co")
        assert (known.dtype in DTYPES) is (known.repository.file is None), known
        assert known.family in {family.type for family in FAMILIES.values()}
        assert known.context_length >= 8192
        assert known.licence == "Apache-2.0"
        assert known.bytes is None or known.bytes > 10_000_000
        assert known.needs_f16 is (known.dtype is not None and known.dtype.endswith("f16"))
        assert known.bytes or not known.tried


def test_the_list_has_a_date_and_takes_others() -> None:
    data = json.loads((ROOT / "py_src/capstan/model_files/known_models.json").read_text())
    assert date.fromisoformat(data["date"]) >= date(2026, 11, 25)
    mine = capstan.KnownModel("me/mine", "q4", None, "llama", 128, 64, "MIT", needs_f16=False, tried=True)
    capstan.models.append(mine)
    assert capstan.models.pop() is mine
