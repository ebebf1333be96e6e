"""Each example app, built from the packed tarball in a fresh folder with packages from npm's registry, and driven in
Chromium. `python3 build.py test tests/examples` runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from buildtools import ROOT
from buildtools.commands import dist
from buildtools.models import BUNDLED
from buildtools.site import assemble
from tests.plain_server import serving_plainly

EXAMPLES = ROOT / "examples"
BUILD_SECONDS = 600
ANSWER_MS = 120_000


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assemble()
    return dist.npm_package(tmp_path_factory.mktemp("tarball"))


def npm(folder: Path, *arguments: str | Path) -> None:
    command = ["npm", *map(str, arguments), "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(example: str, folder: Path, tarball: Path) -> Path:
    """A copy of an example with the tarball and its other packages."""
    app = Path(shutil.copytree(EXAMPLES / example, folder / "fresh-app"))
    npm(app, "install", tarball)
    return app


def complete(browser: Browser, url: str) -> tuple[str, str]:
    """Click the page's button; its status in the end, and the text."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.get_by_role("button").click()
    status = page.get_by_role("status").filter(has_text=re.compile(r"^\d+ tokens|Error: "))
    status.wait_for(timeout=ANSWER_MS)
    found = status.inner_text(), page.locator("output").inner_text()
    page.close()
    assert errors == []
    return found


def require_completed(found: tuple[str, str]) -> None:
    status, text = found
    assert re.fullmatch(r"32 tokens, \w+", status), status
    assert '"""' in text


@pytest.mark.parametrize("example", ["vite", "webpack", "rollup", "esbuild"])
def test_a_bundled_page_completes(example: str, browser: Browser, tarball: Path, tmp_path: Path) -> None:
    app = installed(example, tmp_path, tarball)
    npm(app, "run", "build")
    for made in (app / "dist").rglob("*"):
        if made.suffix in {".js", ".mjs", ".html", ".json"}:
            assert "fresh-app" not in made.read_text(encoding="utf-8"), f"{made} names the developer's folder"
    shutil.copytree(BUNDLED, app / "dist/models/bundled")
    with serving_plainly(app / "dist") as url:
        require_completed(complete(browser, url))


def test_vites_development_server(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    app = installed("vite", tmp_path, tarball)
    shutil.copytree(BUNDLED, app / "public/models/bundled")
    command = ["node", "node_modules/vite/bin/vite.js", "--host", "127.0.0.1", "--port", "5311"]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=app, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout
            local = next(line for line in server.stdout if "Local:" in line)
            require_completed(complete(browser, local.split()[-1]))
        finally:
            server.terminate()


def test_a_module_of_another_origin(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    page = Path(shutil.copytree(EXAMPLES / "module", tmp_path / "page"))
    shutil.copytree(BUNDLED, page / "models/bundled")
    shutil.unpack_archive(tarball, tmp_path / "cdn", format="gztar", filter="data")
    with serving_plainly(tmp_path / "cdn/package", any_origin=True) as cdn, serving_plainly(page) as url:
        index = page / "index.html"
        index.write_text(index.read_text().replace("https://cdn.example/capstan-webgpu/", cdn))
        require_completed(complete(browser, url))


def test_every_example_is_built_and_named(tarball: Path) -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if (path / "main.js").is_file())
    assert folders == ["esbuild", "module", "rollup", "vite", "webpack"]
    version = json.loads((ROOT / "package.json").read_text())["version"]
    for package in EXAMPLES.glob("*/package.json"):
        assert json.loads(package.read_text())["dependencies"]["capstan-webgpu"] == f"^{version}"
