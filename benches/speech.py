"""Speech to text: Capstan beside Transformers.js, one sound in one page, from its samples to its text.

usage: python3 benches/speech.py FOLDER [--peer FOLDER --dtype q4f16] [--device webgpu|wasm] [--language en]
       [--seconds 30] [--rounds 5] [--browser PATH] [--flags=FLAGS]

FOLDER is a Whisper folder for Capstan, `--peer` one in Transformers.js' layout. The sound is page/speech.wav, repeated
up to so many seconds. Both hear it greedily without and with timestamps, by turns, after a round that is not counted.
Medians are printed, and the whole as JSON: the text, the times of `asr.transcribe`, and their parts, which a script
measures in a worker: features, encoder, first token (encoder and prompt among it), each token after it; then the time
of a step on the GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import wave
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
SOUND = ROOT / "benches/page/speech.wav"
RATE = 16_000
SOFTWARE = "--no-sandbox --enable-unsafe-webgpu --enable-features=Vulkan --use-webgpu-adapter=swiftshader"
LIMIT = 900.0
"""Seconds for the page."""


def repeated(seconds: float, target: Path) -> None:
    """Write the sound, again and again up to `seconds`, as a WAV file."""
    with wave.open(str(SOUND)) as source:
        data, form = source.readframes(source.getnframes()), source.getparams()
    length = 2 * round(seconds * RATE)
    with wave.open(str(target), "wb") as made:
        made.setparams(form)
        made.writeframes((data * (1 + length // len(data)))[:length])


def lines(found: dict[str, Any]) -> list[str]:
    """The medians, in words."""
    told = []
    for who in ("capstan", "transformers_js"):
        for kind in ("greedy", "timestamps"):
            for_kind = found.get(who, {}).get(kind)
            if for_kind:
                whole = statistics.median(one["whole_ms"] for one in for_kind)
                told.append(f"{who}, {kind}: {whole:.0f} ms, {1000 * found['seconds'] / whole:.0f} times real time")
    for kind in ("greedy", "timestamps"):
        names = ("features_ms", "encoder_ms", "first_ms", "token_ms")
        rounds = found["parts"][kind]
        parts = [f"{name[:-3]} {statistics.median(one[name] for one in rounds):.2f}" for name in names]
        told.append(f"capstan, {kind}: {', '.join(parts)} ms, {rounds[0]['tokens']} tokens ({rounds[0]['capture']})")
    if "gpu_step_ms" in found["parts"]:
        told.append(f"GPU time of a step: {found['parts']['gpu_step_ms']:.3f} ms")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", type=Path)
    for name, default in (("dtype", "q4f16"), ("device", "webgpu"), ("language", None), ("flags", SOFTWARE)):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--browser", type=Path, default=Path("/usr/bin/chromium"))
    given = parser.parse_args()
    if not SITE.is_dir():
        raise CommandError(f"{SITE} is not there: run python3 build.py site first", 1)
    packages = {"transformers_js": ROOT / "transformers_js"} if PACKED else install(["transformers_js"])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        repeated(given.seconds, Path(scratch) / "sound.wav")
        packages["sounds"] = Path(scratch)
        models = {"whisper": given.folder.resolve()}
        if given.peer:
            models["peer"] = given.peer.resolve()
        server = BenchServer(SITE, ROOT / "benches/page", packages, models)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        args = {"name": "whisper", "peer": "peer" if given.peer else None}
        args |= {name: getattr(given, name) for name in ("device", "language", "rounds", "dtype")}
        address = f"{server.url}bench/speech.html?args={quote(json.dumps(args))}"
        launch = Launch(given.browser, given.flags.split(), address, Path(scratch) / "profile")
        try:
            kind, body = server.posted.get(timeout=LIMIT)
        finally:
            launch.close()
            server.shutdown()
    if kind != "result" or not body["ok"]:
        raise CommandError(f"the page failed: {body}", 1)
    found: dict[str, Any] = body["data"]
    print("\n".join(lines(found)), file=sys.stderr)
    browser = subprocess.run([given.browser, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    about = {"date": date.today().isoformat(), "browser": browser, "versions": versions(["transformers_js"])}
    print(json.dumps({**about, "model": given.folder.name, "device": given.device, "dtype": given.dtype, **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
