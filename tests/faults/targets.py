"""The targets of attacks, by class: a good input, its mutation, and its use. For CPython and pages."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import unquote, urljoin

from capstan import Tokenizer
from capstan.device.webgpu.webgpu_graphs import rewrite
from capstan.errors import CapstanError
from capstan.graph import parse, without_weights
from capstan.host import current_host
from capstan.loading.gguf_folder import derived
from capstan.loading.repository import derived_config
from capstan.model_files.file_names import address_of, why_not_below
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.stages.search import SearchOptions
from capstan.weights.manifest import parse_manifest
from capstan.weights.records import Journal, SourceRecord, StoredRecord

from .arguments import not_refused
from .mutations import mutated_bytes, mutated_gguf, mutated_graph, mutated_json, mutated_name

__all__ = ["Target", "targets"]

FOLDER = "https://host/models/m/"
ROOT = "/srv/models/m"


@dataclass(frozen=True)
class Target:
    """One class of attacks."""

    kind: str
    good: bytes
    mutate: Callable[[Random, bytes], bytes]
    run: Callable[[bytes], Awaitable[None]]


def targets(files: Mapping[str, bytes]) -> list[Target]:
    """The classes that need no server, from the files of a model folder; `config.json` among them is a repository's."""

    async def config(data: bytes) -> None:
        found = parse_genai_config(data)
        SearchOptions.from_config(
            found.search,
            eos_token_ids=found.eos_token_ids,
            pad_token_id=found.pad_token_id,
            context_length=found.context_length,
        )

    async def repository(data: bytes) -> None:
        derived_config(data, None, parse(files["model.onnx"]), "model.onnx")

    async def generation(data: bytes) -> None:
        found, _ = derived_config(files["config.json"], data, parse(files["model.onnx"]), "model.onnx")
        SearchOptions.from_config(found.search, eos_token_ids=found.eos_token_ids)

    good_config = parse_genai_config(files["genai_config.json"])

    async def graph(data: bytes) -> None:
        await rewrite(data, good_config, WeightBytes(files["model.onnx.data"]).open, 8)

    async def gguf(data: bytes) -> None:
        opened: Any = {"model.gguf": WeightBytes(data)}
        found = await derived(current_host(), FOLDER, "model.gguf", ["model.gguf"], opened, "fp32", False)
        assert found.tokenizer is not None
        parse(found.graphs["decoder"], "model.gguf")
        texts = found.tokenizer["tokenizer.json"], found.tokenizer["tokenizer_config.json"]
        use(Tokenizer.from_files(current_host().tokenizer_backend, *texts))

    async def pieces(data: bytes) -> None:
        async def read(start: int, length: int) -> bytes:
            return data[start : start + length]

        await without_weights(read, len(data), "model.onnx", "model.onnx")

    async def shards(data: bytes) -> None:
        parse_manifest(data, "model.onnx.data.shards.json")

    async def records(data: bytes) -> None:
        text = data.decode(errors="replace")
        for kind in (StoredRecord, SourceRecord, Journal):
            found = kind.parse(text)
            assert found is None or isinstance(found, kind), f"{kind.__name__} reads as {found!r}"

    async def tokenizer(data: bytes) -> None:
        use(Tokenizer.from_files(current_host().tokenizer_backend, data, files["tokenizer_config.json"]))

    async def tokenizer_config(data: bytes) -> None:
        use(Tokenizer.from_files(current_host().tokenizer_backend, files["tokenizer.json"], data))

    async def arguments(data: bytes) -> None:
        _, taken = await not_refused(Random(data))
        assert not taken, taken[0]

    async def names(data: bytes) -> None:
        require_below(data.decode(errors="surrogatepass"))

    listed = json.dumps({**json.loads(files["shards"]), "data": "x.data", "suspect": [0]}).encode()
    source = {"name": "https://host/m/data", "size": 10, "validator": 'etag "1"'}
    journal = json.dumps({"source": source, "shard_size": 4, "content": "x"}) + '\n[0, "' + "0" * 64 + '"]\n'
    return [
        Target("config", files["genai_config.json"], mutated_json, config),
        Target("repository", files["config.json"], mutated_json, repository),
        Target("generation", files["generation_config.json"], mutated_json, generation),
        Target("graph", files["model.onnx"], mutated_graph, graph),
        Target("gguf", files["gguf"], mutated_gguf, gguf),
        Target("pieces", files["model.onnx"], mutated_bytes, pieces),
        Target("shards", files["shards"], mutated_json, shards),
        Target("records", listed, mutated_json, records),
        Target("journal", journal.encode(), mutated_bytes, records),
        Target("tokenizer", files["tokenizer.json"], mutated_json, tokenizer),
        Target("template", files["tokenizer_config.json"], mutated_json, tokenizer_config),
        Target("arguments", b"1", mutated_bytes, arguments),
        Target("names", b"model.onnx", mutated_name, names),
    ]


class WeightBytes:
    """A data file, as far as the rewriting of graphs reads from it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    async def open(self, location: str) -> Any:
        require_below(location)
        return self

    async def read(self, start: int, length: int) -> bytes:
        assert length <= len(self._data), f"{length} bytes are asked for"
        return self._data[start : start + length]

    def close(self) -> None:
        """Nothing is open."""


def use(tokenizer: Tokenizer) -> None:
    """Use a model's tokenizer in every way."""
    ids = tokenizer.encode("def f(x): é\U0001f600<|endoftext|>")
    assert all(type(item) is int for item in ids), f"ids are {ids[:5]}"
    assert isinstance(tokenizer.decode([*ids, 0, 5, 2**40, -1]), str)
    tokenizer.to_token_id("x")
    stream = tokenizer.create_stream()
    for item in ids[:5]:
        stream.decode(item)
    stream.flush()
    if tokenizer.has_chat_template:
        tokenizer.apply_chat_template([{"role": "user", "content": "hello"}])


def require_below(name: str) -> None:
    """AssertionError if a name is taken that leads elsewhere, as a browser and as a file system would go."""
    why = why_not_below(name)
    if why is not None:
        raise RefusedError(why)
    address = urljoin(FOLDER, address_of(FOLDER, name))
    decoded = address
    for _ in range(3):
        path = posixpath.normpath(unquote(decoded.partition("://")[2]).replace("\\", "/"))
        assert decoded.startswith("https://"), f"{name!r} leads to {decoded}"
        assert path.startswith("host/models/m/"), f"{name!r} leads to {decoded}"
        decoded = unquote(decoded)
    assert not {"?", "#"} & set(address), f"{name!r} is {address}"
    local = posixpath.normpath(posixpath.join(ROOT, name))
    assert local.startswith(ROOT + "/"), f"{name!r} leads to {local}"
    assert "\0" not in local, f"{name!r} has a NUL"


class RefusedError(CapstanError):
    """A name that is not taken."""
