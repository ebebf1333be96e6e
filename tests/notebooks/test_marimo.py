"""examples/notebooks/capstan_marimo.py runs in a page that marimo exported, from a mirror of npm's and PyPI's files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from buildtools import ROOT
from buildtools.browser import find_browser
from buildtools.environment import PROTOBUF_WHEELS, venv_python
from buildtools.wheels import template_wheels
from capstan_host.headless.chromium import flags
from capstan_host.model_arguments import BUNDLED
from tests import oracle, products
from tests.notebooks.pyodide_distribution import download, fresh_venv, lay_beside, of_npm, pyodide_distribution
from tests.plain_server import serving_plainly

MARIMO = "0.25.2"
PYODIDE = "314.0.0"
"""The Pyodide of the pages that this marimo exports."""
OF_PYODIDE = ["micropip", "packaging", "docutils", "pygments", "jedi", "pyodide-http"]
NEEDED = ["narwhals", "click", "platformdirs"]
PURE = [f"marimo-base=={MARIMO}", "markdown<4", "pymdown-extensions<12", "itsdangerous", "tomlkit", "python-multipart"]
BLACK = ["black", "pathspec", "mypy-extensions", "pytokens"]
"""marimo formats cells by it."""
MSGSPEC = ["--only-binary=:all:", "--platform=pyemscripten_2026_0_wasm32", "--python-version=3.14", "msgspec>=0.22"]
PYYAML = "pyyaml==6.0.3"
NOTEBOOK = ROOT / "examples/notebooks/capstan_marimo.py"
EXPORT = """
import sys
from playwright.async_api import BrowserType

browser, *flags = sys.argv.pop().split("\\n")
launch = BrowserType.launch
BrowserType.launch = lambda self: launch(self, executable_path=browser, args=["--headless=new", *flags])
from marimo._cli.cli import main
main()
"""
"""marimo's command, by this machine's browser in the place of the one that Playwright would have to download."""
RUN_MS = 540_000


def pip(*arguments: object, **environment: str) -> None:
    command = [str(venv_python()), "-m", "pip", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pyodide with the packages of its own that marimo takes in `full`, an index of the others in `simple`."""
    folder = tmp_path_factory.mktemp("mirror")
    pyodide_distribution(folder / "full", OF_PYODIDE + NEEDED, of_npm(folder, f"pyodide@{PYODIDE}"))
    download(folder / "wheels", *PURE, *BLACK)
    pip("download", "-q", "--no-deps", "-d", folder / "wheels", *MSGSPEC)
    # PyPI has no wheel of it for Pyodide; what its source makes without libyaml runs everywhere.
    without = {"PYYAML_FORCE_LIBYAML": "0"}
    pip("wheel", "-q", "--no-deps", "--no-cache-dir", "--no-binary=pyyaml", "-w", folder / "wheels", PYYAML, **without)
    # marimo's page has a lock file of its own, without what the wheel needs: micropip takes that from the index.
    ours = (products.wheel(folder / "wheel"), *PROTOBUF_WHEELS.glob("*.whl"), *template_wheels())
    for wheel in (*(folder / "wheels").glob("*.whl"), *ours):
        project = folder / "simple" / wheel.name.split("-")[0].lower().replace("_", "-")
        project.mkdir(parents=True)
        shutil.copy(wheel, project)
        (project / "index.html").write_text(f'<!doctype html><a href="{wheel.name}">{wheel.name}</a>')
    # Packages of the lock file come before those of the index.
    path = folder / "full/pyodide-lock.json"
    lock = json.loads(path.read_text())
    there = {wheel.name for wheel in (folder / "full").glob("*.whl")}
    lock["packages"] = {name: about for name, about in lock["packages"].items() if about["file_name"] in there}
    path.write_text(json.dumps(lock))
    return folder


@pytest.fixture(scope="module")
def exported(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marimo")
    documented = re.search(r"^pip install (marimo .*)$", (ROOT / "docs/pyodide.md").read_text(), re.MULTILINE)
    assert documented
    packages = documented[1].replace("marimo", f"marimo=={MARIMO}").split()
    commands = fresh_venv(folder / "venv", *packages, f"playwright=={version('playwright')}")
    lay_beside(folder / "public")
    shutil.copy(NOTEBOOK, folder)
    with serving_plainly(mirror, any_origin=True) as url:
        command: list[str | Path] = [commands / "python", "-c", EXPORT]
        command += ["export", "html-wasm", NOTEBOOK.name, "--output", "out"]
        command += ["--offline", "--pyodide-index-url", f"{url}full/", "--pypi-index-url", f"{url}simple"]
        command += ["\n".join([str(find_browser()), *flags("software")])]
        paths = f"{commands}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.mark.timeout(1200)
def test_the_notebook_runs(browser: Browser, exported: Path) -> None:
    prompt = oracle.encode(BUNDLED, "def fibonacci(n):")
    answer = oracle.decode(BUNDLED, oracle.greedy(BUNDLED, prompt, 48 - len(prompt)))
    with serving_plainly(exported) as url:
        page = browser.new_page()
        page.goto(url)
        ended = page.get_by_text(f"{48 - len(prompt)} tokens, the first after", exact=False)
        expect(ended.last).to_be_visible(timeout=RUN_MS)
        shown = page.locator("body").inner_text()
        page.close()
    assert "the weights have 15.3 MB" in shown
    assert "model.onnx.data: 15.3 of 15.3 MB" in shown
    assert answer in shown
