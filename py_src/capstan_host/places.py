"""The folders of the commands, in a checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CACHE", "MODELS"]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
CACHE = ROOT / "build/cache"
