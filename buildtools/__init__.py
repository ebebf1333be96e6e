"""The code behind `build.py`. The modules that set up the environment import the standard library only."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CACHE = BUILD / "cache"
SITE = BUILD / "site"
VENV = ROOT / ".venv"


def find_package() -> None:
    """Let this process import `capstan` from the source."""
    source = str(ROOT / "py_src")
    if source not in sys.path:
        sys.path.insert(0, source)
