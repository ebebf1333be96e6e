"""Runs the encoder of a speech model once for each sound, in a session on the decoder's device."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from math import prod
from struct import pack

from .. import graph
from ..errors import OutOfMemoryError, SoundError, TapeError, UnsupportedModelError
from ..fallback import fall_back
from ..graph import GraphDescription, TensorInfo
from ..graph.carried import cross_names
from ..host import Host
from ..host.storage_interface import ExternalData
from ..memory import DeviceBuffer
from ..model_files.genai_config import ENCODER, EncoderConfig, GenaiConfig
from .device_interface import BoundSpan, DeviceInterface, DeviceSession, DeviceTape
from .element_types import byte_count
from .host_memory import view_of
from .run_input import HostTensor

__all__ = ["Features", "SpeechEncoder", "open_encoder", "open_session", "with_weights"]

CODES = {"float32": "f", "float16": "e"}
"""Element types of features, as `struct` writes them."""


@dataclass(frozen=True)
class Features:
    """An encoder's input for one sound or picture."""

    dtype: str
    dims: tuple[int, ...]
    data: bytes
    digest: str
    """Features with equal digests are equal."""
    grid: tuple[int, ...] = ()
    """Frames, rows and columns of a picture's patches, for models that take pictures of any size."""


@dataclass(frozen=True)
class Recorded:
    """A run's tape, with the buffers that it owns."""

    tape: DeviceTape
    feed: BoundSpan
    fetches: Sequence[BoundSpan]


class SpeechEncoder:
    """The encoder's session, and the decoder's input for each of its outputs."""

    def __init__(
        self, device: DeviceInterface, session: DeviceSession, config: EncoderConfig, decoder: GraphDescription
    ):
        """Raises UnsupportedModelError for a graph that does not fit the configuration or the decoder."""
        self._device, self._session = device, session
        outputs = {spec.name: spec for spec in session.outputs}
        names = cross_names(config.cross, decoder.num_layers)
        self._targets: dict[str, TensorInfo] = dict(zip(names, decoder.cross, strict=True))
        for name, target in self._targets.items():
            found = outputs.get(name)
            if found is None or found.dtype != target.dtype or found.dims[1:] != target.dims[1:]:
                shown = "is not there" if found is None else f"is {found.dtype} {list(found.dims)}"
                raise UnsupportedModelError(
                    f"{config.filename}: the output {name} {shown}; the decoder's {target.name} is {target.dtype} "
                    f"{list(target.dims)}: export both again"
                )
        others = [spec.name for spec in session.inputs if spec.name != config.features]
        found = next((spec for spec in session.inputs if spec.name == config.features), None)
        if found is None or others:
            shown = ", ".join(f"{spec.name} {list(spec.dims)}" for spec in session.inputs)
            raise UnsupportedModelError(
                f"{config.filename} has the inputs {shown}; it needs exactly one, {config.features}"
            )
        self._input = config.features
        self.dtype = found.dtype
        """The element type of features."""
        self.dims = (1, *(size if isinstance(size, int) else 0 for size in found.dims[1:]))
        """The shape of features for one sound; 0 for a size that differs from sound to sound."""
        self._recorded: Recorded | None = None

    @asynccontextmanager
    async def heard(self, features: Features) -> AsyncIterator[dict[str, BoundSpan]]:
        """Run the encoder. Yields its outputs by the names of the decoder's inputs; they are valid until the end of the
        block or the next run. Raises SoundError for features of a wrong size.
        """
        sizes = tuple(own and size for own, size in zip(self.dims, features.dims, strict=False))
        if (features.dtype, sizes, len(features.dims)) != (self.dtype, self.dims, len(self.dims)):
            raise SoundError(
                f"features are {features.dtype} {list(features.dims)}; the encoder takes {self.dtype} {list(self.dims)}"
            )
        if self._recorded is not None:
            self._device.copy_cpu_to_device(self._recorded.feed.span, features.data)
            self._recorded.tape.replay()
            yield self._named(self._recorded.fetches)
            return
        with closing(self._feed(features.data)) as held:
            found = await self._session.run([self._bound(held, features.dims)], list(self._targets))
        try:
            yield self._named(found)
        finally:
            free(found)

    async def record(self) -> None:
        """Run once and record the run, so that later runs are replays. A run that cannot be recorded is a fallback."""
        if self._recorded is not None or 0 in self.dims:
            return
        count, code = prod(self.dims), CODES[self.dtype]
        # Neighbouring elements differ, so that a comparison finds values in the wrong place.
        held = self._feed(pack(f"{count}{code}", *((place * 7919 % 2001 - 1000) / 1000 for place in range(count))))
        own = [self._bound(held, self.dims)]
        try:
            made = await self._session.run(own[:1], list(self._targets))
            own += [self._like(each) for each in made]
            free(made)
            self._recorded = Recorded(await self._session.record(own[:1], own[1:]), own[0], own[1:])
        except (TapeError, OutOfMemoryError) as error:
            fall_back("a recorded encoder", str(error), "each sound runs it eagerly")
        finally:
            if self._recorded is None:
                free(own)

    def _like(self, made: BoundSpan) -> BoundSpan:
        """New memory for a tensor of the same shape. onnxruntime-web may free the memory that it made for a run."""
        held = self._device.allocate(byte_count(made.dtype, made.dims), label=made.name, category="io")
        return replace(made, span=held.span())

    def _feed(self, data: bytes) -> DeviceBuffer:
        held = self._device.allocate(len(data), label="features", category="io")
        self._device.copy_cpu_to_device(held.span(), data)
        return held

    def _bound(self, held: DeviceBuffer, dims: tuple[int, ...]) -> BoundSpan:
        return BoundSpan(self._input, held.span(), self.dtype, dims)

    def _named(self, found: Sequence[BoundSpan]) -> dict[str, BoundSpan]:
        return {target.name: each for target, each in zip(self._targets.values(), found, strict=True)}

    async def close(self) -> None:
        """Free the session and the recording."""
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            await recorded.tape.close()
            free([recorded.feed, *recorded.fetches])
        await self._session.close()


def free(spans: Sequence[BoundSpan]) -> None:
    for each in spans:
        each.span.buffer.close()


def on_host(heard: Mapping[str, BoundSpan]) -> list[HostTensor]:
    """Convert an encoder's outputs in Python's heap to inputs of a decoder."""
    return [HostTensor(name, each.dtype, each.dims, view_of(each.span)) for name, each in heard.items()]


def with_weights(config: GenaiConfig, data: bytes) -> GenaiConfig:
    """The configuration with the additional needs of the graph that reads sounds or pictures, whose file is `data`.
    Raises ModelFileError, UnsupportedModelError.
    """
    about = config.encoder or config.vision
    assert about is not None
    entries = graph.external_entries(graph.parse(data, about.filename))
    weights = tuple((entry.name, entry.length) for entry in entries)
    if isinstance(about, EncoderConfig):
        return replace(config, encoder=replace(about, weights=weights))
    return replace(config, vision=replace(about, weights=weights))


async def open_encoder(
    host: Host,
    folder: str,
    config: GenaiConfig,
    data: bytes,
    device: DeviceInterface,
    decoder: GraphDescription,
    keep: bool,
) -> SpeechEncoder:
    """Open the encoder of a model folder on the decoder's device; `data` is the file of its graph. Raises
    ModelFileError, UncomputedError, UnsupportedModelError, OutOfMemoryError."""
    about = config.encoder
    assert about is not None
    session = await open_session(host, folder, about.filename, data, device, keep, ENCODER)
    try:
        return SpeechEncoder(device, session, about, decoder)
    except UnsupportedModelError:
        await session.close()
        raise


async def open_session(
    host: Host, folder: str, filename: str, data: bytes, device: DeviceInterface, keep: bool, owner: str
) -> DeviceSession:
    """Open a session over another graph of the model folder, and its data files."""
    parsed = graph.parse(data, filename)
    if device.type in ("webgpu", "wasm"):
        graph.require_computed(parsed, device.type, position_ids="")
    place = folder + filename[: filename.rfind("/") + 1]
    ends = graph.data_ends(parsed)
    external = ExternalData(place, ends, lambda location: host.open_weights(place, location, keep))
    return await device.create_session(data, external=external if ends else None, owner=owner)
