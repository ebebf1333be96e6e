"""Each example app, built from the packed tarball in a fresh folder with packages from npm's registry, and driven in
Chromium. `python3 build.py test tests/examples` runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect

from buildtools import ROOT
from buildtools.browser import find_browser
from capstan_host.headless.chromium import flags
from capstan_host.model_arguments import BUNDLED
from tests import products
from tests.browser.test_testing_example import run_tests
from tests.plain_server import serving_plainly
from tests.sounds import quiet, voice, wave_file

EXAMPLES = ROOT / "examples"
CHAT_MODEL = ROOT / "tests/fixtures/nano-qwen2"
"""A model with a chat template; its answers make no sense."""
SPEECH_MODEL = ROOT / "tests/fixtures/speech/nano-whisper"
BUILD_SECONDS = 600
ANSWER_MS = 120_000


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products.tarball(tmp_path_factory.mktemp("tarball"))


def npm(folder: Path, *arguments: str | Path) -> None:
    command = ["npm", *map(str, arguments), "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(example: str, folder: Path, tarball: Path) -> Path:
    """A copy of an example with the tarball and its other packages."""
    app = Path(shutil.copytree(EXAMPLES / example, folder / "fresh-app"))
    npm(app, "install", tarball)
    return app


@contextmanager
def opened(where: Browser | BrowserContext, url: str) -> Iterator[Page]:
    """A page, in which no error may go unheard."""
    page = where.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    yield page
    page.close()
    assert errors == []


def ended(page: Page, last: str = r"\d+ tokens") -> str:
    """The page's status once it is `last` or reports an error."""
    status = page.get_by_role("status").filter(has_text=re.compile(rf"^{last}|Error: "))
    status.wait_for(timeout=ANSWER_MS)
    return status.inner_text()


def require_completes(where: Browser | BrowserContext, url: str) -> None:
    """Click the page's button; the bundled model completes."""
    with opened(where, url) as page:
        page.get_by_role("button", name="Complete").click()
        require_completed(page)


def require_completed(page: Page) -> None:
    status = ended(page)
    assert re.fullmatch(r"32 tokens, \w+", status), status
    assert '"""' in page.locator("output").inner_text()


def require_no_workers(page: Page) -> None:
    """A worker that was ended is there for a moment."""
    for _ in range(200):
        if not page.workers:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"there are still {[worker.url for worker in page.workers]}")


def built(example: str, folder: Path, tarball: Path, made: str = "dist") -> Path:
    """An example's folder for a web server, in which nothing names the developer's."""
    app = installed(example, folder, tarball)
    npm(app, "run", "build")
    for file in (app / made).rglob("*"):
        if file.suffix in {".js", ".mjs", ".html", ".json"}:
            assert "fresh-app/" not in file.read_text(encoding="utf-8"), f"{file} names the developer's folder"
    return app / made


@contextmanager
def vite_server(app: Path) -> Iterator[str]:
    """The address of Vite's development server, which may complain of nothing and load no page again."""
    command = ["node", "node_modules/vite/bin/vite.js", "--host", "127.0.0.1", "--port", "5311"]
    environment = {**os.environ, "NO_COLOR": "1"}
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            command, cwd=app, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment
        ) as server,
    ):
        assert server.stdout
        try:
            yield next(line for line in server.stdout if "Local:" in line).split()[-1]
        finally:
            server.terminate()
            said = server.stdout.read()
        complaints.seek(0)
        assert complaints.read() == ""
        assert not re.search("error|fail|reload", said, re.IGNORECASE), said


@pytest.mark.parametrize("example", ["vite", "webpack", "rollup", "esbuild", "parcel"])
def test_a_bundled_page_completes(example: str, browser: Browser, tarball: Path, tmp_path: Path) -> None:
    site = built(example, tmp_path, tarball)
    shutil.copytree(BUNDLED, site / "models/bundled")
    with serving_plainly(site) as url:
        require_completes(browser, url)


@pytest.mark.parametrize("version", ["5", "6", "7", "8"])
def test_vites_development_server(version: str, browser: Browser, tarball: Path, tmp_path: Path) -> None:
    app = installed("vite", tmp_path, tarball)
    npm(app, "install", "--save-dev", f"vite@{version}")
    shutil.copytree(BUNDLED, app / "public/models/bundled")
    with vite_server(app) as url:
        require_completes(browser, url)


def test_nexts_static_export_completes(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    site = built("next", tmp_path, tarball, "out")
    shutil.copytree(BUNDLED, site / "models/bundled")
    with serving_plainly(site) as url:
        require_completes(browser, url)


def test_a_browser_extensions_page_reads_what_the_extension_brings(
    browser: Browser, tarball: Path, tmp_path: Path
) -> None:
    extension = built("extension", tmp_path, tarball)
    shutil.copytree(BUNDLED, extension / "models/bundled")
    arguments = ["--headless=new", *flags("software"), f"--load-extension={extension}"]
    context = browser.browser_type.launch_persistent_context(
        "", executable_path=find_browser(), args=arguments, ignore_default_args=["--disable-extensions"]
    )
    try:
        if not context.service_workers:
            context.wait_for_event("serviceworker")
        require_completes(context, context.service_workers[0].url.replace("background.js", "index.html"))
    finally:
        context.close()


COUNT_WORKERS = """
window.workersStarted = 0;
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    window.workersStarted++;
  }
};
"""


def test_react_loads_a_model_once_and_ends_its_worker_with_the_component(
    browser: Browser, tarball: Path, tmp_path: Path
) -> None:
    app = installed("react", tmp_path, tarball)
    shutil.copytree(BUNDLED, app / "public/models/bundled")
    # StrictMode mounts twice in development only.
    with vite_server(app) as url, opened(browser, url) as page:
        page.add_init_script(COUNT_WORKERS)
        page.reload()
        page.get_by_role("button", name="Complete").click(timeout=ANSWER_MS)
        require_completed(page)
        assert page.evaluate("() => window.workersStarted") == 1, "what StrictMode mounted first began nothing"
        page.get_by_label("Show").click()
        expect(page.get_by_role("status")).to_have_count(0)
        require_no_workers(page)
        page.get_by_label("Show").click()
        page.get_by_role("button", name="Complete").click(timeout=ANSWER_MS)
        require_completed(page)
    npm(app, "run", "build")


def test_a_page_with_a_service_worker_completes_without_a_network(
    browser: Browser, tarball: Path, tmp_path: Path
) -> None:
    site = built("service-worker", tmp_path, tarball)
    shutil.copytree(BUNDLED, site / "models/bundled")
    context = browser.new_context()
    with serving_plainly(site) as url:
        require_completes(context, url)
    require_completes(context, url)
    context.close()


def test_the_ai_sdk_streams_stops_and_is_held_to_a_choice(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    site = built("ai-sdk", tmp_path, tarball)
    shutil.copytree(CHAT_MODEL, site / "models/chat")
    with serving_plainly(site) as url, opened(browser, url) as page:
        answer = page.locator("output")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_function("() => document.querySelector('output').textContent.length > 8", timeout=ANSWER_MS)
        page.get_by_role("button", name="Stop").click()
        assert ended(page, "stopped|[0-9]+ tokens") == "stopped"
        kept = answer.inner_text()
        page.get_by_role("button", name="Ask").click()
        assert re.fullmatch(r"[1-9]\d* tokens, (stop|length)", ended(page))
        assert answer.inner_text().startswith(kept), "what was said until the stop was kept"
        page.get_by_role("button", name="Yes or no").click()
        assert re.fullmatch(r"\d+ tokens, chosen", ended(page, r"\d+ tokens, chosen"))
        assert answer.inner_text() in ("yes", "no")


def test_an_agent_calls_what_the_page_registered(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    site = built("agent", tmp_path, tarball)
    shutil.copytree(CHAT_MODEL, site / "models/chat")
    with serving_plainly(site) as url, opened(browser, f"{url}?model=models/chat/") as page:
        asked: list[str] = []

        def allow(dialog: Dialog) -> None:
            asked.append(dialog.message)
            dialog.accept()

        page.on("dialog", allow)
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("status")).to_have_text(
            re.compile("^ended: (stop|length|tool_calls)$"), timeout=ANSWER_MS
        )
        first = page.locator("li").first.inner_text()
        if first.startswith("book"):
            assert asked[0].startswith('Allow book with {"day":"')
            assert page.locator("[name=day]").input_value() in (("Tuesday", "Friday") if "returned" in first else "")
        else:
            assert first.startswith('free_seats returned: [{"day":"Monday","seats":0},')


def test_live_captions_of_a_microphone(quick_browser: Path, browser: Browser, tarball: Path, tmp_path: Path) -> None:
    site = built("captions", tmp_path, tarball)
    shutil.copytree(SPEECH_MODEL, site / "models/whisper")
    sound = tmp_path / "said.wav"
    sound.write_bytes(wave_file(np.concatenate([quiet(1.0), voice(1.5), quiet(1.0)]).tolist()))
    fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    arguments = ["--headless=new", "--no-sandbox", *fake, f"--use-file-for-fake-audio-capture={sound}"]
    speaking = browser.browser_type.launch(executable_path=str(quick_browser), args=arguments)
    with serving_plainly(site) as url, opened(speaking, url) as page:
        page.get_by_role("button", name="Listen").click()
        expect(page.locator("span")).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("status")).to_have_text("Stopped.", timeout=ANSWER_MS)
    speaking.close()


MARKDOWN = f"""# Title

[A link](https://a.test) and `code` are in **this**.

> quoted

```
{"x = 1; " * 40}
```

|{" head |" * 12}
|{" --- |" * 12}
|{" cell |" * 12}
"""
AXE = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations.map(({ help }) => help)"


def test_the_chat_element_answers_by_keyboard_stops_and_tells_what_fails(
    browser: Browser, tarball: Path, tmp_path: Path
) -> None:
    site = built("chat", tmp_path, tarball)
    shutil.copytree(CHAT_MODEL, site / "models/chat")
    with serving_plainly(site) as url, opened(browser, url) as page:
        page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
        problems = {"loading": page.evaluate(AXE)}
        field = page.get_by_label("Message", exact=True)
        expect(field).to_be_enabled(timeout=ANSWER_MS)
        field.press_sequentially("hello")
        field.press("Shift+Enter")
        field.press_sequentially("you")
        field.press("Enter")
        log = page.get_by_role("log")
        expect(log).to_contain_text("You: hello\nyou")
        expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=ANSWER_MS)
        asked, answered = page.evaluate("() => document.querySelector('capstan-chat').messages.slice(1)")
        assert asked == {"role": "user", "content": "hello\nyou"}
        page.evaluate("() => document.querySelector('capstan-chat').setAttribute('plain', '')")
        assert log.locator(".text").last.text_content() == answered["content"]
        page.evaluate("() => document.querySelector('capstan-chat').removeAttribute('plain')")
        page.evaluate("() => document.querySelector('capstan-chat').setAttribute('run-options', '{}')")
        field.fill("on and on")
        field.press("Enter")
        expect(page.locator(".turn[aria-busy=true] .text")).to_have_text(re.compile(r"\S"), timeout=ANSWER_MS)
        field.press("Escape")
        expect(page.get_by_role("status")).to_have_text("Stopped.", timeout=ANSWER_MS)
        page.evaluate("text => { document.querySelector('capstan-chat').turns[0].answer = text; }", MARKDOWN)
        expect(log.get_by_role("group", name="Table")).to_be_visible()
        problems["answered"] = page.evaluate(AXE)
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 320, "height": 700})
        problems["dark and narrow"] = page.evaluate(AXE)
        assert page.evaluate("() => document.documentElement.scrollWidth") == 320
        page.evaluate("() => document.querySelector('capstan-chat').setAttribute('run-options', '{ \"heat\": 1 }')")
        field.fill("more")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("heat: no such option")
        problems["refused"] = page.evaluate(AXE)
        page.evaluate("() => document.querySelector('capstan-chat').setAttribute('model', 'nowhere/')")
        expect(page.get_by_role("alert")).to_contain_text(f"{url}nowhere/", timeout=ANSWER_MS)
        page.evaluate("() => document.querySelector('capstan-chat').remove()")
        require_no_workers(page)
        assert not any(problems.values()), problems


def test_a_module_of_another_origin(browser: Browser, tarball: Path, tmp_path: Path) -> None:
    page = Path(shutil.copytree(EXAMPLES / "module", tmp_path / "page"))
    shutil.copytree(BUNDLED, page / "models/bundled")
    shutil.unpack_archive(tarball, tmp_path / "cdn", format="gztar", filter="data")
    with serving_plainly(tmp_path / "cdn/package", any_origin=True) as cdn, serving_plainly(page) as url:
        index = page / "index.html"
        index.write_text(index.read_text().replace("https://cdn.example/capstan-webgpu/", cdn))
        require_completes(browser, url)


def test_an_apps_own_tests_pass_with_the_packed_tarball(tarball: Path, tmp_path: Path) -> None:
    app = installed("testing", tmp_path, tarball)
    shutil.copytree(BUNDLED, app / "models/bundled")
    done = run_tests(app, baseline=app / "node_modules/capstan-webgpu")
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_every_example_is_built_and_named(tarball: Path) -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.name != "notebooks" and path.is_dir())
    assert folders == [
        "agent",
        "ai-sdk",
        "captions",
        "chat",
        "esbuild",
        "extension",
        "module",
        "next",
        "parcel",
        "react",
        "rollup",
        "service-worker",
        "testing",
        "vite",
        "webpack",
    ]
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [folder for folder in folders if f"| `{folder}`" not in readme] == []
    version = json.loads((ROOT / "package.json").read_text())["version"]
    for package in EXAMPLES.glob("*/package.json"):
        assert json.loads(package.read_text())["dependencies"]["capstan-webgpu"] == f"^{version}"
