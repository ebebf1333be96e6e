"""The pages that tests drive: Capstan's page with a model, or an app's own page, in one headless browser."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, Page, Playwright

from capstan.errors import OptionError
from capstan.generation.run_options import AdaptedOptions
from capstan.loading.load_options import FleetOptions, rows
from capstan.signatures import check_methods

from ..headless.chromium import BrowserError, Launches
from ..headless.headless_page import at_once, end, launch
from ..headless.served_files import model_path
from ..headless.static_server import StaticServer, running
from .answers import Answer
from .harness import WATCH_DEVICES, Harness, RemoteError, generate_request
from .tested_model import TestedModel

__all__ = ["AppModel", "PageModel", "Pages", "TestedPage", "launched"]

BOOT_MS = 120_000
TRACE_MS = 60_000
"""Milliseconds in which a page of a failed test has to repeat its last answer for a trace."""
MODEL_OPTIONS = (*rows(FleetOptions), *rows(AdaptedOptions))
WITHIN = """async ([run, most, ...given]) => Promise.race([
  run(...given),
  new Promise((_, reject) => setTimeout(reject, most, new Error(`no trace within ${most} ms`))),
])"""
TRACED_REQUEST = """async (request) => {
  const result = async (each) => {
    const reply = await window.capstan.request(each);
    if (!reply.ok) throw new Error(`${reply.error.type}: ${reply.error.message}`);
    return reply.result;
  };
  await result({ kind: "trace", action: "start" });
  await window.capstan.request(request);
  return result({ kind: "trace", action: "stop" });
}"""
TRACED_ANSWER = """async (name, { prompt, options }) => {
  const llm = await globalThis[name];
  await llm.trace.start();
  await llm.complete(prompt, options).result.catch(() => undefined);
  return llm.trace();
}"""
ANSWER = "llm.complete(given.prompt, given.options).result"
KERNELS = """
import json
import capstan

model = await capstan.Model.load(models["model"], device="webgpu", capture="tape")
async with capstan.Generator(model) as generator:
    await generator.prepare_async(record=True)
    generator.append_tokens([0])
    await generator.generate_next_token_async()
    times = {}
    for each in await capstan.measure.operations(generator, 4):
        times[each.label] = times.get(each.label, 0) + each.microseconds
print(json.dumps(times))
"""


class TestedPage:
    """A page, and the records of it that are kept if a test fails."""

    __test__ = False

    def __init__(self, name: str, page: Page, errors: list[str]) -> None:
        self.name = name
        self.page = page
        self.errors = errors
        """The page's errors since the test began: exceptions, lost devices, a crash."""
        self.requests: list[dict[str, Any]] = []
        """The requests of the test, with their replies and events."""
        page.context.tracing.start(screenshots=True, snapshots=True)

    def begin(self) -> None:
        """A test begins."""
        self.errors.clear()
        self.requests.clear()
        self.page.context.tracing.start_chunk()

    def end(self) -> None:
        """Note that a test ended; its trace was kept or is not wanted."""
        with contextlib.suppress(Error):
            self.page.context.tracing.stop_chunk()

    def keep(self, folder: Path, write: Callable[[Path, Any], None]) -> None:
        """Write the records of the test into a folder. For Capstan's trace the last answer is requested again, since
        tracing takes time. In errors.json, `lacking` has the records that a broken page could not give.
        """
        lacking: list[str] = []
        write(folder / "requests.json", self.requests)
        for what, take in (
            ("screenshot.png", lambda: self.page.screenshot(path=folder / "screenshot.png")),
            ("capstan-trace.json", lambda: write(folder / "capstan-trace.json", self.traced())),
            ("trace.zip", lambda: self.page.context.tracing.stop_chunk(path=folder / "trace.zip")),
        ):
            try:
                take()
            except (Error, OptionError) as error:
                lacking.append(f"{what}: {error}")
        write(folder / "errors.json", {"page": list(self.errors), "lacking": lacking})

    def traced(self) -> Any:
        """Capstan's trace of the last answer of the test, requested again. Raises OptionError if there was none."""
        raise NotImplementedError

    def last(self, place: str, value: Any) -> dict[str, Any]:
        """The last request of the test that has this value at a place."""
        found: dict[str, Any] | None = next((each for each in reversed(self.requests) if each[place] == value), None)
        if found is None:
            raise OptionError("the test asked this page for no answer")
        return found


class HarnessPage(TestedPage):
    """Capstan's own page of a site folder."""

    def __init__(self, name: str, page: Page, url: str) -> None:
        page.set_default_navigation_timeout(BOOT_MS)
        self.harness = Harness(page, url)
        super().__init__(name, page, self.harness.errors)

    def ask(self, request: Mapping[str, Any]) -> Any:
        """A request's result, which is noted with its events. Raises RemoteError."""
        reply = self.harness.reply(request)
        self.requests.append(
            {"kind": request["kind"], "request": dict(request), "reply": reply, "events": list(self.harness.events)}
        )
        if not reply["ok"]:
            raise RemoteError(reply["error"])
        return reply["result"]

    def traced(self) -> Any:
        request = self.last("kind", "generate")["request"]
        return self.page.evaluate(f"(given) => ({WITHIN})([{TRACED_REQUEST}, {TRACE_MS}, given])", request)


class AppPage(TestedPage):
    """A page of an app, which puts its Capstan object, or a promise of it, at a global name."""

    def __init__(self, name: str, page: Page, url: str, handle: str) -> None:
        self.handle = handle
        errors: list[str] = []
        page.set_default_navigation_timeout(BOOT_MS)
        page.add_init_script(WATCH_DEVICES)
        page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
        page.on("crash", lambda _: errors.append("the page crashed"))
        page.goto(url)
        try:
            page.wait_for_function("name => globalThis[name] !== undefined", arg=handle, timeout=BOOT_MS)
            page.evaluate("async (name) => { await globalThis[name]; }", handle)
        except Error as error:
            raise BrowserError(
                f"the page {url} has no Capstan object at window.{handle} ({error.message.splitlines()[0]}): put it "
                "there, as window.llm = await Capstan.load(...), or name another with handle=",
                detail=f"{error}\n{errors}",
            ) from error
        super().__init__(name, page, errors)

    def call(self, body: str, argument: Any) -> Any:
        """The JSON of an expression over `llm` and `given`, which is noted. CapstanErrors become RemoteErrors."""
        told = self.page.evaluate(
            f"""async ([name, given]) => {{
              const llm = await globalThis[name];
              try {{
                return {{ ok: true, result: await ({body}) }};
              }} catch (error) {{
                const {{ code = "Error", message, stack = "" }} = error;
                return {{ ok: false, error: {{ type: code, message, traceback: stack }} }};
              }}
            }}""",
            [self.handle, argument],
        )
        self.requests.append({"call": body, "given": argument, "reply": told})
        if not told["ok"]:
            raise RemoteError(told["error"])
        return told["result"]

    def traced(self) -> Any:
        given = [self.handle, self.last("call", ANSWER)["given"]]
        return self.page.evaluate(f"(given) => ({WITHIN})([{TRACED_ANSWER}, {TRACE_MS}, ...given])", given)


class PageModel(TestedModel):
    """A model's folder or GGUF file in Capstan's own page."""

    def __init__(self, page: HarnessPage, address: str, folder: Path, options: Mapping[str, Any]) -> None:
        self.page, self.address, self.folder = page, address, folder
        self.version = own_version()
        self._options = dict(options)

    def answer(self, prompt: str | Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        asked = generate_request(self.address, prompt_ids=ids, max_new_tokens=tokens)
        request = {**asked, "model": self.address, **self._options}
        if log_probabilities is not None:
            request["log_probabilities"] = log_probabilities
        told = self.page.ask(request)
        seen = [event["log_probability"] for event in self.page.harness.events if event.get("log_probability")]
        return Answer.of(
            told, [{each["token_id"]: each["log_probability"] for each in (*one["top"], one)} for one in seen]
        )

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer("encode", text=text)["ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer("decode", ids=list(ids))["text"])

    def kernel_times(self) -> dict[str, float]:
        """See TestedModel; one decode step after a short prompt."""
        found = self.page.ask({"kind": "operations", **self._model()})["operations"]
        times: dict[str, float] = {}
        for each in found or []:
            times[each["label"]] = times.get(each["label"], 0.0) + each["microseconds"]
        return times

    def _tokenizer(self, action: str, **given: Any) -> Any:
        return self.page.ask({"kind": "tokenizer", "action": action, **given, **self._model()})

    def _model(self) -> dict[str, Any]:
        return {"model": self.address, "capture": "tape", **self._options}


class AppModel(TestedModel):
    """The model of an app's page, by the app's own Capstan object."""

    def __init__(self, page: AppPage, folder: Path | None) -> None:
        self.page, self.folder = page, folder
        self.version = own_version()

    def answer(self, prompt: str | Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
        options: dict[str, Any] = {"temperature": 0, "maxTokens": tokens}
        if log_probabilities is not None:
            options |= {"logprobs": True, "topLogprobs": log_probabilities}
        asked = prompt if isinstance(prompt, str) else list(prompt)
        told = self.page.call(ANSWER, {"prompt": asked, "options": options})
        seen = told["logprobs"] or []
        return Answer.of(
            {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): value for name, value in told.items()},
            [{each["tokenId"]: each["logprob"] for each in (*one["topLogprobs"], one)} for one in seen],
        )

    def kernel_times(self) -> dict[str, float]:
        """See TestedModel. A second instance of the model, which Python loads in the app's worker, is measured."""
        told = self.page.call("llm.python(given)", KERNELS)
        return dict(json.loads(told["stdout"].splitlines()[-1])) if told["status"] == 0 else {}

    def encode(self, text: str) -> list[int]:
        return list(self.page.call("llm.tokenizer.encode(given)", text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.page.call("llm.tokenizer.decode(given)", list(ids)))


class Pages:
    """The pages of a test session in one browser, and the servers of their files."""

    def __init__(self, browser: Browser, stack: contextlib.ExitStack, device: str = "auto") -> None:
        """`device` is the device of models for which no device is named."""
        self.browser = browser
        self.device = device
        self.open: list[TestedPage] = []
        self._stack = stack
        self._sites: dict[Path, tuple[StaticServer, HarnessPage]] = {}
        self._testing = True
        """Whether a test runs. It is True at first, since the first page is opened during a test's set-up."""

    def serve(self, root: str | Path, models: Mapping[str, str | Path] | None = None) -> str:
        """The address of a folder's files until the session ends; models are at models/NAME/."""
        folders = {name: Path(folder) for name, folder in (models or {}).items()}
        return self._stack.enter_context(running(StaticServer(Path(root), folders))).url

    def model(self, folder: Path, site: Path, options: Mapping[str, Any]) -> PageModel:
        """A model in the page of a site folder, which all models of that site share. Raises OptionError."""
        unknown = sorted(options.keys() - set(MODEL_OPTIONS))
        if unknown:
            raise OptionError(f"a model has no option {', '.join(unknown)}; its options are {', '.join(MODEL_OPTIONS)}")
        folder = Path(folder).resolve()
        if not folder.exists():
            raise OptionError(f"there is no model {folder}: give a folder with a model, or a GGUF file")
        server, page = self._site(site)
        name = next((name for name, known in server.models.items() if known == folder), None)
        if name is None:
            name = f"{len(server.models)}-{folder.name}"
            server.models[name] = folder
        return PageModel(page, model_path(name), folder, {"device": self.device, **options})

    def app(self, url: str, handle: str, folder: Path | None) -> AppModel:
        """The model of an app's page, in a new context. Raises BrowserError."""
        page = AppPage(f"app-{len(self.open)}", self._new_page(), url, handle)
        self._opened(page)
        return AppModel(page, folder)

    def begin(self) -> None:
        """A test begins."""
        self._testing = True
        for page in self.open:
            page.begin()

    def end(self) -> None:
        """Note that the test ended; its records are no longer kept."""
        self._testing = False
        for page in self.open:
            page.end()

    def errors(self) -> list[str]:
        """The pages' errors since the test began."""
        return [f"{page.name}: {error}" for page in self.open for error in page.errors]

    def _site(self, site: Path) -> tuple[StaticServer, HarnessPage]:
        if site not in self._sites:
            server = self._stack.enter_context(running(StaticServer(site, {})))
            page = HarnessPage(f"page-{len(self.open)}", self._new_page(), server.url)
            self._sites[site] = server, page
            self._opened(page)
        return self._sites[site]

    def _new_page(self) -> Page:
        if not self.browser.is_connected():
            raise BrowserError("the browser crashed or was closed in an earlier test: run the tests again")
        page = self.browser.new_page()
        self._stack.callback(lambda: at_once(end(page)))
        return page

    def _opened(self, page: TestedPage) -> None:
        self.open.append(page)
        if self._testing:
            page.begin()


@contextlib.contextmanager
def launched(
    playwright: Playwright,
    program: Path,
    adapter: str,
    site: Path | None,
    further: Sequence[str],
    say: Callable[[str], object],
) -> Iterator[Browser]:
    """A headless browser with a GPU adapter: `hardware`, `software`, or for `auto` the GPU if a page of the site finds
    one, else none; with further arguments. `say` is notified of a fallback. Raises BrowserError."""
    tried = Launches(adapter, "auto")
    with contextlib.ExitStack() as serving:
        url = "" if site is None else serving.enter_context(running(StaticServer(site, {}))).url
        browser: Browser = at_once(launch(playwright, program, tried, url, say, further))
    if tried.adapter == "none" and not tried.failure:
        say(f"the CPU computes, since {tried.reason} (--capstan-adapter software has WebGPU on it)")
    try:
        yield browser
    finally:
        at_once(end(browser))


def own_version() -> str:
    """This package's version; for a checkout, a text that says so."""
    try:
        return version("capstan-webgpu")
    except PackageNotFoundError:
        return "of a checkout"


for kind in (PageModel, AppModel):
    check_methods(kind, kind.__name__)
