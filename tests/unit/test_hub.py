"""Repositories of a hub by their ids: valid and invalid ids, addresses, revisions and tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import capstan_host.model_arguments
from buildtools import cli
from capstan import HubRepository, Model, OptionError
from capstan.model_files.hub import HUGGING_FACE

HUB = "https://hub.test"


@pytest.mark.parametrize("id", ["gpt2", "owner/name", "a-b/c.d_e", "0x/1"])
def test_ids_are_a_name_or_an_owner_and_a_name(id: str) -> None:
    assert str(HubRepository(id, f"{HUB}/")) == f"{id} at main of {HUB}"


def test_an_id_may_name_a_file_and_the_hub_has_a_default() -> None:
    found = HubRepository("owner/name:Q8_0/model.gguf")
    assert (found.name, found.file, found.hub) == ("owner/name", "Q8_0/model.gguf", "https://huggingface.co")
    assert (HubRepository("owner/name").file, capstan_host.model_arguments.HUGGING_FACE) == (None, HUGGING_FACE)
    with pytest.raises(OptionError, match="hub is None, so there is no hub for owner/name; leave it out, or give"):
        HubRepository("owner/name", None)
    for file in ("", "model.onnx", "../model.gguf", "%2e%2e/model.gguf", "a:b.gguf", "/model.gguf"):
        with pytest.raises(OptionError, match=r"repository is 'a/b:.*', but a file of it must be like 'FILE\.gguf'"):
            HubRepository(f"a/b:{file}")


@pytest.mark.parametrize("id", ["", "/a", "a/", "a/b/c", "../b", "a/..", "a b/c", "a/b?c", "a/b#c", "a--b/c", "é/b", 3])
def test_other_ids_are_refused(id: Any) -> None:
    with pytest.raises(OptionError, match=r"^repository is .*, but must be like 'OWNER/NAME'$"):
        HubRepository(id, HUB)


@pytest.mark.parametrize("hub", ["", "hub.test", "ftp://hub.test", "https://", "https://h b", "https://hub.test?x"])
def test_other_addresses_are_refused(hub: Any) -> None:
    with pytest.raises(OptionError, match=r"^hub is .*, but must be an address and begin with https:// or http://$"):
        HubRepository("a/b", hub)


def test_revisions_and_tokens_that_cannot_be_are_refused_and_the_token_is_not_shown() -> None:
    with pytest.raises(OptionError, match="revision is 'a b', but must be a branch, a tag or a commit"):
        HubRepository("a/b", HUB, "a b")
    with pytest.raises(OptionError) as caught:
        HubRepository("a/b", HUB, token="secret\n")
    assert "secret" not in str(caught.value)
    whole = HubRepository("a/b", HUB, "refs/pr/1", "secret")
    assert (whole.revision, whole.token) == ("refs/pr/1", "secret")
    assert "secret" not in f"{whole!r} {whole}"


def test_on_cpython_a_repository_is_to_be_downloaded() -> None:
    with pytest.raises(OptionError, match=r"a/b at main of https://hub\.test can be read only in a page; download"):
        asyncio.run(Model.load(HubRepository("a/b", HUB)))


class TestCommandLine:
    def asked(self, *argv: str) -> Any:
        args = cli.parse(["run", "x", *argv])
        cli.COMMANDS["run"][0].check(args)
        return args.request["model"]

    def test_an_id_and_an_address_are_a_repository(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CAPSTAN_HUB_TOKEN", "secret")
        found = self.asked("--model", "owner/name", "--hub", HUB, "--revision", "v1")
        assert found == {"repository": "owner/name", "hub": HUB, "revision": "v1", "token": "secret"}

    def test_the_environment_may_have_the_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CAPSTAN_HUB_TOKEN", raising=False)
        monkeypatch.setenv("CAPSTAN_HUB", HUB)
        found = self.asked("--model", "owner/name")
        assert found == {"repository": "owner/name", "hub": HUB, "revision": None, "token": None}

    def test_the_default_is_the_hugging_face_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CAPSTAN_HUB", raising=False)
        for name in ("owner/name", "owner/name:model.gguf", "owner/name-GGUF:Q4_0/model-00001-of-00002.gguf"):
            found = self.asked("--model", name)
            assert (found["repository"], found["hub"]) == (name, HUGGING_FACE)

    def test_a_path_that_is_mistyped_is_asked_of_no_hub(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "models").mkdir()
        for name in ("models/smolm2", "models/model.gguf", "other/model.gguf", "models/a:model.gguf"):
            assert cli.main(["run", "x", "--model", name]) == 2
            assert f"{name} does not exist: give" in capsys.readouterr().err

    def test_without_an_address_nothing_is_asked(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CAPSTAN_HUB", "")
        assert cli.main(["run", "x", "--model", "owner/name"]) == 2
        assert (
            "owner/name does not exist: give another one, or if it is a repository's id, the hub's address as --hub"
            in (capsys.readouterr().err)
        )

    def test_a_folder_is_a_folder_whatever_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "owner" / "name").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert cli.main(["run", "x", "--model", "owner/name", "--hub", HUB]) == 2
        assert "owner/name has no genai_config.json" in capsys.readouterr().err

    def test_a_revision_of_a_folder_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["run", "x", "--model", "/nowhere", "--revision", "v1"]) == 2
        assert "--revision is v1, but /nowhere is no repository of a hub: leave it out" in capsys.readouterr().err
