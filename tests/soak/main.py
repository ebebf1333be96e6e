"""Opens models, chats, rewinds, cancels, closes and loses devices for minutes: `build.py test --soak MINUTES`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from playwright.sync_api import sync_playwright

from buildtools.browser import find_browser
from buildtools.site import assemble
from capstan_host.headless.chromium import flags
from capstan_host.headless.headless_page import PROBE
from capstan_host.model_arguments import mounts
from capstan_host.site_server import serving

from .memory import LEAST_SAMPLES, MIB, Life, processes, table
from .plans import MODELS, Step, step_of
from .run import FIXTURES, Soak, SoakError

__all__ = ["main", "run", "shown"]

ROOT = Path(__file__).parents[2]
MORE_THAN_ONCE = ("--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis")
"""So that Chromium gives a page a device after many crashes of its GPU process, too."""
LOOKS = 45
"""At the memory, at most, in equal shares of the time: enough to judge what lives for a fifth of it."""
QUIET_SHARE = 0.6
"""The share of the time in which no process ends: each lives long enough to show whether it grows."""


class Work(Protocol):
    """Does a soak's steps: Soak in a browser."""

    def do(self, step: Step) -> None: ...

    def look(self) -> None: ...


def main(arguments: Sequence[str]) -> int:
    """Print what was done and what memory came to; 0 if every step passed and memory was judged and is flat."""
    parser = argparse.ArgumentParser(prog="build.py test --soak", description=__doc__)
    parser.add_argument("minutes", type=float, metavar="MINUTES", help="how long, 30 for a whole one")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="what the steps are made of (default: 1)")
    parser.add_argument("--step", type=int, metavar="K", help="only this step, again and again")
    parser.add_argument("--ends", action="store_true", help="with --step: one of the time in which processes end")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep the figures")
    args = parser.parse_args(arguments)
    if not args.minutes > 0:
        parser.error(f"MINUTES is {args.minutes:g}; it must be above 0")
    if args.ends and args.step is None:
        parser.error("--ends is of one step: give --step K, too")
    report = soak(args.minutes, args.seed, None if args.step is None else step_of(args.seed, args.step, args.ends))
    print(shown(report))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["failure"] is None and report["flat"] else 1


def soak(minutes: float, seed: int, only: Step | None) -> dict[str, Any]:
    """The report of one."""
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    before = set(processes(os.getpid()))
    with serving(assemble(), mounts([FIXTURES / name for name in MODELS])) as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", *flags(adapter), *MORE_THAN_ONCE]
        )
        try:
            page = browser.new_page()
            page.goto(site.url + "blank.html")
            found = page.evaluate(PROBE)
            page.close()
            done = Soak(browser, browser_pid(before), site.url, seed, time.monotonic())
            failure, steps = run(done, minutes, seed, only)
            version = browser.version
        finally:
            browser.close()
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    rows = table(done.lives)
    return {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "minutes": minutes,
        "adapter": found["name"] if found else None,
        "machine": f"{platform.system()}, {os.cpu_count()} CPU cores",
        "versions": {
            "capstan": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
            "Chromium": version,
            **{name: packages[f"node_modules/{name}"]["version"] for name in ("onnxruntime-web", "pyodide")},
        },
        "steps": steps,
        "counts": dict(sorted(done.counts.items())),
        "failure": failure,
        "memory": rows,
        "flat": all(row["flat"] for row in rows) if rows else None,
        "series": [
            {"what": life.what, "samples": [[round(at), amount] for at, amount in life.samples]} for life in done.lives
        ],
    }


def browser_pid(before: set[int]) -> int:
    """The process of the browser that was started since: the first with children of a browser's kinds."""
    fresh = {pid: command for pid, command in processes(os.getpid()).items() if pid not in before}
    return next(pid for pid, command in fresh.items() if "--type=" not in command and "--headless" in command)


def run(done: Work, minutes: float, seed: int, only: Step | None) -> tuple[str | None, int]:
    """Do steps until the time is over. Returns the failure, with the command that repeats it, and the step count."""
    begun = time.monotonic()
    looked, number = begun, 0
    step: Step | None = None
    try:
        done.look()
        while (spent := time.monotonic() - begun) < 60 * minutes:
            ends = spent > QUIET_SHARE * 60 * minutes
            step = only or step_of(seed, number, ends)
            done.do(step)
            number += 1
            if time.monotonic() - looked > 60 * minutes / LOOKS:
                done.look()
                looked = time.monotonic()
        done.look()
    except (SoakError, AssertionError) as error:
        again = (
            "" if step is None else f"{step}, repeated by --seed {seed} --step {step.number}{' --ends' * step.ends}: "
        )
        return f"{again}{error}", number
    return None, number


def shown(report: dict[str, Any]) -> str:
    """The report as it is printed."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    about = (report["date"], report["machine"], report["adapter"], versions)
    lines = [
        ", ".join(map(str, about)),
        f"seed {report['seed']}, {report['minutes']:g} minutes, {report['steps']} steps",
        *(f"  {count:>6}  {what}" for what, count in report["counts"].items()),
        f"{'memory, while nothing is open':<24}{'minutes':>9}{'samples':>9}{'first':>9}{'before':>9}{'after':>9}"
        f"{'most':>9}",
    ]
    for row in report["memory"]:
        scale = 1 if row["what"] == Life.COUNT else MIB
        numbers = "".join(f"{row[name] / scale:>9.0f}" for name in ("first", "before", "after", "most"))
        verdict = "flat" if row["flat"] else "GROWS"
        lines.append(f"{row['what']:<29}{row['minutes']:>9}{row['samples']:>9}{numbers}  {verdict}")
    if report["flat"] is None:
        lines.append(f"memory was not judged: nothing was looked at {LEAST_SAMPLES} times; give more minutes")
    lines.append(f"failed: {report['failure']}" if report["failure"] else "every step passed")
    return "\n".join(lines)
