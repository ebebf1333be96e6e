"""Transformers.js for the bench: installed apart from the product, with npm and by its own lock file."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from . import CACHE, ROOT
from .environment import Stage, locked, run_tool

__all__ = ["FILES", "FOLDER", "install", "versions"]

SOURCE = ROOT / "benches/transformers_js"
FOLDER = CACHE / "transformers_js"
PACKAGE = "@huggingface/transformers"
FILES = {
    PACKAGE: ("dist/transformers.min.js", "LICENSE"),
    "onnxruntime-web": ("dist/ort-wasm-simd-threaded.asyncify.mjs", "dist/ort-wasm-simd-threaded.asyncify.wasm"),
}
"""What a page loads of it, as published; of the packages it depends on nothing else is kept."""


def install() -> Path:
    """The folder with those files; does nothing when they are there. npm runs no scripts."""
    inputs = [SOURCE / "package.json", SOURCE / "package-lock.json"]
    stage = Stage("Transformers.js for the bench", FOLDER / ".capstan", inputs, _install)
    if not stage.is_done():
        with locked("transformers_js"):
            stage.run_once()
    return FOLDER


def versions() -> dict[str, str]:
    """Of Transformers.js and of the onnxruntime-web that it brings, by the lock file."""
    packages = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    return {
        "Transformers.js": packages[f"node_modules/{PACKAGE}"]["version"],
        "onnxruntime-web of Transformers.js": packages["node_modules/onnxruntime-web"]["version"],
    }


def _install() -> None:
    npm = shutil.which("npm") or "npm"
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        folder = Path(scratch) / "transformers_js"
        shutil.copytree(SOURCE, folder)
        shutil.copy(ROOT / ".npmrc", folder)
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        run_tool([npm, "ci", *flags], "check the network and free disk space, then run this again", cwd=folder)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        for package, names in FILES.items():
            for name in names:
                source = folder / "node_modules" / package / name
                shutil.copyfile(source, FOLDER / source.name)
