"""Devices lost at seeded points of loading, recording, prompts, bursts and closing, and killed GPU processes: the ids
are those of an undisturbed run, or the error names a remedy."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from buildtools.browser import find_browser
from capstan_host.headless.chromium import flags
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.soak.memory import processes

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
POINTS = int(os.environ.get("CAPSTAN_LOSSES", "5"))
"""How often the device is lost, and the GPU process killed."""
COMING_SECONDS = 10
pytestmark = [pytest.mark.extended, pytest.mark.own_page, pytest.mark.timeout(900 + 60 * POINTS)]
SEED = int(os.environ.get("CAPSTAN_SEED", "7"))
ADAPTER = os.environ.get("CAPSTAN_ADAPTER", "software")
MORE_THAN_ONCE = ("--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis")
"""So that Chromium gives a page a device after a second crash of its GPU process, too."""


def check(found: dict[str, Any], ids: list[int], where: str) -> bool:
    """Whether the run came through; its ids are then those of an undisturbed one."""
    assert found["left"] == 0, f"{where}: something stays in the ledger"
    if found["error"] is None:
        assert found["ids"] == ids, where
        return True
    kind, message = found["error"]
    assert kind == "DeviceLostError", f"{where}: {kind}: {message}"
    assert "load the model again" in message, f"{where}: {message}"
    assert found["ids"] == ids[: len(found["ids"])], where
    return False


def calm_run(scripts: PageScripts) -> dict[str, Any]:
    """An undisturbed run, once what is found out in the first one is known."""
    scripts.run("recovering", "run", "nano-llama")
    calm: dict[str, Any] = scripts.run("recovering", "run", "nano-llama")
    assert (calm["error"], calm["events"], calm["left"]) == (None, [], 0)
    return calm


def moments(calm: dict[str, Any]) -> Iterator[float]:
    """Milliseconds into a run, evenly spread over the undisturbed one's, each moved by the seed."""
    numbers = random.Random(SEED)
    for point in range(POINTS):
        yield (point + numbers.random()) / POINTS * calm["took"]


def test_a_device_lost_at_any_point_changes_no_token(scripts: PageScripts) -> None:
    calm = calm_run(scripts)
    survived = 0
    for after in moments(calm):
        found = scripts.run("recovering", "run", "nano-llama", lost_after=after)
        survived += came_through(found, calm, f"lost after {after:.0f}")
        scripts.harness.errors.clear()
    assert survived >= 1, "no run came through"
    scripts.run("faults", "seen")


def came_through(found: dict[str, Any], calm: dict[str, Any], where: str) -> bool:
    """See check; told as well."""
    where = f"{where} of {calm['took']:.0f} ms"
    survived = check(found, calm["ids"], where)
    print(f"{where}: {'equal ids' if survived else found['error']}")
    return survived


@pytest.mark.parametrize(("draft", "search"), [("nano-shape", {"do_sample": False}), ("nano-float", {})])
def test_a_device_lost_in_an_answer_with_a_draft_model_changes_no_token(
    draft: str, search: dict[str, Any], scripts: PageScripts
) -> None:
    """Drafts continue on the new device: those of equal weights, which are accepted, and others, which are refused."""
    arguments: dict[str, Any] = {"search": search} if search else {}
    plain = scripts.run("recovering", "run", "nano-llama", **arguments)
    arguments |= {"draft": draft}
    calm = scripts.run("recovering", "run", "nano-llama", draft, **arguments)
    assert (calm["error"], calm["ids"], calm["left"]) == (None, plain["ids"], 0)
    assert (calm["drafted"][-1] < len(plain["ids"]) / 2) == bool(search), "accepted drafts save steps"
    for at in (1, 9, 20):
        found = scripts.run("recovering", "run", "nano-llama", draft, lost_at=at, **arguments)
        assert check(found, plain["ids"], f"lost at token {at}"), found["error"]
        assert len(found["events"]) == 1
        before, after = found["drafted"]
        assert before < after
        scripts.harness.errors.clear()
    refused = scripts.run("recovering", "run", "nano-llama", draft, lost_at=9, recoveries=0, **arguments)
    assert not check(refused, plain["ids"], "no recovery")
    scripts.harness.errors.clear()
    scripts.run("faults", "seen")


@pytest.fixture
def mortal(browser: Browser, site: SiteServer) -> Iterator[tuple[PageScripts, set[int]]]:
    """The scripts in a browser of their own, and the processes that were there before it."""
    before = set(processes(os.getpid()))
    other = browser.browser_type.launch(
        executable_path=str(find_browser()), args=["--headless=new", *flags(ADAPTER), *MORE_THAN_ONCE]
    )
    yield PageScripts.install(Harness(other.new_page(), site.url)), before
    other.close()


def test_a_killed_gpu_process_changes_no_token(mortal: tuple[PageScripts, set[int]]) -> None:
    scripts, before = mortal
    calm = scripts.run("recovering", "run", "nano-llama")
    assert calm["error"] is None

    def killed(at: str, **options: Any) -> dict[str, Any]:
        """A run whose GPU process is killed once an event's text begins so."""
        scripts.begin("recovering", "run", "nano-llama", **options)
        # The search takes as long as many tokens.
        gpu = gpu_process(before)
        while not any(event.get("text", "").startswith(at) for event in scripts.harness.events):
            scripts.harness.page.wait_for_timeout(5)
        os.kill(gpu, signal.SIGKILL)
        found: dict[str, Any] = scripts.end()
        return found

    for at in ("token 3", "token 20"):
        found = killed(at)
        assert check(found, calm["ids"], at), found["error"]
        [[reason, ms]] = found["events"]
        assert any(told.startswith("the device") for told in found["fallbacks"]), found["fallbacks"]
        assert "the browser's GPU process ended" in reason
        print(f"recovered in {ms:.0f} ms")
    refused = killed("token 3", recoveries=0)
    assert refused["error"][0] == "DeviceLostError"
    assert "the browser's GPU process ended" in refused["error"][1]
    assert scripts.run("recovering", "run", "nano-llama")["ids"] == calm["ids"], "a new load works"


def test_an_adapter_that_is_away_is_waited_for_and_one_that_stays_away_is_lost(scripts: PageScripts) -> None:
    """As while a browser starts its GPU process again."""
    calm = scripts.run("recovering", "run", "nano-llama")
    back = scripts.run("recovering", "away", "nano-llama", ms=1500)
    assert (back["error"], back["ids"]) == (None, calm["ids"])
    gone = scripts.run("recovering", "away", "nano-llama", ms=60_000)
    assert not check(gone, calm["ids"], "away for good")
    assert 4000 <= gone["took"] < 8000
    assert scripts.run("recovering", "run", "nano-llama")["ids"] == calm["ids"]


def test_a_gpu_process_killed_at_any_point_changes_no_token(mortal: tuple[PageScripts, set[int]]) -> None:
    scripts, before = mortal
    calm = calm_run(scripts)
    survived = 0
    for after in moments(calm):
        scripts.begin("recovering", "run", "nano-llama")
        scripts.harness.page.wait_for_timeout(after)
        os.kill(gpu_process(before), signal.SIGKILL)
        survived += came_through(scripts.end(), calm, f"killed after {after:.0f}")
        scripts.harness.errors.clear()
    assert survived >= 1, "no run came through"


ROOM = 256 << 20
"""Memory that the GPU process may map beyond its size when the second page begins."""
FILL = """async (size) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  window.held = [];
  try {
    for (;;) {
      device.pushErrorScope("out-of-memory");
      window.held.push(device.createBuffer({ size, usage: GPUBufferUsage.STORAGE }));
      if (await device.popErrorScope()) return "refused";
    }
  } catch (error) {
    return String(error);
  }
}"""


def test_a_page_that_takes_all_memory_does_not_stop_the_model_of_another(mortal: tuple[PageScripts, set[int]]) -> None:
    """Chromium's software adapter is not told of a lack of memory: its process ends, and the model recovers."""
    scripts, before = mortal
    ids = scripts.run("filling", "begin", "nano-llama")
    process = gpu_process(before)
    mapped = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(process, resource.RLIMIT_AS, (mapped + ROOM, resource.RLIM_INFINITY))
    browser = scripts.harness.page.context.browser
    assert browser is not None
    page = browser.new_page()
    page.goto(scripts.harness.page.url.partition("/capstan/")[0] + "/blank.html")
    told = page.evaluate(FILL, 16 << 20)
    print(told)
    page.close()
    found = scripts.run("filling", "more", "nano-llama")
    assert [*ids, *found["ids"]] == oracle.greedy(LLAMA, [5, 6, 7, 8, 9], len(ids) + len(found["ids"]))
    assert len(found["ids"]) > 0
    assert found["recovered"] == (0 if told == "refused" else 1)
    assert scripts.run("filling", "end", "nano-llama") == 0


def gpu_process(others: set[int]) -> int:
    """The GPU process of the browser whose processes are not among `others`; the browser may be about to start it."""
    deadline = time.monotonic() + COMING_SECONDS
    while True:
        found = [pid for pid, command in processes(os.getpid()).items() if "--type=gpu-process" in command]
        fresh = [pid for pid in found if pid not in others]
        if len(fresh) == 1:
            return fresh[0]
        assert time.monotonic() < deadline, fresh
        time.sleep(0.05)
