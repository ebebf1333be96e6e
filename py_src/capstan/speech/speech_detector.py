"""Computes the probability of speech in each window of a sound, with Silero's model (MIT), an ONNX file of the package
silero-vad.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SoundError, UnsupportedModelError
from ..onnxruntime.inference_session import InferenceSession
from .utterances import WINDOW

__all__ = ["SpeechDetector"]

Samples = np.ndarray[Any, np.dtype[np.float32]]
PACKAGE, FILE = "silero_vad", "data/silero_vad_16k_sequence.onnx"
CONTEXT = 64
"""The number of samples before a window that the model hears with it."""
STATES = ("h", "c")
AT_ONCE = 512
"""The number of windows in a run."""


class SpeechDetector:
    """A sound that is heard window by window."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._context = np.zeros(CONTEXT, np.float32)
        self._states = {name: np.zeros((1, 1, 128), np.float32) for name in STATES}

    @classmethod
    async def load(cls, path: str | None) -> SpeechDetector:
        """The detector of a file, by default that of the installed package or, in a page, of the page's files. Raises
        SoundError if there is none, UnsupportedModelError for another model.
        """
        session = await InferenceSession.create(path or installed(), providers=["CPUExecutionProvider"])
        if {*session.inputs} != {"input", *STATES}:
            await session.aclose()
            raise UnsupportedModelError(
                f"{path} takes {', '.join(session.inputs)}; expected input, h and c: give {Path(FILE).name} of the "
                "package silero-vad"
            )
        return cls(session)

    async def probabilities(self, samples: Samples) -> list[float]:
        """A probability for each window of the next samples, which are whole windows."""
        found: list[float] = []
        for start in range(0, len(samples), AT_ONCE * WINDOW):
            part = samples[start : start + AT_ONCE * WINDOW]
            near = np.concatenate([self._context, part])
            self._context = near[-CONTEXT:]
            windows = np.lib.stride_tricks.sliding_window_view(near, CONTEXT + WINDOW)[::WINDOW]
            feed = {"input": np.ascontiguousarray(windows), **self._states}
            outputs = await self._session.run_async(["speech_probs", "hn", "cn"], feed)
            probable, *states = (np.asarray(each, np.float32) for each in outputs)
            self._states = dict(zip(STATES, states, strict=True))
            found += probable.tolist()
        return found

    async def aclose(self) -> None:
        """Free the session."""
        await self._session.aclose()


def installed() -> bytes:
    """The content of the package's file; the package's own code, which needs torch, is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(folder, FILE) for folder in (spec and spec.submodule_search_locations) or ()]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise SoundError(
            "live captions need Silero's detector of speech: `pip install --no-deps silero-vad`, or give "
            f"vad=PATH, the path of its {Path(FILE).name}"
        )
    return found.read_bytes()
