"""Answers requests for speech, by the one voice of this worker."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from ..loading.load_options import EmbedderOptions, taken
from ..model_files.hub import HubRepository
from ..speech.voice import Voice
from .loaded_one import LoadedOne
from .requests import LoadVoiceRequest, SpeakRequest

__all__ = ["load_voice", "speak"]

loaded: LoadedOne[Voice] = LoadedOne("voice", "load_voice")


async def load_voice(request: LoadVoiceRequest, folder: str | HubRepository) -> dict[str, Any]:
    """Load a model that speaks, and close the one that was loaded before."""
    voice = await loaded.load(folder, Voice.load(folder, **taken(EmbedderOptions, request)))
    return {"device": voice.device, "voices": voice.voices, "voice": voice.default_voice}


async def speak(request: SpeakRequest) -> dict[str, Any]:
    """A SpeakResult of web/src/wire/protocol.ts."""
    speaker, speed = loaded.get(), request.get("speed")

    async def text() -> AsyncIterator[str]:
        # A part of a longer text may have nothing to speak.
        yield request["text"]

    parts = speaker.speak(
        text(),
        voice=request.get("voice"),
        speed=1.0 if speed is None else speed,
        phonemes=bool(request.get("phonemes")),
    )
    return {"samples": b64encode(b"".join([part async for part in parts])).decode()}
