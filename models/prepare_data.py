"""Collect Python source from the standard library and permissively licensed wheels, clean it, hold some out.

usage: prepare_data.py WHEELS_DIR STDLIB_DIR[=NAME] ... --out DIR [--manifest models/data_manifest.json]

WHEELS_DIR holds wheels fetched with `pip download --no-deps --only-binary=:all:`; each STDLIB_DIR is a
`lib/python3.X`. Only wheels whose metadata states a licence of ALLOWED are used. Writes DIR/train.txt.zst and
DIR/heldout.txt.zst (files joined by the byte 0x00), DIR/heldout.json (the names), and the manifest: every source
with version, licence and counts.
"""

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

PERMISSIVE = re.compile(  # each part of what the metadata states
    r"MIT( License)?|BSD( License)?|BSD-[23]-Clause|0BSD|Apache(-2\.0| 2\.0| 2\.0 License| License 2\.0)"
    r"|Apache Software License|Apache-2\.0 WITH LLVM-exception|BSL-1\.0|Zlib|CC0-1\.0|Freely Distributable"
    r"|Python Software Foundation License|PSF-2\.0"
)
HELD_OUT_PACKAGES = {"requests", "flask", "marshmallow", "bottle", "twine"}
HELD_OUT_ONE_IN = 400  # of the files of every other source, by hash of the name
TESTS_KEPT_ONE_IN = 6  # test files repeat themselves; a sample of them is enough
SKIPPED_PARTS = {
    "_vendor",
    "vendor",
    "vendored",
    "extern",
    "third_party",
    "_externals",
    "testdata",
    "test_data",
    "lib2to3",
    "locale",
}
TEST_PARTS = {"test", "tests", "testing", "idle_test"}
GENERATED = re.compile(
    r"generated (by|from|automatically|file)|auto-?generated|do not edit|@generated|machine generated", re.I
)
LEGAL = re.compile(r"copyright|licen[sc]e|SPDX|all rights reserved|redistribut", re.I)


@dataclass
class Source:
    name: str
    version: str
    licence: str
    files: int = 0
    bytes: int = 0
    held_out_files: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def number(text: str, modulus: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % modulus


def without_legal_header(text: str) -> str:
    """Drop a leading comment block (or docstring-free banner) that speaks of copyright or licence."""
    lines = text.split("\n")
    end = 0
    while end < len(lines) and (lines[end].startswith("#") or not lines[end].strip()):
        end += 1
    head = lines[:end]
    if head and LEGAL.search("\n".join(head)):
        head = []
    else:
        head = [line for line in head if not line.startswith("#!") and "coding:" not in line]
    return "\n".join(head + lines[end:]).strip("\n") + "\n"


def clean(raw: bytes) -> tuple[str, str]:
    """The cleaned text and "", or "" and the reason for dropping the file."""
    if not 300 <= len(raw) <= 250_000:
        return "", "size"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "", "encoding"
    if "\x00" in text or "\t" in text:
        return "", "tabs"
    text = "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").replace("\f", "").split("\n"))
    if GENERATED.search(text[:1500]):
        return "", "generated"
    text = re.sub(r"\n{4,}", "\n\n\n", without_legal_header(text))
    lines = text.split("\n")
    if max(map(len, lines)) > 300 or len(text) / len(lines) > 80:
        return "", "long lines"
    if sum(c.isdigit() for c in text) > 0.2 * len(text) or sum(ord(c) > 127 for c in text) > 0.02 * len(text):
        return "", "data"
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", "syntax"
    return text, ""


def wheel_files(path: Path) -> tuple[Source, Iterator[tuple[str, bytes]]]:
    archive = zipfile.ZipFile(path)
    metadata = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
    fields = HeaderParser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
    classifiers = [c.split("::")[-1].strip() for c in fields.get_all("Classifier", []) if c.startswith("License")]
    # a classifier that only says "OSI Approved" states nothing
    stated = (
        fields.get("License-Expression")
        or ", ".join(c for c in classifiers if c != "OSI Approved")
        or fields.get("License", "")
    )
    names = sorted(n for n in archive.namelist() if n.endswith(".py"))
    return Source(fields["Name"], fields["Version"], stated.strip()), ((n, archive.read(n)) for n in names)


def stdlib_files(spec: str) -> tuple[Source, Iterator[tuple[str, bytes]]]:
    folder = Path(spec)
    names = sorted(p for p in folder.rglob("*.py") if "site-packages" not in p.parts)
    version = folder.name.removeprefix("python")
    return Source("python-stdlib", version, "PSF-2.0"), (
        (p.relative_to(folder).as_posix(), p.read_bytes()) for p in names
    )


class Corpus:
    """Files kept so far, with the hashes of their longer lines: a file mostly of lines seen is a near-duplicate."""

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.texts: list[str] = []

    def overlap(self, text: str) -> float:
        keys = [hash(line) for line in map(str.strip, text.split("\n")) if len(line) >= 24]
        return sum(k in self.lines for k in keys) / len(keys) if keys else 0.0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.lines.update(hash(line) for line in map(str.strip, text.split("\n")) if len(line) >= 24)


def compress(path: Path, texts: list[str]) -> None:
    subprocess.run(["zstd", "-q", "-6", "-T2", "-f", "-o", str(path)], input="\x00".join(texts).encode(), check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", type=Path)
    parser.add_argument("stdlib", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, default=Path(__file__).parent / "data_manifest.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    train, held = Corpus(), []
    sources, refused = [], []
    for item in [*args.stdlib, *sorted(args.wheels.glob("*.whl"), key=lambda p: p.name.lower())]:
        source, files = stdlib_files(item) if isinstance(item, str) else wheel_files(item)
        if not all(PERMISSIVE.fullmatch(part) for part in re.split(r", | AND ", source.licence)):
            refused.append({"name": source.name, "version": source.version, "licence": source.licence or "none stated"})
            continue
        sources.append(source)
        for name, raw in files:
            parts = name.split("/")
            is_test = bool(TEST_PARTS.intersection(parts)) or parts[-1].startswith("test_")
            if SKIPPED_PARTS.intersection(parts) or (is_test and number(name, TESTS_KEPT_ONE_IN)):
                source.dropped["path"] = source.dropped.get("path", 0) + 1
                continue
            text, reason = clean(raw)
            hold = source.name.lower() in HELD_OUT_PACKAGES or number("held out " + name, HELD_OUT_ONE_IN) == 0
            if not reason and not hold and train.overlap(text) > 0.6:
                reason = "near-duplicate"
            if reason:
                source.dropped[reason] = source.dropped.get(reason, 0) + 1
            elif hold:
                held.append((f"{source.name}-{source.version}:{name}", text, source))
            else:
                train.add(text)
                source.files += 1
                source.bytes += len(text.encode())
        print(source, file=sys.stderr, flush=True)
    kept = [(name, text, source) for name, text, source in held if train.overlap(text) <= 0.4]
    for _, _, source in kept:
        source.held_out_files += 1
    compress(args.out / "train.txt.zst", train.texts)
    compress(args.out / "heldout.txt.zst", [text for _, text, _ in kept])
    (args.out / "heldout.json").write_text(json.dumps([name for name, _, _ in kept], indent=1))
    total = sum(len(t.encode()) for t in train.texts)
    totals = {
        "train_files": len(train.texts),
        "train_bytes": total,
        "held_out_files": len(kept),
        "held_out_bytes": sum(len(t.encode()) for _, t, _ in kept),
        "held_out_dropped_as_seen": len(held) - len(kept),
    }
    rows = ",\n  ".join(json.dumps(vars(s)) for s in sources)
    drop = ",\n  ".join(json.dumps(r) for r in refused)
    args.manifest.write_text(
        f'{{"totals": {json.dumps(totals)},\n "sources": [\n  {rows}\n ],\n "refused": [\n  {drop}\n ]}}\n'
    )
    print(totals)


if __name__ == "__main__":
    main()
