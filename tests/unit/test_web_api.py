"""The page's side of the JavaScript API, tested in Node over a stand-in worker (capstan.test.mjs)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from buildtools import ROOT

SUITES = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name.removesuffix(".test.mjs"))
def test_suite_in_node(suite: Path, tmp_path: Path) -> None:
    bundle = tmp_path / suite.name
    esbuild = ROOT / "node_modules/.bin/esbuild"
    flags = ["--bundle", "--platform=node", "--format=esm", "--log-level=error", f"--outfile={bundle}"]
    subprocess.run([str(esbuild), str(suite), *flags], check=True, cwd=ROOT)
    node = shutil.which("node")
    assert node
    done = subprocess.run([node, "--test", str(bundle)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "\n# pass 0\n" not in done.stdout
