"""The packages that users get: of the folder in CAPSTAN_DIST, which `build.py dist` wrote, else made now."""

from __future__ import annotations

import os
from pathlib import Path

from buildtools.commands import dist
from buildtools.site import assemble
from buildtools.wheels import build_wheel

__all__ = ["tarball", "wheel"]

DIST = "CAPSTAN_DIST"


def tarball(folder: Path) -> Path:
    """npm's; one that has to be made is put into `folder`."""
    if found := published("capstan-webgpu-*.tgz"):
        return found
    assemble()
    return dist.npm_package(folder)


def wheel(folder: Path) -> Path:
    """The wheel; one that has to be made is put into `folder`."""
    return published("capstan_webgpu-*.whl") or build_wheel(folder)


def published(pattern: str) -> Path | None:
    """The one such file of CAPSTAN_DIST; None if that is not set."""
    named = os.environ.get(DIST)
    if not named:
        return None
    found = list(Path(named).resolve().glob(pattern))
    assert len(found) == 1, (
        f"{DIST} is {named}, which has {len(found)} files {pattern}; `python3 build.py dist` writes one into build/dist"
    )
    return found[0]
