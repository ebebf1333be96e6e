"""examples/notebooks/capstan.ipynb runs in JupyterLite, in a site made as docs/pyodide.md says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from buildtools import ROOT
from buildtools.environment import PROTOBUF_WHEELS
from tests import products
from tests.notebooks.pyodide_distribution import download, fresh_venv, lay_beside, pyodide_distribution
from tests.plain_server import serving_plainly

JUPYTER = ("jupyterlite-core==0.8.6", "jupyterlite-pyodide-kernel==0.8.6", "jupyter_server")
NOTEBOOK = ROOT / "examples/notebooks/capstan.ipynb"
IDLE = "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
CELLS = """() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells
  .filter((cell) => cell.cell_type === "code").map((cell) => cell.outputs)"""
ENDED = f"""() => {{
  const cells = ({CELLS})();
  return cells.at(-1).length > 0 || cells.flat().some((output) => output.output_type === "error");
}}"""
"""The last cell has printed, or one has failed. Cells that are out of sight are not in the page, but in the model."""
RUN_MS = 540_000


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lite")
    commands = fresh_venv(folder / "venv", *JUPYTER)
    pyodide_distribution(folder / "site/static/pyodide", ["micropip", "packaging", "ipython", "jedi"])
    exposed = {"jupyter-lite-schema-version": 0, "jupyter-config-data": {"exposeAppInBrowser": True}}
    (folder / "site/jupyter-lite.json").write_text(json.dumps(exposed))
    contents = folder / "site/contents"
    lay_beside(contents)
    shutil.copy(NOTEBOOK, contents)
    wheels = [
        products.wheel(folder / "wheel"),
        *PROTOBUF_WHEELS.glob("*.whl"),
        *download(folder / "comm", "comm==0.2.3"),
    ]
    build: list[str | Path] = [commands / "jupyter", "lite", "build", "--contents", "contents"]
    build += ["--output-dir", folder / "out"]
    options: list[str | Path] = [part for wheel in wheels for part in ("--piplite-wheels", wheel)]
    done = subprocess.run([*build, *options], cwd=folder / "site", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.mark.timeout(1200)
def test_the_notebook_runs(browser: Browser, lite: Path) -> None:
    with serving_plainly(lite) as url:
        page = browser.new_page()
        page.goto(f"{url}lab/index.html?path={NOTEBOOK.name}")
        page.wait_for_function(IDLE, timeout=RUN_MS)
        page.evaluate("() => void window.jupyterapp.commands.execute('runmenu:run-all')")
        page.wait_for_function(ENDED, timeout=RUN_MS)
        cells = page.evaluate(CELLS)
        page.close()
    _, load, answer, blocking = [json.dumps(outputs) for outputs in cells]
    assert "the weights have 15.3 MB" in load, load
    assert "<progress" in load
    assert "<svg" in answer
    assert re.search(r"\d+ tokens, the first after \d+ ms", answer)
    assert "tokens in the sequence" in blocking
