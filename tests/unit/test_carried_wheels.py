"""The wheels for the page are the pinned ones, or the set-up fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from buildtools import carried_wheels as module
from capstan_host.command_errors import CommandError


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    for each in (*module.CARRIED, module.DETECTOR):
        (tmp_path / each.file_name).write_bytes(b"something else")
        with pytest.raises(CommandError, match=f"has sha256 .*, expected {each.sha256}: delete"):
            each.path(tmp_path)


def test_a_network_that_is_down_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(CommandError, match="wheels for the page cannot be fetched: check the network") as raised:
        module.fetch_carried(Path(sys.executable), tmp_path)
    assert raised.value.detail == "no route to host"
    assert list(tmp_path.iterdir()) == []


def test_the_licences_are_in_the_wheels() -> None:
    texts = {each.module: each.licence_text() for each in (*module.CARRIED, module.DETECTOR)}
    assert "NumPy Developers" in texts["numpy"]
    assert "Secret Labs AB" in texts["PIL"]
    assert "Silero Team" in texts["silero_vad"]
