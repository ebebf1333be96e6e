"""Takes the picture of Dask's dashboard while a fleet answers prompts.

usage: .venv/bin/python docs/pictures/fleet.py [--model FOLDER] [--workers N] [--items N] [--out FILE.jsonl]

`python3 build.py test` must have set up this checkout before. It prints how long the run took.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from distributed import Client, LocalCluster  # noqa: E402  # on the path just above

from buildtools.browser import find_browser  # noqa: E402
from buildtools.site import assemble  # noqa: E402
from capstan_host.fleet import Fleet  # noqa: E402
from capstan_host.model_arguments import BUNDLED  # noqa: E402

WIDTH, HEIGHT = 1200, 620
STARTS = ("import os", "def main():", "class Node:", "for i in range(", "with open(", "if __name__", "return [", "try:")


def take(url: str, due: threading.Event) -> None:
    """The dashboard's first page, once it is due."""
    due.wait()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", "--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.wait_for_selector(".bk-Figure", state="attached")
        time.sleep(6)
        page.screenshot(path=HERE / "fleet.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    site = assemble()
    prompts = [f"{STARTS[number % len(STARTS)]}  # {number}\n" for number in range(args.items)]
    due = threading.Event()
    with (
        LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        Fleet(client, args.model, site=site, max_length=128) as fleet,
    ):
        photographer = threading.Thread(target=take, args=(client.dashboard_link, due))
        photographer.start()
        begun, tokens, failed = time.monotonic(), 0, 0
        results = fleet.generate(
            prompts, max_new_tokens=args.new_tokens, ordered=False, out=args.out, batch=8, do_sample=False
        )
        for done, item in enumerate(results, 1):
            tokens += len(item.token_ids)
            failed += item.error is not None
            if done >= 40:
                due.set()
            if done % 20 == 0:
                print(f"{done} items, {tokens} tokens, {time.monotonic() - begun:.0f} s", flush=True)
        print(f"{args.items} items, {tokens} tokens, {failed} failed, {time.monotonic() - begun:.0f} s")
        due.set()
        photographer.join()


if __name__ == "__main__":
    main()
