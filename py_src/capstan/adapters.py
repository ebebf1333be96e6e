"""Loads LoRA adapters once for a model; each generator chooses from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from .device.lora_file import MAX_BYTES, require_size
from .errors import ModelFileError, OptionError
from .host import wait_here
from .host.disk_file import read_file
from .host.leaving import when_dropped

if TYPE_CHECKING:
    from .device.lora_weights import LoraWeights
    from .model import Model

__all__ = ["ActiveAdapters", "Adapters", "LoadedAdapter"]


@dataclass(eq=False)
class LoadedAdapter:
    """One adapter on the model's device. It is freed once it is unloaded and no generator uses it."""

    name: str
    weights: LoraWeights
    digest: str
    """The SHA-256 of its file, as hex."""
    users: int = 0
    """The number of generators that use it."""
    unloaded: bool = False

    def release(self) -> None:
        """Count one generator less."""
        self.users -= 1
        self.free()

    def free(self) -> None:
        if self.unloaded and not self.users:
            self.weights.close()


class Adapters:
    """LoRA adapters of a model, in the shape of onnxruntime-genai's Adapters: `.onnx_adapter` files, each under a given
    name.

    The model's graph must have inputs for them, in the form that Olive's extract-adapters pass writes. Generators run
    without an adapter until `generator.set_active_adapter(adapters, name)`. An adapter takes its tensors' bytes on the
    model's device, once for all generators.

    Dropped adapters are freed without `unload`, once their generators are dropped.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loaded: dict[str, LoadedAdapter] = {}
        loaded = self._loaded

        def free() -> None:
            for entry in loaded.values():
                entry.unloaded = True
                entry.free()

        when_dropped(self, model.host, free)

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded adapters."""
        return tuple(self._loaded)

    @property
    def model(self) -> Model:
        """The adapters' model."""
        return self._model

    async def load_async(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, name: str) -> None:
        """Load an adapter file under a name. `source` is its bytes, a path in Python's file system, a path relative to
        the model's folder, or a URL below it.

        Raises OptionError for a used name, ModelFileError for a file of another kind, BindingError for an adapter that
        does not fit the model, UnsupportedModelError for a model without inputs for adapters, OutOfMemoryError.
        """
        self._require_free(name)
        model = self._model
        what = f"adapter {name!r}"
        if isinstance(source, bytes | bytearray | memoryview):
            data: bytes | bytearray | memoryview = source
        else:
            data, what = await adapter_file(model, os.fspath(source), what)
        weights = await model.load_adapter(data, what)
        try:
            # Another load may have used the name meanwhile.
            self._require_free(name)
        except OptionError:
            weights.close()
            raise
        self._loaded[name] = LoadedAdapter(name, weights, hashlib.sha256(data).hexdigest())

    def load(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, name: str) -> None:
        """`load_async`, blocking."""
        wait_here(self._model.host, self.load_async(source, name), "load", "await load_async(...)")

    def unload(self, name: str) -> None:
        """Free an adapter. Raises OptionError for an unknown name, and while an open generator uses it."""
        entry = self.find(name)
        if entry.users:
            raise OptionError(
                f"adapter {name!r} is still in use by {entry.users} generators; close them before it is unloaded"
            )
        del self._loaded[name]
        entry.unloaded = True
        entry.free()

    def find(self, name: str) -> LoadedAdapter:
        """The adapter of that name. OptionError if there is none."""
        found = self._loaded.get(name)
        if found is None:
            names = ", ".join(map(repr, self._loaded)) or "none"
            raise OptionError(f"adapter {name!r} was not loaded; the loaded ones are: {names}")
        return found

    def _require_free(self, name: str) -> None:
        if name in self._loaded:
            raise OptionError(f"adapter {name!r} is already loaded; unload it, or use another name")


async def adapter_file(model: Model, path: str, what: str) -> tuple[bytes, str]:
    """The bytes of an adapter file, at most MAX_BYTES, and its name in messages."""
    named = f"{what} ({path})"
    local = local_file(Path(path), named)
    if local is not None:
        return local, named
    folder = model.folder
    below = path.removeprefix(folder)
    parts = unquote(below).replace("\\", "/").split("/")
    if not below or not parts[0] or ".." in parts or ":" in below:
        raise ModelFileError(
            f"{named}: there is no such file and no such address below the model's folder {folder}; give an existing "
            "path, a file of the model's folder, or the file's bytes"
        )
    return await model.host.read(folder, below, MAX_BYTES), named


def local_file(file: Path, named: str) -> bytes | None:
    """The bytes of a file in Python's file system; None if there is none."""
    if not file.is_file():
        return None
    require_size(file.stat().st_size, named)
    return read_file(file, MAX_BYTES)


@dataclass(eq=False)
class Choice:
    """The adapters that a generator uses for the tokens after the first `before`."""

    before: list[int]
    """The number of tokens of each row that run without them."""
    layers: tuple[LoadedAdapter, ...]


@dataclass
class ActiveAdapters:
    """The adapters of one generator, and the first token of each row for which they apply."""

    container: Adapters | None = None
    """The adapters' container: a generator uses adapters of only one."""
    layers: tuple[LoadedAdapter, ...] = ()
    """The adapters of the coming tokens, in the order in which they were set."""
    pending: list[Choice] = field(default_factory=list)
    """The adapters with which no token has run yet."""
    made: list[LoraWeights] = field(default_factory=list)
    """The combinations of several adapters."""

    def add(self, adapters: Adapters, name: str, before: Sequence[int]) -> None:
        """Add an adapter for the tokens of each row after its first `before[row]`. Raises OptionError for an unknown
        name, or a different Adapters object than before.
        """
        if self.container is not None and self.container is not adapters:
            raise OptionError(
                f"adapter {name!r} belongs to another Adapters object than this generator's first one; load all of a "
                "generator's adapters with one object, or make another generator"
            )
        self.container = adapters
        entry = adapters.find(name)
        entry.users += 1
        self.layers = (*self.layers, entry)
        if self.pending and self.pending[-1].before == list(before):
            self.pending.pop()
        self.pending.append(Choice(list(before), self.layers))

    def cut(self, length: int) -> None:
        """Note that each sequence now has at most `length` tokens."""
        for choice in self.pending:
            choice.before = [min(place, length) for place in choice.before]

    def first(self, row: int, tokens: int) -> int:
        """The number of a row's tokens that run before the next choice applies."""
        return min(tokens, self.pending[0].before[row]) if self.pending else tokens

    @property
    def at_start(self) -> bool:
        """Whether the adapters that are chosen next apply from the first token."""
        return bool(self.pending) and not any(self.pending[0].before)

    async def weights(self, choice: Choice) -> LoraWeights:
        """The weights of a choice on the device; several adapters are combined once."""
        layers = choice.layers
        if len(layers) == 1:
            return layers[0].weights
        assert self.container is not None
        model = self.container.model
        owner = f"{model.folder} adapters {', '.join(layer.name for layer in layers)}"
        self.made.append(await model.combine_adapters([layer.weights for layer in layers], owner))
        return self.made[-1]

    def chosen(self, choice: Choice) -> None:
        """Note that the adapters of `choice` are in use from now on."""
        if self.pending and self.pending[0] is choice:
            self.pending.pop(0)

    def release(self) -> None:
        """Release the adapters of a closed generator."""
        layers, self.layers, self.pending = self.layers, (), []
        for weights in self.made:
            weights.close()
        self.made.clear()
        for layer in layers:
            layer.release()
