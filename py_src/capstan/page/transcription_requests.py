"""Answers requests about speech, by the one transcriber of this worker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .._js import host_calls
from ..errors import OptionError
from ..loading.load_options import EmbedderOptions, taken
from ..model import Model
from ..model_files.hub import HubRepository
from ..speech.caption import LiveOptions
from ..speech.transcriber import MOST_BYTES, Transcriber
from .requests import ListenRequest, LoadTranscriberRequest, TranscribeRequest

if TYPE_CHECKING:
    from ..speech.listener import Listener

__all__ = ["listen", "load_transcriber", "transcribe"]

loaded: tuple[Model, Transcriber] | None = None
listeners: dict[int, Listener] = {}
"""The sounds that are being heard, by the page's numbers."""


async def load_transcriber(request: LoadTranscriberRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load a speech model, in the place of one that was loaded before."""
    global loaded
    if loaded is not None:
        while listeners:
            await listeners.popitem()[1].aclose()
        await loaded[0].aclose()
        loaded = None
    host_calls.emit({"kind": "status", "text": f"loading {folder}"})
    # For speech, onnxruntime-genai's builder writes into every folder that nothing is captured.
    model = await Model.load(folder, **taken(EmbedderOptions, request), capture="tape", hears=True)
    try:
        transcriber = Transcriber(model)
        await transcriber.prepare_async()
        loaded = model, transcriber
    except BaseException:
        await model.aclose()
        raise
    return {"device": model.device_type, "languages": transcriber.languages}


async def transcribe(request: TranscribeRequest, samples: Any) -> dict[str, Any]:
    """A TranscribeResult of web/src/wire/protocol.ts; its segments are events, too. `samples` came with the request."""
    sound = samples
    if (file := request.get("file")) is not None:
        sound = await host_calls.fetch_bytes(file, MOST_BYTES)
    elif sound is None:
        raise OptionError("no sound came with the request; give samples, or the address of a file")
    run = transcriber().run(
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


async def listen(request: ListenRequest, samples: Any) -> bool:
    """Captions of the samples that came with the request, as events; False if it was cancelled."""
    number, action = request["live"], request["action"]
    if action == "begin":
        options = {name: request.get(name) for name in vars(LiveOptions())}
        given = {name: value for name, value in options.items() if value is not None}
        listeners[number] = await transcriber().listener(LiveOptions(**given))  # type: ignore[arg-type]
        return True
    listener = listeners.get(number)
    if listener is None and action == "drop":
        return True
    if listener is None:
        raise OptionError(f"sound {number} was not begun, or its worker was replaced; listen again")
    try:
        if action != "drop":
            async for caption in listener.hear(samples) if action == "hear" else listener.end():
                host_calls.emit({"kind": "caption", **asdict(caption)})
    except asyncio.CancelledError:
        return False
    finally:
        if action != "hear":
            del listeners[number]
            await listener.aclose()
    return True


def transcriber() -> Transcriber:
    """The one that was loaded. Raises OptionError."""
    if loaded is None:
        raise OptionError("no speech model is loaded; ask with load_transcriber first")
    return loaded[1]
