"""This checkout as the commands see it: its page is assembled, its browser installed where they are missing."""

from __future__ import annotations

from pathlib import Path

from capstan_host.machine import Machine

from .browser import find_browser
from .contenders import CONTENDERS
from .site import assemble

__all__ = ["CHECKOUT"]


def transformers_js(install: bool) -> Path | None:
    """The folder of Transformers.js, as the bench installs it."""
    contender = CONTENDERS["transformers_js"]
    if install:
        return contender.install()
    return contender.folder if contender.folder.is_dir() else None


CHECKOUT = Machine("build.py", assemble, find_browser, transformers_js)
