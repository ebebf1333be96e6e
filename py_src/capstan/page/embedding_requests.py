"""Answers requests about text embeddings, by the one encoder of this worker."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from .._js import host_calls
from ..embeddings import Embedder
from ..errors import OptionError
from ..loading.load_options import EmbedderOptions, taken
from ..model_files.hub import HubRepository
from .requests import EmbedRequest, LoadEmbedderRequest

__all__ = ["embed", "load_embedder"]

loaded: Embedder | None = None


async def load_embedder(request: LoadEmbedderRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load an encoder, in the place of one that was loaded before."""
    global loaded
    if loaded is not None:
        await loaded.aclose()
        loaded = None
    host_calls.emit({"kind": "status", "text": f"loading {folder}"})
    loaded = await Embedder.load(folder, pooling=request["pooling"], **taken(EmbedderOptions, request))
    return {"device": loaded.device, "pooling": loaded.pooling, "max_tokens": loaded.max_tokens}


async def embed(request: EmbedRequest) -> dict[str, Any]:
    """An EmbedResult of web/src/wire/protocol.ts."""
    if loaded is None:
        raise OptionError("no encoder is loaded; ask with load_embedder first")
    vectors, tokens = await loaded.embed_counted(request["texts"])
    whole = b64encode(b"".join(vectors)).decode()
    return {"vectors": whole, "dimensions": len(vectors[0]) if vectors else 0, "tokens": tokens}
