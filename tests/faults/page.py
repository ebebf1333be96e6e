"""Attacks on a page: the classes of targets.py in Pyodide, whose stack and limits are others, requests that are not in
the protocol, broken model folders, disturbed page loads and changed storage; after each the page works."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import Page, sync_playwright

from buildtools.browser import find_browser, flags
from buildtools.server import SiteServer, serving
from buildtools.site import assemble
from capstan import errors
from tests.harness import Harness, generate_request

from .mutations import mutated_bytes, mutated_graph, mutated_json
from .report import Outcome, fault_of
from .stored import attack_stored
from .visits import attack_visits

__all__ = ["attack_folders", "attack_in_python", "attack_page", "attack_requests"]

HERE = Path(__file__).parent
MODULES = ("__init__.py", "arguments.py", "mutations.py", "report.py", "targets.py")
SCRIPT = """
import base64, json, sys, warnings
from pathlib import Path
from random import Random

given = json.loads(sys.argv[1])
root = Path("/faults")
(root / "tests/faults").mkdir(parents=True, exist_ok=True)
for name, text in given["modules"].items():
    (root / "tests/faults" / name).write_text(text)
if str(root) not in sys.path:
    sys.path.insert(0, str(root))
from tests.faults.report import Outcome, attack
from tests.faults.targets import targets

warnings.simplefilter("ignore")
found = []
for target in targets({name: base64.b64decode(text) for name, text in given["files"].items()}):
    outcome, random = Outcome(target.kind), Random(f"{target.kind} {given['seed']}")
    cases = [base64.b64decode(case) for case in given["corpus"].get(target.kind, [])]
    for case in [*cases, *(target.mutate(random, target.good) for _ in range(given["count"])), target.good]:
        await attack(outcome, case, target.run)
    failures = [[base64.b64encode(failure.case).decode(), failure.why] for failure in outcome.failures]
    found.append([outcome.kind, outcome.refused, outcome.taken, failures])
print("found:" + json.dumps(found))
"""
REQUESTS: tuple[dict[str, Any], ...] = (
    {"kind": "models", "action": "list", "which": None},
    {"kind": "memory"},
    {"kind": "exec", "source": "1", "filename": "x.py", "argv": [], "models": {}, "files": {}},
)
PROMPT = [5, 6, 7]
LIMIT_MS = 60_000
"""After which a reply counts as a hang."""


def attack_page(count: int, seed: int, files: Mapping[str, bytes]) -> list[Outcome]:
    """All of it, in a browser of its own."""
    arguments = ["--headless=new", *flags(os.environ.get("CAPSTAN_ADAPTER", "software"))]
    with (
        serving(assemble(), {}) as site,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as place,
    ):
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=arguments)
        try:
            page = browser.new_page()
            page.set_default_navigation_timeout(120_000)
            harness = Harness.open(page, site.url)
            folders = Folders(site, Path(place), files)
            return [
                *attack_in_python(harness, count, seed, files, {}),
                attack_requests(harness, folders, count, seed),
                attack_folders(harness, folders, count, seed),
                attack_visits(browser, site.root, count, seed),
                attack_stored(browser, site.root, count, seed),
            ]
        finally:
            browser.close()


class Folders:
    """Model folders that the page can load, each with one file changed."""

    def __init__(self, site: SiteServer, place: Path, files: Mapping[str, bytes]) -> None:
        self._site, self._place = site, place
        self._files = {name: data for name, data in files.items() if "." in name and not name.endswith("config.json")}
        self._files |= {name: files[name] for name in ("genai_config.json", "tokenizer_config.json")}
        self._made = 0
        self.good = self.changed({})

    def changed(self, changes: Mapping[str, bytes]) -> str:
        """The name under /models/ of a folder with these files instead."""
        self._made += 1
        folder = self._place / f"fault-{self._made}"
        folder.mkdir()
        for name, data in {**self._files, **changes}.items():
            (folder / name).write_bytes(data)
        self._site.models[folder.name] = folder
        return folder.name


def attack_in_python(
    harness: Harness, count: int, seed: int, files: Mapping[str, bytes], corpus: Mapping[str, list[bytes]]
) -> list[Outcome]:
    """The classes of targets.py, inside Pyodide."""
    given = {
        "modules": {name: (HERE / name).read_text() for name in MODULES},
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "corpus": {kind: [base64.b64encode(case).decode() for case in cases] for kind, cases in corpus.items()},
        "count": count,
        "seed": seed,
    }
    done = harness.exec(SCRIPT, argv=[json.dumps(given)])
    line = next((line for line in done.stdout.splitlines() if line.startswith("found:")), None)
    if done.status or line is None:
        stopped = Outcome("page")
        stopped.fail(b"", f"the script ended with status {done.status}: {done.stderr[-500:]}")
        return [stopped]
    outcomes = []
    for kind, refused, taken, failures in json.loads(line.removeprefix("found:")):
        outcome = Outcome(f"page {kind}", refused, taken)
        for case, why in failures:
            outcome.fail(base64.b64decode(case), why)
        outcomes.append(outcome)
    return outcomes


def attack_requests(harness: Harness, folders: Folders, count: int, seed: int) -> Outcome:
    """Messages with fields of wrong types, without fields, and of other forms."""
    outcome, random = Outcome("page messages"), Random(f"messages {seed}")
    options = generate_request(folders.good, prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
    chat = {**{name: options[name] for name in ("model", "dtype", "device", "capture", "run_ahead", "search")}}
    talk = {**chat, "kind": "chat", "messages": [], "max_length": 64, "max_new_tokens": 2}
    for _ in range(count):
        good = random.choice((*REQUESTS, dict(options), dict(options), talk))
        text = mutated_json(random, json.dumps(good).encode())
        try:
            request = json.loads(text)
        except (ValueError, RecursionError):
            request = text.decode(errors="replace")
        answer(harness, outcome, text, request)
    good_still(harness, folders, outcome)
    return outcome


def attack_folders(harness: Harness, folders: Folders, count: int, seed: int) -> Outcome:
    """Folders with one broken file, loaded and run on the CPU."""
    outcome, random = Outcome("page folders"), Random(f"folders {seed}")
    mutators = {
        "genai_config.json": mutated_json,
        "model.onnx": mutated_graph,
        "model.onnx.data": mutated_bytes,
        "tokenizer.json": mutated_json,
    }
    for _ in range(count):
        name = random.choice(list(mutators))
        data = mutators[name](random, folders._files[name])
        folder = folders.changed({name: data})
        request = generate_request(folder, prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
        answer(harness, outcome, data, request)
    good_still(harness, folders, outcome)
    return outcome


def answer(harness: Harness, outcome: Outcome, case: bytes, request: Any) -> None:
    """Send a request: a result, or an error of ours with a short message, within the limit."""
    reply = reply_within(harness.page, request)
    if reply is None:
        outcome.fail(case, f"no reply within {LIMIT_MS / 1000} s")
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


def good_still(harness: Harness, folders: Folders, outcome: Outcome) -> None:
    """The next good request works."""
    good = generate_request(folders.good, prompt_ids=PROMPT, max_new_tokens=2, device="wasm")
    reply = reply_within(harness.page, good)
    if reply is None or not reply["ok"]:
        outcome.fail(b"", f"the next request does not work: {reply and reply['error']['message']}")
