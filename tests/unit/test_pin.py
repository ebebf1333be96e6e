"""`build.py pin`: another version of onnxruntime-web, and the differences of its tapes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from buildtools.commands import pin
from capstan_host.command_errors import CommandError

BEFORE = {
    "llama": {"ids": [1, 2], "passes": {"capture": "tape", "fused": "23 operations became 12, 1 of them as recorded"}},
    "qwen": {"ids": [3], "passes": {"capture": "tape", "fused": "30 operations became 12, 0 of them as recorded"}},
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Package files with version 1.30.0."""
    found = [tmp_path / path.name for path in pin.FILES]
    for path in found:
        path.write_text(json.dumps({"dependencies": {pin.PACKAGE: "1.30.0"}}))
    monkeypatch.setattr(pin, "FILES", tuple(found))
    monkeypatch.setattr(pin, "ensure", lambda group: None)
    monkeypatch.setattr(pin, "run_tool", lambda command, remedy: [path.write_text("{}") for path in found])
    return found


def moved(version: str) -> int:
    args = argparse.Namespace(version=version)
    pin.check(args)
    return pin.run(args)


def runs(monkeypatch: pytest.MonkeyPatch, after: dict[str, Any] | None) -> None:
    def recognised(version: str) -> dict[str, Any]:
        if version == "1.30.0":
            return BEFORE
        if after is None:
            raise CommandError("no model ran")
        return after

    monkeypatch.setattr(pin, "recognised", recognised)


def test_what_recognition_lost_is_told_and_the_pin_moves(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {
        "capture": "tape",
        "fused": "23 operations became 15, 4 of them as recorded",
        "as recorded": "x: no kernel (3 times); y: no",
    }
    runs(monkeypatch, {"llama": {"ids": [1, 2], "passes": lost}, "qwen": {"error": "SessionError: no"}})
    assert moved("1.31.0") == 1
    out = capsys.readouterr().out
    assert "llama, fused: 23 operations became 12, 1 of them as recorded -> 23 operations became 15" in out
    assert "as recorded in 1 more models: x: no kernel\n" in out
    assert "qwen, error: - -> SessionError: no" in out
    assert "onnxruntime-web 1.31.0 is pinned instead of 1.30.0. 0 of 2 models are as before." in out
    assert [path.read_text() for path in files] == ["{}", "{}"]
    runs(monkeypatch, BEFORE)
    for path in files:
        path.write_text(json.dumps({"dependencies": {pin.PACKAGE: "1.30.0"}}))
    assert moved("1.31.0") == 0


def test_a_version_that_runs_no_model_leaves_the_pin(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, None)
    kept = [path.read_bytes() for path in files]
    with pytest.raises(CommandError, match="no model ran"):
        moved("1.31.0")
    assert [path.read_bytes() for path in files] == kept


@pytest.mark.parametrize("version", ["latest", "^1.31.0", "1.31", ""])
def test_ranges_and_tags_are_refused(version: str, files: list[Path]) -> None:
    with pytest.raises(CommandError, match="give an exact one"):
        moved(version)


def test_the_pinned_version_is_refused(files: list[Path]) -> None:
    with pytest.raises(CommandError, match=r"1\.30\.0 is the pinned version; give another one"):
        moved("1.30.0")
