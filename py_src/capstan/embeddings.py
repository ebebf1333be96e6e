"""Computes text embeddings with encoders in the layouts of Transformers.js and sentence-transformers."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from .errors import ConfigError, OptionError, UnsupportedModelError
from .graph import hidden_output, pooled, sentence_output
from .graph.onnx_pb2 import ModelProto
from .graph.pooling import POOLED
from .loading.load_options import EmbedderOptions
from .model_files.config_section import parse_object
from .signatures import check_arguments
from .text_encoder import EncoderFolder, TextEncoder, Tokens, require_texts_only
from .tokenizer import Tokenizer

__all__ = ["POOLINGS", "Embedder"]

POOLINGS = ("mean", "cls", "last")
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
"""The poolings by their fields in sentence-transformers' 1_Pooling/config.json."""


class Embedder:
    """An encoder, ready to embed texts: BERT, MiniLM, MPNet, bge, e5, gte, ModernBERT and their like, as ONNX.

    `await Embedder.load(folder)` makes one; `await embedder.embed(texts)` gives a unit vector for each text. Callers
    must add prefixes with which a model was trained, such as "query: " of e5.
    """

    def __init__(self, encoder: TextEncoder, tokenizer: Tokenizer, pooling: str, limit: int, ending: int) -> None:
        self._encoder, self._tokenizer = encoder, tokenizer
        self.pooling = pooling
        """'mean', 'cls' or 'last'; 'model' if the graph itself gives one vector for each text."""
        self.max_tokens = limit
        """The most tokens of a text, including special tokens."""
        self._ending = ending

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
        folder = await EncoderFolder.read(path, options, ["1_Pooling/config.json", "modules.json"])
        chosen = Chosen(pooling, configured_pooling(folder.files), has_dense(folder.files))
        tokenizer, limit = folder.tokenizer(), folder.limit
        tokenizer.update_options(add_special_tokens=True)
        ending = ending_of(tokenizer)
        return cls(await folder.open(chosen.rewrite), tokenizer, chosen.pooling, limit, ending)

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return self._encoder.device

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
        vectors = await self._encoder.run([Tokens(row) for row in rows], POOLED, self._weights)
        return list(map(unit, vectors)), [len(row) for row in rows]

    async def aclose(self) -> None:
        """Free the session. Closing twice is harmless."""
        await self._encoder.aclose()

    async def __aenter__(self) -> Embedder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _cut(self, row: list[int]) -> list[int]:
        """At most `max_tokens` ids, with the special tokens at the end."""
        if len(row) <= self.max_tokens:
            return row
        return row[: self.max_tokens - self._ending] + row[len(row) - self._ending :]

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
        require_texts_only(model)
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


def ending_of(tokenizer: Tokenizer) -> int:
    """The number of special tokens at the end of a text."""
    empty, letter = tokenizer.encode(""), tokenizer.encode("a")
    same = 0
    while same < min(len(empty), len(letter)) and empty[-1 - same] == letter[-1 - same]:
        same += 1
    return same


def unit(numbers: memoryview[float]) -> memoryview[float]:
    """The vector scaled to length 1; a zero vector stays."""
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return memoryview(array("f", [number / length for number in numbers] if length else list(numbers)))


check_arguments(sys.modules[__name__])
