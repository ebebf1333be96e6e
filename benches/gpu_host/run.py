"""Run requests in headless Chromium on a GPU host that has neither Node nor Playwright, and write what they gave.

usage: run.py PACK OUT.json [MODEL_FOLDER ...]
environment: CHROME (path of the browser), SECONDS (limit for one case, default 300)

PACK is what pack.py made, unpacked: site/ (as `build.py serve` serves it), cases.json, page.html. Each MODEL_FOLDER is
served at /models/NAME/; a case whose model is not among them is left out, and a model without a case is timed by
decode_modes.py.
OUT.json holds, for each case, the reply, the script's output and, where ids were expected, whether they are equal.
Standard library only.
"""

from __future__ import annotations

import datetime
import http.server
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new --no-sandbox --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage --enable-unsafe-webgpu --enable-features=Vulkan --use-angle=vulkan "
    "--disable-vulkan-surface --ignore-gpu-blocklist --enable-dawn-features=vulkan_enable_f16_on_nvidia"
)


def choose(pack: Path, models: dict[str, Path]) -> list[Any]:
    """The cases of the models that are here; one that times decode steps for a model without a case."""
    given = json.loads((pack / "cases.json").read_text())
    chosen = [case for case in given if case["model"] in models]
    timed = json.loads((pack / "timing.json").read_text())
    for name in models:
        if all(case["model"] != name for case in given):
            request = {**timed, "models": {name: f"/models/{name}/"}}
            chosen.append({"name": f"{name} decode modes", "model": name, "request": request, "expected": None})
    return chosen


def serve(
    pack: Path, models: dict[str, Path], cases: list[Any], results: queue.Queue[Any]
) -> http.server.ThreadingHTTPServer:
    """The pack's site, page.html, the cases and the models; what the page posts goes into `results`."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {  # noqa: RUF012
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript",
            ".js": "text/javascript",
            ".wasm": "application/wasm",
        }

        def translate_path(self, path: str) -> str:
            name = path.split("?")[0].lstrip("/")
            if name.startswith("models/"):
                _, model, file = name.split("/", 2)
                return str(models.get(model, pack / "none") / file)
            return str(pack / name if name == "page.html" else pack / "site" / name)

        def do_GET(self) -> None:
            if self.path != "/cases.json":
                super().do_GET()
                return
            body = json.dumps(cases).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def end_headers(self) -> None:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

        def do_POST(self) -> None:
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def gpu() -> str | None:
    """What nvidia-smi calls the GPU; None without it."""
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None


def main() -> int:
    pack, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    chrome = os.environ.get("CHROME", "chromium")
    limit = float(os.environ.get("SECONDS", "300"))
    results: queue.Queue[Any] = queue.Queue()
    models = {Path(folder).name: Path(folder).resolve() for folder in sys.argv[3:]}
    cases = choose(pack, models)
    server = serve(pack, models, cases, results)
    version = subprocess.run([chrome, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    profile = tempfile.mkdtemp()
    log = Path(profile) / "log"
    found: list[Any] = []
    with log.open("w") as stderr:
        flags = [*FLAGS.split(), f"--user-data-dir={profile}", "--enable-logging=stderr"]
        url = f"http://127.0.0.1:{server.server_port}/page.html"
        browser = subprocess.Popen([chrome, *flags, url], stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            while (result := results.get(timeout=limit)) is not None:
                found.append(result)
                print(json.dumps(result)[:600], flush=True)
        except queue.Empty:
            print("no result in time; the browser's log ends with:", log.read_text()[-2000:], flush=True)
        finally:
            browser.terminate()
            browser.wait()
    shutil.rmtree(profile, ignore_errors=True)
    about = json.loads((pack / "about.json").read_text())
    report = {"date": datetime.date.today().isoformat(), "browser": version, "gpu": gpu(), **about, "cases": found}
    out.write_text(json.dumps(report, indent=1) + "\n")
    good = len(found) == len(cases) and all(case["ok"] for case in found)
    print(f"{sum(case['ok'] for case in found)} of {len(cases)} cases good")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
