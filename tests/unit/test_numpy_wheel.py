"""numpy's wheel for the page is the pinned one, or the set-up fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from buildtools import numpy_wheel as module
from capstan_host.command_errors import CommandError


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / Path(module.MEMBER).name).write_bytes(b"something else")
    with pytest.raises(CommandError, match=f"has sha256 .*, expected {module.SHA256}: delete"):
        module.numpy_wheel(tmp_path)


def test_a_network_that_is_down_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(CommandError, match="numpy for the page cannot be fetched: check the network") as raised:
        module.fetch_numpy(Path(sys.executable), tmp_path)
    assert raised.value.detail == "no route to host"
    assert list(tmp_path.iterdir()) == []


def test_numpys_licence_is_in_its_wheel() -> None:
    assert "NumPy Developers" in module.numpy_licence()
