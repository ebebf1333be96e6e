"""The demo page as the tests of it use it."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Worker, expect

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch

__all__ = ["BOOT_MS", "RUN_MS", "Demo", "choose", "png_size"]

HOLD = """() => {
  const { postMessage } = self;
  const { mapAsync } = GPUBuffer.prototype;
  const picked = (self.picked = []);
  const requests = (self.requests = []);
  addEventListener('message', ({ data }) => data.tag === 'request' && requests.push(data.request));
  let told = 0;
  let most = Infinity;
  let released;
  self.postMessage = (message) => {
    if (message.event?.kind === 'text') told++;
    if (message.event?.token_id !== undefined) picked.push(message.event.token_id);
    postMessage(message);
  };
  GPUBuffer.prototype.mapAsync = async function (...given) {
    await mapAsync.apply(this, given);
    if (told >= most) await released;
  };
  self.holdAfter = (tokens) => {
    told = 0;
    most = tokens;
    released = new Promise((resolve) => {
      addEventListener('message', ({ data }) => {
        if (data.request?.kind !== 'cancel') return;
        most = Infinity;
        resolve();
      });
    });
  };
}"""
"""In the worker, before it has a device: after `holdAfter(n)` no readback arrives once n tokens were told, until a
request is cancelled. `picked` are the ids that were told, `requests` those that came."""
BOOT_MS = 120_000
RUN_MS = 120_000
CHOOSE = {"#device-choice": "webgpu", "#capture-choice": "tape"}


def choose(page: Page, model: str = "nano-llama") -> None:
    """Choose a model of the site, and by which way its steps are computed."""
    page.select_option("#model", value=page.locator(f"#model option[data-name='{model}']").get_attribute("value"))
    for selector, label in CHOOSE.items():
        page.select_option(selector, label=label)


def png_size(path: Path) -> tuple[int, int]:
    """The width and the height of a picture."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", head[16:])
    return width, height


@dataclass
class Demo:
    """The booted page, its errors, and every address that it or its worker requested."""

    page: Page
    errors: list[str]
    addresses: list[str]

    @classmethod
    @contextmanager
    def opened(cls, browser: Browser, site: SiteServer) -> Iterator[Demo]:
        """The page in a context of its own, once it is ready."""
        assert browser.is_connected(), "the browser crashed in an earlier test"
        context = browser.new_context()
        page = context.new_page()
        demo = cls(page, watch(page, []), [])
        context.on("request", lambda request: demo.addresses.append(request.url))
        page.goto(site.url)
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=BOOT_MS)
        demo.worker.evaluate(HOLD)
        yield demo
        context.close()

    def begin(self) -> None:
        """Choose nano-llama and short, greedy runs, with nothing of a test before."""
        self.page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = true; }")
        choose(self.page)
        self.page.select_option("#search", "greedy")
        self.page.evaluate(
            "() => { for (const part of document.querySelectorAll('.sampling input')) part.value = ''; }"
        )
        if self.page.is_enabled("#clear"):
            self.page.click("#clear")
        self.set(prompt="def fibonacci(n):", max_new_tokens="6", run_ahead="", repository="", hub="", folder="")

    @property
    def worker(self) -> Worker:
        """The one that runs Python; the other, which starts onnxruntime-web beside it, ends by itself. Threads of
        onnxruntime-web on the CPU are workers too, of onnxruntime-web's own file."""
        deadline = time.monotonic() + BOOT_MS / 1000
        while len(found := self.python_workers()) > 1 and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)
        [worker] = found
        return worker

    def python_workers(self) -> list[Worker]:
        return [worker for worker in self.page.workers if worker.url.endswith("/worker.js")]

    def set(self, **fields: str) -> None:
        """Fill fields by id, `_` for `-`."""
        for name, value in fields.items():
            self.page.fill("#" + name.replace("_", "-"), value)

    def text(self, name: str) -> str:
        return self.page.inner_text("#" + name)

    def answer(self) -> str:
        """The model's last answer, with its spaces."""
        return str(self.page.locator("#turns .turn").last.locator(".text").text_content())

    def send(self) -> None:
        """Send what stands in the prompt, and wait for the end of the answer."""
        self.clear_status()
        self.page.click("#run")
        self.wait("status", "^Done$")

    def clear_status(self) -> None:
        """So that what it says next is seen."""
        self.page.locator("#status").evaluate("status => { status.textContent = ''; }")

    def picked(self) -> list[int]:
        """The ids of all tokens in the worker's events."""
        found: list[int] = self.worker.evaluate("() => picked")
        return [token for token in found if token >= 0]

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """The page's requests of one kind to the worker."""
        found: list[dict[str, Any]] = self.worker.evaluate(
            "kind => requests.filter((each) => each.kind === kind)", kind
        )
        return found

    def hold_after(self, tokens: int) -> None:
        """Let the next run stand still after some tokens, also in a worker that was started again since."""
        if not self.worker.evaluate("() => 'holdAfter' in self"):
            self.worker.evaluate(HOLD)
        self.worker.evaluate("tokens => holdAfter(tokens)", tokens)

    def hold(self, tokens: int) -> None:
        """Begin a run that stands still after some tokens, until it is stopped."""
        self.hold_after(tokens)
        self.set(max_new_tokens="200", prompt="def fibonacci(n):")
        self.page.click("#run")
        self.wait("tokens", rf"^({tokens}|{tokens + 1}|\d\d+)$")

    def look(self) -> None:
        """Look at the tokens of the last answer, and wait for all their details."""
        self.clear_status()
        self.page.get_by_role("button", name="Tokens", pressed=False).last.click()
        self.wait("status", "^Done$")

    @contextmanager
    def sized(self, width: int, height: int = 800) -> Iterator[None]:
        """The page at this size, in pixels."""
        usual = self.page.viewport_size
        assert usual is not None
        self.page.set_viewport_size({"width": width, "height": height})
        try:
            yield
        finally:
            self.page.set_viewport_size(usual)

    def wait(self, name: str, text: str) -> None:
        expect(self.page.locator("#" + name)).to_have_text(re.compile(text), timeout=RUN_MS)

    def faults(self) -> list[str]:
        """The errors in the page so far; the list is emptied."""
        found = list(self.errors)
        self.errors.clear()
        return found
