"""The growth of a page's memory while something runs in it, sampled from outside, and the bytes it moves to the GPU.

    prepare(context)
    memory = PageMemory(context, page)          # a page that is open, with its worker
    result, growth = memory.during("(url) => window.load(url)", url)

Four things are sampled: the wasm heaps, the live ArrayBuffers of page and worker, the renderer process's resident
memory, and the GPU process's. The renderer's memory that is shared with other processes (buffers on their way to the
GPU process and from the network) is told apart from its own. Linux only: it reads /proc.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, CDPSession, Page

from capstan_host.testing.harness import before_worker

__all__ = ["Growth", "PageMemory", "prepare"]

PROBE = Path(__file__).with_suffix(".js")
SECONDS = 0.02
"""Between two samples of the processes."""
SETTLE_MS = 300
SETTLED_BYTES = 1 << 20
"""A process has settled when its memory changes by less than this in SETTLE_MS."""
SETTLE_ROUNDS = 200
POLL_MS = 50
"""Between two samples of the ArrayBuffers and wasm heaps."""
SPIN_MS = 300
SPIN = "(ms) => { for (const end = performance.now() + ms; performance.now() < end; ); }"
HEAPS = "JSON.stringify(globalThis.pageMemory?.heaps() ?? {})"


@dataclass
class Growth:
    """The most bytes that each rose by, from its lowest sample to a later one: what is given back at the beginning
    hides nothing of what grows then."""

    pyodide_heap: int = 0
    onnxruntime_heap: int = 0
    array_buffers: int = 0
    heaps: int = 0
    """Those together, and wasm memories of anybody else."""
    renderer: int = 0
    """Resident memory of the renderer process that is its own."""
    renderer_shared: int = 0
    """Resident memory that it shares: on the way to the GPU process, or from the network."""
    gpu_process: int = 0
    """Resident memory of the GPU process; a software adapter keeps its buffers there."""
    samples: int = 0
    """Samples of the processes."""

    def __post_init__(self) -> None:
        self._lowest: dict[str, int] = {}

    def take(self, seen: dict[str, int]) -> None:
        for name, value in seen.items():
            lowest = self._lowest[name] = min(value, self._lowest.get(name, value))
            setattr(self, name, max(getattr(self, name), value - lowest))

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def prepare(context: BrowserContext) -> None:
    """Put the probe before every page's scripts and before those of Capstan's worker."""
    source = PROBE.read_text()
    context.add_init_script(source)
    before_worker(context, source)


class PageMemory:
    """Watches one page, which has its workers by now and is the only busy one of its browser."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        assert context.browser is not None
        self.page = page
        self._browser = context.browser.new_browser_cdp_session()
        self._targets = Targets(context.new_cdp_session(page))
        self.renderer = self._busy_renderer()
        [self.gpu] = [process["id"] for process in self._processes() if process["type"] == "GPU"]

    def during(self, start: str, argument: Any = None) -> tuple[Any, Growth]:
        """Evaluate `start` in the page, a function that returns a promise: what that gave, and the growth meanwhile."""
        growth = Growth()
        self._targets.collect_garbage()
        self._settle()
        growth.take(self._heaps())
        with self._resident(growth):
            self.page.evaluate("([start, argument]) => { window.measured = eval(start)(argument); }", [start, argument])
            while not self.page.evaluate(
                f"() => Promise.race([window.measured.then(() => true, () => true),"
                f" new Promise((resolve) => setTimeout(resolve, {POLL_MS}, false))])"
            ):
                growth.take(self._heaps())
            growth.take(self._heaps())
        return self.page.evaluate("() => window.measured"), growth

    def _settle(self) -> None:
        """Wait while a process gives memory back, which would hide as much of what grows meanwhile, and while what was
        begun before still takes some, which would count as what grows."""
        before = self._resident_now()
        for _ in range(SETTLE_ROUNDS):
            self.page.wait_for_timeout(SETTLE_MS)
            now = self._resident_now()
            if all(abs(now[name] - before[name]) < SETTLED_BYTES for name in now):
                return
            before = now
        raise AssertionError(f"the memory still changes after {SETTLE_ROUNDS * SETTLE_MS} ms: {before}")

    @contextmanager
    def _resident(self, growth: Growth) -> Iterator[None]:
        """Sample the processes in a thread for as long as the block runs."""
        stop = threading.Event()
        growth.take(self._resident_now())

        def sample() -> None:
            while not stop.wait(SECONDS):
                growth.take(self._resident_now())
                growth.samples += 1

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        growth.take(self._resident_now())

    def _resident_now(self) -> dict[str, int]:
        own, gpu = resident(self.renderer), resident(self.gpu)
        return {
            "renderer": own["RssAnon"] + own["RssFile"],
            "renderer_shared": own["RssShmem"],
            "gpu_process": gpu["RssAnon"] + gpu["RssFile"] + gpu["RssShmem"],
        }

    def _heaps(self) -> dict[str, int]:
        array_buffers, heaps = 0, Counter[str]()
        for usage, found in self._targets.heaps():
            array_buffers += usage
            heaps.update(found)
        return {
            "array_buffers": array_buffers,
            "pyodide_heap": heaps["pyodide"],
            "onnxruntime_heap": heaps["onnxruntime"],
            "heaps": array_buffers + heaps.total(),
        }

    def _busy_renderer(self) -> int:
        """The process id of the page's renderer: the only process that is busy while the page spins."""
        for _ in range(20):
            before = self._cpu_times()
            self.page.evaluate(SPIN, SPIN_MS)
            spent = {pid: 1000 * (seconds - before.get(pid, 0)) for pid, seconds in self._cpu_times().items()}
            *others, busy = sorted(spent, key=lambda pid: spent[pid])
            if spent[busy] > SPIN_MS / 6 and all(spent[pid] < spent[busy] / 4 for pid in others):
                return busy
        raise AssertionError(f"no renderer is busy alone while the page is: {spent} ms")

    def _cpu_times(self) -> dict[int, float]:
        return {process["id"]: process["cpuTime"] for process in self._processes() if process["type"] == "renderer"}

    def _processes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._browser.send("SystemInfo.getProcessInfo")["processInfo"]
        return found


class Targets:
    """The page and its workers over the DevTools protocol, workers by messages within messages."""

    def __init__(self, session: CDPSession) -> None:
        self.session = session
        self.workers: list[str] = []
        self.answers: dict[tuple[str, int], dict[str, Any]] = {}
        self.asked = 0
        session.on("Target.attachedToTarget", self._attached)
        session.on("Target.detachedFromTarget", lambda event: self.workers.remove(event["sessionId"]))
        session.on("Target.receivedMessageFromTarget", self._received)
        options = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": False}
        session.send("Target.setAutoAttach", options)

    def heaps(self) -> Iterator[tuple[int, dict[str, int]]]:
        """For the page and each worker: bytes of its ArrayBuffers, and of its wasm heaps by their makers."""
        usage, heaps = "Runtime.getHeapUsage", {"expression": HEAPS, "returnByValue": True}
        yield unpack(self.session.send(usage), self.session.send("Runtime.evaluate", heaps))
        for worker in list(self.workers):
            yield unpack(self._ask(worker, usage), self._ask(worker, "Runtime.evaluate", heaps))

    def collect_garbage(self) -> None:
        """So that what is dead already does not hide what grows."""
        self.session.send("HeapProfiler.collectGarbage")
        for worker in list(self.workers):
            self._ask(worker, "HeapProfiler.collectGarbage")

    def _attached(self, event: dict[str, Any]) -> None:
        if event["targetInfo"]["type"] == "worker":
            self.workers.append(event["sessionId"])

    def _received(self, event: dict[str, Any]) -> None:
        message = json.loads(event["message"])
        if "id" in message:
            self.answers[event["sessionId"], message["id"]] = message

    def _ask(self, worker: str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self.asked += 1
        key = (worker, self.asked)
        message = json.dumps({"id": self.asked, "method": method, "params": params or {}})
        self.session.send("Target.sendMessageToTarget", {"sessionId": worker, "message": message})
        while key not in self.answers:
            assert worker in self.workers, "the worker ended while its memory was watched"
            # Any call makes Playwright handle the events that have come.
            self.session.send("Runtime.enable")
        answer: dict[str, Any] = self.answers.pop(key)["result"]
        return answer


def unpack(usage: dict[str, Any], heaps: dict[str, Any]) -> tuple[int, dict[str, int]]:
    return int(usage["backingStorageSize"]), json.loads(heaps["result"]["value"])


def resident(pid: int) -> dict[str, int]:
    """Resident bytes of a process by kind: RssAnon, RssFile, RssShmem."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Rss"):
            found[name] = int(value.split()[0]) * 1024
    return found
