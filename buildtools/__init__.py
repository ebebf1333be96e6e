"""The code after `build.py`. The modules that set up the environment import the standard library only."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CACHE = BUILD / "cache"
SITE = BUILD / "site"
VENV = ROOT / ".venv"

SOURCES = str(ROOT / "py_src")

# This process imports `capstan` and `capstan_host` from the source.
if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)
