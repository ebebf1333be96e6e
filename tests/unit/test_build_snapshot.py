"""The memory snapshot is made once for the same wheels, Pyodide and Node."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from buildtools import snapshot
from buildtools.snapshot import make_snapshot


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """The wheels of each call of Node, which writes the wheels' contents instead of a snapshot."""
    calls: list[list[Path]] = []

    def run_node(wheels: Sequence[Path], target: Path) -> str:
        calls.append(list(wheels))
        content = b"".join(wheel.read_bytes() for wheel in wheels)
        target.write_bytes(content)
        return json.dumps({"bytes": len(content), "heap": 1 << 16})

    monkeypatch.setattr(snapshot, "SNAPSHOTS", tmp_path / "snapshots")
    monkeypatch.setattr(snapshot, "run_node", run_node)
    monkeypatch.setattr(snapshot, "run_tool", lambda command, remedy: "v20.1.0")
    return calls


def test_an_unchanged_wheel_keeps_its_snapshot_and_a_changed_one_gets_another(
    tmp_path: Path, made: list[list[Path]]
) -> None:
    wheel = tmp_path / "capstan.whl"
    wheel.write_bytes(b"one")
    first = make_snapshot([wheel])
    assert (first.bytes, first.heap, gzip.decompress(first.path.read_bytes())) == (3, 1 << 16, b"one")
    assert make_snapshot([wheel]) == first
    assert made == [[wheel]]
    wheel.write_bytes(b"three")
    second = make_snapshot([wheel])
    assert gzip.decompress(second.path.read_bytes()) == b"three"
    assert second.path.name != first.path.name
    assert not first.path.exists()
    assert len(made) == 2


def test_another_node_makes_another_snapshot(
    tmp_path: Path, made: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "capstan.whl"
    wheel.write_bytes(b"one")
    make_snapshot([wheel])
    monkeypatch.setattr(snapshot, "run_tool", lambda command, remedy: "v22.0.0")
    make_snapshot([wheel])
    assert len(made) == 2


def test_one_that_could_not_be_made_is_made_the_next_time(
    tmp_path: Path, made: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "capstan.whl"
    wheel.write_bytes(b"one")
    node = snapshot.run_node
    monkeypatch.setattr(snapshot, "run_node", lambda wheels, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_snapshot([wheel])
    monkeypatch.setattr(snapshot, "run_node", node)
    assert make_snapshot([wheel]).bytes == 3
