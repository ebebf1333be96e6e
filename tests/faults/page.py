"""Attacks on a page: the classes of targets.py in Pyodide, whose stack and limits are others, requests that are not in
the protocol, broken model folders, cancelled work, disturbed page loads and changed storage; after each the page works.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from buildtools.site import assemble
from capstan import errors
from capstan_host.site_server import SiteServer, serving
from capstan_host.testing.harness import Harness, exec_request, generate_request
from tests.plain_browser import plain_browser

from .cancels import attack_cancelled_requests, attack_cancelled_scripts, shared_fields
from .deadline import PAGE_SECONDS, kept_until_end
from .mutations import mutated_bytes, mutated_graph, mutated_json
from .report import Outcome, fault_of
from .share import Share
from .stored import attack_stored
from .targets import targets
from .visits import attack_visits

__all__ = ["PAGE_SHARE", "Folders", "OpenedPage", "opened_page", "page_attacks"]

PAGE_SHARE = 0.1
"""How many of a class's cases are tried in a page."""
VISIT_SHARE = 0.25
"""The share of these that is tried in classes whose cases load the page, which takes 5 to 9 s."""

HERE = Path(__file__).parent
MODULES = ("__init__.py", "arguments.py", "mutations.py", "report.py", "share.py", "targets.py")
SCRIPT = """
import base64, json, sys, warnings
from pathlib import Path

given = json.loads(sys.argv[1])
root = Path("/faults")
(root / "tests/faults").mkdir(parents=True, exist_ok=True)
for name, text in given["modules"].items():
    (root / "tests/faults" / name).write_text(text)
if str(root) not in sys.path:
    sys.path.insert(0, str(root))
from tests.faults.report import Outcome, attack
from tests.faults.share import Share
from tests.faults.targets import targets

warnings.simplefilter("ignore")
files = {name: base64.b64decode(text) for name, text in given["files"].items()}
[target] = [target for target in targets(files) if target.kind == given["kind"]]
outcome = Outcome("page " + target.kind)
made = Share(**given["share"]).cases(target.kind, lambda random: target.mutate(random, target.good))
cases = [*(base64.b64decode(case) for case in given["corpus"]), *made, target.good]
for case in cases[given["tried"] :]:
    # The count of what was tried says which case is under way.
    print("found:" + json.dumps(outcome.as_json()), flush=True)
    await attack(outcome, case, target.run)
print("found:" + json.dumps(outcome.as_json()))
"""
REQUESTS: tuple[dict[str, Any], ...] = (
    {"kind": "models", "action": "list", "which": None},
    {"kind": "memory"},
    {"kind": "exec", "source": "1", "filename": "x.py", "argv": [], "models": {}, "files": {}},
)
ENDED = """(limit) => Promise.race([
  window.lastReply.then(() => true),
  new Promise((resolve) => setTimeout(() => resolve(false), limit)),
])"""
PROMPT = [5, 6, 7]
LIMIT_MS = 60_000
"""After which a reply counts as a hang."""
POLL_MS = 1000


@dataclass
class OpenedPage:
    """The harness page, in a browser as users start it."""

    browser: Browser
    site: SiteServer
    harness: Harness
    folders: Folders

    def restart(self) -> None:
        """Open the page again, in place of one that hangs or died."""
        with kept_until_end(b"a page's start", PAGE_SECONDS):
            self.harness.page.close()
            self.harness = harness(self.browser, self.site)

    def ended(self, limit_ms: float) -> bool:
        """Whether the request that the harness began has its reply within so many milliseconds."""
        ended: bool = self.harness.evaluate(ENDED, limit_ms)
        return ended


@contextmanager
def opened_page(files: Mapping[str, bytes]) -> Iterator[OpenedPage]:
    """A page in a browser of its own."""
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    with (
        serving(assemble(), {}) as site,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as place,
        plain_browser(playwright.chromium, adapter) as browser,
    ):
        with kept_until_end(b"a page's start", PAGE_SECONDS):
            opened = harness(browser, site)
        yield OpenedPage(browser, site, opened, Folders(site, Path(place), files))


def harness(browser: Browser, site: SiteServer) -> Harness:
    """The harness in a new page."""
    page = browser.new_page()
    page.set_default_navigation_timeout(120_000)
    return Harness(page, site.url)


def page_attacks(
    share: Share, files: Mapping[str, bytes], corpus: Callable[[str], list[bytes]]
) -> dict[str, Callable[[OpenedPage], Outcome]]:
    """Every class that needs a page."""
    kinds = [target.kind for target in targets(files)]
    in_python = {f"page {kind}": partial(attack_in_python, share, files, kind, corpus(kind)) for kind in kinds}
    return {
        **in_python,
        "page messages": partial(attack_requests, share),
        "page folders": partial(attack_folders, share),
        "cancelled requests": partial(attack_cancelled_requests, share),
        "cancelled scripts": partial(attack_cancelled_scripts, share, corpus("cancelled scripts")),
        "visits": lambda page: attack_visits(page.browser, page.site.root, share.times(VISIT_SHARE)),
        "stored": lambda page: attack_stored(page.browser, page.site.root, share.times(VISIT_SHARE)),
    }


class Folders:
    """Model folders that the page can load, each with one file changed."""

    def __init__(self, site: SiteServer, place: Path, files: Mapping[str, bytes]) -> None:
        self._site, self._place = site, place
        self.files = {name: data for name, data in files.items() if "." in name and not name.endswith("config.json")}
        self.files |= {name: files[name] for name in ("genai_config.json", "tokenizer_config.json")}
        self._made = 0
        self.good = self.changed({})

    def changed(self, changes: Mapping[str, bytes]) -> str:
        """The name under /models/ of a folder with these files instead."""
        self._made += 1
        folder = self._place / f"fault-{self._made}"
        folder.mkdir()
        for name, data in {**self.files, **changes}.items():
            (folder / name).write_bytes(data)
        self._site.models[folder.name] = folder
        return folder.name


def attack_in_python(
    share: Share, files: Mapping[str, bytes], kind: str, corpus: list[bytes], page: OpenedPage
) -> Outcome:
    """A class of targets.py, inside Pyodide."""
    [target] = [target for target in targets(files) if target.kind == kind]
    made = share.cases(kind, lambda random: target.mutate(random, target.good))
    cases = [*corpus, *made, target.good]
    given = {
        "modules": {name: (HERE / name).read_text() for name in MODULES},
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "corpus": [base64.b64encode(case).decode() for case in corpus],
        "kind": kind,
        "share": asdict(share),
    }
    outcome = Outcome(f"page {kind}")
    while outcome.tried < len(cases):
        ended, found = attack_rest(page, {**given, "tried": outcome.tried})
        outcome.add(found)
        if outcome.tried < len(cases):
            outcome.fail(cases[outcome.tried], ended)
            page.restart()
    return outcome


def attack_rest(page: OpenedPage, given: Mapping[str, Any]) -> tuple[str, Outcome]:
    """The reason why Pyodide tries no more cases, and what it found."""
    harness, lines = page.harness, 0
    harness.begin(exec_request(SCRIPT, [], [json.dumps(given)], "faults.py"))
    moved, ended = time.monotonic(), False
    with kept_until_end(b"a script's start", PAGE_SECONDS):
        while not ended and time.monotonic() - moved < LIMIT_MS / 1000:
            ended = page.ended(POLL_MS)
            if (now := len(harness.events)) > lines:
                moved, lines = time.monotonic(), now
    told = [line for line in harness.text("stdout").splitlines() if line.startswith("found:")]
    found = Outcome.read(json.loads(told[-1].removeprefix("found:"))) if told else Outcome(f"page {given['kind']}")
    if not ended:
        return f"no end within {LIMIT_MS / 1000:g} s", found
    return f"the script ended: {harness.end()}: {harness.text('stderr')[-500:]}", found


def attack_requests(share: Share, page: OpenedPage) -> Outcome:
    """Messages with fields of wrong types, without fields, and of other forms."""
    outcome = Outcome("page messages")
    options = generate_request(page.folders.good, prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
    talk = {**shared_fields(options), "kind": "chat", "messages": [], "max_length": 64, "max_new_tokens": 2}

    def made(random: Random) -> bytes:
        return mutated_json(random, json.dumps(random.choice((*REQUESTS, options, options, talk))).encode())

    for text in share.cases("messages", made):
        try:
            request = json.loads(text)
        except (ValueError, RecursionError):
            request = text.decode(errors="replace")
        answer(page, outcome, text, request)
    good_still(page, outcome)
    return outcome


def attack_folders(share: Share, page: OpenedPage) -> Outcome:
    """Folders with one broken file, loaded and run on the CPU."""
    outcome, folders = Outcome("page folders"), page.folders
    mutators = {
        "genai_config.json": mutated_json,
        "model.onnx": mutated_graph,
        "model.onnx.data": mutated_bytes,
        "tokenizer.json": mutated_json,
    }

    def made(random: Random) -> tuple[str, bytes]:
        name = random.choice(list(mutators))
        return name, mutators[name](random, folders.files[name])

    for name, data in share.cases("folders", made):
        request = generate_request(folders.changed({name: data}), prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
        answer(page, outcome, data, request)
    good_still(page, outcome)
    return outcome


def answer(page: OpenedPage, outcome: Outcome, case: bytes, request: Any) -> None:
    """Send a request: a result, or an error of ours with a short message, within the limit."""
    with kept_until_end(case, PAGE_SECONDS):
        reply = reply_within(page.harness.page, request)
    if reply is None:
        outcome.fail(case, f"no reply within {LIMIT_MS / 1000} s")
        page.restart()
    elif reply["ok"]:
        outcome.taken += 1
    elif not hasattr(errors, reply["error"]["type"]):
        outcome.fail(case, f"{reply['error']['type']}: {reply['error']['message'][:200]}")
    else:
        why = fault_of(reply["error"]["message"])
        if why:
            outcome.fail(case, why)
        else:
            outcome.refused += 1


REPLY = """([request, limit]) => Promise.race([
  window.capstan.request(request),
  new Promise((resolve) => setTimeout(() => resolve(null), limit)),
])"""


def reply_within(page: Page, request: Any) -> dict[str, Any] | None:
    reply: dict[str, Any] | None = page.evaluate(REPLY, [request, LIMIT_MS])
    return reply


def good_still(page: OpenedPage, outcome: Outcome) -> None:
    """The next good request works."""
    good = generate_request(page.folders.good, prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
    reply = reply_within(page.harness.page, good)
    if reply is None or not reply["ok"]:
        outcome.fail(b"", f"the next request does not work: {reply and reply['error']['message']}")
