"""`python -m tests.soak.fleet`: random faults while a fleet answers prompts; each item is in the result once.

Two workers have the model, a third cannot read it. Faults kill browsers, parts of browsers and workers, restart the
scheduler and have the disk full. Some prompts are poison: no vocabulary has their ids. The ids of all others are
compared with those of requests to a single page, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
from distributed import Client

from buildtools.browser import find_browser
from buildtools.site import assemble
from capstan_host.fleet import Fleet, FleetError, ResultFileError
from capstan_host.headless.headless_page import HeadlessPage
from capstan_host.headless.static_server import StaticServer, running

__all__ = ["Cluster", "kill_part", "main", "of_one_page"]

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures"
MODEL = "nano-llama"
NEW_TOKENS = 8
DISTINCT = 60
"""Prompts that differ: the others repeat them."""
POISON = [10**6]
GRACE_SECONDS = 20.0
WEIGHTS = {"browser": 14, "renderer": 8, "gpu": 8, "worker": 10, "scheduler": 5, "disk": 5}
FAULTS = tuple(WEIGHTS)


class Cluster:
    """A scheduler and workers as processes of their own; each that dies is started again."""

    def __init__(self, folder: Path, site: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'py_src'}:{ROOT}", "CAPSTAN_SITE": str(site)}
        self._ending = threading.Event()
        self.starts: collections.Counter[str] = collections.Counter()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log = (folder / "cluster.log").open("wb")
        worker = ["worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60"]
        self._keepers = [
            threading.Thread(target=self._keep, args=(name, command, where), daemon=True)
            for name, command, where in (
                ("scheduler", ["scheduler", "--port", str(self.port), "--no-dashboard"], folder),
                *((f"worker-{number}", worker, self._home(folder, number)) for number in (1, 2, 3)),
            )
        ]
        for keeper in self._keepers:
            keeper.start()

    def _home(self, folder: Path, number: int) -> Path:
        """A worker's working directory, which has the model unless it is the third one's."""
        home = folder / f"worker-{number}"
        home.mkdir()
        if number < 3:
            (home / MODEL).symlink_to(FIXTURES / MODEL)
        return home

    def _keep(self, name: str, command: Sequence[str], where: Path) -> None:
        while not self._ending.is_set():
            self.starts[name] += 1
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command],
                cwd=where,
                env=self._environ,
                stdout=self._log,
                stderr=self._log,
                preexec_fn=without_limit,
            )
            self.processes[name] = process
            process.wait()

    def restart_scheduler(self) -> None:
        """Kill the scheduler. Its workers end by themselves, or are killed after a grace, like pods."""
        workers = [process for name, process in self.processes.items() if name != "scheduler"]
        self.processes["scheduler"].kill()

        def end() -> None:
            for process in workers:
                process.kill()

        threading.Timer(GRACE_SECONDS, end).start()

    def close(self) -> None:
        """End all processes, browsers too."""
        self._ending.set()
        for process in self.processes.values():
            process.kill()
        for keeper in self._keepers:
            keeper.join()
        self._log.close()


def kill_part(worker: int, part: str) -> bool:
    """Kill a browser of a worker's process, or its renderer or GPU process; False where it has none now."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(worker).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                kind = {"renderer": "--type=renderer", "gpu": "--type=gpu-process"}.get(part)
                found = kind in command if kind else "--headless=new" in command and "--type=" not in command
                if found and ("chrom" in command.lower()):
                    process.kill()
                    return True
    return False


def without_limit() -> None:
    """Have a process that begins while this one's disk is full write as much as it likes."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@contextlib.contextmanager
def disk_full_at(path: Path, room: int) -> Iterator[None]:
    """This process cannot write more than `room` bytes to the file."""
    size = path.stat().st_size if path.exists() else 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts as token ids; one in 500 is poison."""
    draw = random.Random(seed)
    distinct = [[draw.randrange(1, 500) for _ in range(draw.randrange(2, 12))] for _ in range(DISTINCT)]
    return [POISON if number % 500 == 137 else distinct[number % DISTINCT] for number in range(count)]


def of_one_page(site: Path, given: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """The ids of each prompt by requests to one page."""

    async def ask() -> dict[tuple[int, ...], list[int]]:
        found = {}
        with running(StaticServer(site, {MODEL: FIXTURES / MODEL})) as server:
            program = find_browser()
            async with HeadlessPage(server.url, lambda event: None, program=program, device="webgpu") as page:
                for ids in given:
                    request = {
                        "kind": "generate",
                        "model": f"/models/{MODEL}/",
                        "dtype": None,
                        "device": "webgpu",
                        "capture": None,
                        "run_ahead": None,
                        "prompt": None,
                        "prompt_ids": list(ids),
                        "max_new_tokens": NEW_TOKENS,
                        "search": {"do_sample": False},
                    }
                    reply = await page.request(request)
                    found[tuple(ids)] = reply["result"]["token_ids"]
        return found

    return asyncio.run(ask())


class Trouble:
    """Does the faults, each when so many items are done."""

    def __init__(self, cluster: Cluster, faults: Sequence[tuple[int, str]], seed: int) -> None:
        self._cluster = cluster
        self.waiting = list(faults)
        self._draw = random.Random(seed)
        self.done: collections.Counter[str] = collections.Counter()
        self.disk = False

    def at(self, items: int) -> None:
        """So many items are done: begin the faults that are due. Those of the disk are the caller's."""
        while self.waiting and self.waiting[0][0] <= items:
            _, fault = self.waiting.pop(0)
            if not self._do(fault):
                self.waiting.insert(0, (items + 5, fault))
                return
            self.done[fault] += 1

    def _do(self, fault: str) -> bool:
        processes = self._cluster.processes
        if fault == "disk":
            self.disk = True
            return True
        if fault == "scheduler":
            self._cluster.restart_scheduler()
            return True
        name = self._draw.choice(["worker-1", "worker-2"])
        if fault == "worker":
            processes[name].kill()
            return True
        return kill_part(processes[name].pid, fault)


def main(arguments: Sequence[str]) -> int:
    """Print the report; 0 if each item came once, with the ids of a single page."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fleet", description=__doc__)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--capture", choices=["tape", "off"], help="of the fleet; off starts a page sooner")
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=FAULTS, help="the faults to draw from")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    site = assemble()
    given = prompts(args.items, args.seed)
    draw = random.Random(args.seed)
    weights = [WEIGHTS[kind] for kind in args.kinds]
    kinds = draw.choices(args.kinds, weights, k=args.faults)
    faults = sorted((draw.randrange(1, args.items * 9 // 10), kind) for kind in kinds)
    expected = of_one_page(site, sorted({tuple(each) for each in given if each != POISON}))
    print(f"{len(expected)} prompts were answered by one page", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        cluster = Cluster(folder, site)
        try:
            report = answer_all(cluster, folder / "results.jsonl", given, faults, args.seed, args.capture)
            report |= judged(folder / "results.jsonl", given, expected)
        finally:
            cluster.close()
        if report["wrong"]:
            print((folder / "cluster.log").read_text(errors="replace")[-6000:])
    print(json.dumps(report, indent=1))
    return 1 if report["wrong"] else 0


def answer_all(
    cluster: Cluster,
    out: Path,
    given: Sequence[Sequence[int]],
    faults: Sequence[tuple[int, str]],
    seed: int,
    capture: Literal["tape", "off"] | None,
) -> dict[str, Any]:
    """Have the fleet answer all, and go on after what ends a run."""
    trouble = Trouble(cluster, faults, seed)
    ends: collections.Counter[str] = collections.Counter()
    begun, count, told = time.monotonic(), 0, 0.0
    seen: set[str] = set()
    with contextlib.ExitStack() as stack:
        fleet: Fleet | None = None
        while True:
            try:
                if fleet is None:
                    client = stack.enter_context(Client(cluster.address, timeout=60))
                    model = f"/proc/self/cwd/{MODEL}"
                    fleet = Fleet(
                        client, model, max_length=64, device="webgpu", capture=capture, timeout=300, patience=300
                    )
                results = fleet.generate(
                    given, max_new_tokens=NEW_TOKENS, out=out, ordered=False, batch=8, do_sample=False
                )
                while True:
                    with disk_full_at(out, 700) if trouble.disk else contextlib.nullcontext():
                        item = next(results, None)
                    if item is None:
                        break
                    if item.error is None:
                        seen.add(item.id)
                    count = len(seen)
                    trouble.at(count)
                    if time.monotonic() - told > 20:
                        told = time.monotonic()
                        print(f"{told - begun:.0f} s: {count} items, faults {dict(trouble.done)}", flush=True)
                break
            except ResultFileError as error:
                ends[type(error).__name__] += 1
                trouble.disk = False
            except FleetError as error:
                ends[type(error).__name__] += 1
                print(f"the run ends: {error}", flush=True)
                with contextlib.suppress(Exception):
                    if fleet is not None:
                        fleet.close()
                fleet = None
    return {
        "items": len(given),
        "seconds": round(time.monotonic() - begun),
        "faults": dict(trouble.done),
        "faults left": len(trouble.waiting),
        "runs that ended and went on": dict(ends),
        "process starts": dict(cluster.starts),
        "unfit workers": [] if fleet is None else sorted(set(fleet.unfit.values())),
    }


def judged(out: Path, given: Sequence[Sequence[int]], expected: dict[tuple[int, ...], list[int]]) -> dict[str, Any]:
    """Whether each item is there once, with the ids of a single page."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    times = collections.Counter(line["id"] for line in lines)
    wrong = [f"{number} is there {times[str(number)]} times" for number in range(len(given)) if times[str(number)] != 1]
    for line in lines:
        ids = given[line["index"]]
        if ids == POISON:
            if "error" not in line or line["attempt"] != 3:
                wrong.append(f"the poison {line['id']} came to {line}")
        elif line.get("token_ids") != expected[tuple(ids)]:
            wrong.append(f"{line['id']} has {line.get('token_ids')}, {line.get('error')}, not {expected[tuple(ids)]}")
    attempts = collections.Counter(line["attempt"] for line in lines)
    return {"lines": len(lines), "attempts": dict(attempts), "wrong": wrong[:20]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
