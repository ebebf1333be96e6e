"""Measure the tilings of make.py's folder, in the Chromium that CHROME names, with the flags in FLAGS; the standard
library is enough.

usage: measure.py [OUT.jsonl]
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES = {"/page.js": "text/javascript", "/jobs.json": "application/json"}
PAGE = b'<!doctype html><script type="module" src="page.js"></script>'
FLAGS = "--headless=new --no-sandbox --enable-unsafe-webgpu --enable-webgpu-developer-features"
LONGEST_SECONDS = 300
SHOWN = 6

found: queue.Queue[dict[str, Any]] = queue.Queue()


class Handler(BaseHTTPRequestHandler):
    """The page, and its results."""

    def do_GET(self) -> None:
        kind = FILES.get(self.path, "text/html")
        body = (HERE / self.path[1:]).read_bytes() if self.path in FILES else PAGE
        self.answer(body, kind)

    def do_POST(self) -> None:
        found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(b"", "text/plain")

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def table(result: dict[str, Any]) -> str:
    """The chosen tiling and the fastest ones: medians in microseconds, and what of the weights is read a second."""
    times = sorted((statistics.median(each), name) for name, each in result["times"])
    chosen = [each for each in times if each[1].startswith("now")]
    lines = [
        f"  {took:8.2f} us {result['bytes'] / took / 1e6:6.2f} TB/s  {name}" for took, name in chosen + times[:SHOWN]
    ]
    return "\n".join([result["shape"], *lines])


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    kept = ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [os.environ.get("CHROME", "chromium"), *FLAGS.split(), *os.environ.get("FLAGS", "").split()]
        command += [f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while "end" not in (result := found.get(timeout=LONGEST_SECONDS)):
                kept += json.dumps(result) + "\n"
                if out:
                    out.write_text(kept, encoding="utf-8")
                print(result.get("adapter") or result.get("failed") or table(result), flush=True)
        finally:
            browser.terminate()
            browser.wait()
    if result["end"]:
        sys.exit(f"error: {result['end']}")


if __name__ == "__main__":
    main()
