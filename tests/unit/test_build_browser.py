"""Finding a browser among what may be installed, and its flags."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.async_api import Error

from buildtools import browser
from buildtools.browser import find_browser
from capstan.errors import OptionError
from capstan_host.headless.chromium import BrowserError, Launches, adapters_to_try, browser_version, flags, gpu_devices
from capstan_host.headless.headless_page import launch
from capstan_host.testing.pages import launched

SNAP_STUB = """#!/bin/sh
echo "Command '$0' requires the chromium snap to be installed." >&2
echo "Please install it with: snap install chromium" >&2
exit 1
"""


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def prints(version: str) -> str:
    return f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}"\n'


@pytest.fixture(autouse=True)
def nothing_is_installed_for_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "REMEMBERED", tmp_path / "browser.txt")
    monkeypatch.setattr(browser, "CACHE", tmp_path)
    monkeypatch.setattr("capstan_host.headless.chromium.ELSEWHERE", {})
    monkeypatch.setattr(browser, "_download", lambda: None)
    monkeypatch.setattr(browser, "_install_package", lambda environ: None)


def test_an_installed_browser_is_found_on_the_path(tmp_path: Path) -> None:
    chromium = program(tmp_path / "bin", "chromium", prints("Chromium 156.0.1 built on Debian"))
    assert find_browser({"PATH": str(tmp_path / "bin")}) == chromium


def test_a_browser_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "bin", "google-chrome", "#!/bin/sh\nexit 127\n")
    program(tmp_path / "bin", "chromium", SNAP_STUB)
    chromium = program(tmp_path / "bin", "chromium-browser", prints("Google Chrome 156.0"))
    assert find_browser({"PATH": str(tmp_path / "bin")}) == chromium


def test_a_stub_alone_ends_in_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    program(tmp_path / "bin", "chromium", SNAP_STUB)
    with pytest.raises(
        BrowserError, match=r"^no Chrome or Chromium starts on this machine: install .*apt-get"
    ) as caught:
        find_browser({"PATH": str(tmp_path / "bin")})
    assert "\n" not in str(caught.value)


def test_a_program_that_is_no_browser_or_hangs_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert browser_version(program(tmp_path, "editor", prints("Editor 3.0"))) is None
    assert browser_version(tmp_path / "absent") is None
    assert browser_version(program(tmp_path, "chrome", prints("Chromium 1.2"))) == "Chromium 1.2"
    monkeypatch.setattr("capstan_host.headless.chromium.VERSION_SECONDS", 0.2)
    assert browser_version(program(tmp_path, "slow", "#!/bin/sh\nsleep 60\necho Chromium 1.2\n")) is None


def test_capstan_browser_comes_first_and_is_never_replaced(tmp_path: Path) -> None:
    program(tmp_path / "bin", "chromium", prints("Chromium 1"))
    mine = program(tmp_path / "mine", "chrome", prints("Google Chrome 2"))
    environ = {"PATH": str(tmp_path / "bin"), "CAPSTAN_BROWSER": str(mine)}
    assert find_browser(environ) == mine
    for wrong in (tmp_path / "absent", program(tmp_path / "mine", "stub", SNAP_STUB)):
        with pytest.raises(BrowserError, match=rf"CAPSTAN_BROWSER={wrong} "):
            find_browser({**environ, "CAPSTAN_BROWSER": str(wrong)})


def test_a_downloaded_browser_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded = program(tmp_path / "cache", "chrome", prints("Chromium 7"))
    monkeypatch.setattr(browser, "_download", lambda: downloaded)
    assert find_browser({"PATH": ""}) == downloaded
    monkeypatch.setattr(browser, "_download", lambda: pytest.fail("downloaded twice"))
    assert find_browser({"PATH": ""}) == downloaded


def test_the_adapter_follows_the_wish_and_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("capstan_host.headless.chromium.gpu_devices", list)
    assert adapters_to_try("auto", "webgpu") == ["software"]
    assert adapters_to_try("auto", "auto") == ["none"]
    monkeypatch.setattr("capstan_host.headless.chromium.gpu_devices", lambda: [Path("/dev/nvidia0")])
    assert adapters_to_try("auto", "webgpu") == ["hardware", "software"]
    assert adapters_to_try("auto", "auto") == ["hardware", "none"]
    assert adapters_to_try("auto", "wasm") == ["none"]
    for device in ("auto", "webgpu", "wasm"):
        assert adapters_to_try("software", device) == ["software"]
        assert adapters_to_try("hardware", device) == ["hardware"]
    with pytest.raises(OptionError, match="CAPSTAN_ADAPTER is 'gpu': set it to auto, hardware or software"):
        adapters_to_try("gpu", "auto")


class PaperBrowser:
    """A browser whose page finds what `finds` holds, or fails with it; and the page."""

    def __init__(self, finds: dict[str, Any] | Error | None) -> None:
        self.finds = finds
        self.closed = False

    async def new_page(self) -> PaperBrowser:
        return PaperBrowser(self.finds)

    async def goto(self, address: str) -> None:
        assert re.fullmatch("http://[^/]+/capstan/python.json", address)

    async def evaluate(self, script: str) -> dict[str, Any] | None:
        if isinstance(self.finds, Error):
            raise self.finds
        return self.finds

    async def close(self) -> None:
        self.closed = True


class PaperPlaywright:
    """Starts those browsers in turn."""

    def __init__(self, *browsers: PaperBrowser) -> None:
        self.browsers = list(browsers)
        self.chromium = self

    async def launch(self, *, args: list[str], **_others: object) -> PaperBrowser:
        return self.browsers.pop(0)


class Blocking:
    """The same for code that blocks."""

    def __init__(self, paper: PaperBrowser | PaperPlaywright) -> None:
        self.paper = paper
        self.chromium = self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = asyncio.run(getattr(self.paper, name)(*given, **named))
            return Blocking(found) if isinstance(found, PaperBrowser) else found

        return call


def opened(
    way: str, wish: str, site: Path, browsers: Sequence[PaperBrowser], said: list[str], device: str = "auto"
) -> PaperBrowser:
    """The browser, open, that a command (`launch`) or a test (`launched`) is given."""
    paper = PaperPlaywright(*browsers)
    if way == "command":
        found: Any = asyncio.run(launch(paper, site, Launches(wish, device), "http://s/", said.append))
        assert not found.closed
        return cast("PaperBrowser", found)
    with launched(cast("Any", Blocking(paper)), Path("b"), wish, site, [], said.append) as browser:
        found = cast("Any", browser).paper
        assert not found.closed
    return cast("PaperBrowser", found)


GPU = {"name": "nvidia hopper", "software": False}
WAYS = pytest.mark.parametrize("way", ["command", "test"])


@pytest.mark.parametrize(("way", "device"), [("command", "auto"), ("command", "webgpu"), ("test", "auto")])
@pytest.mark.parametrize(
    ("finds", "reason"),
    [(GPU, None), (None, "since Chromium finds no GPU here"), (Error("GPU is off"), "the page failed: GPU is off")],
)
def test_a_step_down_from_the_gpu_tells_its_reason(
    finds: dict[str, Any] | Error | None,
    reason: str | None,
    device: str,
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capstan_host.headless.chromium.gpu_devices", lambda: [Path("/dev/nvidia0")])
    first, second, said = PaperBrowser(finds), PaperBrowser(GPU), list[str]()
    assert opened(way, "auto", tmp_path, [first, second], said, device) is (second if reason else first)
    assert first.closed or reason is None
    if (way, device, finds) == ("command", "auto", None):
        assert said == [], "the run's last line names the device"
    else:
        assert (reason or "") in " ".join(said)
        assert bool(said) == (reason is not None)
    software = "WebGPU: software adapter" in " ".join(said)
    assert software == (device == "webgpu" and reason is not None)


@WAYS
def test_an_adapter_that_must_be_had_and_fails_is_an_error(way: str, tmp_path: Path) -> None:
    for finds, told in ((Error("GPU is off"), "the page failed: GPU is off"), (None, "Chromium finds no GPU here")):
        found = PaperBrowser(finds)
        with pytest.raises(BrowserError, match=told):
            opened(way, "hardware", tmp_path, [found], [])
        assert found.closed


def test_gpu_device_nodes_are_seen(tmp_path: Path) -> None:
    assert gpu_devices(tmp_path) == []
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri/renderD128").touch()
    assert gpu_devices(tmp_path) == [tmp_path / "dri/renderD128"]


def test_flags_differ_by_adapter_and_the_sandbox_stays_on_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "--use-webgpu-adapter=swiftshader" in flags("software")
    assert "--use-webgpu-adapter=swiftshader" not in flags("hardware")
    assert flags("none") == ["--disable-gpu"]
    assert "--no-sandbox" not in flags("software")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--no-sandbox" in flags("software")


def test_on_windows_no_browser_is_started_for_its_version(tmp_path: Path) -> None:
    program(tmp_path, "chrome.exe", prints("Chromium 1.2"))
    assert browser_version(tmp_path / "chrome.exe", "win32") is None
    (tmp_path / "156.0.8078.108").mkdir()
    assert browser_version(tmp_path / "chrome.exe", "win32") == "Chromium 156.0.8078.108"
    (tmp_path / "playwright").mkdir()
    program(tmp_path / "playwright", "chrome.exe", prints(""))
    (tmp_path / "playwright/157.0.1.2.manifest").touch()
    assert browser_version(tmp_path / "playwright/chrome.exe", "win32") == "Chromium 157.0.1.2"
    program(tmp_path, "editor.exe", prints("Editor"))
    assert browser_version(tmp_path / "editor.exe", "win32") is None
    assert browser_version(tmp_path / "absent/chrome.exe", "win32") is None
