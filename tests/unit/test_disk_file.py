"""Model folders on CPython whose files are no files: pipes, devices, links in a circle, and files of any length."""

from __future__ import annotations

import asyncio

import pytest

from capstan import ModelFileError
from capstan.model import Model
from tests.faults.folders import FILES, KINDS, laid_out
from tests.looped import looped

CASES = [(file, kind) for file in FILES for kind in KINDS if (file, kind) != ("model.onnx.data", "endless")]


@looped("case", CASES)
def test_what_is_no_file_of_a_model_is_refused_and_not_waited_for(
    case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, kind = case
    place = tmp_path_factory.mktemp("model")
    laid_out(place, {name: kind})
    with pytest.raises(ModelFileError, match=f"/{name}(:| has) {KINDS[kind][1]}"):
        asyncio.run(Model.load(place))
