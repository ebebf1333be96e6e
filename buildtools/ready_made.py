"""Makes the graphs and the tokenizers of known GGUF files, so that pages compute none of it at a first visit.

They depend on a file's header and on Capstan alone. The headers of the models that were downloaded are kept, so that
the site has their results even if a model is removed.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capstan_host.chat_model import SMOLLM2, PackagedModel

from . import CACHE

__all__ = ["READY", "Header", "kept_headers", "make_ready"]

HEADERS = CACHE / "headers"
READY = "ready"
"""The folder of the results in the site."""
DTYPES = ("fp16", "fp32")
ENDING = ".header"


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file, as a file of its own: NAME.SIZE.header."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the GGUF file."""
        return self.path.name.removesuffix(ENDING).rpartition(".")[0]

    @property
    def size(self) -> int:
        """The bytes of the GGUF file."""
        return int(self.path.name.removesuffix(ENDING).rpartition(".")[2])

    @classmethod
    def of(cls, model: Path, folder: Path) -> Header:
        """The header of a file, written into a folder."""
        from capstan.local.local_host import LocalHost
        from capstan.model_files.gguf.header import read_header

        async def read(start: int, length: int) -> bytes:
            source.seek(start)
            return source.read(length)

        size = model.stat().st_size
        with model.open("rb") as source:
            data = LocalHost().wait(read_header(read, size, model.name)).data
            source.seek(0)
            content = source.read(data)
        folder.mkdir(parents=True, exist_ok=True)
        found = cls(folder / f"{model.name}.{size}{ENDING}")
        new = found.path.with_suffix(".new")
        new.write_bytes(content)
        new.replace(found.path)
        return found


def kept_headers(models: Iterable[PackagedModel] = (SMOLLM2,), folder: Path = HEADERS) -> list[Header]:
    """The headers of those models that are, or were, on this machine."""
    found = []
    for model in models:
        kept = Header(folder / f"{model.file.name}.{model.bytes}{ENDING}")
        if kept.path.is_file():
            found.append(kept)
        elif model.is_there():
            found.append(Header.of(model.file, folder))
    return found


def make_ready(headers: Iterable[Header], target: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Write the results for these files into a folder `ready/` of the target: their entries in python.json
    (web/src/worker/ready_made.ts), and the files that were written."""
    known, written = [], []
    for header in headers:
        content = header.path.read_bytes()
        results = {}
        for dtype in DTYPES:
            packed = gzip.compress(result(header.name, header.size, content, dtype).encode(), compresslevel=9, mtime=0)
            path = target / READY / f"{hashlib.sha256(packed).hexdigest()[:16]}.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed)
            written.append(path)
            results[dtype] = f"{READY}/{path.name}"
        digest = hashlib.sha256(content).hexdigest()
        about = {"name": header.name, "size": header.size, "header": len(content), "sha256": digest}
        known.append({**about, "results": results})
    return known, written


def result(name: str, size: int, content: bytes, dtype: str) -> str:
    """The text of a ReadyMade for a file of this name and size, whose header is `content`."""
    from capstan.device.noted_graphs import made_from
    from capstan.device.wasm.cpu_graph import ready_graph
    from capstan.device.webgpu.webgpu_graphs import ready_graphs
    from capstan.graph.gguf.rotary import SMALL_TENSORS
    from capstan.loading.found_model import as_note
    from capstan.loading.gguf_folder import written
    from capstan.local.local_host import LocalHost
    from capstan.model_files.genai_config import DECODER
    from capstan.model_files.gguf.header import read_header

    async def read(start: int, length: int) -> bytes:
        return content[start : start + length]

    async def text() -> str:
        file = await read_header(read, size, name)
        assert file.tensors.keys().isdisjoint(SMALL_TENSORS), f"the graph of {name} depends on more than its header"
        found = written(file, name, dtype, {})
        graph = found.graphs[DECODER]
        webgpu = await ready_graphs(graph, found.config)
        wasm = ready_graph(graph, found.config) if dtype == "fp32" else ""
        return "\n".join([as_note(found), made_from(graph, found.config), webgpu, wasm])

    return LocalHost().wait(text())
