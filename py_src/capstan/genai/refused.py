"""Defines the names of onnxruntime-genai that Capstan does not implement. Each raises an error that has the name."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import UnsupportedModelError
from .genai_model import Model

__all__ = ["MtpGenerator", "StreamingProcessor"]

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
    """The native package's speculation by additional heads of a model. Creating it raises UnsupportedModelError;
    `Generator` picks the same tokens.
    """

    def __init__(self, model: Model, head: Model, params: Any, /) -> None:
        refuse("MtpGenerator", "multi-token prediction is not implemented; use Generator, which picks the same tokens")

    def append_tokens(self, tokens: Any, /) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")

    def generate_next_token(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")

    def get_sequence(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")

    def get_stats(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")

    def is_done(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")

    def reset(self) -> NoReturn:
        """Refused with UnsupportedModelError."""
        refuse("MtpGenerator", "multi-token prediction is not implemented")
