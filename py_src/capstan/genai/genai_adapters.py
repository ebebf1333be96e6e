"""LoRA adapters by name."""

from __future__ import annotations

from ..adapters import Adapters as CapstanAdapters
from .genai_model import Model

__all__ = ["Adapters"]


class Adapters:
    """LoRA adapters of a model, from `.onnx_adapter` files. `capstan` is the capstan.Adapters behind it.

    Unlike in the native package, an adapter that does not fit the model is refused when it is loaded.
    """

    def __init__(self, model: Model, /) -> None:
        self.capstan = CapstanAdapters(model.capstan)

    def load(self, path: str, name: str, /) -> None:
        """Load a file under a name: a path, or in a page a URL below the model's folder."""
        self.capstan.load(path, name)

    def unload(self, name: str, /) -> None:
        """Free an adapter that no generator uses. OptionError while one has it, and for an unknown name."""
        self.capstan.unload(name)
