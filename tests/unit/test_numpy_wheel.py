"""numpy's wheel for the page is the pinned one, or the tests that need it fail."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import numpy_wheel as module


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / Path(module.MEMBER).name).write_bytes(b"something else")
    with pytest.raises(AssertionError, match=f"has sha256 .*, expected {module.SHA256}: delete it"):
        module.numpy_wheel(tmp_path)


def test_a_network_that_is_down_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(AssertionError, match="numpy for the page cannot be fetched, check the network: no route to"):
        module.numpy_wheel(tmp_path)
    assert list(tmp_path.iterdir()) == []
