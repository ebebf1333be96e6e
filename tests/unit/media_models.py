"""Parts that tests of models that hear or see share: changed copies of a folder, a greedy generator, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capstan import genai

__all__ = ["copied", "greedy", "refused", "text_model"]


def greedy(og: Any, model: Any, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, **options})
    return og.Generator(model, params)


def refused(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)


def copied(folder: Path, target: Path, **changes: Any) -> str:
    """A copy of the folder, in whose genai_config.json the fields at these places below `model` have other values."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    config = json.loads((target / "genai_config.json").read_text())
    for path, value in changes.items():
        *way, last = path.split("__")
        section = config["model"]
        for key in way:
            section = section[key]
        if value is None:
            del section[last]
        else:
            section[last] = value
    (target / "genai_config.json").write_text(json.dumps(config))
    return str(target)


def text_model(folder: Path) -> genai.Model:
    """A model of text, on the CPU."""
    config = genai.Config(str(folder))
    config.clear_providers()
    return genai.Model(config)
