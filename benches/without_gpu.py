"""Capstan on `wasm` beside wllama on its CPU, one GGUF file, in a browser without WebGPU: start, first token, pace.

usage: python3 benches/without_gpu.py FILE.gguf [--tokens N] [--words N] [--rounds N] [--starts N] [--threads N]
       [--browser PATH]

A start lasts from the navigation to the first token, in a page with one engine: a first visit with nothing stored, then
a warm one with what the first stored; the engines take turns. For the pace, both answer prompts greedily by turns in
one page. No prompt begins like an earlier one, so that each is computed. Medians are printed, and the whole as JSON.
`--threads 1` serves a page that is not cross-origin isolated, so that both have one thread; else wllama takes so many,
Capstan one for each core up to 4. `--words N` makes the prompt so many words long. Run it on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benches.runner.run import Launch  # noqa: E402  # on the path just above
from benches.runner.server import BenchServer  # noqa: E402
from buildtools.contenders import install, versions  # noqa: E402
from capstan_host.command_errors import CommandError  # noqa: E402

PACKED = not (ROOT / "build.py").is_file()
SITE = ROOT / ("site" if PACKED else "build/site")
PROMPT = "The capital of France is Paris, and it is known for its museums, its food and"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-features=WebGPU")
ENGINES = ("capstan", "wllama")
LIMIT = 1800.0
"""Seconds for a page."""


def measured(server: BenchServer, browser: Path, profile: Path, args: dict[str, Any]) -> dict[str, Any]:
    """The results of one page."""
    launch = Launch(browser, FLAGS, f"{server.url}bench/without_gpu.html?args={quote(json.dumps(args))}", profile)
    try:
        kind, body = server.posted.get(timeout=LIMIT)
    finally:
        launch.close()
    if kind != "result" or not body["ok"]:
        raise CommandError(f"the page failed: {body}", 1)
    found: dict[str, Any] = body["data"]
    return found


def about(browser: Path) -> dict[str, Any]:
    """The date, the browser and the versions of what was measured."""
    told = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    pinned = json.loads((ROOT / "package.json").read_text())["dependencies"] if not PACKED else {}
    return {"date": date.today().isoformat(), "browser": told, "versions": {**pinned, **versions(["wllama"])}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    for name, default in (("tokens", 64), ("words", 0), ("rounds", 3), ("starts", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--browser", type=Path, default=Path("/usr/bin/chromium"))
    given = parser.parse_args()
    if not SITE.is_dir():
        raise CommandError(f"{SITE} is not there: run python3 build.py site first", 1)
    packages = {"wllama": ROOT / "wllama"} if PACKED else install(["wllama"])
    server = BenchServer(SITE, ROOT / "benches/page", packages, {given.file.name: given.file.resolve()})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.isolated = given.threads > 1
    prompt = " ".join(itertools.islice(itertools.cycle(PROMPT.split()), given.words)) or PROMPT
    args = {"engines": ENGINES, "file": given.file.name, "prompt": prompt}
    args |= {name: getattr(given, name) for name in ("tokens", "words", "rounds", "threads")}
    starts: dict[str, dict[str, list[float]]] = {name: {"first visit": [], "warm": []} for name in ENGINES}
    for turn in range(given.starts):
        for name in ENGINES[:: 1 - 2 * (turn % 2)]:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
                for kind in ("first visit", "warm"):
                    alone = {**args, "engines": [name], "rounds": 0}
                    found = measured(server, given.browser, Path(profile), alone)
                    starts[name][kind].append(found[name]["first_token_ms"])
    pace: dict[str, Any] = {}
    if given.rounds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            pace = measured(server, given.browser, Path(profile), args)
    server.shutdown()
    for name in ENGINES:
        told = [f"{kind} {statistics.median(times):.0f} ms" for kind, times in starts[name].items() if times]
        if pace:
            of = {key: [one[key] for one in pace[name]["rounds"]] for key in ("first_ms", "token_ms", "whole_ms")}
            first, each, whole = (statistics.median(times) for times in of.values())
            told += [
                f"{1000 / each:.1f} tokens/s, {given.tokens} tokens in {whole:.0f} ms, the first after {first:.0f}"
            ]
        print(f"{name}: {', '.join(told)}", file=sys.stderr)
    print(
        json.dumps(
            {
                **about(given.browser),
                "file": given.file.name,
                "words": given.words,
                "threads": given.threads,
                "starts": starts,
                "pace": pace,
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
