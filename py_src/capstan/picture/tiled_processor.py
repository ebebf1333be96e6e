"""Turns picture files into the tiles that Idefics 3 and SmolVLM take, by preprocessor_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from PIL import Image

from ..errors import UnsupportedModelError
from ..model_files.config_section import Section, parse_object
from .picture_file import LARGEST_SIDE, Pixels, Rgba, decoded, require_size
from .picture_processor import Array, numbers

__all__ = ["TiledProcessor"]

LONGEST = 4096
"""The longest side to which a picture is resized, regardless of the file."""
STEPS = ("do_resize", "do_rescale", "do_normalize")


@dataclass(frozen=True)
class TiledProcessor:
    """The fields of one model's file."""

    longest: int
    """The longest side before a picture is cut."""
    side: int
    """The side of a tile."""
    cut: bool
    resampling: Image.Resampling
    factor: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of_config(cls, data: str | bytes, name: str) -> TiledProcessor:
        """Read a file's content; messages call it `name`. Raises ConfigError, UnsupportedModelError."""
        root = Section(name, "", parse_object(data, name))
        for step in STEPS:
            if root.value.get(step, True) is not True:
                raise UnsupportedModelError(f"{root.where(step)} is {root.value[step]!r}; Capstan supports only true")
        factor, resampling = root.value.get("rescale_factor", 1 / 255), root.value.get("resample", 1)
        if type(factor) not in (int, float):
            raise root.error("rescale_factor", "a number")
        if resampling not in list(Image.Resampling):
            raise root.error("resample", "one of Pillow's numbers of resampling, from 0 to 5")
        deviation = numbers(root, "image_std", (0.5, 0.5, 0.5))
        if not all(deviation):
            raise root.error("image_std", "numbers other than 0")
        return cls(
            longest=edge(root, "size"),
            side=edge(root, "max_image_size"),
            cut=root.value.get("do_image_splitting", True) is True,
            resampling=Image.Resampling(resampling),
            factor=factor,
            mean=tuple(numbers(root, "image_mean", (0.5, 0.5, 0.5))),
            deviation=tuple(deviation),
        )

    def tiles(self, picture: bytes | Rgba, name: str) -> tuple[Array, int, int]:
        """The pixel values of a picture, float32 [tiles, 3, side, side], tiles row by row and then the whole picture;
        and the numbers of rows and columns, 0 if it is not cut. Raises PictureError.
        """
        pixels, side = decoded(picture, name), self.side
        pixels = self._resized(pixels, *longest_sides(pixels, self.longest), name)
        if not self.cut:
            return self._values([self._resized(pixels, side, side, name)]), 0, 0
        pixels = self._resized(pixels, *whole_tiles(pixels, side), name)
        rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
        if rows == columns == 1:
            return self._values([pixels]), 0, 0
        found = [
            pixels[side * row : side * (row + 1), side * column : side * (column + 1)]
            for row in range(rows)
            for column in range(columns)
        ]
        return self._values([*found, self._resized(pixels, side, side, name)]), rows, columns

    def _resized(self, pixels: Pixels, height: int, width: int, name: str) -> Pixels:
        require_size(width, height, name)
        return np.asarray(Image.fromarray(pixels).resize((width, height), self.resampling))

    def _values(self, tiles: list[Pixels]) -> Array:
        values = np.stack(tiles).astype(np.float64) * self.factor
        scaled = values.astype(np.float32)
        normal = (scaled - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        return np.ascontiguousarray(normal.transpose(0, 3, 1, 2))


def edge(root: Section, key: str) -> int:
    """The longest edge of a size. Raises ConfigError."""
    section = root.section(key)
    value = section.value.get("longest_edge")
    if type(value) is not int or not 1 <= value <= LARGEST_SIDE:
        raise section.error("longest_edge", f"a number of pixels from 1 to {LARGEST_SIDE}")
    return value


def longest_sides(pixels: Pixels, longest: int) -> tuple[int, int]:
    """The sides of a picture resized so that the longer one has `longest` pixels, and the other is even; at most
    LONGEST.
    """
    height, width, _ = pixels.shape
    ratio = width / height
    if width >= height:
        height, width = even(longest / ratio), longest
    else:
        height, width = longest, even(longest * ratio)
    ratio = width / height
    if width >= height and width > LONGEST:
        return max(int(LONGEST / ratio), 1), LONGEST
    if height > width and height > LONGEST:
        return LONGEST, max(int(LONGEST * ratio), 1)
    return height, width


def even(length: float) -> int:
    whole = int(length)
    return max(whole + whole % 2, 1)


def whole_tiles(pixels: Pixels, side: int) -> tuple[int, int]:
    """The sides rounded up to whole tiles."""
    height, width, _ = pixels.shape
    ratio = width / height
    if width >= height:
        width = ceil(width / side) * side
        return ceil(max(int(width / ratio), 1) / side) * side, width
    height = ceil(height / side) * side
    return height, ceil(max(int(height * ratio), 1) / side) * side
