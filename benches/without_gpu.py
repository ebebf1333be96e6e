"""Capstan on `wasm` beside wllama on its CPU, in a browser without WebGPU: load, first token, tokens a second.

usage: python3 benches/without_gpu.py FOLDER FILE.gguf [--tokens N] [--rounds N] [--threads N] [--browser PATH]

FOLDER is a model for Capstan, FILE.gguf the same one for wllama. Both answer one prompt greedily by turns in one page;
medians are printed, and the whole as JSON. A warm load is the second of two pages, with what the first one stored. Run
it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benches.runner.run import Launch  # noqa: E402  # on the path just above
from benches.runner.server import BenchServer  # noqa: E402
from buildtools.errors import CommandError  # noqa: E402

PACKED = not (ROOT / "build.py").is_file()
SITE = ROOT / ("site" if PACKED else "build/site")
WLLAMA = ROOT / ("wllama" if PACKED else "build/cache/wllama")
PROMPT = "The capital of France is Paris, and it is known for its museums, its food and"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-features=WebGPU")
LIMIT = 600.0
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    for name, default in (("tokens", 64), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--browser", type=Path, default=Path("/usr/bin/chromium"))
    given = parser.parse_args()
    models = {path.name: path.resolve() for path in (given.folder, given.file)}
    server = BenchServer(SITE, ROOT / "benches/page", {"wllama": WLLAMA}, models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    args = {"model": given.folder.name, "file": given.file.name, "prompt": PROMPT}
    args |= {name: getattr(given, name) for name in ("tokens", "rounds", "threads")}
    with tempfile.TemporaryDirectory() as profile:
        cold = measured(server, given.browser, Path(profile), {**args, "rounds": 0})
        warm = measured(server, given.browser, Path(profile), args)
    server.shutdown()
    for name in ("capstan", "wllama"):
        rounds = warm[name]["rounds"]
        first, each = (statistics.median(one[key] for one in rounds) for key in ("first_ms", "token_ms"))
        loads = f"load {cold[name]['load_ms']:.0f} ms at first, {warm[name]['load_ms']:.0f} warm"
        print(f"{name}: {1000 / each:.1f} tokens/s, first token after {first:.0f} ms, {loads}", file=sys.stderr)
    print(json.dumps({"cold": cold, "warm": warm}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
