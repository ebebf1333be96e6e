"""Compares eager onnxruntime-web with Capstan in one browser: bytes copied a token, peaks of memory while loading.

usage: .venv/bin/python benches/memory.py [--megabytes 1536] [--tokens 16] [--model DIR] [--out OUT.json]

`python3 build.py test` must have set up this checkout before. Copies are counted at WebGPU's prototypes, alike for
both: the difference between a run of twice as many tokens and one of that many. Peaks are growth over what was there
just before, with the runtimes started and garbage collected; tests/page_memory.py says what is sampled. The large model
is synthetic (tests/large_model.py), made in a temporary folder as a sparse file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Error, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from buildtools.browser import find_browser  # noqa: E402  # on the path just above
from buildtools.site import assemble  # noqa: E402
from capstan_host.headless.chromium import flags  # noqa: E402  # on the path just above
from capstan_host.site_server import SiteServer, serving  # noqa: E402
from capstan_host.testing.harness import Harness  # noqa: E402
from tests import large_model  # noqa: E402
from tests.page_memory import PageMemory, prepare  # noqa: E402

HERE = Path(__file__).parent / "memory"
NANO = ROOT / "tests/fixtures/nano-llama"
BUNDLED = ROOT / "models/bundled"
PROMPT = [5, 6, 7, 8, 9]
MB = 1e6
WARM_LOADS = 3
"""By then the browser has compiled what is hot, which takes memory of its own."""
TIMEOUT_MS = 600_000
ADAPTER = """async () => {
  const { vendor, architecture, description } = (await navigator.gpu.requestAdapter()).info;
  return [vendor, architecture, description].filter(Boolean).join(" ");
}"""


class Eager:
    """onnxruntime-web as its users drive it, in a page of its own."""

    name = "eager onnxruntime-web"
    loads = ("first load",)

    def __init__(self, context: BrowserContext, site: SiteServer) -> None:
        self.page = context.new_page()
        self.page.goto(site.url + "models/memory-bench/eager.html")
        self.page.wait_for_function("() => window.eager")
        self.memory = PageMemory(context, self.page)

    def load(self, model: str) -> dict[str, int]:
        """The growth while the model is loaded; it is closed again."""
        _, growth = self.memory.during("(folder) => window.eager.load(folder)", f"/models/{model}/")
        self.page.evaluate("() => window.eager.close()")
        return growth.as_json()

    def count(self, model: str, runs: list[int]) -> list[dict[str, Any]]:
        """Counts the work of runs of `runs` tokens each."""
        self.page.evaluate("(folder) => window.eager.load(folder)", f"/models/{model}/")
        script = "([prompt, count]) => window.eager.counted(prompt, count)"
        found = [self.page.evaluate(script, [PROMPT, count]) for count in runs]
        self.page.evaluate("() => window.eager.close()")
        return found


class Capstan:
    """Capstan from Python, in the worker of the harness page."""

    name = "Capstan"
    loads = ("first load", "second load")

    def __init__(self, context: BrowserContext, site: SiteServer) -> None:
        self.page = context.new_page()
        self.harness = Harness(self.page, site.url)
        self.memory = PageMemory(context, self.page)

    def load(self, model: str) -> dict[str, int]:
        """The growth while the model is loaded; it is closed again."""
        self.harness.events.clear()
        request = "(request) => window.capstan.request(request)"
        reply, growth = self.memory.during(request, self._request(model, []))
        self._printed(reply)
        return growth.as_json()

    def count(self, model: str, runs: list[int]) -> list[dict[str, Any]]:
        """Counts the work of runs of `runs` tokens each."""
        found: list[dict[str, Any]] = json.loads(self._printed(self.harness.reply(self._request(model, runs))))
        return found

    def _request(self, model: str, runs: list[int]) -> dict[str, Any]:
        script = HERE / "in_page.py"
        argv = [script.name, json.dumps(PROMPT), json.dumps(runs)]
        folders = {model: f"/models/{model}/"}
        return {
            "kind": "exec",
            "source": script.read_text(),
            "filename": script.name,
            "argv": argv,
            "models": folders,
            "files": {},
        }

    def _printed(self, reply: dict[str, Any]) -> str:
        if not reply["ok"] or reply["result"]["status"]:
            raise RuntimeError(f"{reply} {self.harness.text('stderr')}")
        return self.harness.text("stdout")


def per_token(side: Eager | Capstan, model: str, tokens: int) -> dict[str, Any]:
    """The cost of one decoded token, from the difference between a longer and a shorter run."""
    *_, shorter, longer = side.count(model, [tokens, tokens, 2 * tokens])
    counts = {name: (longer["counts"][name] - shorter["counts"][name]) / tokens for name in longer["counts"]}
    return {"ids": longer["ids"], "capture": longer.get("capture"), "per_token": counts}


def peaks(side: Eager | Capstan, model: str) -> list[dict[str, Any]]:
    """The growth in each load of a model; an error ends the list."""
    found: list[dict[str, Any]] = []
    for load in side.loads:
        start = time.monotonic()
        row: dict[str, Any] = {"model": model, "load": load}
        try:
            row["growth"] = side.load(model)
        except (Error, RuntimeError) as error:
            found.append({**row, "error": str(error)})
            break
        found.append({**row, "seconds": round(time.monotonic() - start, 1)})
        say(f"{side.name}, {model}, {load}: {found[-1]}")
    return found


def measure(context: BrowserContext, site: SiteServer, args: argparse.Namespace) -> dict[str, Any]:
    """Both sides, one after the other, each in a fresh page."""
    report: dict[str, Any] = {"copies": {}, "loads": {}}
    for make in (Eager, Capstan):
        side = make(context, site)
        side.page.set_default_timeout(TIMEOUT_MS)
        report["adapter"] = side.page.evaluate(ADAPTER)
        start = {"model": NANO.name, "load": "with the runtimes", "growth": side.load(NANO.name)}
        for _ in range(WARM_LOADS - 1):
            side.load(NANO.name)
        models = [NANO.name, args.model.name, "synthetic"]
        report["loads"][side.name] = [start, *(row for model in models for row in peaks(side, model))]
        report["copies"][side.name] = per_token(side, args.model.name, args.tokens)
        side.page.close()
    ids = [found["ids"] for found in report["copies"].values()]
    report["ids_equal"] = all(found == ids[0] for found in ids)
    return report


def table(report: dict[str, Any]) -> str:
    """Both results as Markdown."""
    lines = [
        "| a decoded token | bytes host to device | bytes device to host | buffers made | submits | readbacks |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    columns = ("host_to_device_bytes", "device_to_host_bytes", "create_buffer", "submits", "readbacks")
    for side, found in report["copies"].items():
        values = " | ".join(f"{found['per_token'][name]:g}" for name in columns)
        lines.append(f"| {side} | {values} |")
    lines += [
        "",
        "| growth while loading, MB | wasm heaps + ArrayBuffers | renderer, its own | shared | GPU process |",
        "| --- | --- | --- | --- | --- |",
    ]
    for side, rows in report["loads"].items():
        for row in rows:
            if "error" in row:
                values = f"failed: {row['error'].splitlines()[0]} | | |"
            else:
                shown = ("heaps", "renderer", "renderer_shared", "gpu_process")
                values = " | ".join(f"{row['growth'][name] / MB:.1f}" for name in shown)
            lines.append(f"| {side}, {row['model']}, {row['load']} | {values} |")
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1536, help="MiB of weights of the synthetic model")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of the shorter counted run")
    parser.add_argument("--model", type=Path, default=BUNDLED, help="the model whose tokens are counted")
    parser.add_argument("--out", type=Path, help="where to write all numbers as JSON")
    args = parser.parse_args()
    args.model = args.model.resolve()
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        large = large_model.make(Path(folder) / "synthetic", args.megabytes)
        mounted = {model.name: model for model in (NANO, args.model, large)} | {"memory-bench": HERE}
        with serving(assemble(), mounted) as site:
            context = playwright.chromium.launch_persistent_context(
                f"{folder}/profile",
                executable_path=str(find_browser()),
                args=["--headless=new", *flags(adapter)],
            )
            prepare(context)
            assert context.browser is not None
            report = measure(context, site, args)
            report["browser"] = f"Chromium {context.browser.version}"
            context.close()
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    report = {
        "date": datetime.date.today().isoformat(),
        "megabytes": args.megabytes,
        "model": args.model.name,
        "versions": {name: packages[f"node_modules/{name}"]["version"] for name in ("onnxruntime-web", "pyodide")},
        **report,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    return 0 if report["ids_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
