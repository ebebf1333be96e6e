"""Computes text embeddings with encoders in the layouts of Transformers.js and sentence-transformers."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Unpack

from .errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from .graph import hidden_output, pooled, sentence_output
from .graph.onnx_pb2 import ModelProto
from .graph.pooling import POOLED, WEIGHTS
from .host import Host, current_host
from .loading.folder import choose_dtype, place_of
from .loading.load_options import EmbedderOptions
from .loading.opening import TOKENIZER_FILES, with_tokenizer
from .loading.repository import onnx_file, require_dtype
from .model_files.config_section import parse_object
from .onnxruntime.inference_session import InferenceSession
from .onnxruntime.providers import WEBGPU, asked_for
from .onnxruntime.session_placement import GraphFile
from .signatures import check_arguments
from .tokenizer import Tokenizer

__all__ = ["POOLINGS", "Embedder"]

POOLINGS = ("mean", "cls", "last")
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
"""The poolings by their fields in sentence-transformers' 1_Pooling/config.json."""
RUN_TOKENS = 4096
"""The most tokens of a run, including padding; a longer text has a separate run."""
RUN_ROWS = 64
GRAPH = "model.onnx"
FED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


class Embedder:
    """An encoder, ready to embed texts: BERT, MiniLM, MPNet, bge, e5, gte, ModernBERT and their like, as ONNX.

    `await Embedder.load(folder)` makes one; `await embedder.embed(texts)` gives a unit vector for each text. Callers
    must add prefixes with which a model was trained, such as "query: " of e5.
    """

    def __init__(self, session: InferenceSession, tokenizer: Tokenizer, pooling: str, limit: int, pad: int) -> None:
        self._session = session
        self._tokenizer = tokenizer
        tokenizer.update_options(add_special_tokens=True)
        self.pooling = pooling
        """'mean', 'cls' or 'last'; 'model' if the graph itself gives one vector for each text."""
        self.max_tokens = limit
        """The most tokens of a text, including special tokens."""
        self._pad = pad
        self._ending = ending_of(tokenizer)
        self._turn = asyncio.Lock()

    @classmethod
    async def load(
        cls,
        path: Any,
        *,
        pooling: str | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> Embedder:
        """Load the encoder at `path`, in the forms of Model.load: a folder with config.json, tokenizer.json and
        onnx/model.onnx (or another `dtype` of it, or model.onnx beside them). `device` is 'webgpu', 'wasm' or 'auto'.

        `pooling` makes one vector from a text's tokens: 'mean', 'cls' (the first one) or 'last'. The default is that of
        1_Pooling/config.json, or the graph's own output sentence_embedding, else 'mean'.

        Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError, DeviceUnavailableError.
        """
        if pooling is not None and pooling not in POOLINGS:
            raise OptionError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}, or None")
        device, dtype = options.get("device", "auto"), options.get("dtype")
        if device not in ("webgpu", "wasm", "auto"):
            raise OptionError(f"device is {device!r}; it must be one of 'webgpu', 'wasm' and 'auto'")
        host, keep = current_host(), not options.get("disable_file_mapped_weights")
        place = await place_of(host, path, keep)
        if place.gguf is not None:
            raise UnsupportedModelError(
                f"{place.folder}{place.gguf}: a GGUF file has no graph of an encoder; use an ONNX model"
            )
        about, files = await read_files(host, place.folder)
        folder, name = await graph_of(host, place.folder, device, dtype)
        chosen = Chosen(pooling, configured_pooling(files), has_dense(files))
        graph = GraphFile(folder, name, chosen.rewrite)
        session = await InferenceSession.of_graph(graph, asked_for(providers_of(device), None), keep)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(session.aclose)
            tokenizer = Tokenizer.from_files(
                host.tokenizer_backend, files["tokenizer.json"], files.get("tokenizer_config.json")
            )
            made = cls(session, tokenizer, chosen.pooling, limit_of(about, files), pad_of(about))
            undo.pop_all()
        return made

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return "webgpu" if self._session.get_providers() == [WEBGPU] else "wasm"

    async def embed(self, texts: Sequence[str]) -> list[memoryview[float]]:
        """A vector of length 1 for each text: float32 [dimensions]. A text of more than `max_tokens` is cut.

        Raises OptionError for a text without tokens, OutOfMemoryError if a run of the model does not fit.
        """
        return (await self.embed_counted(texts))[0]

    async def embed_counted(self, texts: Sequence[str]) -> tuple[list[memoryview[float]], list[int]]:
        """`embed`, and the number of tokens of each text on which the model ran."""
        rows = [self._cut(self._tokenizer.encode(text)) for text in texts]
        for place, row in enumerate(rows):
            if not row:
                raise OptionError(f"texts[{place}] is {texts[place]!r}, which has no tokens; leave it out")
        found: list[memoryview[float]] = [memoryview(b"").cast("f")] * len(rows)
        async with self._turn:
            for group in grouped([len(row) for row in rows]):
                for place, vector in zip(group, await self._run([rows[place] for place in group]), strict=True):
                    found[place] = vector
        return found, [len(row) for row in rows]

    async def aclose(self) -> None:
        """Free the session. Closing twice is harmless."""
        await self._session.aclose()

    async def __aenter__(self) -> Embedder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _cut(self, row: list[int]) -> list[int]:
        """At most `max_tokens` ids, with the special tokens at the end."""
        if len(row) <= self.max_tokens:
            return row
        return row[: self.max_tokens - self._ending] + row[len(row) - self._ending :]

    async def _run(self, rows: Sequence[Sequence[int]]) -> list[memoryview[float]]:
        shape = [len(rows), max(map(len, rows))]

        def int64(row: Sequence[int], fill: int) -> array[int]:
            return array("q", [*row, *[fill] * (shape[1] - len(row))])

        made: dict[str, list[array[Any]]] = {
            "input_ids": [int64(row, self._pad) for row in rows],
            "attention_mask": [int64([1] * len(row), 0) for row in rows],
            "token_type_ids": [int64([], 0) for _ in rows],
            "position_ids": [int64(range(shape[1]), 0) for _ in rows],
            WEIGHTS: [self._weights(len(row), shape[1]) for row in rows],
        }
        feed = {
            name: (joined(made[name]), [shape[0], 1, shape[1]] if name == WEIGHTS else shape)
            for name in self._session.inputs
        }
        [result] = await self._session.run_async([POOLED], feed)
        numbers = memoryview(result).cast("B").cast("f")
        width = len(numbers) // len(rows)
        return [unit(numbers[place * width : (place + 1) * width]) for place in range(len(rows))]

    def _weights(self, length: int, whole: int) -> array[float]:
        """The weight of each token."""
        if self.pooling == "mean":
            return array("f", [1 / length] * length + [0.0] * (whole - length))
        chosen = length - 1 if self.pooling == "last" else 0
        return array("f", [float(place == chosen) for place in range(whole)])


class Chosen:
    """The pooling of a text's tokens, as the caller, the model's files or the graph gives it."""

    def __init__(self, asked: str | None, configured: str | None, dense: bool) -> None:
        self._asked, self._configured, self._dense = asked, configured, dense
        self.pooling = asked or configured or "mean"

    def rewrite(self, model: ModelProto) -> ModelProto:
        """Add the pooling to the graph. Raises UnsupportedModelError for a graph that is not an encoder of texts."""
        unknown = [value.name for value in model.graph.input if value.name not in FED]
        if unknown or "input_ids" not in [value.name for value in model.graph.input]:
            what = f"the input {unknown[0]!r}" if unknown else "no input_ids"
            raise UnsupportedModelError(
                f"the graph has {what}; an encoder of texts takes only inputs among {', '.join(FED)}"
            )
        sentence = None if self._asked else sentence_output(model)
        hidden = None if sentence else hidden_output(model)
        if sentence is None and hidden is None:
            there = ", ".join(repr(value.name) for value in model.graph.output)
            raise UnsupportedModelError(f"the graph's outputs are {there}; it needs one with hidden states [B, S, H]")
        if sentence is None and self._dense:
            raise UnsupportedModelError(
                "modules.json has a Dense layer after the pooling, which the graph lacks: use an export with the "
                "output sentence_embedding"
            )
        if sentence is not None:
            self.pooling = "model"
        return pooled(model, hidden, sentence)


async def read_files(host: Host, folder: str) -> tuple[Mapping[str, Any], dict[str, str]]:
    """config.json, and the existing small files beside it, as texts."""
    names = [*TOKENIZER_FILES[:2], "1_Pooling/config.json", "modules.json", "sentence_bert_config.json"]
    config, *others = await asyncio.gather(
        host.read_optional(folder, "config.json"), *(host.read_optional(folder, name) for name in names)
    )
    if config is None:
        raise ModelFileError(
            f"{folder}config.json is missing; check the model's address, or put the file beside tokenizer.json"
        )
    files = with_tokenizer(folder, dict(zip(names, others, strict=True)))
    return parse_object(config, folder + "config.json"), files


async def graph_of(host: Host, folder: str, device: str, dtype: str | None) -> tuple[str, str]:
    """The folder and the name of the graph's file."""
    wanted = require_dtype(dtype)
    try:
        file = onnx_file(await choose_dtype(host, folder, device, wanted))
    except ModelFileError:
        if wanted is not None or not await host.exists(folder, GRAPH):
            raise
        return folder, GRAPH
    place, _, name = file.rpartition("/")
    return f"{folder}{place}/", name


def providers_of(device: str) -> list[str]:
    return [] if device == "auto" else [device]


def configured_pooling(files: Mapping[str, str]) -> str | None:
    """The pooling of 1_Pooling/config.json. Raises UnsupportedModelError for one that is not in POOLINGS."""
    if "1_Pooling/config.json" not in files:
        return None
    config = parse_object(files["1_Pooling/config.json"], "1_Pooling/config.json")
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in MODES:
        raise UnsupportedModelError(
            f"1_Pooling/config.json sets {', '.join(modes) or 'no pooling_mode'}; Capstan computes exactly one of "
            f"{', '.join(MODES)}"
        )
    return MODES[modes[0]]


def has_dense(files: Mapping[str, str]) -> bool:
    """Whether modules.json names a layer after the pooling."""
    if "modules.json" not in files:
        return False
    try:
        modules = json.loads(files["modules.json"])
        return any(str(module["type"]).endswith(".Dense") for module in modules)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"modules.json: {error!r}, expected a list of modules; copy the file again") from error


def limit_of(about: Mapping[str, Any], files: Mapping[str, str]) -> int:
    """The most tokens of a text. Raises ConfigError."""
    config = parse_object(files.get("sentence_bert_config.json", "{}"), "sentence_bert_config.json")
    if (length := config.get("max_seq_length")) is not None:
        return positive("sentence_bert_config.json: max_seq_length", length)
    length = positive("config.json: max_position_embeddings", about.get("max_position_embeddings", 512))
    # RoBERTa and MPNet count positions from the id of padding plus 1.
    offset = about.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet")
    return length - 1 - pad_of(about) if offset and length > 1 + pad_of(about) else length


def pad_of(about: Mapping[str, Any]) -> int:
    pad = about.get("pad_token_id")
    return pad if isinstance(pad, int) and pad >= 0 else 0


def positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value


def ending_of(tokenizer: Tokenizer) -> int:
    """The number of special tokens at the end of a text."""
    empty, letter = tokenizer.encode(""), tokenizer.encode("a")
    same = 0
    while same < min(len(empty), len(letter)) and empty[-1 - same] == letter[-1 - same]:
        same += 1
    return same


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


def unit(numbers: memoryview[float]) -> memoryview[float]:
    """The vector scaled to length 1; a zero vector stays."""
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return memoryview(array("f", [number / length for number in numbers] if length else list(numbers)))


check_arguments(sys.modules[__name__])
