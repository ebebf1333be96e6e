"""The page's code in Node, for tests without a browser."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from buildtools import ROOT

__all__ = ["started"]


def started(entry: Path, *flags: str, arguments: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Node with a module and all that it imports, bundled by esbuild with these flags; it ends with this process. The
    program gets `arguments`."""
    folder = tempfile.TemporaryDirectory()
    bundle = Path(folder.name) / f"{entry.stem}.mjs"
    formats = ["--loader:.wasm=binary", "--target=es2022", "--platform=node", "--format=esm"]
    options = ["--bundle", *formats, *flags, f"--outfile={bundle}"]
    esbuild = str(ROOT / "node_modules" / ".bin" / "esbuild")
    subprocess.run([esbuild, str(entry), *options], check=True, capture_output=True, cwd=ROOT)
    node = shutil.which("node")
    assert node
    process = subprocess.Popen(
        [node, str(bundle), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def end() -> None:
        assert process.stdin
        process.stdin.close()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return process
