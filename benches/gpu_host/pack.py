"""Pack the built site and cases for a GPU host; `python3 build.py test` must have set up this checkout before.

usage: .venv/bin/python benches/gpu_host/pack.py OUT.tar.xz

The cases: the operations on device memory; the bundled model and the fixtures, greedy, on WebGPU, with the ids that
onnxruntime-genai picks on CPython; a seeded sampled run with and without run-ahead; decode_modes.py for the bundled
model. Models are not packed: on the host, unpack it and run `python3 run.py . OUT.json MODEL_FOLDER ...` in it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import oracle  # noqa: E402  # on the path just above
from harness import generate_request  # noqa: E402

from buildtools.site import assemble  # noqa: E402

FIXTURES = ("nano-llama", "nano-qwen2", "nano-granite")
PROMPT = "def fibonacci(n):"
DEVICE_OPERATIONS = """
import json
import capstan

device = await capstan.open_device("webgpu")
print(json.dumps({
    "capabilities": await capabilities(device),
    "infos": await infos(device),
    "differing copies": await copies(device, rounds=200),
    "masks": await masks(device),
    "conversions": await conversions(device),
    "readbacks": await readbacks(device),
    "ledger": str(capstan.memory.ledger()),
}))
"""
"""Runs after tests/browser/scripts/device_operations.py, with its functions."""
TOKENS = 200


def cases(models: dict[str, Path]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, folder in models.items():
        prompt = oracle.encode(folder, PROMPT)
        expected = oracle.greedy(folder, prompt, TOKENS)
        for capture in ("tape", "ort", "off"):
            asked = generate_request(name, prompt_ids=prompt, capture=capture, max_new_tokens=TOKENS)
            found.append({"name": f"{name} {capture} greedy", "model": name, "request": asked, "expected": expected})
        for ahead in (1, 8, None):
            search = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "random_seed": 7}
            asked = generate_request(name, prompt_ids=prompt, run_ahead=ahead, search=search, max_new_tokens=TOKENS)
            case = f"{name} tape sampled, run-ahead {ahead}"
            found.append({"name": case, "model": name, "request": asked, "expected": None})
    return found


def main() -> int:
    out = Path(sys.argv[1])
    models = {"bundled": ROOT / "models/bundled", **{name: ROOT / "tests/fixtures" / name for name in FIXTURES}}
    site = assemble()
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder)
        shutil.copytree(site, pack / "site")
        for name in ("run.py", "page.html"):
            shutil.copy(here / name, pack)
        script = ROOT / "benches/decode_modes.py"
        timing = {"kind": "exec", "source": script.read_text(), "filename": script.name, "argv": [script.name]}
        (pack / "timing.json").write_text(json.dumps(timing))
        timed = {**timing, "models": {"bundled": "/models/bundled/"}}
        last = {"name": "bundled decode modes", "model": "bundled", "request": timed, "expected": None}
        operations = (ROOT / "tests/browser/scripts/device_operations.py").read_text() + DEVICE_OPERATIONS
        on_device = {"kind": "exec", "source": operations, "filename": "device.py", "argv": ["device.py"], "models": {}}
        device = {"name": "device operations", "model": "bundled", "request": on_device, "expected": None}
        (pack / "cases.json").write_text(json.dumps([device, *cases(models), last]))
        packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
        versions = {name: packages[f"node_modules/{name}"]["version"] for name in ("onnxruntime-web", "pyodide")}
        about = {"versions": {**versions, "onnxruntime-genai (oracle)": oracle.og.__version__}}
        (pack / "about.json").write_text(json.dumps(about))
        with tarfile.open(out, "w:xz", preset=4) as archive:
            for path in sorted(pack.iterdir()):
                archive.add(path, path.name)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
