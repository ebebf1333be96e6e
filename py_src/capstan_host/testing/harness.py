"""The harness page as tests see it: requests in, results and events out."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from playwright.sync_api import BrowserContext, Page, Route

from ..headless.chromium import BrowserError
from ..headless.headless_page import HeadlessPage, at_once

__all__ = ["ExecResult", "Harness", "RemoteError", "before_worker", "exec_request", "generate_request", "watch"]

T = TypeVar("T")
WATCH_DEVICES = """
if (globalThis.GPUAdapter) {
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...args) {
    const device = await request.apply(this, args);
    device.lost.then((info) => {
      if (info.reason !== 'destroyed') console.error('GPU device lost: ' + info.message);
    });
    device.addEventListener('uncapturederror', (event) => console.error('uncaptured: ' + event.error.message));
    return device;
  };
}
"""


def before_worker(where: BrowserContext | Page, source: str) -> None:
    """Run a script in Capstan's workers before their own script."""

    def serve(route: Route) -> None:
        worker = route.fetch()
        route.fulfill(response=worker, body=source + worker.text())

    where.route("**/capstan/worker.js", serve)


class RemoteError(Exception):
    """The error of a page's reply with `ok: false`."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(f"{error['type']}: {error['message']}\n{error['traceback']}")
        self.type = error["type"]
        self.message = error["message"]
        self.traceback = error["traceback"]


@dataclass(frozen=True)
class ExecResult:
    """How a script ended in the page."""

    status: int
    stdout: str
    stderr: str


def watch(page: Page, errors: list[str]) -> list[str]:
    """Collect in `errors` what goes wrong in a page that is not open yet: exceptions, lost devices, a crash."""
    page.add_init_script(WATCH_DEVICES)
    page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
    page.on("console", lambda message: errors.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("crash", lambda _: errors.append("the page crashed"))
    return errors


class Harness:
    """A HeadlessPage in a test's page."""

    def __init__(self, page: Page, url: str, query: str = "") -> None:
        """Open the page of the site at `url` and wait for the worker."""
        self.page = page
        self.errors = watch(page, [])
        """Everything that went wrong in the page so far."""
        self.events: list[dict[str, Any]] = []
        """The events of the last request; before the first request, the events of the start."""
        self._headless = HeadlessPage(url, self.events.append, query=query)
        self._wait(self._headless.attach(page))
        self.readiness = self._headless.readiness

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Run JavaScript in the page."""
        return self._wait(self._headless.evaluate(script, argument))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work in the page. If the work fails, raises AssertionError with the page's earlier errors."""
        try:
            return at_once(work)
        except BrowserError as error:
            raise AssertionError(f"the page failed: {error.detail}\nseen before: {self.errors}") from error

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply, good or bad; `events` then holds its events."""
        self.begin(request)
        return self.end()

    def begin(self, request: Mapping[str, Any]) -> None:
        """Send a request without waiting for its reply."""
        self.events.clear()
        self.evaluate("request => { window.lastReply = window.capstan.request(request); }", dict(request))

    def end(self) -> dict[str, Any]:
        """Wait for the reply to `begin`'s request."""
        reply: dict[str, Any] = self.evaluate("() => window.lastReply")
        return reply

    def generate(self, model: str | Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Complete a prompt with the model mounted as `model`, or a hub's repository, and return the result. Raises
        RemoteError.
        """
        reply = self.reply(generate_request(model, **options))
        if not reply["ok"]:
            raise RemoteError(reply["error"])
        result: dict[str, Any] = reply["result"]
        return result

    def error(self, model: str | Mapping[str, Any], **options: Any) -> RemoteError:
        """The error of `generate`."""
        reply = self.reply(generate_request(model, **options))
        assert not reply["ok"], f"an error was expected, not {reply['result']}"
        return RemoteError(reply["error"])

    def exec(
        self,
        source: str,
        models: Iterable[str] = (),
        argv: Sequence[str] = (),
        filename: str = "script.py",
        files: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a Python script in the page with these mounted models and files. Raises RemoteError if the page cannot
        run it.
        """
        self.begin(exec_request(source, models, argv, filename, files))
        return self.end_exec()

    def end_exec(self) -> ExecResult:
        """How the script that `begin` sent has ended. Raises RemoteError if the page could not run it."""
        reply = self.end()
        if not reply["ok"]:
            raise RemoteError(reply["error"])
        return ExecResult(reply["result"]["status"], self.text("stdout"), self.text("stderr"))

    def text(self, kind: str = "text") -> str:
        """The joined text of the last request's events of one kind: text, stdout, stderr or status."""
        return "".join(event["text"] for event in self.events if event["kind"] == kind)


def exec_request(
    source: str, models: Iterable[str], argv: Sequence[str], filename: str, files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A request to run a Python script with these mounted models, and files: URLs by path."""
    return {
        "kind": "exec",
        "source": source,
        "filename": filename,
        "argv": [filename, *argv],
        "models": {name: f"/models/{name}/" for name in models},
        "files": dict(files or {}),
    }


def generate_request(model: str | Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """A generate request for a mounted model or a hub's repository: greedy unless `search` says otherwise."""
    request: dict[str, Any] = {
        "kind": "generate",
        "model": f"/models/{model}/" if isinstance(model, str) else model,
        "device": "webgpu",
        "capture": "tape",
        "prompt": None,
        "prompt_ids": None,
        "search": {"do_sample": False},
    }
    return request | options
