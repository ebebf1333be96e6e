"""A model, from a folder or a changed configuration."""

from __future__ import annotations

from typing import NoReturn

from .. import model as capstan_model
from ..errors import UnsupportedModelError
from .changed_config import Config

__all__ = ["Model"]

NAMES = {"webgpu": "WebGPU", "wasm": "CPU", "reference": "CPU"}


class Model:
    """The model of a folder's path or of a Config. `capstan` is the capstan.Model behind it.

    A model that is dropped is freed, as in the native package; `model.capstan.close()` frees it now.
    """

    def __init__(self, source: Config | str, /) -> None:
        if isinstance(source, str):
            source = Config(source)
        self.capstan = capstan_model.Model(source._path, **source.choice())

    @property
    def type(self) -> str:
        """The model type, as 'llama'."""
        return self.capstan.type

    @property
    def device_type(self) -> str:
        """'WebGPU' or 'CPU'."""
        return NAMES[self.capstan.device_type]

    def create_multimodal_processor(self) -> NoReturn:
        """UnsupportedModelError: models of images and audio are refused at load."""
        raise UnsupportedModelError(f"a multimodal processor: a model of type {self.type!r} takes text only")

    def create_streaming_processor(self) -> NoReturn:
        """UnsupportedModelError: models of speech are refused at load."""
        raise UnsupportedModelError(f"a streaming processor: a model of type {self.type!r} takes text only")
