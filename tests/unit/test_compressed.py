"""The compressed files of a published site, and the sum that a page downloads."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from buildtools import compressed
from buildtools.compressed import LEAST_BYTES, downloads, needed, precompress, unpack_snapshot
from buildtools.site import ORT_FILES, PYODIDE_FILES
from capstan_host.command_errors import CommandError

TEXT = b"what repeats itself " * 500
NOISE = random.Random(1).randbytes(2000)
MEMORY = b"".join(str(number * number).encode() for number in range(3000))
UNPACK = "process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync(process.argv[1])))"


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compressed, "PACKED", tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    base = tmp_path / "site/capstan"
    index = {"wheels": ["wheels/a.whl"], "vendored": {"numpy": "wheels/n.whl"}, "snapshot": {"file": "p.snapshot"}}
    assert len(json.dumps(index)) < LEAST_BYTES
    names = ["capstan.js", "worker.js", "ort_runtime.js", "wheels/a.whl", "wheels/n.whl", "p.snapshot"]
    for name in [*names, *(f"ort/{name}" for name in ORT_FILES), *(f"pyodide/{name}" for name in PYODIDE_FILES)]:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(TEXT)
    (base / "python.json").write_text(json.dumps(index))
    (base / "worker.js").write_bytes(NOISE)
    (base / "p.snapshot").write_bytes(gzip.compress(MEMORY, compresslevel=1))
    return tmp_path / "site"


@pytest.mark.usefixtures("packed")
def test_files_that_get_smaller_have_both_forms_beside_them(site: Path) -> None:
    made = precompress(site)
    text = site / "capstan/capstan.js"
    assert gzip.decompress((site / "capstan/capstan.js.gz").read_bytes()) == TEXT
    command = ["node", "-e", UNPACK, f"{text}.br"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == TEXT
    assert all(form.stat().st_size < form.with_suffix("").stat().st_size for form in made)
    names = {path.relative_to(site).as_posix() for path in made}
    assert {"capstan/ort/ort.webgpu.min.mjs.br", "capstan/pyodide/pyodide.asm.wasm.gz"} <= names
    assert not {name for name in names if "worker.js" in name}, "noise does not get smaller"
    assert not {name for name in names if ".whl" in name or ".snapshot" in name}, "they are packed already"
    assert not {name for name in names if "python.json" in name}, "it is small"


def test_what_was_packed_is_not_packed_again(
    site: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = precompress(site)
    kept = {path.name for path in packed.iterdir()}
    for form in made:
        form.unlink()
    monkeypatch.setattr(compressed, "SCRIPT", tmp_path / "nothing.mjs")
    assert precompress(site) == made
    (site / "capstan/capstan.js").unlink()
    precompress(site)
    assert {path.name for path in packed.iterdir()} == kept, "other files have the same content"


def test_the_progress_is_told_and_what_was_packed_before_a_stop_is_kept(
    site: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = site / "capstan/capstan.js"
    halfway = tmp_path / "halfway.mjs"
    halfway.write_text(
        f"import fs from 'node:fs'; fs.writeFileSync({str(packed / 'a.br.new')!r}, ''); process.exit(1);"
    )
    monkeypatch.setattr(compressed, "SCRIPT", halfway)
    with pytest.raises(CommandError, match="cannot be compressed: do what Node says above"):
        precompress(site)
    monkeypatch.undo()
    monkeypatch.setattr(compressed, "PACKED", packed)
    capsys.readouterr()
    precompress(site)
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("compressing ")
    assert re.fullmatch(r"compressing: (\d\.\d) of \1 MB", told[-1])
    assert not [*packed.glob("*.new")]
    assert gzip.decompress(first.with_suffix(".js.gz").read_bytes()) == TEXT


@pytest.mark.usefixtures("packed")
def test_the_sum_is_of_what_a_page_with_webgpu_loads(site: Path) -> None:
    plain = downloads(site)
    assert plain.raw == plain.gzip == plain.br
    assert "ort/ort.webgpu.min.mjs" in needed(site / "capstan")
    assert not {"ort/ort.wasm.min.mjs", "wheels/n.whl"} & set(needed(site / "capstan"))
    on_cpu = needed(site / "capstan", "the CPU")
    assert ("ort/ort.wasm.min.mjs" in on_cpu, "ort/ort.webgpu.min.mjs" in on_cpu) == (True, False)
    precompress(site)
    found = downloads(site)
    assert (found.files, found.raw) == (plain.files, plain.raw)
    assert found.br < found.gzip < found.raw


@pytest.mark.usefixtures("packed")
def test_the_snapshot_is_there_for_brotli_too(site: Path) -> None:
    before = downloads(site)
    unpack_snapshot(site)
    assert json.loads((site / "capstan/python.json").read_text())["snapshot"]["unpacked"] == "p.raw"
    assert (site / "capstan/p.raw").read_bytes() == MEMORY
    text = precompress(site)
    found = downloads(site)
    assert site / "capstan/p.raw.br" in text
    assert (found.files, found.raw) == (before.files, before.raw + len(', "unpacked": "p.raw"'))
    forms = [(site / f"capstan/{name}").stat().st_size for name in ("p.raw.br", "p.snapshot")]
    assert forms[0] < forms[1]
    (site / "capstan/p.raw.br").unlink()
    assert downloads(site).br - found.br == forms[1] - forms[0]
