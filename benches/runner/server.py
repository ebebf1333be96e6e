"""The bench's server: the site, the page, models in both layouts; what the page posts goes into a queue.

A page that asks another host for anything is stopped by its content security policy, and the report fails the bench.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from io import BufferedReader
from pathlib import Path
from typing import Any

from capstan_host.headless.served_files import FilePart, open_below
from capstan_host.headless.static_server import ISOLATION, StaticHandler
from capstan_host.site_server import SiteServer

from .external_data import split_data
from .plan import Step

__all__ = ["BenchServer"]

POLICY = (
    "default-src 'self' blob: data:; script-src 'self' blob: 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'; "
    "report-uri /bench/foreign"
)
TRANSFORMERS_JS_MODELS = "transformers_js_models"
KINDS = {
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""By the model type: its class in Transformers.js."""
LARGEST_DATA = 2_000_000_000
"""Bytes of a part of a data file in that layout, as hubs have them for browsers."""
DECODER_KEYS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")


class BenchHandler(StaticHandler):
    """Answers GET and HEAD as the site's server does; takes what the page posts."""

    page_policy = ""
    """That of everything is below."""
    server: BenchServer

    def do_POST(self) -> None:
        refused = self.refusal()
        if refused is not None:
            self.send_error(refused[0])
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.put((self.path.rsplit("/", 1)[1], json.loads(body)))
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()

    def send_header(self, keyword: str, value: str) -> None:
        if self.server.isolated or keyword not in ISOLATION:
            super().send_header(keyword, value)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()


class BenchServer(SiteServer):
    """Serves `site`, /bench/ (`page`), the packages of other engines (`packages`, by contender) and the models."""

    def __init__(self, site: Path, page: Path, packages: Mapping[str, Path], models: Mapping[str, Path]) -> None:
        self.page = page
        self.isolated = True
        """Whether pages are cross-origin isolated, so that engines have threads."""
        self.packages = packages
        self.steps: Sequence[Step] = ()
        self.posted: queue.Queue[tuple[str, Any]] = queue.Queue()
        """The page's messages: begin, result, end, and foreign (a request to another host)."""
        super().__init__(site, models)

    @property
    def handler(self) -> type[StaticHandler]:
        return BenchHandler

    def find(self, path: str) -> BufferedReader | bytes | FilePart | None:
        """The site's files, and those of the bench."""
        parts = [part for part in path.split("/") if part]
        if path == "/bench/plan.json":
            return json.dumps(self.steps).encode()
        if parts[:1] == [TRANSFORMERS_JS_MODELS]:
            return self._transformers_js_file(parts[1:])
        found = super().find(path)
        if found is None and parts[:1] == ["bench"] and ".." not in parts:
            folder, rest = self.page, parts[1:] or ["index.html"]
            if rest[0] in self.packages:
                folder, rest = self.packages[rest[0]], rest[1:]
            found = open_below(folder, rest)
        return found

    def _transformers_js_file(self, parts: Sequence[str]) -> bytes | FilePart | None:
        """A model folder of onnxruntime-genai's builder in the layout of Transformers.js; nothing large is copied."""
        folder = self.models.get(parts[0]) if parts else None
        if folder is None:
            return None
        config = json.loads((folder / "genai_config.json").read_text())["model"]
        if config["type"] not in KINDS:
            return None
        name = config["decoder"]["filename"]
        data = folder / f"{name}.data"
        graph, pieces = split_data((folder / name).read_bytes(), data.stat().st_size, LARGEST_DATA, data_name)
        match "/".join(parts[1:]):
            case "config.json":
                kept = {name: config["decoder"][name] for name in DECODER_KEYS}
                head = {"head_dim": config["decoder"]["head_size"], "vocab_size": config["vocab_size"]}
                # It takes the empty cache's shape from the graph, where the builder leaves this dimension a name.
                own = {
                    "free_dimension_overrides": {"kv_cache_dim": config["decoder"]["head_size"]},
                    "use_external_data_format": len(pieces),
                }
                kind = {"model_type": config["type"], "architectures": [KINDS[config["type"]]]}
                return json.dumps({**kind, **kept, **head, "transformers.js_config": own}).encode()
            case "generation_config.json":
                # No end-of-sequence id: as many tokens as were asked for are generated.
                return b"{}"
            case "onnx/model.onnx":
                return graph
        found = {f"onnx/{data_name(number)}": piece for number, piece in enumerate(pieces)}.get("/".join(parts[1:]))
        file = open_below(folder, [data.name]) if found else None
        return FilePart(file, found.start, found.length) if found and file else None


def data_name(number: int) -> str:
    """The name of a part of the data file in the layout of Transformers.js."""
    return f"model.onnx_data_{number}" if number else "model.onnx_data"
