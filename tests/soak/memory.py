"""The memory of a browser's processes and a page's heaps, sampled while nothing is open, and whether it grows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from playwright.sync_api import BrowserContext, Page

from tests.page_memory import Targets

__all__ = ["LEAST_SAMPLES", "MIB", "Life", "Probe", "growth", "kinds", "processes", "table"]

MIB = 1 << 20
LEAST_SAMPLES = 9
"""The fewest samples of a process that is judged: a third of them are its warm-up."""
SLACK = 16 * MIB
SHARE = 0.05
"""The growth that a browser may have of its own: the greater of this size and this share of its memory."""
OBJECTS = 2000
"""Python objects that may come."""


@dataclass
class Life:
    """Samples of one process, worker or page, from its beginning to its end: (seconds, amount)."""

    COUNT: ClassVar[str] = "Python objects"
    """The one that is no bytes."""
    what: str
    who: int
    samples: list[tuple[float, float]]

    @property
    def limit(self) -> float:
        before, _ = growth(self.samples)
        return OBJECTS if self.what == self.COUNT else max(SLACK, SHARE * before)

    @property
    def judged(self) -> bool:
        return len(self.samples) >= LEAST_SAMPLES

    @property
    def flat(self) -> bool:
        """Whether the last third of a life has no more than the second one, up to the limit."""
        before, after = growth(self.samples)
        return after - before <= self.limit


def growth(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of the second third and of the last."""
    amounts = [amount for _, amount in samples]
    third = len(amounts) // 3
    return statistics.median(amounts[third : 2 * third] or amounts), statistics.median(amounts[2 * third :])


class Probe:
    """Looks at one browser: its processes, and the page with its worker."""

    def __init__(self, context: BrowserContext, page: Page, browser_pid: int) -> None:
        self._targets = Targets(context.new_cdp_session(page))
        self._browser_pid = browser_pid

    def sample(self) -> dict[str, int]:
        """Garbage is collected before."""
        self._targets.collect_garbage()
        array_buffers, pyodide, onnxruntime = 0, 0, 0
        for usage, heaps in self._targets.heaps():
            array_buffers += usage
            pyodide += heaps.get("pyodide", 0)
            onnxruntime += heaps.get("onnxruntime", 0)
        found = {"Python's heap": pyodide, "onnxruntime-web's heap": onnxruntime, "ArrayBuffers": array_buffers}
        for kind, pids in kinds(self._browser_pid).items():
            found[kind] = sum(proportional(pid) for pid in pids)
        return found


def kinds(browser_pid: int) -> dict[str, list[int]]:
    """The process ids of a browser by kind: browser, renderer, GPU process."""
    found: dict[str, list[int]] = {"browser": [browser_pid], "renderer": [], "GPU process": []}
    for pid, command in processes(browser_pid).items():
        if "--type=renderer" in command:
            found["renderer"].append(pid)
        elif "--type=gpu-process" in command:
            found["GPU process"].append(pid)
    return found


def processes(root: int) -> Mapping[int, str]:
    """The command lines of a process's children, and of theirs."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue  # It has ended.
    return {pid: commands[pid] for pid in descendants(parents, root) if commands.get(pid)}


def descendants(parents: Mapping[int, int], root: int) -> Iterator[int]:
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    yield from found - {root}


def proportional(pid: int) -> int:
    """The proportional set size of a process in bytes, swapped pages too, without those of files, whose share falls
    while another browser maps them; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    sizes = dict(line.split()[:2] for line in text.splitlines()[1:])
    return sum(int(sizes[name + ":"]) * 1024 for name in ("Pss_Anon", "Pss_Shmem", "SwapPss"))


def table(lives: Sequence[Life]) -> list[dict[str, Any]]:
    """The lives long enough to be judged, as they are reported."""
    rows = []
    for life in lives:
        if not life.judged:
            continue
        before, after = growth(life.samples)
        amounts = [amount for _, amount in life.samples]
        rows.append(
            {
                "what": life.what,
                "minutes": round((life.samples[-1][0] - life.samples[0][0]) / 60, 1),
                "samples": len(amounts),
                "first": amounts[0],
                "before": before,
                "after": after,
                "most": max(amounts),
                "flat": life.flat,
            }
        )
    return rows
