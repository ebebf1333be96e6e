"""What is behind `build.py`. The modules that set up the environment import the standard library only."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CACHE = BUILD / "cache"
SITE = BUILD / "site"
VENV = ROOT / ".venv"
