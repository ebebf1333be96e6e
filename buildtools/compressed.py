"""Compressed files beside those of a published site, and what a page downloads before its first token."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan_host.command_errors import CommandError
from capstan_host.terminal import Progress, say

from . import CACHE
from .bundles import CLIENT_AND_WORKER
from .site import PYODIDE_FILES, RUNTIMES

__all__ = ["UNPACKED", "Download", "downloads", "precompress", "unpack_snapshot"]

UNPACKED = ".raw"
"""The ending of a memory snapshot without gzip."""
SUFFIXES = {".css", ".html", ".jinja", ".js", ".json", ".mjs", ".svg", ".txt", ".wasm", UNPACKED}
"""The endings of files that are compressed; wheels and gzipped snapshots are packed already."""
LEAST_BYTES = 256
"""python.json is larger: by how it comes a page knows whether to ask for the unpacked snapshot."""
SCRIPT = Path(__file__).parent / "compress.mjs"
PACKED = CACHE / "compressed"


def precompress(site: Path) -> list[Path]:
    """Write FILE.br and FILE.gz beside each file that they make smaller; what was packed once is kept for the next
    site."""
    sources = {path: PACKED / digest_of(path) for path in sorted(site.rglob("*")) if is_worth_it(path)}
    missing = {packed: path for path, packed in sources.items() if not all(map(Path.is_file, forms(packed)))}
    if missing:
        say(f"compressing {len(missing)} of {len(sources)} files; the others are as they were packed before")
        pack(missing)
    made = []
    for path, packed in sources.items():
        for form, target in zip(forms(packed), forms(path), strict=True):
            if form.stat().st_size < path.stat().st_size:
                made.append(Path(shutil.copyfile(form, target)))
    wanted = {form for packed in sources.values() for form in forms(packed)}
    for old in set(PACKED.glob("*")) - wanted:
        old.unlink()
    return made


def pack(sources: Mapping[Path, Path]) -> None:
    """Compress files (source by target) and show the progress, by the bytes of the files that are done."""
    PACKED.mkdir(parents=True, exist_ok=True)
    pairs = [[str(path), str(packed)] for packed, path in sources.items()]
    total, done = sum(path.stat().st_size for path in sources.values()), 0
    progress = Progress()
    command = ["node", str(SCRIPT), json.dumps(pairs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done += int(line)
            progress.update("compressing", done, total)
    progress.clear()
    if process.returncode:
        raise CommandError("the files cannot be compressed: do what Node says above, and run this again")


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_worth_it(path: Path) -> bool:
    return path.is_file() and path.suffix in SUFFIXES and path.stat().st_size >= LEAST_BYTES


def forms(path: Path) -> list[Path]:
    """The paths of a file's compressed forms."""
    from capstan_host.headless.static_server import ENCODINGS

    return [path.with_name(path.name + ending) for ending in ENCODINGS.values()]


def unpack_snapshot(site: Path) -> None:
    """Put the memory snapshot without gzip beside the other one: brotli, with which web servers may send it, packs it a
    third better. python.json names both."""
    place = site / "capstan/python.json"
    index = json.loads(place.read_text(encoding="utf-8"))
    packed = site / "capstan" / index["snapshot"]["file"]
    unpacked = packed.with_suffix(UNPACKED)
    with gzip.open(packed) as source, unpacked.open("wb") as target:
        shutil.copyfileobj(source, target)
    index["snapshot"]["unpacked"] = unpacked.name
    place.write_text(json.dumps(index), encoding="utf-8")


@dataclass(frozen=True)
class Download:
    """The download size of some files in bytes, by the encodings that the server may send."""

    files: int
    raw: int
    gzip: int
    br: int


def downloads(site: Path, runtime: str = "WebGPU") -> Download:
    """The download of a page from a site with compressed files until a model gives its first token, without the page's
    own files and the model's. `runtime` is a key of RUNTIMES.
    """
    base = site / "capstan"
    names = needed(base, runtime)
    raw, gzipped, brotli = (
        sum(size_of(base / name, endings) for name in names) for endings in ((), (".gz",), (".br", ".gz"))
    )
    for packed in base.glob(f"*{UNPACKED}.br"):
        brotli += packed.stat().st_size - size_of(packed.with_suffix("").with_suffix(".snapshot"), ())
    return Download(len(names), raw, gzipped, brotli)


def needed(base: Path, runtime: str = "WebGPU") -> list[str]:
    """The files, as names in capstan/."""
    index = json.loads((base / "python.json").read_text(encoding="utf-8"))
    return [
        *(*CLIENT_AND_WORKER.values(), "python.json", *index["wheels"], index["snapshot"]["file"]),
        *(*(f"ort/{name}" for name in RUNTIMES[runtime]), *(f"pyodide/{name}" for name in PYODIDE_FILES)),
    ]


def size_of(path: Path, endings: Iterable[str]) -> int:
    """The size of the first compressed form of a file that exists, else of the file."""
    for ending in endings:
        form = path.with_name(path.name + ending)
        if form.is_file():
            return form.stat().st_size
    return path.stat().st_size
