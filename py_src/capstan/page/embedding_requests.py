"""Answers requests about text embeddings, by the one encoder of this worker."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from ..embeddings import Embedder
from ..loading.load_options import EmbedderOptions, taken
from ..model_files.hub import HubRepository
from .loaded_one import LoadedOne
from .requests import EmbedRequest, LoadEmbedderRequest

__all__ = ["embed", "load_embedder"]

loaded: LoadedOne[Embedder] = LoadedOne("encoder", "load_embedder")


async def load_embedder(request: LoadEmbedderRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load an encoder, and close the one that was loaded before."""
    options = taken(EmbedderOptions, request)
    encoder = await loaded.load(folder, Embedder.load(folder, pooling=request["pooling"], **options))
    return {"device": encoder.device, "pooling": encoder.pooling, "max_tokens": encoder.max_tokens}


async def embed(request: EmbedRequest) -> dict[str, Any]:
    """An EmbedResult of web/src/wire/protocol.ts."""
    vectors, tokens = await loaded.get().embed_counted(request["texts"])
    whole = b64encode(b"".join(vectors)).decode()
    return {"vectors": whole, "dimensions": len(vectors[0]) if vectors else 0, "tokens": tokens}
