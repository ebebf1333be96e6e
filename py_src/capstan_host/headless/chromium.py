"""Finds a Chromium that really starts, and the flags that give it WebGPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from capstan.errors import CapstanError, OptionError

__all__ = [
    *(
        "BrowserError",
        "HARDWARE_LINUX",
        "REMEDY",
        "adapters_to_try",
        "browser_version",
        "find_browser",
        "flags",
        "gpu_devices",
    ),
    *("Launches", "installed_browser", "named_browser", "start_error"),
]


class BrowserError(CapstanError):
    """No browser is there, it does not start, it crashed, or its page failed; `detail` has the browser's own words."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


NAMES = ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser", "chrome")
ELSEWHERE = {
    "darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ),
    "win32": (
        r"C:\Program Files\Google\Chrome\Application\chrome.exe",
        r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe",
    ),
}
WINDOWS_OF_ONE_USER = r"Google\Chrome\Application\chrome.exe"
"""Below LOCALAPPDATA."""
WINDOWS_PROGRAMS = ("chrome.exe", "chromium.exe")
WINDOWS_VERSION = re.compile(r"(\d+(?:\.\d+){3})(?:\.manifest)?")
VERSION_SECONDS = 20
REMEDY = (
    "install Google Chrome or Chromium (Debian: apt-get install chromium; Ubuntu: Google's .deb package, "
    "since Ubuntu's own is only a stub) or name one in CAPSTAN_BROWSER"
)

SOFTWARE = (
    "--enable-features=Vulkan",
    "--use-webgpu-adapter=swiftshader",
    "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension",
)
"""The last one: Dawn's loops set workgroup memory to zero. SwiftShader's own way is one store for each element, and
compiling these took two thirds of the time to the first token."""
HARDWARE_LINUX = (
    "--enable-features=Vulkan",
    "--use-angle=vulkan",
    "--disable-vulkan-surface",
    "--ignore-gpu-blocklist",
    "--enable-dawn-features=vulkan_enable_f16_on_nvidia",
)


def flags(adapter: str) -> list[str]:
    """Chromium's command-line flags for a `software` or `hardware` WebGPU adapter on this machine, or for `none`."""
    if adapter == "none":
        chosen = ["--disable-gpu"]
    elif adapter == "software":
        chosen = ["--enable-unsafe-webgpu", *SOFTWARE]
    else:
        chosen = ["--enable-unsafe-webgpu", *(HARDWARE_LINUX if sys.platform.startswith("linux") else ())]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        chosen.append("--no-sandbox")
    return chosen


def adapters_to_try(wish: str, device: str) -> list[str]:
    """The adapters to launch with, in order: `wish` is `hardware`, `software` or `auto` (CAPSTAN_ADAPTER). For `auto`
    the `device` decides: webgpu takes the GPU, else software; auto takes the GPU, else `none`; wasm needs none."""
    if wish in ("hardware", "software"):
        return [wish]
    if wish != "auto":
        raise OptionError(f"CAPSTAN_ADAPTER is {wish!r}: set it to auto, hardware or software")
    if device == "wasm":
        return ["none"]
    last = "software" if device == "webgpu" else "none"
    return ["hardware", last] if sys.platform in ("darwin", "win32") or gpu_devices() else [last]


class Launches:
    """An iterable of the adapters to try for a `device`, each with Chromium's arguments, until a page gets one. Raises
    BrowserError, with the reason, after the last one.
    """

    def __init__(self, wish: str, device: str) -> None:
        self.wish = wish
        self.device = device
        self.adapter = ""
        """The last adapter that was tried."""
        self.failure: BrowserError | None = None
        """How the browser failed with the GPU."""

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        for adapter in adapters_to_try(self.wish, self.device):
            self.adapter = adapter
            yield adapter, ["--headless=new", *flags(adapter)]
        raise BrowserError(
            f"a hardware adapter was requested, but {self.reason}: set CAPSTAN_ADAPTER to auto or software",
            detail=self.failure.detail if self.failure else "",
        ) from self.failure

    @property
    def reason(self) -> str:
        """The cause of a fallback to the software adapter."""
        return f"it failed with the GPU ({self.failure})" if self.failure else "Chromium finds no GPU here"

    def step_down(self) -> list[str]:
        """The message about a fallback from the GPU, with its cause and its cost; empty if a certain adapter was
        requested.
        """
        if self.wish != "auto":
            return []
        if self.adapter == "software":
            return [
                f"WebGPU: software adapter, since {self.reason} (CAPSTAN_ADAPTER=hardware insists):",
                "the CPU does the GPU's work, and the first answer of a chat model takes minutes",
            ]
        if self.failure:
            return [f"the CPU computes, since {self.reason} (CAPSTAN_ADAPTER=hardware insists)"]
        return []


def start_error(program: Path, error: Exception) -> BrowserError:
    """The error of a browser that does not start."""
    return BrowserError(
        f"the browser {program} does not start: install another one or name it in CAPSTAN_BROWSER", detail=str(error)
    )


def gpu_devices(dev: Path = Path("/dev")) -> list[Path]:
    """The GPU device nodes of a Linux machine."""
    return [*dev.glob("dri/render*"), *dev.glob("nvidia0")]


def find_browser(environ: Mapping[str, str] = os.environ) -> Path:
    """A Chromium that answers `--version`: CAPSTAN_BROWSER, or an installed one. Raises BrowserError without one."""
    found = named_browser(environ) or installed_browser(environ)
    if found is None:
        raise BrowserError(f"no Chrome or Chromium starts on this machine: {REMEDY}")
    return found


def named_browser(environ: Mapping[str, str] = os.environ) -> Path | None:
    """CAPSTAN_BROWSER, if it is set. Raises BrowserError if it is not a Chrome or Chromium."""
    named = environ.get("CAPSTAN_BROWSER")
    if not named:
        return None
    found = shutil.which(named, path=environ.get("PATH"))
    if found is None or not browser_version(Path(found)):
        reason = "does not answer --version as a Chrome or Chromium" if found else "is not a program"
        raise BrowserError(f"CAPSTAN_BROWSER={named} {reason}: give the path of Chrome or Chromium, or unset it")
    return Path(found)


def installed_browser(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The first Chrome or Chromium on the path, or where its installer puts it, that answers `--version`."""
    return next((path for path in _installed(environ) if browser_version(path)), None)


def browser_version(path: Path, platform: str = sys.platform) -> str | None:
    """The program's version line, or None if it does not start: Ubuntu's stub only names its snap."""
    if platform == "win32":
        return _version_beside(path)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip().splitlines()[-1:] if done.returncode == 0 else []
    return version[0] if version and version[0].startswith(("Google Chrome", "Chromium")) else None


def _version_beside(path: Path) -> str | None:
    """The version of a Chrome or Chromium on Windows, where `--version` opens a window: a folder or a manifest beside
    the program has its name."""
    if path.name.lower() not in WINDOWS_PROGRAMS or not path.is_file():
        return None
    versions = [found[1] for each in path.parent.iterdir() if (found := WINDOWS_VERSION.fullmatch(each.name))]
    return max((f"Chromium {version}" for version in versions), default=None)


def _installed(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in NAMES:
        found = shutil.which(name, path=environ.get("PATH", ""))
        if found:
            yield Path(found)
    own = environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    places = [Path(own, WINDOWS_OF_ONE_USER)] if own else []
    yield from (path for path in [*map(Path, ELSEWHERE.get(sys.platform, ())), *places] if path.exists())
