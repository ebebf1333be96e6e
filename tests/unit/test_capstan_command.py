"""The command that `pip install` gives: its folders, where it finds the page, and the page in the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import buildtools.cli
from buildtools import ROOT
from buildtools.page_in_wheel import PLACE, PageInWheel
from capstan.errors import OptionError
from capstan_host import cli, machine
from capstan_host.command_errors import CommandError
from capstan_host.headless import site_folder as headless_site
from capstan_host.headless.chromium import BrowserError
from capstan_host.headless.site_folder import PAGE, SiteError, find_site
from capstan_host.machine import INSTALLED
from capstan_host.places import user_cache


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {"HOME": "/home/a"}, "/home/a/.cache/capstan"),
        ("linux", {"HOME": "/home/a", "XDG_CACHE_HOME": "/fast"}, "/fast/capstan"),
        ("linux", {"HOME": "/home/a", "XDG_CACHE_HOME": "relative"}, "/home/a/.cache/capstan"),
        ("darwin", {"HOME": "/Users/a", "XDG_CACHE_HOME": "/fast"}, "/Users/a/Library/Caches/capstan"),
        ("win32", {"HOME": "/c/a", "LOCALAPPDATA": "/c/local"}, "/c/local/capstan/Cache"),
        ("win32", {"HOME": "/c/a"}, "/c/a/AppData/Local/capstan/Cache"),
    ],
)
def test_the_cache_folder_is_where_the_platform_has_it(platform: str, environ: dict[str, str], folder: str) -> None:
    assert user_cache(environ, platform) == Path(folder)


def test_build_py_has_the_same_commands() -> None:
    assert cli.COMMANDS.items() <= buildtools.cli.COMMANDS.items()
    assert [*cli.COMMANDS] == ["run", "chat", "serve", "exec", "fleet", "models"]


def test_chat_is_run_with_chat() -> None:
    given = ["--system", "Be brief.", "--top-k", "3", "--model", "owner/name"]
    found = []
    for command in (["chat"], ["run", "--chat"]):
        args = buildtools.cli.parse([*command, *given])
        buildtools.cli.COMMANDS[args.command][0].check(args)
        found.append((args.request, args.system))
    assert found[0] == found[1]
    assert found[0][1] == "Be brief."


def test_options_are_in_groups_by_subject() -> None:
    for command, groups in (
        ("run", ["prompt", "model", "sampling", "output", "device", "advanced", "speech", "voice"]),
        ("chat", ["prompt", "model", "sampling", "output", "device", "advanced"]),
        ("fleet", ["prompt", "model", "sampling", "output", "workers", "device", "advanced"]),
    ):
        titles = [group.title for group in buildtools.cli.parsers()[command]._action_groups]
        assert titles[2:] == groups


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("capstan ")


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGPIPE")
def test_a_reader_that_ends_early_is_no_error() -> None:
    command = f"{sys.executable} build.py models list"
    done = subprocess.run(
        ["bash", "-c", f"{{ sleep 1; {command}; echo status $? >&2; }} | true"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.stderr == "status 141\n"


def test_an_extra_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    assert cli.main(["fleet", str(prompts)]) == 2
    assert capsys.readouterr().err.startswith('error: fleet needs Dask, which is not installed: pip install "capstan-w')


def page(folder: Path) -> Path:
    (folder / PAGE).parent.mkdir(parents=True)
    (folder / PAGE).touch()
    return folder


def test_the_packages_own_page_comes_before_an_apps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSTAN_SITE", raising=False)
    packaged = tmp_path / "package/site"
    monkeypatch.setattr(machine, "PACKAGED", packaged)
    monkeypatch.setattr(headless_site, "PACKAGED", packaged)
    with pytest.raises(CommandError, match=r"^no node_modules/capstan-webgpu with .*: run `npm install"):
        INSTALLED.site()
    app = page(tmp_path / "node_modules/capstan-webgpu")
    assert INSTALLED.site() == app
    page(packaged)
    assert INSTALLED.site() == packaged
    assert find_site(environ={}) == app, "a test of an app takes the app's"
    shutil.rmtree(app)
    assert find_site(environ={}) == packaged
    named = page(tmp_path / "named")
    assert find_site(named, {"CAPSTAN_SITE": str(app)}) == named
    monkeypatch.setenv("CAPSTAN_SITE", str(named))
    assert INSTALLED.site() == named
    with pytest.raises(SiteError, match="CAPSTAN_SITE=/nowhere has no"):
        find_site(environ={"CAPSTAN_SITE": "/nowhere"})
    with pytest.raises(SiteError, match="site=/nowhere has no"):
        find_site(Path("/nowhere"), {})


def test_a_machine_without_a_browser_has_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPSTAN_BROWSER", str(tmp_path / "chrome"))
    with pytest.raises(BrowserError, match="chrome is not a program: give the path of Chrome or Chromium"):
        INSTALLED.browser()


@pytest.mark.parametrize(
    ("error", "status"),
    [(CommandError("no", 1), 1), (CommandError("no"), 2), (BrowserError("no", "crashed"), 2), (OptionError("no"), 2)],
)
def test_errors_of_commands_and_browsers_are_one_line(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert cli.reported(work, debug=False) == status
    assert capsys.readouterr().err == "error: no\n"
    assert cli.reported(work, debug=True) == status
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("error: no\ncrashed\n" if isinstance(error, BrowserError) else "error: no\n")


def test_transformers_js_is_installed_by_a_checkout_alone() -> None:
    assert INSTALLED.transformers_js(False) is None
    with pytest.raises(CommandError, match="--transformers-js has no folder: give the one"):
        INSTALLED.transformers_js(True)


class App:
    """Hatchling's application: what a hook says, and how it ends the build."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def display_warning(self, text: str) -> None:
        self.said.append(text)

    def abort(self, text: str) -> None:
        raise SystemExit(text)


def hooked(root: Path, version: str = "standard") -> tuple[dict[str, Any], list[str]]:
    """The folders that the hook adds to a wheel of these sources, and what it says."""
    app, build_data = App(), {"force_include": dict[str, str]()}
    hook: Any = PageInWheel(str(root), {}, None, None, str(root), "wheel", app)  # type: ignore[arg-type]
    hook.initialize(version, build_data)
    return build_data["force_include"], app.said


def test_a_wheel_of_a_checkout_has_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/pips/build")
    (tmp_path / "build.py").write_text("import os, sys; print(sys.argv[1] + os.environ.get('PYTHONPATH', ''))")
    assert hooked(tmp_path) == ({"site": PLACE}, [])
    assert hooked(tmp_path, "editable") == ({}, [])
    assert headless_site.PACKAGED == ROOT / "py_src" / PLACE


def test_a_page_that_cannot_be_assembled_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "build.py").write_text("import sys; sys.exit(2)")
    with pytest.raises(SystemExit, match="the page cannot be assembled: do what the error above says"):
        hooked(tmp_path)


def test_sources_without_a_page_say_so(tmp_path: Path) -> None:
    added, [said] = hooked(tmp_path)
    assert added == {}
    assert said.startswith("these sources have no page")


@pytest.mark.skipif(os.name == "nt", reason="PATH is searched in another way")
def test_a_machine_without_node_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from buildtools import environment

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match=r"^node was not found: install Node 18 or newer with npm"):
        environment._npm_install()
