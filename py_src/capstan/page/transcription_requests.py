"""Answers requests about speech, by the one transcriber of this worker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .._js import host_calls
from ..errors import OptionError
from ..loading.load_options import EmbedderOptions, taken
from ..model import Model
from ..model_files.hub import HubRepository
from ..speech.caption import LiveOptions
from ..speech.transcriber import MOST_BYTES, Transcriber
from .loaded_one import LoadedOne
from .requests import ListenRequest, LoadTranscriberRequest, TranscribeRequest

if TYPE_CHECKING:
    from ..speech.listener import Listener

__all__ = ["listen", "load_transcriber", "transcribe"]

listeners: dict[int, Listener] = {}
"""The sounds in progress, by the page's numbers."""


@dataclass(frozen=True)
class SpeechModel:
    """A transcriber with the model that it uses."""

    model: Model
    transcriber: Transcriber

    async def aclose(self) -> None:
        while listeners:
            await listeners.popitem()[1].aclose()
        await self.model.aclose()


loaded: LoadedOne[SpeechModel] = LoadedOne("speech model", "load_transcriber")


async def load_transcriber(request: LoadTranscriberRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load a speech model, and close the one that was loaded before."""
    speech = await loaded.load(folder, opened(request, folder))
    return {"device": speech.model.device_type, "languages": speech.transcriber.languages}


async def opened(request: LoadTranscriberRequest, folder: str | HubRepository) -> SpeechModel:
    # For speech, onnxruntime-genai's builder turns capture off in every folder.
    model = await Model.load(folder, **taken(EmbedderOptions, request), capture="tape", hears=True)
    try:
        transcriber = Transcriber(model)
        await transcriber.prepare_async()
    except BaseException:
        await model.aclose()
        raise
    return SpeechModel(model, transcriber)


async def transcribe(request: TranscribeRequest, samples: Any) -> dict[str, Any]:
    """A TranscribeResult of web/src/wire/protocol.ts; its segments are also events. `samples` are attached to the
    request.
    """
    sound = samples
    if (file := request.get("file")) is not None:
        sound = await host_calls.fetch_bytes(file, MOST_BYTES, remedy="check the sound's address")
    elif sound is None:
        raise OptionError("the request has no sound; attach samples, or give the address of a file")
    run = loaded.get().transcriber.run(
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
    """Send captions of the request's samples as events. Returns False if the captions were cancelled."""
    number, action = request["live"], request["action"]
    if action == "begin":
        options = {name: request.get(name) for name in vars(LiveOptions())}
        given = {name: value for name, value in options.items() if value is not None}
        listeners[number] = await loaded.get().transcriber.listener(LiveOptions(**given))  # type: ignore[arg-type]
        return True
    listener = listeners.get(number)
    if listener is None and action == "drop":
        return True
    if listener is None:
        raise OptionError(f"sound {number} is unknown, or its worker was replaced; listen again")
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
