"""Writes expected/*.txt: what each script prints with onnxruntime-genai on CPython.

.venv/bin/python -m tests.genai_scripts.make_expected
"""

from __future__ import annotations

import subprocess
import sys

from tests.genai_scripts import EXPECTED, FOLDER, LINES, MODELS, SCRIPTS

ROOT = FOLDER.parents[2]
PLACES = {"bundled": ROOT / "models/bundled", "nano-llama": ROOT / "tests/fixtures/nano-llama"}
PLACES["nano-lora"] = ROOT / "tests/fixtures/nano-lora"
PLACES["nano-whisper"] = ROOT / "tests/fixtures/speech/nano-whisper"
PLACES["nano-gemma3-vl"] = ROOT / "tests/fixtures/vision/nano-gemma3-vl"

if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for name in SCRIPTS:
        command = [sys.executable, "-P", f"{name}.py", "-m", str(PLACES[MODELS[name]]), "-e", "cpu"]
        environment = {"PYTHONPATH": str(FOLDER), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command, cwd=FOLDER, input="".join(LINES).encode(), stdout=subprocess.PIPE, check=True, env=environment
        )
        (EXPECTED / f"{name}.txt").write_bytes(done.stdout)
