"""Finds Firefox and WebKitGTK for the tests that run there; for root on a machine with apt it installs them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from capstan_host.locks import locked

from .browser import install_packages

__all__ = ["FIREFOX", "LAVAPIPE", "WEBKIT", "OtherBrowser"]


@dataclass(frozen=True)
class OtherBrowser:
    """A browser that is not Chromium, as Debian packages it."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    """Each must be on the PATH."""
    patterns: tuple[str, ...]
    """Files that must be there besides; of the first, the last one found is the browser."""

    def find(self) -> Path | None:
        """The browser's program, installed now if it can be; None where something is missing and stays so."""
        found = self._find()
        if found is None:
            with locked("other-browsers"):
                found = self._find()
                if found is None and install_packages(self.packages):
                    found = self._find()
        return found

    @property
    def remedy(self) -> str:
        """Why a test of it is skipped."""
        return f"{self.name} is not installed: apt-get install {' '.join(self.packages)}, as root"

    def _find(self) -> Path | None:
        paths = [shutil.which(program) for program in self.programs]
        files = [sorted(Path("/").glob(pattern)) for pattern in self.patterns]
        if None in paths or [] in files:
            return None
        return files[0][-1]


LAVAPIPE = OtherBrowser(
    "Mesa's lavapipe",
    ("libvulkan1", "mesa-vulkan-drivers"),
    (),
    ("usr/share/vulkan/icd.d/lvp_icd*.json", "usr/lib/*/libvulkan.so.1"),
)
"""No browser: a Vulkan device on the CPU, used to try Firefox and naga."""
FIREFOX = OtherBrowser(
    "Firefox",
    ("firefox-esr", *LAVAPIPE.packages),
    (),
    ("usr/bin/firefox-esr", *LAVAPIPE.patterns),
)
WEBKIT = OtherBrowser(
    "WebKitGTK",
    ("webkit2gtk-driver", "xvfb"),
    ("WebKitWebDriver", "Xvfb"),
    ("usr/lib/*/webkit2gtk-4.*/MiniBrowser",),
)
"""It has no headless mode: it is shown on a display that nobody sees."""
