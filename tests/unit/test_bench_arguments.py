"""Wrong arguments of the bench end it with one line before anything starts, and leave nothing half-made."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benches.runner import main as runner
from benches.runner.main import checked
from buildtools import cli
from buildtools.commands import bench

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"


@pytest.fixture(autouse=True)
def no_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "ensure", lambda group: pytest.fail("set-up began"))


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with a file, a folder that is not empty, a pack's archive and a model without its weights."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/something").touch()
    (tmp_path / "packed.tar.xz").touch()
    shutil.copytree(LLAMA, tmp_path / "no-weights", ignore=shutil.ignore_patterns("*.data"))
    shutil.copytree(LLAMA, tmp_path / "no-sizes")
    config = json.loads((LLAMA / "genai_config.json").read_text())
    del config["model"]["vocab_size"]
    (tmp_path / "no-sizes/genai_config.json").write_text(json.dumps(config))
    (tmp_path / "nothing").mkdir()
    return tmp_path


WRONG = [
    (["--sections", "decode,speed"], "--sections names 'speed'; there are cases, start, load, rest, decode"),
    (["--sections", ""], "--sections names ''; there are"),
    (
        ["--without", "Transformers.js"],
        "--without names 'Transformers.js'; there are transformers_js, wllama, eager",
    ),
    (["--rounds", "0"], "--rounds is 0, but must be at least 1"),
    (["--tokens", "1"], "--tokens is 1, but must be at least 2"),
    (["--budget", "nan"], "--budget is nan, but must be at least 1"),
    (["--lengths", "16,long"], "--lengths holds 'long', which is no prompt length"),
    (["--lengths", "0"], "--lengths holds '0', which is no prompt length"),
    (["--out", "{0}/results.txt"], "--out is {0}/results.txt, but must be a file that ends in .json"),
    (["--out", "{0}/missing/results.json"], "--out is in {0}/missing, which is no folder"),
    (["--out", "{0}/file/results.json"], "--out is in {0}/file, which is no folder"),
]
MODELS = [
    ("{0}/missing", "model folder {0}/missing does not exist"),
    ("{0}/missing.gguf", "model file {0}/missing.gguf does not exist: name a GGUF file"),
    ("{0}/nothing", "{0}/nothing has no genai_config.json"),
    ("{0}/no-weights", "{0}/no-weights/model.onnx.data does not exist: the bench needs"),
    ("{0}/no-sizes", "{0}/no-sizes/genai_config.json: model.vocab_size is no integer"),
]
PACKS = [
    (["--pack", "{0}/new"], "--pack is for a GPU host: give --suite gpu with it"),
    (["--suite", "gpu", "--pack", "{0}/full"], "{0}/full is not empty: name a new folder"),
    (["--suite", "gpu", "--pack", "{0}/file"], "{0}/file is not a folder: name another place"),
    (["--suite", "gpu", "--pack", "{0}/file/new"], "{0}/file is not a folder: name another place"),
    (["--suite", "gpu", "--pack", "{0}/packed"], "{0}/packed.tar.xz is there already: remove it"),
]


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("argv", "message"), [*WRONG, *((["--model", folder], message) for folder, message in MODELS), *PACKS]
)
def test_build_refuses(places: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    before = sorted(places.rglob("*"))
    assert cli.main(["bench", *(word.format(places) for word in argv)]) == 2
    assert told(capsys).startswith(f"error: {message.format(places)}")
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        *((["--browser", "true", *argv, str(LLAMA)], message) for argv, message in WRONG),
        *(([folder], message) for folder, message in MODELS),
        ([], "no model: name a folder"),
        (["--browser", "/no/browser", str(LLAMA)], "/no/browser is not a program"),
        (["--browser", "true", str(LLAMA), "{0}/copy/nano-llama"], "two models are named 'nano-llama'"),
        (["--browser", "true", str(LLAMA)], "{0} is no unpacked pack: in a checkout, run python3 build.py bench"),
        (["--render", "{0}/missing.json"], "{0}/missing.json cannot be rendered"),
        (["--render", "{0}/file"], "{0}/file cannot be rendered"),
    ],
)
def test_a_pack_refuses(
    places: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(runner, "PACK", places)
    shutil.copytree(LLAMA, places / "copy/nano-llama")
    before = sorted(places.rglob("*"))
    assert runner.main([word.format(places) for word in argv]) == 2
    assert told(capsys).startswith(f"error: {message.format(places)}")
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize("ids", [[], [5], [5, 6, 7, 8]])
def test_a_generation_of_another_length_has_failed(ids: list[int]) -> None:
    step = {"action": "call", "function": "generate", "args": {"tokens": 3}}
    outcome = checked({"ok": True, "data": {"ids": ids, "rest_ms": 1.0}}, step)
    assert (outcome["ok"], outcome["error"]) == (False, f"{len(ids)} tokens came, 3 were asked for")
    assert checked({"ok": True, "data": {"ids": [5, 6, 7]}}, step)["ok"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_pack_appears_whole_or_not_at_all(fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fill(folder: Path, *_: Any) -> None:
        folder.mkdir()
        (folder / "half").touch()
        if fails:
            raise OSError("no space is left")

    monkeypatch.setattr(bench, "fill", fill)
    folder = tmp_path / "new" / "pack"
    folder.mkdir(parents=True)
    if fails:
        with pytest.raises(OSError, match="no space"):
            bench.pack(folder, {})
        assert list(tmp_path.rglob("*")) == [folder.parent, folder]
        return
    bench.pack(folder, {})
    assert (folder / "half").is_file()
    with tarfile.open(folder.with_name("pack.tar.xz")) as archive:
        assert archive.getnames() == ["pack", "pack/half"]
    assert sorted(folder.parent.iterdir()) == [folder, folder.with_name("pack.tar.xz")]
