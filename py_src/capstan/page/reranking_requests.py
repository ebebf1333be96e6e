"""Answers requests about rankings of documents, by the one reranker of this worker."""

from __future__ import annotations

from typing import Any

from ..loading.load_options import EmbedderOptions, taken
from ..model_files.hub import HubRepository
from ..reranking import Reranker
from .loaded_one import LoadedOne
from .requests import LoadRerankerRequest, RerankRequest

__all__ = ["load_reranker", "rerank"]

loaded: LoadedOne[Reranker] = LoadedOne("reranker", "load_reranker")


async def load_reranker(request: LoadRerankerRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load a reranker, and close the one that was loaded before."""
    reranker = await loaded.load(folder, Reranker.load(folder, **taken(EmbedderOptions, request)))
    return {"device": reranker.device, "max_tokens": reranker.max_tokens}


async def rerank(request: RerankRequest) -> list[dict[str, Any]]:
    """The list of all documents, the best first: RankedDocument of web/src/wire/protocol.ts."""
    found = await loaded.get().rerank(request["query"], request["documents"], instruction=request.get("instruction"))
    return [{"index": each.index, "score": each.score} for each in found]
