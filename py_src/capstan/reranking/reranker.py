"""Loads a reranker, and ranks documents with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Unpack

from ..errors import ConfigError, DeviceError, OptionError, UnsupportedModelError
from ..graph import last_logits, pooled
from ..graph.onnx_pb2 import ModelProto
from ..loading.load_options import EmbedderOptions
from ..model import Model
from ..text_encoder import EncoderFolder, require_texts_only
from ..tokenizer import Tokenizer
from .query_pairs import PromptPairs, QueryPairs, TemplatePairs
from .scorers import CachedDecoder, Classifier, Decoder, Scorer, activation_of, several

__all__ = ["RerankResult", "Reranker"]

PROMPTED = "qwen3"
"""The model type with Qwen3-Reranker's prompt."""
PROMPT_TOKENS = 8192
"""The most tokens of a prompt, as in Qwen3-Reranker's model card."""
LOGITS = "logits"


@dataclass(frozen=True)
class RerankResult:
    """A document in the order of scores."""

    index: int
    """Its place in the given list."""
    score: float
    document: str | None = None
    """The text, with `return_documents`."""


class Reranker:
    """A model that reads a query with each document, and scores how well the document answers it.

    `await Reranker.load(folder)` makes one, of a cross-encoder as ONNX (ms-marco-MiniLM, bge-reranker, jina-reranker,
    gte-reranker-modernbert) or of Qwen3-Reranker; `await reranker.rerank(query, documents)` gives the best documents
    first.
    """

    def __init__(self, pairs: QueryPairs, scorer: Scorer) -> None:
        self._pairs, self._scorer = pairs, scorer

    @classmethod
    async def load(cls, path: Any, **options: Unpack[EmbedderOptions]) -> Reranker:
        """Load the reranker at `path`, in the forms of Model.load: a folder with config.json, tokenizer.json and
        onnx/model.onnx (or another `dtype` of it, or model.onnx beside them). `device` is 'webgpu', 'wasm' or 'auto'.

        Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError, DeviceUnavailableError.
        """
        folder = await EncoderFolder.read(path, options, [])
        if folder.about.get("model_type") != PROMPTED:
            pairs = TemplatePairs(folder.tokenizer(), folder.tokenizer_limit)
            activation = activation_of(folder.about)
            return cls(pairs, Classifier(await folder.open(classifier), activation))
        limit, activation, graph = min(folder.limit, PROMPT_TOKENS), activation_of(folder.about), PromptedGraph()
        async with AsyncExitStack() as undo:
            try:
                encoder = await folder.open(graph.rewrite)
            except HasCachesError:
                model = await Model.load(path, **options)
                undo.push_async_callback(model.aclose)
                tokenizer = Tokenizer(model)
                scorer: Scorer = CachedDecoder(model, *answers(tokenizer))
                limit = min(limit, model.config.context_length)
            else:
                undo.push_async_callback(encoder.aclose)
                tokenizer = folder.tokenizer()
                scorer = Decoder(encoder, *answers(tokenizer)) if graph.decodes else Classifier(encoder, activation)
            reranker = cls(PromptPairs(tokenizer, limit), scorer)
            undo.pop_all()
        return reranker

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return self._scorer.device

    @property
    def max_tokens(self) -> int:
        """The most tokens of a query and a document together; longer pairs are cut."""
        return self._pairs.max_tokens

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        return_documents: bool = False,
        instruction: str | None = None,
    ) -> list[RerankResult]:
        """The `top_n` best documents, or all, the best first; equal ones keep their order. With `return_documents` each
        result has its text. `instruction` replaces the one in Qwen3-Reranker's prompt.

        A score is what sentence-transformers' CrossEncoder.predict gives: the sigmoid of the logit, or the logit itself
        if config.json says Identity; of Qwen3-Reranker the probability of "yes" against "no".

        Raises OptionError for no documents, a `top_n` beyond their number, and an instruction without a prompt;
        DeviceError for a score that is not finite, OutOfMemoryError if a run does not fit.
        """
        if not documents:
            raise OptionError("documents is empty; give 1 document or more")
        if top_n is not None and not 1 <= top_n <= len(documents):
            raise OptionError(f"top_n is {top_n}; it must be from 1 to {len(documents)}, the number of documents")
        scores = await self._scorer.scores(self._pairs.tokens(query, documents, instruction))
        for place, score in enumerate(scores):
            if not math.isfinite(score):
                raise DeviceError(
                    f"the score of documents[{place}] is {score} on {self.device}; load the model with device='wasm'"
                )
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_n]
        return [RerankResult(at, scores[at], documents[at] if return_documents else None) for at in order]

    async def aclose(self) -> None:
        """Free the model. Closing twice is harmless."""
        await self._scorer.aclose()

    async def __aenter__(self) -> Reranker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class HasCachesError(Exception):
    """The graph is a decoder with caches, which a Model runs."""


class PromptedGraph:
    """The graph of a decoder or a classifier that takes prompts."""

    def __init__(self) -> None:
        self.decodes = False
        """Whether the graph gives the logits of a vocabulary."""

    def rewrite(self, model: ModelProto) -> ModelProto:
        """Keep the logits of the last token, or the one label. Raises UnsupportedModelError, HasCachesError."""
        if any(value.name.startswith("past_key_values") for value in model.graph.input):
            raise HasCachesError
        if rank_of(model) != 3:
            return classifier(model)
        require_texts_only(model)
        self.decodes = True
        return last_logits(model, LOGITS)


def classifier(model: ModelProto) -> ModelProto:
    """The graph of a classifier of one label, with its logits in float32. Raises UnsupportedModelError for others."""
    require_texts_only(model)
    if rank_of(model) not in (None, 2) or all(value.name != LOGITS for value in model.graph.output):
        there = ", ".join(repr(value.name) for value in model.graph.output)
        raise UnsupportedModelError(
            f"the graph's outputs are {there}; a reranker gives {LOGITS} [B, 1]: load encoders of vectors by "
            "Capstan.loadEmbedder, in Python by capstan.embeddings.Embedder"
        )
    [output] = [value for value in model.graph.output if value.name == LOGITS]
    dims = output.type.tensor_type.shape.dim
    if dims and dims[1].dim_value > 1:
        raise UnsupportedModelError(several(dims[1].dim_value))
    return pooled(model, None, LOGITS)


def rank_of(model: ModelProto) -> int | None:
    """The number of dimensions of the logits; None if it is unknown."""
    found = [value.type.tensor_type for value in model.graph.output if value.name == LOGITS]
    return len(found[0].shape.dim) if found and found[0].HasField("shape") else None


def answers(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of "yes" and "no". Raises ConfigError."""
    yes, no = tokenizer.to_token_id("yes"), tokenizer.to_token_id("no")
    if yes < 0 or no < 0:
        raise ConfigError(
            f"tokenizer.json: it has no token {'yes' if yes < 0 else 'no'!r}, with which Qwen3-Reranker answers; copy "
            "the file again, or use another model"
        )
    return yes, no
