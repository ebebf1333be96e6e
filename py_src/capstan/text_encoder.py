"""Loads encoders in the layouts of Transformers.js and sentence-transformers, and runs them on batches of texts."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from .graph.onnx_pb2 import ModelProto
from .graph.pooling import WEIGHTS
from .host import Host, current_host
from .loading.folder import graph_of, place_of
from .loading.load_options import EmbedderOptions
from .loading.opening import TOKENIZER_FILES, with_tokenizer
from .model_files.config_section import parse_object
from .onnxruntime.inference_session import InferenceSession
from .onnxruntime.providers import WEBGPU, asked_for
from .onnxruntime.session_placement import GraphFile
from .tokenizer import Tokenizer

__all__ = ["EncoderFolder", "TextEncoder", "Tokens", "require_texts_only"]

RUN_TOKENS = 4096
"""The most tokens of a run, including padding; a longer text has a separate run."""
RUN_ROWS = 64
FED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")

Weigh = Callable[[int, int], "array[float]"]
"""The weights of the tokens of a text of `length` tokens in a row of `whole` tokens."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one row of a batch."""

    ids: Sequence[int]
    types: Sequence[int] = ()
    """The token_type_ids; () for zeros."""


@dataclass(frozen=True)
class EncoderFolder:
    """The small files of an encoder's folder, and the caller's options."""

    host: Host
    folder: str
    """Its address, ending in a slash."""
    about: Mapping[str, Any]
    """The content of config.json."""
    files: Mapping[str, str]
    """The existing files beside config.json, as texts."""
    options: EmbedderOptions

    @classmethod
    async def read(cls, path: Any, options: EmbedderOptions, names: Sequence[str]) -> EncoderFolder:
        """Read the small files at `path`: those of the tokenizer, the one with its length, and `names`.

        Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError.
        """
        if (device := options.get("device", "auto")) not in ("webgpu", "wasm", "auto"):
            raise OptionError(f"device is {device!r}; it must be one of 'webgpu', 'wasm' and 'auto'")
        host = current_host()
        place = await place_of(host, path, not options.get("disable_file_mapped_weights"))
        if place.gguf is not None:
            raise UnsupportedModelError(
                f"{place.folder}{place.gguf}: a GGUF file is no embedding model or reranker here; use an ONNX model"
            )
        about, files = await read_files(host, place.folder, [*names, "sentence_bert_config.json"])
        return cls(host, place.folder, about, files, options)

    @property
    def pad(self) -> int:
        """The id of padding."""
        pad = self.about.get("pad_token_id")
        return pad if isinstance(pad, int) and pad >= 0 else 0

    @property
    def limit(self) -> int:
        """The most tokens of a text. Raises ConfigError."""
        config = parse_object(self.files.get("sentence_bert_config.json", "{}"), "sentence_bert_config.json")
        if (length := config.get("max_seq_length")) is not None:
            return positive("sentence_bert_config.json: max_seq_length", length)
        length = positive("config.json: max_position_embeddings", self.about.get("max_position_embeddings", 512))
        # RoBERTa and MPNet count positions from the id of padding plus 1.
        offset = self.about.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet")
        return length - 1 - self.pad if offset and length > 1 + self.pad else length

    @property
    def tokenizer_limit(self) -> int:
        """`limit`, or the tokenizer's model_max_length if it is less, as transformers cuts. Raises ConfigError."""
        config = parse_object(self.files.get("tokenizer_config.json", "{}"), "tokenizer_config.json")
        length = config.get(key := "model_max_length")
        return self.limit if length is None else min(self.limit, positive(f"{TOKENIZER_FILES[1]}: {key}", length))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder's files. Raises ConfigError."""
        config = self.files.get("tokenizer_config.json")
        return Tokenizer.from_files(self.host.tokenizer_backend, self.files["tokenizer.json"], config)

    async def open(self, rewrite: Callable[[ModelProto], ModelProto]) -> TextEncoder:
        """The encoder of the graph after `rewrite`, whose errors are raised."""
        device, dtype = self.options.get("device", "auto"), self.options.get("dtype")
        graph = GraphFile(*await graph_of(self.host, self.folder, device, dtype), rewrite)
        providers = asked_for([] if device == "auto" else [device], None)
        keep = not self.options.get("disable_file_mapped_weights")
        return TextEncoder(await InferenceSession.of_graph(graph, providers, keep), self.pad)


class TextEncoder:
    """A session of an encoder with one result for each row of tokens."""

    def __init__(self, session: InferenceSession, pad: int) -> None:
        self._session = session
        self._pad = pad
        self._turn = asyncio.Lock()

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return "webgpu" if self._session.get_providers() == [WEBGPU] else "wasm"

    async def run(self, rows: Sequence[Tokens], output: str, weigh: Weigh | None = None) -> list[memoryview[float]]:
        """The float32 numbers of `output` for each row; rows of similar length run together. `weigh` fills the input
        of pooled graphs. Raises OutOfMemoryError if a run does not fit.
        """
        found: list[memoryview[float]] = [memoryview(b"").cast("f")] * len(rows)
        async with self._turn:
            for group in grouped([len(row.ids) for row in rows]):
                results = await self._run([rows[place] for place in group], output, weigh)
                for place, numbers in zip(group, results, strict=True):
                    found[place] = numbers
        return found

    async def aclose(self) -> None:
        """Free the session. Closing twice is harmless."""
        await self._session.aclose()

    async def _run(self, rows: Sequence[Tokens], output: str, weigh: Weigh | None) -> list[memoryview[float]]:
        shape = [len(rows), max(len(row.ids) for row in rows)]

        def int64(row: Sequence[int], fill: int) -> array[int]:
            return array("q", [*row, *[fill] * (shape[1] - len(row))])

        made: dict[str, list[array[Any]]] = {
            "input_ids": [int64(row.ids, self._pad) for row in rows],
            "attention_mask": [int64([1] * len(row.ids), 0) for row in rows],
            "token_type_ids": [int64(row.types, 0) for row in rows],
            "position_ids": [int64(range(shape[1]), 0) for _ in rows],
            WEIGHTS: [] if weigh is None else [weigh(len(row.ids), shape[1]) for row in rows],
        }
        feed = {
            name: (joined(made[name]), [shape[0], 1, shape[1]] if name == WEIGHTS else shape)
            for name in self._session.inputs
        }
        [result] = await self._session.run_async([output], feed)
        numbers = memoryview(result).cast("B").cast("f")
        width = len(numbers) // len(rows)
        return [numbers[place * width : (place + 1) * width] for place in range(len(rows))]


def require_texts_only(model: ModelProto) -> None:
    """Raise UnsupportedModelError for a graph that is not an encoder of texts."""
    unknown = [value.name for value in model.graph.input if value.name not in FED]
    if unknown or "input_ids" not in [value.name for value in model.graph.input]:
        what = f"the input {unknown[0]!r}" if unknown else "no input_ids"
        raise UnsupportedModelError(
            f"the graph has {what}; an encoder of texts takes only inputs among {', '.join(FED)}"
        )


async def read_files(host: Host, folder: str, more: Sequence[str]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """config.json, and the existing small files beside it, as texts."""
    names = [*TOKENIZER_FILES[:2], *more]
    config, *others = await asyncio.gather(
        host.read_optional(folder, "config.json"), *(host.read_optional(folder, name) for name in names)
    )
    if config is None:
        raise ModelFileError(
            f"{folder}config.json is missing; check the model's address, or put the file beside tokenizer.json"
        )
    files = with_tokenizer(folder, dict(zip(names, others, strict=True)))
    return parse_object(config, folder + "config.json"), files


def positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value


def grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of texts that run together, by index: texts of similar lengths, within RUN_TOKENS and RUN_ROWS."""
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = groups[-1] if groups else []
        if not last or len(last) == RUN_ROWS or (len(last) + 1) * lengths[place] > RUN_TOKENS:
            groups.append([])
        groups[-1].append(place)
    return groups


def joined(rows: Sequence[array[Any]]) -> array[Any]:
    whole = array(rows[0].typecode)
    for row in rows:
        whole.extend(row)
    return whole
