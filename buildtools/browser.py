"""Finds a Chromium that really starts, and the flags that give it WebGPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import CACHE
from .environment import locked, venv_python
from .errors import CommandError
from .terminal import say

__all__ = ["HARDWARE_LINUX", "adapters_to_try", "browser_version", "find_browser", "flags", "install_packages"]

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
REMEMBERED = CACHE / "browser.txt"
VERSION_SECONDS = 20
DOWNLOAD_SECONDS = 900
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
    """Chromium's command-line flags for a `software` or `hardware` WebGPU adapter on this machine."""
    chosen = ["--enable-unsafe-webgpu"]
    if adapter == "software":
        chosen += SOFTWARE
    elif sys.platform.startswith("linux"):
        chosen += HARDWARE_LINUX
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        chosen.append("--no-sandbox")
    return chosen


def adapters_to_try(wish: str) -> list[str]:
    """The adapters to launch with, in order, for `auto`, `hardware` or `software` (CAPSTAN_ADAPTER)."""
    if wish in ("hardware", "software"):
        return [wish]
    if wish != "auto":
        raise CommandError(f"CAPSTAN_ADAPTER is {wish!r}: set it to auto, hardware or software")
    if sys.platform in ("darwin", "win32") or gpu_devices():
        return ["hardware", "software"]
    return ["software"]


def gpu_devices(dev: Path = Path("/dev")) -> list[Path]:
    """The GPU device nodes of a Linux machine."""
    return [*dev.glob("dri/render*"), *dev.glob("nvidia0")]


def find_browser(environ: Mapping[str, str] = os.environ) -> Path:
    """A Chromium that answers `--version`: CAPSTAN_BROWSER, an installed one, Playwright's, the system's package."""
    named = environ.get("CAPSTAN_BROWSER")
    if named:
        return _named_browser(named, environ)
    for candidate in _installed(environ):
        if browser_version(candidate):
            return candidate
    remembered = _remembered()
    if remembered is not None:
        return remembered
    with locked("browser"):
        found = _download() or _install_package(environ)
        if found is None:
            raise CommandError(f"no Chrome or Chromium starts on this machine: {REMEDY}")
        REMEMBERED.write_text(str(found))
    return found


def browser_version(path: Path) -> str | None:
    """The program's version line, or None if it does not start: Ubuntu's stub only names its snap."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip().splitlines()[-1:] if done.returncode == 0 else []
    return version[0] if version and version[0].startswith(("Google Chrome", "Chromium")) else None


def _named_browser(named: str, environ: Mapping[str, str]) -> Path:
    found = shutil.which(named, path=environ.get("PATH"))
    if found is None or not browser_version(Path(found)):
        reason = "does not answer --version as a Chrome or Chromium" if found else "is not a program"
        raise CommandError(f"CAPSTAN_BROWSER={named} {reason}: give the path of Chrome or Chromium, or unset it")
    return Path(found)


def _installed(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in NAMES:
        found = shutil.which(name, path=environ.get("PATH", ""))
        if found:
            yield Path(found)
    yield from (Path(path) for path in ELSEWHERE.get(sys.platform, ()) if Path(path).exists())


def _remembered() -> Path | None:
    if not REMEMBERED.exists():
        return None
    path = Path(REMEMBERED.read_text())
    return path if browser_version(path) else None


def _download() -> Path | None:
    """Playwright's own Chromium, with the system libraries it needs where we may install them."""
    playwright = [str(venv_python()), "-m", "playwright"]
    say("set-up: no browser is installed; downloading Chromium through Playwright ...")
    if not _succeeds([*playwright, "install", "--no-shell", "chromium"], DOWNLOAD_SECONDS):
        say("set-up: the download failed")
        return None
    script = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    path = Path(
        subprocess.run([venv_python(), "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    )
    if not browser_version(path) and _is_root():
        _succeeds([*playwright, "install-deps", "chromium"], DOWNLOAD_SECONDS)
    return path if browser_version(path) else None


def _install_package(environ: Mapping[str, str]) -> Path | None:
    """The system's chromium package."""
    install_packages(["chromium"])
    return next((path for path in _installed(environ) if browser_version(path)), None)


def install_packages(names: Sequence[str]) -> bool:
    """Install packages of the system, for root on a machine with apt; whether that was done."""
    if not _is_root() or shutil.which("apt-get") is None:
        return False
    say(f"set-up: installing {', '.join(names)} with apt-get ...")
    _succeeds(["apt-get", "update"], DOWNLOAD_SECONDS)
    return _succeeds(["apt-get", "install", "-y", "--no-install-recommends", *names], DOWNLOAD_SECONDS)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _succeeds(command: list[str], seconds: float) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
