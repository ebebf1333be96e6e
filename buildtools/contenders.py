"""Other engines for the bench: installed apart from the product, with npm, each by its own lock file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan_host.locks import locked

from . import CACHE, ROOT
from .environment import Stage, run_tool

__all__ = ["CONTENDERS", "Contender", "install", "versions"]


@dataclass(frozen=True)
class Contender:
    """An npm package that the bench measures; benches/<name> has its package.json and lock file."""

    name: str
    title: str
    package: str
    files: Mapping[str, tuple[str, ...]]
    """By package, what a page loads of it, as published; nothing else of the packages is kept."""
    brings: Mapping[str, str]
    """Further parts with their own versions: the title by package."""

    @property
    def source(self) -> Path:
        return ROOT / "benches" / self.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return CACHE / self.name

    def install(self) -> Path:
        """The folder with the files; does nothing when they are there. npm runs no scripts."""
        inputs = [self.source / "package.json", self.source / "package-lock.json"]
        text = json.dumps({package: list(names) for package, names in self.files.items()})
        stage = Stage(f"{self.title} for the bench", self.folder / ".capstan", inputs, self._install, text)
        if not stage.is_done():
            with locked(self.name):
                stage.run_once()
        return self.folder

    def versions(self) -> dict[str, str]:
        """By the lock file."""
        packages = json.loads((self.source / "package-lock.json").read_text())["packages"]
        titles = {self.package: self.title, **self.brings}
        return {title: packages[f"node_modules/{package}"]["version"] for package, title in titles.items()}

    def _install(self) -> None:
        npm = shutil.which("npm") or "npm"
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            folder = Path(scratch) / self.name
            shutil.copytree(self.source, folder)
            shutil.copy(ROOT / ".npmrc", folder)
            flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            run_tool([npm, "ci", *flags], "check the network and free disk space, then run this again", cwd=folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            for package, names in self.files.items():
                for name in names:
                    source = folder / "node_modules" / package / name
                    shutil.copyfile(source, self.folder / source.name)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(
            "transformers_js",
            "Transformers.js",
            "@huggingface/transformers",
            {
                "@huggingface/transformers": ("dist/transformers.min.js", "LICENSE"),
                "onnxruntime-web": (
                    "dist/ort-wasm-simd-threaded.asyncify.mjs",
                    "dist/ort-wasm-simd-threaded.asyncify.wasm",
                ),
            },
            {"onnxruntime-web": "onnxruntime-web of Transformers.js"},
        ),
        Contender(
            "wllama",
            "wllama",
            "@wllama/wllama",
            {"@wllama/wllama": ("esm/index.min.js", "esm/wasm/wllama.wasm", "LICENCE")},
            {},
        ),
    )
}


def install(names: Iterable[str]) -> dict[str, Path]:
    """The folder of each contender that is named and comes in a package."""
    return {name: CONTENDERS[name].install() for name in names if name in CONTENDERS}


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages, and of their dependencies."""
    found: dict[str, str] = {}
    for name in names:
        if name in CONTENDERS:
            found |= CONTENDERS[name].versions()
    return found
