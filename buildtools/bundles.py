"""JavaScript bundles, from the TypeScript of web/ and of tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capstan_host.command_errors import CommandError

from . import ROOT
from .environment import run_tool
from .kernels import compile_kernels

__all__ = [
    "CLIENT_AND_WORKER",
    "ENTRIES",
    "MCP",
    "ON_DEMAND",
    "PHONEMES",
    "WHEEL_HOST",
    "bundle",
    "bundle_on_demand",
    "bundle_small",
    "bundle_wheel_host",
]

SOURCES = ROOT / "web/src"
ENTRIES = {
    "capstan": SOURCES / "page/capstan.ts",
    "chat": SOURCES / "chat/chat.ts",
    "ai": SOURCES / "page/ai.ts",
    "agent": SOURCES / "agent/agent.ts",
    "prompt-api": SOURCES / "prompt_api/prompt_api.ts",
}
"""The entries of the npm package."""
CLIENT_AND_WORKER = {
    "capstan.js": ENTRIES["capstan"],
    "worker.js": SOURCES / "worker/worker.ts",
    "ort_runtime.js": SOURCES / "worker/ort_runtime.ts",
}
PHONEMES = SOURCES / "worker/phonemes.ts"
"""The worker imports it for the first text that is spoken."""
MCP = SOURCES / "agent/mcp.ts"
"""An agent imports it for its first MCP server, as ./mcp.js."""
ON_DEMAND = {
    "./highlight.js": SOURCES / "chat/highlight.ts",
    "./math.js": SOURCES / "chat/math.ts",
    "./pdf_text.js": SOURCES / "chat/pdf_text.ts",
}
"""The modules that <capstan-chat> imports on demand, for colours of code, formulas and PDF files: files beside its
own."""
WHEEL_HOST = ROOT / "py_src/capstan/_js/host.js"
"""Made for each wheel that other people's pages install; see py_src/capstan/_js/own_host.py."""
FLAGS = ("--bundle", "--platform=browser", "--target=es2022", "--log-level=error", "--charset=utf8")
LOADERS = ("--loader:.wgsl=text", "--loader:.py=text", "--loader:.css=text", "--loader:.wasm=binary")
"""Shaders, Python and styles become text, the CPU's kernels bytes."""


def bundle(source: Path, target: Path, extra: Sequence[str] = ()) -> Path:
    """One ES module from a TypeScript entry."""
    return _built(source, target, ["--format=esm", *extra])


def bundle_on_demand(folder: Path) -> list[Path]:
    """The modules of `ON_DEMAND`, in the folder of the element's script."""
    return [bundle_small(source, folder / name) for name, source in ON_DEMAND.items()]


def bundle_small(source: Path, target: Path) -> Path:
    """A minified module with the licences in it."""
    return bundle(source, target, ["--minify", "--legal-comments=inline"])


def bundle_wheel_host() -> Path:
    """A script, as Python cannot wait for a module while it imports; the value of the script is the host."""
    script = ["--format=iife", "--global-name=capstanHost", "--minify", "--legal-comments=inline"]
    value = ["--banner:js=(() => {", "--footer:js=return capstanHost.host; })()"]
    return _built(SOURCES / "worker/wheel_host.ts", WHEEL_HOST, [*script, *value])


def _built(source: Path, target: Path, flags: Sequence[str]) -> Path:
    if not source.is_file():
        raise CommandError(f"{source.relative_to(ROOT)} is missing: restore it with git checkout")
    compile_kernels()
    esbuild = ROOT / "node_modules/esbuild/bin/esbuild"
    options = [*FLAGS, *LOADERS, *flags, f"--outfile={target.absolute()}"]
    # A bundle has the path of each module, as it is from this folder.
    run_tool(["node", esbuild, source, *options], "fix the error in web/", cwd=SOURCES)
    return target
