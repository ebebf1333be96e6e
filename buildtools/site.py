"""Assembles build/site, the folder that the local server serves and `dist` copies; unchanged parts are kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from capstan_host.locks import locked
from capstan_host.terminal import say

from . import CACHE, ROOT, SITE
from .bundles import CLIENT_AND_WORKER, ON_DEMAND, PHONEMES, bundle, bundle_on_demand, bundle_small
from .carried_wheels import CARRIED, DETECTOR
from .kernels import compile_kernels
from .ready_made import Header, kept_headers, make_ready
from .snapshot import WHEELS_FOLDER, make_snapshot, snapshot_tools
from .wheels import detector_wheel, page_wheels, template_wheels, wheel_inputs

__all__ = ["ORT_FILES", "PYODIDE_FILES", "RUNTIMES", "VENDORED", "assemble"]

MODULES = ROOT / "node_modules"
RUNTIMES = {
    "WebGPU": ("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm"),
    "the CPU": ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
}
"""The files of onnxruntime-web by what computes."""
ORT_FILES = tuple(name for names in RUNTIMES.values() for name in names)
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
VENDORED = {
    "ort": MODULES / "onnxruntime-web/dist",
    "pyodide": MODULES / "pyodide",
}
"""The source folders of the packages whose files the page has under these names."""
PAGE_FOLDERS = {
    "web/demo": ("", ("demo.ts", "drawer.ts", "incomplete.ts", "transformers_worker.ts")),
    "web/harness": ("capstan", ("harness.ts",)),
    "web/blank": ("", ()),
}
"""The pages, their folders in the site, and which of their modules a page names; those import the others."""
LATER = ("./drawer.js", *ON_DEMAND)
"""Modules that the demo page imports on demand."""
CLIENT = "capstan/capstan.js"
"""The target of `import ... from "capstan-webgpu"` in a page: the built client, so that tests run the code that users
get.
"""


def assemble() -> Path:
    """Bring build/site up to date and return it. Each part is made again only when its inputs changed."""
    with locked("site"):
        SITE.mkdir(parents=True, exist_ok=True)
        part("vendor", [ROOT / "package-lock.json"], copy_vendor_files)
        headers = kept_headers()
        wheels = (*wheel_inputs(), *snapshot_tools(), ROOT / "requirements/run.txt", ROOT / "package-lock.json")
        part("wheels", [*wheels, *(each.path for each in headers)], partial(copy_python, headers))
        compile_kernels()
        web = sorted(path for path in (ROOT / "web").rglob("*") if path.is_file())
        others = ("package-lock.json", "tsconfig.json", "py_src/capstan/model_files/known_models.json")
        part("web", [*web, *(ROOT / name for name in others)], build_web)
    return SITE


def part(name: str, inputs: Sequence[Path], make: Callable[[], Iterable[Path]]) -> None:
    """Run `make` unless its inputs, this module and the files that it made are as they were the last time."""
    stamp = CACHE / f"site-{name}.json"
    digest = digest_files([*inputs, *sorted(Path(__file__).parent.glob("*.py"))])
    if stamp.exists():
        last = json.loads(stamp.read_text())
        if last["digest"] == digest and all((SITE / file).is_file() for file in last["files"]):
            return
        stamp.unlink()
        previous = set(last["files"])
    else:
        previous = set()
    say(f"site: {name}")
    files = sorted(path.relative_to(SITE).as_posix() for path in make())
    for gone in previous - set(files):
        (SITE / gone).unlink(missing_ok=True)
    stamp.write_text(json.dumps({"digest": digest, "files": files}))


def digest_files(files: Iterable[Path]) -> str:
    """A digest over names and contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def copy_vendor_files() -> list[Path]:
    """onnxruntime-web's and Pyodide's files, unmodified."""
    made = []
    for package, names in (("ort", ORT_FILES), ("pyodide", PYODIDE_FILES)):
        source = VENDORED[package]
        target = SITE / "capstan" / package
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            made.append(target / name)
            shutil.copyfile(source / name, made[-1])
    return made


def copy_python(headers: Sequence[Header]) -> list[Path]:
    """The wheels for the page, the snapshot with them imported, the results for GGUF files with these headers, and
    python.json, which names all."""
    target = SITE / "capstan"
    known, ready = make_ready(headers, target)
    (target / "wheels").mkdir(parents=True, exist_ok=True)
    wheels = [Path(shutil.copy(wheel, target / "wheels")) for wheel in (*page_wheels(), *template_wheels())]
    snapshot = make_snapshot(wheels)
    copied = Path(shutil.copy(snapshot.path, target))
    later = {each.module: each.path() for each in CARRIED} | {DETECTOR.module: detector_wheel()}
    vendored = {name: Path(shutil.copy(wheel, target / "wheels")) for name, wheel in later.items()}
    index = {
        "folder": WHEELS_FOLDER,
        "wheels": [f"wheels/{wheel.name}" for wheel in wheels],
        "vendored": {name: f"wheels/{wheel.name}" for name, wheel in vendored.items()},
        "ready": known,
        "snapshot": {"file": copied.name, "bytes": snapshot.bytes, "heap": snapshot.heap},
        "sizes": {path.relative_to(target).as_posix(): path.stat().st_size for path in (*wheels, copied)}
        | {f"pyodide/{name}": (VENDORED["pyodide"] / name).stat().st_size for name in PYODIDE_FILES}
        | {f"ort/{name}": (VENDORED["ort"] / name).stat().st_size for name in ORT_FILES},
    }
    (target / "python.json").write_text(json.dumps(index))
    return [*wheels, *vendored.values(), copied, *ready, target / "python.json"]


def build_web() -> list[Path]:
    """The client, the worker and the pages."""
    made = [bundle(source, SITE / "capstan" / name) for name, source in CLIENT_AND_WORKER.items()]
    made.extend(bundle_on_demand(SITE))
    made.append(bundle_small(PHONEMES, SITE / "capstan/phonemes.js"))
    for folder, (place, entries) in PAGE_FOLDERS.items():
        client = f"./{Path(CLIENT).relative_to(place).as_posix()}"
        for source in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file()):
            target = SITE / place / source.relative_to(ROOT / folder)
            if source.name in entries:
                outside = [f"--external:{name}" for name in (client, *LATER)]
                page = [f"--alias:capstan-webgpu={client}", *outside, "--legal-comments=inline"]
                made.append(bundle(source, target.with_suffix(".js"), page))
            elif source.suffix != ".ts":
                target.parent.mkdir(parents=True, exist_ok=True)
                made.append(Path(shutil.copyfile(source, target)))
    return made
