"""Prints tokens a second, seconds to the first answer and memory of 1, 2, 4 browsers with a model on this host.

usage: .venv/bin/python benches/fleet.py [--model PLACE] [--site FOLDER] [--browsers 1 2 4] [--items N] [--new-tokens N]

It is the worker's half of capstan_host.fleet without Dask: threads hand batches to the browsers. It needs Python with
playwright and jinja2, a Chromium, and a site folder (build/site of this checkout unless another one is named); no
network. CAPSTAN_ADAPTER=hardware has it on the GPU alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "py_src"))

from capstan_host.fleet.browsers import Browsers, HeadlessSlot, Outcome, Serving  # noqa: E402  # on the path just above
from capstan_host.fleet.items import Entry  # noqa: E402

PROMPT = "def main():\n    # step"
LENGTH = 256
ROWS = 8


def parents() -> dict[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        found[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    return found


def memory_mb() -> int:
    """The memory of this process's children, shared pages counted once among them (Pss)."""
    known, total = parents(), 0
    for process in known:
        above = process
        while above not in (os.getpid(), 0, 1):
            above = known.get(above, 0)
        if above != os.getpid() or process == above:
            continue
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total // 1024


def gpu_mb() -> str | None:
    """Memory that is used on the first NVIDIA GPU, other processes' too; None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0]


def measured(args: argparse.Namespace, count: int) -> dict[str, Any]:
    """The figures of so many browsers."""
    serving = Serving(str(Path(args.model).absolute()), count, str(args.site), {"device": "webgpu"}, 900.0, 1)
    lengths = {"max_new_tokens": args.new_tokens, "max_length": LENGTH}
    job = {"kind": "generate", "search": {"do_sample": False}, "rows": ROWS, "as_message": False, **lengths}
    browsers = Browsers(serving, HeadlessSlot.several)
    numbers = iter(range(10**9))
    lock = threading.Lock()

    def answered(items: int) -> list[Outcome]:
        with lock:
            ids = [next(numbers) for _ in range(items)]
        outcomes = browsers.answer(job, [Entry(str(i), i, "", {"prompt": f"{PROMPT} {i}\n"}) for i in ids])
        for outcome in outcomes:
            if "error" in outcome.told:
                raise SystemExit(f"an item failed: {outcome.told['error']}")
        return outcomes

    try:
        begun = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            # Each browser is started, has the model and has recorded its step.
            warm = [outcome for batch in pool.map(answered, [2 * ROWS] * count) for outcome in batch]
            start = time.monotonic() - begun
            begun = time.monotonic()
            batches = [2 * ROWS] * max(count, args.items // (2 * ROWS))
            tokens = sum(
                len(each.told["result"]["token_ids"]) for batch in pool.map(answered, batches) for each in batch
            )
        seconds = time.monotonic() - begun
        return {
            "browsers": count,
            "tokens_per_second": round(tokens / seconds, 1),
            "seconds_to_all_warm": round(start, 1),
            "memory_mb": memory_mb(),
            "gpu_memory_used": gpu_mb(),
            "adapter": warm[0].told["adapter"],
            "replaced": browsers.replaced,
        }
    finally:
        browsers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "models/bundled"))
    parser.add_argument("--site", type=Path, default=ROOT / "build/site")
    parser.add_argument("--browsers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--items", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    for count in args.browsers:
        print(json.dumps(measured(args, count)), flush=True)


if __name__ == "__main__":
    main()
