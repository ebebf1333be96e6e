"""Defines the names of onnxruntime-genai that Capstan does not implement. Each raises an error that has the name."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import UnsupportedModelError
from .genai_model import Model

__all__ = ["MtpGenerator", "StreamingProcessor"]

NO_PAIR = (
    "a head is no model of its own here; make a Generator of the folder whose genai_config.json has model.mtp: it "
    "drafts with that head on the CPU, and picks the same tokens"
)
TEXT_ONLY = "give a prompt as text, or a file of sound to a Whisper model"


def refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedModelError(f"{what}: {why}")


class StreamingProcessor:
    """The native package's splitter of speech. Creating it raises UnsupportedModelError, because Capstan does not load
    the models that need it.
    """

    def __init__(self, model: Model, /) -> None:
        refuse("StreamingProcessor", f"streaming models are not supported, and this one is {model.type!r}; {TEXT_ONLY}")

    def process(self, audio_chunk: Any) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("StreamingProcessor", TEXT_ONLY)

    def flush(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("StreamingProcessor", TEXT_ONLY)

    def get_option(self, key: str) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("StreamingProcessor", TEXT_ONLY)

    def set_option(self, key: str, value: str) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("StreamingProcessor", TEXT_ONLY)


class MtpGenerator:
    """The native package's speculation by a multi-token-prediction head that is a second Model. Creating it raises
    UnsupportedModelError; `Generator` drafts with the head of a folder whose configuration has `model.mtp`.
    """

    def __init__(self, model: Model, head: Model, params: Any, /) -> None:
        refuse("MtpGenerator", NO_PAIR)

    def append_tokens(self, tokens: Any, /) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)

    def generate_next_token(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)

    def get_sequence(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)

    def get_stats(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)

    def is_done(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)

    def reset(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", NO_PAIR)
