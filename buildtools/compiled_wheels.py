"""Runs in Pyodide, not here (buildtools/snapshot.mjs): wheels with the bytecode of their modules.

Importing from those leaves no compiler's garbage in the memory that becomes the snapshot: a quarter of its size.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from importlib import _bootstrap_external
from pathlib import Path

__all__ = ["add_bytecode", "name_sources"]


def add_bytecode(wheel: str) -> None:
    """Add the bytecode of its modules to a wheel. The bytecode is unchecked: it was made from them."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    made = Path(wheel + ".new")
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
            if name.endswith(".py"):
                code = compile(content, f"{wheel}/{name}", "exec", dont_inherit=True)
                to_bytecode = _bootstrap_external._code_to_hash_pyc  # type: ignore[attr-defined]
                bytecode = to_bytecode(code, importlib.util.source_hash(content), checked=False)
                archive.writestr(zipfile.ZipInfo(name + "c"), bytecode)
    made.replace(wheel)


def name_sources(folder: str) -> None:
    """Let the modules of the wheels in `folder` be those of their sources: the page's wheels have no bytecode."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(folder) and file.endswith(".pyc"):
            module.__file__ = file.removesuffix("c")
            if module.__spec__ is not None:
                module.__spec__.origin = module.__file__
    importlib.invalidate_caches()
