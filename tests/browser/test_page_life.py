"""Pages that are reloaded, left and come back to, or frozen in the middle of a download or of a run: what was stored is
there, and a frozen page goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.testing.harness import Harness, exec_request, generate_request
from tests import oracle
from tests.browser.weight_server import Faults, WeightServer
from tests.faults import visits
from tests.plain_browser import plain_browser

pytestmark = pytest.mark.extended
LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
DATA = "model.onnx.data"
SIZE = (LLAMA / DATA).stat().st_size
SHARD = 16384
KEPT = 6 * SHARD
PROMPT = [5, 6, 7, 8, 9]
TOKENS = 40
FROZEN_SECONDS = 1.5
WAIT_SECONDS = 300
"""For what takes seconds on an idle machine."""
SMALL_SHARDS = f"from capstan.weights import manifest\nmanifest.SHARD_BYTES = {SHARD}"
SHOWN = """
window.addEventListener('pageshow', (event) => { window.persisted = event.persisted; });
window.lifecycle = [];
for (const kind of ['freeze', 'resume']) document.addEventListener(kind, () => window.lifecycle.push(kind));
"""


@dataclass
class Place:
    """A page that works, one that looks at what is stored, and the server of their model."""

    server: WeightServer
    harness: Harness
    other: Harness
    model: str

    @property
    def path(self) -> str:
        return f"/models/{self.model}/{DATA}"

    def begin(self, device: str = "wasm") -> None:
        self.server.forget()
        self.harness.begin(generate_request(self.model, prompt_ids=PROMPT, max_new_tokens=TOKENS, device=device))

    def right(self) -> None:
        """Assert that the pending request ends with the oracle's ids, and that everything is stored."""
        reply = self.harness.end()
        assert reply["ok"], reply
        assert reply["result"]["token_ids"] == oracle.greedy(LLAMA, PROMPT, TOKENS)
        assert self.stored() == SIZE

    def small_shards(self) -> None:
        done = self.harness.reply(exec_request(SMALL_SHARDS, (), (), "shards.py"))
        assert done == {"ok": True, "result": {"status": 0}}

    def stored(self) -> int:
        """Bytes of the model, as another page sees it."""
        listed = self.other.reply({"kind": "models", "action": "list", "which": None})
        return sum(int(file["stored_bytes"]) for file in listed["result"]["files"])

    def held(self, device: str = "wasm") -> Faults:
        """A load is begun, by a page that has nothing loaded, that stops once the shards before KEPT are stored."""
        self.come_back(self.harness.page.reload)
        assert self.other.reply({"kind": "models", "action": "evict", "which": None})["ok"]
        faults = self.server.faults[self.path] = Faults(hold_at=KEPT + 5000)
        self.small_shards()
        self.begin(device)
        wait(lambda: self.stored() == KEPT, f"{KEPT} bytes are stored")
        return faults

    def freeze(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        session = self.harness.page.context.new_cdp_session(self.harness.page)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        meanwhile()
        time.sleep(FROZEN_SECONDS)
        session.send("Page.setWebLifecycleState", {"state": "active"})
        session.detach()

    def come_back(self, leave: Callable[[], object]) -> None:
        """To the page as a user does, and it works."""
        leave()
        self.harness.page.wait_for_function("() => window.capstan !== undefined", timeout=1000 * WAIT_SECONDS)
        self.harness.evaluate("() => window.capstan.ready")

    def until_token(self, count: int) -> None:
        def told() -> bool:
            # Any call makes Playwright handle the events that have come.
            self.harness.page.wait_for_timeout(5)
            seen: int = sum(event["kind"] == "text" for event in self.harness.events)
            return seen >= count

        wait(told, f"{count} tokens are told of", 0)


def wait(condition: Callable[[], bool], what: str, pause: float = 0.1) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(pause)


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A context whose pages are hidden, frozen and kept as a user's."""
    with plain_browser(browser.browser_type) as plain:
        yield plain.contexts[0]


@pytest.fixture(scope="module")
def place(context: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    context.add_init_script(SHOWN)
    with running(WeightServer(assemble(), {})) as server:
        model = server.mount(LLAMA, tmp_path_factory.mktemp("life") / "life")
        pages = [Harness(context.new_page(), server.url) for _ in range(2)]
        yield Place(server, pages[0], pages[1], model)
        for fault in server.faults.values():
            fault.released.set()


def leave_and_go_back(place: Place) -> None:
    page = place.harness.page
    page.goto(place.server.url + "blank.html")
    # A page that was kept in the history gives no event "load".
    page.go_back(wait_until="commit")


LEAVING: dict[str, Callable[[Place], object]] = {
    "reloaded": lambda place: place.harness.page.reload(),
    "left": leave_and_go_back,
}


@pytest.mark.parametrize("way", LEAVING)
def test_a_page_that_was_left_goes_on_with_what_was_stored(way: str, place: Place) -> None:
    faults = place.held()
    place.come_back(lambda: LEAVING[way](place))
    faults.hold_at = None
    faults.released.set()
    # A page that the browser kept goes on with its load.
    assert place.stored() >= KEPT
    place.small_shards()
    place.begin()
    place.until_token(3)
    assert place.server.sent[place.path] <= SIZE - KEPT, "what was stored was fetched again"
    place.come_back(lambda: LEAVING[way](place))
    print(f"{way}: kept by the browser: {place.harness.evaluate('() => window.persisted')}")
    place.begin()
    place.right()
    assert place.server.sent[place.path] == 0


def test_a_frozen_page_goes_on(place: Place) -> None:
    faults = place.held("webgpu")
    faults.hold_at = None
    place.freeze(faults.released.set)
    place.until_token(3)
    place.freeze()
    place.right()
    assert place.server.sent[place.path] == SIZE
    assert place.harness.evaluate("() => window.lifecycle") == ["freeze", "resume"] * 2
    assert place.harness.errors == []


def test_a_page_that_was_frozen_while_python_started_goes_on(browser: Browser) -> None:
    """Chromium may then keep the worker waiting for ever for what it fetched."""
    with plain_browser(browser.browser_type) as plain, running(visits.FaultyServer(assemble())) as server:
        for _ in range(4):
            with visits.opened(plain, server) as page:
                server.begin("freeze", "/capstan/pyodide/pyodide-lock.json")
                found = visits.visit(page, server, "freeze")
                assert found is not None
                assert found["ids"] == visits.wanted()
