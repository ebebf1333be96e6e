"""The folders of the commands: a checkout's own, or the user's cache folder for an installed package."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["CACHE", "MODELS", "user_cache"]


def user_cache(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder of Capstan's files below the user's cache folder, by the conventions of the platform."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData/Local") / "capstan/Cache"
    if platform == "darwin":
        return home / "Library/Caches/capstan"
    # A relative path in the variable is to be ignored, says the specification.
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else home / ".cache") / "capstan"


ROOT = Path(__file__).resolve().parents[2]
IS_CHECKOUT = (ROOT / "build.py").is_file() and (ROOT / "buildtools").is_dir()
MODELS = ROOT / "models" if IS_CHECKOUT else user_cache() / "models"
"""Models that were downloaded, and the bundled one of a checkout."""
CACHE = ROOT / "build/cache" if IS_CHECKOUT else user_cache()
