"""A hook of hatchling, which builds the wheel: `pip install .` in a checkout puts the page's files into it.

It runs in pip's build environment. `build.py` itself builds the wheel for Pyodide without hooks (NO_HOOKS), so that it
stays small.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["PageInWheel"]

PLACE = "capstan_host/site"
"""The page's folder in the wheel: PACKAGED of capstan_host.headless.site_folder."""
OF_PIPS_BUILD = ("PYTHONPATH", "PYTHONNOUSERSITE")
"""Variables by which pip has its build environment's Python find hatchling; build.py has an environment of its own."""


class PageInWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Assembles the page with `build.py site` and adds it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the page to a wheel; an editable one needs none, and an archive of the sources has none."""
        root = Path(self.root)
        if version == "editable":
            return
        if not (root / "build.py").is_file():
            self.app.display_warning(
                "these sources have no page: the commands take one of npm's capstan-webgpu, or of CAPSTAN_SITE"
            )
            return
        environ = {name: value for name, value in os.environ.items() if name not in OF_PIPS_BUILD}
        command = [sys.executable, str(root / "build.py"), "site"]
        done = subprocess.run(command, cwd=root, env=environ, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            self.app.abort("the page cannot be assembled: do what the error above says, then run pip again")
        build_data["force_include"][done.stdout.strip()] = PLACE
