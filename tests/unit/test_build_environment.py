"""The set-up: done once, done again after an interruption or a change, never twice at a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from buildtools import ROOT, environment, site
from buildtools.commands.dist import bill_of_materials
from buildtools.environment import Stage, ensure, run_tool
from buildtools.notices import NOTICES, notices
from capstan_host.command_errors import CommandError
from capstan_host.locks import locked


def stage(folder: Path, work: list[str], fail: bool = False) -> Stage:
    def do() -> None:
        work.append("done")
        if fail:
            raise KeyboardInterrupt

    return Stage("a stage", folder / "made/.stamp", [folder / "lock.txt"], do)


def test_a_stage_is_done_once_until_its_inputs_change(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("a==1")
    work: list[str] = []
    stage(tmp_path, work).run_once()
    stage(tmp_path, work).run_once()
    assert len(work) == 1
    (tmp_path / "lock.txt").write_text("a==2")
    assert not stage(tmp_path, work).is_done()
    stage(tmp_path, work).run_once()
    assert len(work) == 2


def test_an_interrupted_stage_does_not_look_done_even_if_it_once_was(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("a==1")
    stage(tmp_path, []).run_once()
    (tmp_path / "lock.txt").write_text("a==2")
    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, [], fail=True).run_once()
    assert not stage(tmp_path, []).is_done()
    (tmp_path / "lock.txt").write_text("a==1")
    assert not stage(tmp_path, []).is_done()


def test_a_finished_set_up_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *args, **extra: pytest.fail(f"{args} was started"))
    ensure("run")
    ensure("dev")


def test_a_set_up_whose_stages_fail_is_told_the_first_once_all_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("VENV", "CACHE", "ROOT", "PROTOBUF_WHEELS", "MICROPIP_WHEELS", "CARRIED_FOLDER"):
        monkeypatch.setattr(environment, place, tmp_path / place)
    monkeypatch.setattr(environment, "_pinned", lambda group: [])
    monkeypatch.setattr(environment, "_requirements", lambda group: Path(__file__))
    monkeypatch.setattr(environment, "_npm_files", list)
    order: list[str] = []
    npm_fails = threading.Event()

    def install(group: str) -> None:
        order.append(group)
        assert group != "dev" or npm_fails.wait(60), "packages for JavaScript come beside those for Python"
        if group == "dev":
            raise CommandError("no dev")

    def no_npm() -> None:
        npm_fails.set()
        raise CommandError("no npm")

    monkeypatch.setattr(environment, "_make_venv", lambda: order.append("venv"))
    monkeypatch.setattr(environment, "_pip_install", install)
    monkeypatch.setattr(environment, "_npm_install", no_npm)
    for download in ("_download_protobuf", "_download_micropip"):
        monkeypatch.setattr(environment, download, lambda: None)
    monkeypatch.setattr(environment, "fetch_carried", lambda python: None)
    with pytest.raises(CommandError, match="no npm"):
        ensure("dev")
    assert order == ["venv", "run", "dev"]
    assert {path.name for path in (tmp_path / "VENV").iterdir()} == {".capstan-venv", ".capstan-run"}
    assert (tmp_path / "MICROPIP_WHEELS/.capstan").is_file()


def test_a_second_set_up_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    order: list[str] = []

    def second() -> None:
        with locked("set-up"):
            order.append("second")

    with locked("set-up"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_python_without_venv_is_told_which_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(CommandError, match=r"cannot make virtual environments: .*apt-get install python3-venv"):
        environment._make_venv()


def test_a_missing_or_old_node_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match=r"^node was not found: install Node 18 or newer"):
        environment._npm_install()
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho v16.20.2\n")
    node.chmod(0o755)
    with pytest.raises(CommandError, match=r"^Node v16.20.2 found: install Node 18 or newer"):
        environment._npm_install()


def test_a_tools_failure_is_one_line_with_its_own_words() -> None:
    script = "import sys; print('npm error code E404\\nnpm error 404 no such package\\nnpm error log: x'); sys.exit(1)"
    with pytest.raises(CommandError) as caught:
        run_tool([sys.executable, "-c", script], "check the network")
    assert "'npm error code E404 npm error 404 no such package': check the network" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "log: x" in caught.value.detail


def test_the_generated_onnx_module_is_the_one_that_onnx_itself_uses() -> None:
    import onnx

    from capstan.graph import onnx_pb2

    theirs: object = onnx.ModelProto
    assert onnx_pb2.ModelProto is theirs


def test_a_part_of_the_site_is_made_again_only_when_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SITE", tmp_path / "site")
    monkeypatch.setattr(site, "CACHE", tmp_path)
    monkeypatch.setattr(site, "ROOT", tmp_path)
    source = tmp_path / "source.txt"
    source.write_text("one")
    (tmp_path / "site").mkdir()
    made: list[str] = []

    def make() -> list[Path]:
        made.append(source.read_text())
        target = tmp_path / "site" / f"{source.read_text()}.txt"
        target.write_text("x")
        return [target]

    monkeypatch.setattr(site, "__file__", str(tmp_path / "site.py"))
    site.part("text", [source], make)
    site.part("text", [source], make)
    assert made == ["one"]
    source.write_text("two")
    site.part("text", [source], make)
    assert made == ["one", "two"]
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["two.txt"]
    (tmp_path / "site/two.txt").unlink()
    site.part("text", [source], make)
    assert made == ["one", "two", "two"]


def test_the_version_has_one_source() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert json.loads((ROOT / "package.json").read_text())["version"] == version
    assert json.loads((ROOT / "package-lock.json").read_text())["version"] == version


def test_the_pins_that_must_be_exact_are_exact_and_no_lock_file_names_a_host() -> None:
    dependencies = json.loads((ROOT / "package.json").read_text())["dependencies"]
    assert dependencies["onnxruntime-web"] == "1.30.0"
    assert dependencies["pyodide"] == "314.0.7"
    assert '"resolved"' not in (ROOT / "package-lock.json").read_text()


def test_the_notices_are_those_of_what_is_installed() -> None:
    assert NOTICES.read_text(encoding="utf-8") == notices(), "write them again: python3 build.py dist --notices"


def test_a_group_is_set_up_anew_when_a_file_of_pins_changes_that_its_own_includes() -> None:
    names = [path.name for path in environment._pinned("dev")]
    assert names[0] == "dev.txt"
    assert {"run.txt", "fleet.txt"} <= set(names)


@pytest.mark.parametrize(
    ("group", "least"), [("run", 11), ("dev", 11), ("wheel", 11), ("docs", 11), ("fleet", 11), ("pip", 1)]
)
def test_every_package_for_python_has_a_version_and_hashes(group: str, least: int) -> None:
    lines = (ROOT / f"requirements/{group}.txt").read_text().replace("\\\n", "").splitlines()
    packages = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert len(packages) >= least
    marker = '; python_version >= "3.12" '
    for line in packages:
        assert re.fullmatch(rf"[\w.-]+==[\w.]+ (?:{marker})?(?:\s*--hash=sha256:[0-9a-f]{{64}})+", line), line[:60]


def test_the_bill_of_materials_has_every_package_of_the_site_and_no_tool() -> None:
    bill = bill_of_materials()
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "capstan-webgpu")
    found = {component["purl"].rpartition("@")[0] for component in bill["components"]}
    package = json.loads((ROOT / "package.json").read_text())
    for name in package["dependencies"]:
        assert f"pkg:npm/{name.replace('@', '%40')}" in found
    assert {
        "pkg:pypi/numpy",
        "pkg:pypi/pillow",
        "pkg:pypi/protobuf",
        "pkg:pypi/onnx",
        "pkg:pypi/jinja2",
        "pkg:pypi/markupsafe",
    } <= found
    assert not [name for name in package["devDependencies"] if f"pkg:npm/{name.replace('@', '%40')}" in found]
