"""Runs rerankers: a classifier of pairs, or a decoder that answers yes or no, with or without caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import UnsupportedModelError
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..graph.pooling import POOLED
from ..model import Model
from ..text.stream import alike
from ..text_encoder import TextEncoder, Tokens

__all__ = ["CachedDecoder", "Classifier", "Decoder", "Scorer", "activation_of", "sigmoid"]


class Scorer(Protocol):
    """A model that gives each row of tokens a score."""

    @property
    def device(self) -> str: ...

    async def scores(self, rows: Sequence[Tokens]) -> list[float]: ...

    async def aclose(self) -> None: ...


class Classifier:
    """A graph with one logit for each row."""

    def __init__(self, encoder: TextEncoder, activation: Callable[[float], float]) -> None:
        self._encoder, self._activation = encoder, activation
        self.aclose = encoder.aclose

    @property
    def device(self) -> str:
        return self._encoder.device

    async def scores(self, rows: Sequence[Tokens]) -> list[float]:
        found = await self._encoder.run(rows, POOLED)
        if (labels := max(map(len, found))) != 1:
            raise UnsupportedModelError(several(labels))
        return [self._activation(logit) for [logit] in found]


class Decoder:
    """A graph without caches, with the logits of the last token: rows run one at a time, without padding."""

    def __init__(self, encoder: TextEncoder, yes: int, no: int) -> None:
        self._encoder, self._yes, self._no = encoder, yes, no
        self.aclose = encoder.aclose

    @property
    def device(self) -> str:
        return self._encoder.device

    async def scores(self, rows: Sequence[Tokens]) -> list[float]:
        found: list[float] = []
        for row in rows:
            [logits] = await self._encoder.run([row], POOLED)
            found.append(sigmoid(logits[self._yes] - logits[self._no]))
        return found


class CachedDecoder:
    """A decoder with caches: rows that begin like the row before continue from there."""

    def __init__(self, model: Model, yes: int, no: int) -> None:
        self._model, self._yes, self._no = model, yes, no
        self.aclose = model.aclose

    @property
    def device(self) -> str:
        return self._model.device_type

    async def scores(self, rows: Sequence[Tokens]) -> list[float]:
        params = GeneratorParams(self._model)
        params.set_search_options(max_length=max(len(row.ids) for row in rows))
        found: list[float] = []
        async with Generator(self._model, params) as generator:
            for row in rows:
                shared = min(alike(generator.get_sequence(), row.ids), len(row.ids) - 1)
                generator.rewind_to(shared)
                generator.append_tokens(row.ids[shared:])
                known = await generator.log_probabilities_async(1, [self._yes, self._no])
                found.append(sigmoid(known[self._yes] - known[self._no]))
        return found


def several(labels: int) -> str:
    """The message about a graph with several labels."""
    return (
        f"the graph gives {labels} labels for a pair, as a classifier does; a reranker gives 1: use a model that was "
        "trained to rank"
    )


def activation_of(about: Mapping[str, Any]) -> Callable[[float], float]:
    """The function from a logit to a score that sentence-transformers' CrossEncoder finds in config.json; sigmoid if it
    has none. Raises UnsupportedModelError for other functions.
    """
    section = about.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, dict) else None
    named = named or about.get("sbert_ce_default_activation_function") or "Sigmoid"
    kind = str(named).rpartition(".")[2]
    if kind not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json: activation_fn is {named!r}; Capstan computes {' and '.join(ACTIVATIONS)}: change it to one "
            "of these, or use another model"
        )
    return ACTIVATIONS[kind]


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


ACTIVATIONS: Mapping[str, Callable[[float], float]] = {"Sigmoid": sigmoid, "Identity": float}
