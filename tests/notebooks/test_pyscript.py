"""PyScript installs the wheel by its name and takes tokens on WebGPU, on the page's main thread and in a worker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from tests import oracle
from tests.notebooks.pyodide_distribution import of_npm, pyodide_distribution
from tests.other_pyodide import FIXTURES, serving_pyodide

PYSCRIPT = "0.7.31"
PAGE = """<!doctype html><title>PyScript</title>
<script type="module" src="/pyscript/core.js"></script>
<script type="py" config='{"interpreter": "/distribution/pyodide.mjs", "packages": ["capstan-webgpu"]}'
  src="/main.py"ATTRIBUTE></script>
<output id="answer"></output>
"""
MAIN = """
from pyscript import document
import capstan

capstan.configure(ort_url="/ort/")
model = await capstan.Model.load("models/nano-llama/", device="webgpu")
params = capstan.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=17)
async with capstan.Generator(model, params) as generator:
    generator.append_tokens([5, 6, 7, 8, 9])
    ids = [token async for token in generator]
    document.querySelector("#answer").textContent = f"{generator.capture} {ids}"
"""


# A worker that uses the page's document waits for it in shared memory, which needs an isolated page.
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pyscript")
    site = folder / "site"
    shutil.copytree(of_npm(folder, f"@pyscript/core@{PYSCRIPT}") / "dist", site / "pyscript")
    pyodide_distribution(site / "distribution", ["micropip", "packaging"])
    (site / "main.py").write_text(MAIN)
    return site


@pytest.mark.parametrize("worker", [False, True], ids=["page", "worker"])
def test_pyscript_runs_a_model(worker: bool, browser: Browser, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    site = tmp_path / "site"
    with serving_pyodide(site) as url:
        page = browser.new_page()

        def index(route: Route) -> None:
            """Answer like PyPI, with the wheels of this site."""
            name = route.request.url.rstrip("/").split("/")[-1]
            wheel = next((path for path in (site / "wheels").glob("*.whl") if is_of(path, name)), None)
            headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/html"}
            link = f'<!doctype html><a href="{url}wheels/{wheel.name}">{wheel.name}</a>' if wheel else ""
            route.fulfill(status=200 if wheel else 404, headers=headers, body=link)

        body = PAGE.replace("ATTRIBUTE", " worker" if worker else "")
        headers = {"Content-Type": "text/html", **(ISOLATED if worker else {})}
        page.route("https://pypi.org/**", index)
        page.route(url, lambda route: route.fulfill(headers=headers, body=body))
        page.goto(url)
        page.locator("#answer").filter(has_text="[").or_(page.locator(".py-error")).wait_for(timeout=300_000)
        found = page.locator("body").inner_text()
        page.close()
    assert f"tape {oracle.greedy(FIXTURES / 'nano-llama', [5, 6, 7, 8, 9], 12)}" in found


def is_of(wheel: Path, project: str) -> bool:
    return wheel.name.split("-")[0].lower().replace("_", "-") == project
