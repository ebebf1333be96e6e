"""Loads a model from a folder or a changed configuration, and keeps its LoRA adapters by name."""

from __future__ import annotations

from typing import NoReturn

from .. import model as capstan_model
from ..adapters import Adapters as CapstanAdapters
from ..errors import UnsupportedModelError
from .changed_config import Config
from .multimodal_processor import MultiModalProcessor

__all__ = ["Adapters", "Model"]

NAMES = {"webgpu": "WebGPU", "wasm": "CPU", "reference": "CPU"}


class Model:
    """The model of a folder's path or of a Config. `capstan` is the capstan.Model that it wraps.

    A model that is dropped is freed, as in the native package; `model.capstan.close()` frees it now.
    """

    def __init__(self, source: Config | str, /) -> None:
        if isinstance(source, str):
            source = Config(source)
        self.capstan = capstan_model.Model(source._path, **source.choice())

    @property
    def type(self) -> str:
        """The model type, such as 'llama'."""
        return self.capstan.type

    @property
    def device_type(self) -> str:
        """'WebGPU' or 'CPU'."""
        return NAMES[self.capstan.device_type]

    def create_multimodal_processor(self) -> MultiModalProcessor:
        """The processor of a model's sounds or pictures. UnsupportedModelError for text models."""
        return MultiModalProcessor._of(self.capstan)

    def create_streaming_processor(self) -> NoReturn:
        """Always raises UnsupportedModelError: Capstan does not load streaming models."""
        raise UnsupportedModelError(f"there is no streaming processor: a model of type {self.type!r} takes no stream")


class Adapters:
    """LoRA adapters of a model, from `.onnx_adapter` files. `capstan` is the capstan.Adapters that it wraps.

    Unlike in the native package, an adapter that does not fit the model is refused when it is loaded.
    """

    def __init__(self, model: Model, /) -> None:
        self.capstan = CapstanAdapters(model.capstan)

    def load(self, path: str, name: str, /) -> None:
        """Load a file under a name: a path, or in a page a URL below the model's folder."""
        self.capstan.load(path, name)

    def unload(self, name: str, /) -> None:
        """Free an adapter that no generator uses. Raises OptionError while a generator uses it, and for an unknown
        name.
        """
        self.capstan.unload(name)
