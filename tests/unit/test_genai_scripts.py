"""The scripts of tests/genai_scripts print what is committed, on CPython with the native package and capstan.genai."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path
from types import ModuleType

import onnxruntime_genai as native
import pytest

from capstan import genai
from tests.genai_scripts import EXPECTED, FOLDER, LINES, MODELS, SCRIPTS
from tests.genai_scripts.make_expected import PLACES


def test_there_are_twelve() -> None:
    assert len(SCRIPTS) >= 12
    assert {path.stem for path in EXPECTED.iterdir()} == set(SCRIPTS)


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
@pytest.mark.parametrize("module", [native, genai], ids=["native", "capstan"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_is_expected(
    name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", module)
    monkeypatch.delitem(sys.modules, "common", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "-m", str(PLACES[MODELS[name]]), "-e", "cpu"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(LINES)))
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    monkeypatch.delitem(sys.modules, "common", raising=False)
    assert capsys.readouterr().out == Path(EXPECTED / f"{name}.txt").read_text(encoding="utf-8")
