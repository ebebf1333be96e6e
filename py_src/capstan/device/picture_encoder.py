"""Runs a model's vision graph once for each picture, in a session on the decoder's device."""

from __future__ import annotations

from array import array
from asyncio import Lock
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from math import prod

from ..errors import PictureError, UnsupportedModelError
from ..graph import GraphDescription, parse
from ..graph.spliced_embedding import placeholder
from ..host import Host
from ..host.notes import Notes
from ..model_files.genai_config import FEATURES, VISION, GenaiConfig, VisionConfig
from .device_interface import BoundSpan, DeviceInterface, DeviceSession
from .element_types import byte_count
from .host_memory import view_of
from .run_input import HostTensor
from .speech_encoder import Features, open_session

__all__ = ["PictureEncoder", "grid_features", "host_tensor", "open_picture_encoder"]


class PictureEncoder:
    """The vision graph's session."""

    def __init__(
        self,
        device: DeviceInterface,
        session: DeviceSession,
        config: VisionConfig,
        decoder: GraphDescription,
        placeholder: int,
    ):
        """Raises UnsupportedModelError for a graph that does not fit the configuration or the decoder."""
        self._device, self._session, self._names = device, session, config
        self.merge = config.merge
        """Rows and columns of patches that become one row of features, in models that take a grid."""
        self.placeholder = placeholder
        """The token id that stands for a row of features in prompts."""
        inputs = {spec.name: spec for spec in session.inputs}
        found = inputs.pop(config.pixels, None)
        if found is None or set(inputs) != {config.grid} - {""}:
            shown = ", ".join(f"{spec.name} {list(spec.dims)}" for spec in session.inputs)
            needed = f"{config.pixels} and {config.grid}" if config.grid else f"exactly one, {config.pixels}"
            raise UnsupportedModelError(f"{config.filename} has the inputs {shown}; it needs {needed}")
        made = next((spec for spec in session.outputs if spec.name == config.features), None)
        target = next(info for info in decoder.others if info.name == FEATURES)
        hidden = target.dims[-1]
        assert isinstance(hidden, int), "the pass that makes the input requires it"
        fits = made is not None and made.dtype == target.dtype
        if made is None or not fits or (isinstance(made.dims[-1], int) and made.dims[-1] != hidden):
            shown = "is not there" if made is None else f"is {made.dtype} {list(made.dims)}"
            raise UnsupportedModelError(
                f"{config.filename}: the output {config.features} {shown}; {config.embedding.filename} takes "
                f"{target.dtype} {list(target.dims)}: export both again"
            )
        self.dtype, self._dims = found.dtype, found.dims[1:]
        """The element type of pixel values, and their sizes for one picture."""
        self._features, self._hidden = target.dtype, hidden
        self._made: dict[str, list[BoundSpan]] = {}
        """The features of the last pictures, by their digests: a conversation repeats its pictures in each turn."""
        self._lock = Lock()

    @asynccontextmanager
    async def seen(self, pictures: Sequence[Features]) -> AsyncIterator[tuple[BoundSpan, list[int]]]:
        """Run the graph once for each picture that was not among the last ones. Yields the features of all, [rows,
        hidden], and the number of rows of each; their memory is freed at the end. Raises PictureError for pixel values
        of a wrong size.
        """
        async with self._lock:
            digests = {picture.digest for picture in pictures}
            for digest in [*self._made]:
                if digest not in digests:
                    freed(self._made.pop(digest))
            for picture in pictures:
                if picture.digest not in self._made:
                    self._made[picture.digest] = await self._run(picture)
            found = [part for picture in pictures for part in self._made[picture.digest]]
            sizes = [byte_count(self._features, (rows_of(part), self._hidden)) for part in found]
            held = self._device.allocate(sum(sizes), label="features of pictures", category="io")
            try:
                starts = [sum(sizes[:place]) for place in range(len(sizes))]
                parts = [held.span().sub(start, size) for start, size in zip(starts, sizes, strict=True)]
                # onnxruntime-web's buffers may be larger than their tensors.
                whole = [part.span.sub(0, size) for part, size in zip(found, sizes, strict=True)]
                self._device.copy_tensors(list(zip(whole, parts, strict=True)))
                rows = [sum(map(rows_of, self._made[picture.digest])) for picture in pictures]
                yield BoundSpan(FEATURES, held.span(), self._features, (sum(rows), self._hidden)), rows
            finally:
                held.close()

    async def _run(self, picture: Features) -> list[BoundSpan]:
        """Compute the features of a picture, tile by tile if it has tiles: attention over all at once takes much
        memory.
        """
        dims = picture.dims[1:]
        fits = len(dims) == len(self._dims) and all(
            got == size for got, size in zip(dims, self._dims, strict=False) if isinstance(size, int)
        )
        if picture.dtype != self.dtype or not fits:
            raise PictureError(
                f"pixel values of a picture are {picture.dtype} {list(dims)}; {self._names.filename} takes "
                f"{self.dtype} {list(self._dims)}: make them with the model's processor"
            )
        tiles = dims[0] if self._names.places else 1
        size, dims = len(picture.data) // tiles, (1, 1, *dims[1:]) if self._names.places else picture.dims
        grid, found = array("q", self._grid(picture)), list[BoundSpan]()
        held = self._device.allocate(size, label="pixel values", category="io")
        told = self._device.allocate(8 * len(grid), label="grid of patches", category="io") if grid else None
        feeds = [BoundSpan(self._names.pixels, held.span(), self.dtype, dims)]
        try:
            if told is not None:
                self._device.copy_cpu_to_device(told.span(), grid)
                feeds.append(BoundSpan(self._names.grid, told.span(), "int64", (1, len(grid))))
            for tile in range(tiles):
                self._device.copy_cpu_to_device(held.span(), picture.data[tile * size : (tile + 1) * size])
                found += await self._session.run(feeds, [self._names.features])
            if grid and sum(map(rows_of, found)) != prod(grid) // self._names.merge**2:
                raise UnsupportedModelError(
                    f"{self._names.filename} makes {sum(map(rows_of, found))} rows of features from a grid of "
                    f"{[*grid]} patches, which do not fit model.vision.spatial_merge_size {self._names.merge}: "
                    "correct it in genai_config.json"
                )
        except BaseException:
            freed(found)
            raise
        finally:
            held.close()
            if told is not None:
                told.close()
        return found

    def _grid(self, picture: Features) -> tuple[int, ...]:
        """The picture's grid, for a graph that takes one. Raises PictureError if it does not fit the patches."""
        if not self._names.grid:
            return ()
        grid, merge = picture.grid, self._names.merge
        if (
            len(grid) != 3
            or grid[0] != 1
            or min(grid) < 1
            or prod(grid) != picture.dims[0]
            or any(size % merge for size in grid[1:])
        ):
            raise PictureError(
                f"a picture has {picture.dims[0]} patches, but its grid is {[*grid]}: it must have one frame with rows "
                f"and columns in multiples of {merge}; use the patches and the grid of the model's processor"
            )
        return grid

    async def close(self) -> None:
        """Free the session."""
        while self._made:
            freed(self._made.popitem()[1])
        await self._session.close()


def grid_features(dtype: str, width: int, data: bytes, grid: Sequence[int]) -> Features:
    """Features of patches with `width` values each. Their key includes the grid: equal patches in another grid are
    another picture.
    """
    digest = sha256(str([*grid]).encode() + data).hexdigest()
    return Features(dtype, (prod(grid), width), data, digest, tuple(grid))


def rows_of(features: BoundSpan) -> int:
    return prod(features.dims[:-1])


def freed(parts: Sequence[BoundSpan]) -> None:
    """Free the memory of features."""
    for each in parts:
        each.span.buffer.close()


def host_tensor(found: BoundSpan | None) -> HostTensor | None:
    """A tensor in Python's heap, as an input."""
    return None if found is None else HostTensor(found.name, found.dtype, found.dims, view_of(found.span))


async def open_picture_encoder(
    host: Host,
    folder: str,
    config: GenaiConfig,
    graphs: tuple[bytes, bytes],
    device: DeviceInterface,
    decoder: GraphDescription,
    keep: bool,
) -> PictureEncoder:
    """Open the vision graph of a model folder on the decoder's device. `graphs` has the vision and the embedding file.
    Raises ModelFileError, UncomputedError, UnsupportedModelError, OutOfMemoryError."""
    about = config.vision
    assert about is not None
    vision, embedding = graphs
    stands = about.placeholder
    if stands is None:
        stands = placeholder(parse(embedding, about.embedding.filename), about.embedding)
    session = await open_session(host, folder, about.filename, vision, device, keep, VISION)
    try:
        return PictureEncoder(device, device.layered(session, Notes() if keep else None), about, decoder, stands)
    except UnsupportedModelError:
        await session.close()
        raise
