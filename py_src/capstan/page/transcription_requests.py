"""Answers requests about speech, by the one transcriber of this worker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from .._js import host_calls
from ..errors import OptionError
from ..loading.load_options import EmbedderOptions, taken
from ..model import Model
from ..model_files.hub import HubRepository
from ..speech.transcriber import MOST_BYTES, Transcriber
from .requests import LoadTranscriberRequest, TranscribeRequest

__all__ = ["load_transcriber", "transcribe"]

loaded: tuple[Model, Transcriber] | None = None


async def load_transcriber(request: LoadTranscriberRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load a speech model, in the place of one that was loaded before."""
    global loaded
    if loaded is not None:
        await loaded[0].aclose()
        loaded = None
    host_calls.emit({"kind": "status", "text": f"loading {folder}"})
    # For speech, onnxruntime-genai's builder writes into every folder that nothing is captured.
    model = await Model.load(folder, **taken(EmbedderOptions, request), capture="tape")
    try:
        loaded = model, Transcriber(model)
    except BaseException:
        await model.aclose()
        raise
    return {"device": model.device_type, "languages": loaded[1].languages}


async def transcribe(request: TranscribeRequest, samples: Any) -> dict[str, Any]:
    """A TranscribeResult of web/src/wire/protocol.ts; its segments are events, too. `samples` came with the request."""
    if loaded is None:
        raise OptionError("no speech model is loaded; ask with load_transcriber first")
    sound = samples
    if (file := request.get("file")) is not None:
        sound = await host_calls.fetch_bytes(file, MOST_BYTES)
    elif sound is None:
        raise OptionError("no sound came with the request; give samples, or the address of a file")
    run = loaded[1].run(
        sound,
        language=request.get("language"),
        task=request.get("task") or "transcribe",
        timestamps=bool(request.get("timestamps")),
    )
    ended = True
    try:
        async for segment in run:
            host_calls.emit({"kind": "segment", **asdict(segment)})
    except asyncio.CancelledError:
        ended = False
    result = run.result
    return {**asdict(result), "ended": ended, "vtt": result.vtt() if request.get("timestamps") else None}
