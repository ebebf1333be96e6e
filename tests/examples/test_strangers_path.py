"""The way of somebody who knows the README and the documentation alone, typed and filmed into build/films."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from buildtools import ROOT
from capstan_host.testing.harness import watch
from tests import products
from tests.examples.film import Film

FILMS = ROOT / "build/films"
WEB_GUIDE = ROOT / "docs/five_minutes_web.md"
INSTALL_SECONDS = 900
ANSWER_SECONDS = 300
SIZE: ViewportSize = {"width": 960, "height": 640}


@contextmanager
def filmed(browser: Browser, url: str, name: str) -> Iterator[tuple[Page, Film]]:
    """A page and its film, which is kept also of a test that fails; no error may go unheard."""
    page = browser.new_page(viewport=SIZE)
    errors = watch(page, [])
    film = Film(page)
    try:
        page.goto(url)
        yield page, film
    finally:
        film.take()
        film.save(FILMS / f"{name}.png")
        page.close()
    assert not errors, f"the page reported {errors}"


@contextmanager
def serving(folder: Path, *command: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The address that a server's command prints."""
    told = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
    with subprocess.Popen(
        command, cwd=folder, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout
        said: list[str] = []
        try:
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"http://[\w.]+:\d+/", line):
                    break
            else:
                raise AssertionError("".join(said))
            yield found[0]
        finally:
            server.terminate()


@pytest.mark.timeout(2400)
def test_a_clone_serves_a_chat_that_answers_in_markdown(browser: Browser, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "capstan"], check=True)
    readme = (tmp_path / "capstan/README.md").read_text(encoding="utf-8")
    assert re.search(r"^python3 build.py serve\b", readme, re.MULTILINE), "the README names another command"
    command = [sys.executable, "build.py", "serve", "--port", "0"]
    with (
        serving(tmp_path / "capstan", *command) as url,
        filmed(browser, f"{url}?device=webgpu", "serve") as (page, film),
    ):
        page.get_by_label("Temperature").fill("0")
        prompt = page.get_by_role("textbox", name="Message")
        prompt.fill("List three fruits as a numbered list.")
        prompt.press("Enter")
        film.until(page.locator("#finish"), r"\w", ANSWER_SECONDS)
        answer = page.locator(".turn .text")
        assert answer.locator("ol > li").count() == 3, answer.inner_html()
        assert "Banana" in answer.inner_text()


def documented() -> tuple[list[str], str, str]:
    """The commands of the guide for web developers, its app, and the name of the app's file."""
    text = WEB_GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    [code] = [block for block in blocks if "Capstan.load(" in block]
    named = re.search(r"^`(src/[\w.]+)`", text, re.MULTILINE)
    assert named
    return commands, code, named[1]


@pytest.mark.timeout(1800)
def test_an_app_of_vites_chats_with_log_probabilities_and_a_load_bar(browser: Browser, tmp_path: Path) -> None:
    commands, code, name = documented()
    home = tmp_path / "home"
    (home / "capstan/build/dist").mkdir(parents=True)
    (home / "capstan/models").symlink_to(ROOT / "models")
    shutil.copy(products.tarball(tmp_path), home / "capstan/build/dist")
    folder, environment = tmp_path, {**os.environ, "HOME": str(home), "npm_config_cache": str(home / "npm")}
    served = commands.index("npm run dev")
    for command in commands[:served]:
        if command.startswith("cd "):
            folder /= command.removeprefix("cd ")
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    (folder / name).write_text(code, encoding="utf-8")
    with (
        serving(folder, "npm", "run", "dev", "--", "--host", "127.0.0.1", "--port", "5313") as url,
        filmed(browser, url, "vite") as (page, film),
    ):
        status, bar = page.get_by_role("status"), page.get_by_role("progressbar")
        film.until(status, r"MB|s left", ANSWER_SECONDS)
        assert 0 < float(bar.evaluate("bar => bar.value")) < 1
        page.get_by_role("button", name="Send").click(timeout=1000 * ANSWER_SECONDS)
        told = film.until(status, r"\d+ tokens", ANSWER_SECONDS)
        assert float(bar.evaluate("bar => bar.value")) == 1
        tokens = page.locator("#answer span")
        assert "Paris" in page.locator("#answer").inner_text()
        titles = tokens.evaluate_all("all => all.map(({ title }) => parseFloat(title))")
        assert 0 < len(titles) <= int(told.split()[0])
        assert all(0 < each <= 100 for each in titles)
        assert min(titles) < 90 < max(titles), "tokens are as probable as they were"
    for command in commands[served + 1 :]:
        if command == "npm run build":
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
