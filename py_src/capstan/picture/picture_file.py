"""Reads picture files with Pillow: PNG, JPEG, WebP, BMP and GIF. A page may give pixels instead."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import PictureError

__all__ = ["LARGEST_SIDE", "Pixels", "Rgba", "decoded"]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""[height, width, 3], as red, green, blue."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
LARGEST_SIDE = 16_384
MOST_PIXELS = 1 << 26
"""The most pixels: 200 MB after decoding."""
REMEDY = f"give a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"


@dataclass(frozen=True)
class Rgba:
    """Pixels, row by row, with a byte each for red, green, blue and alpha."""

    width: int
    height: int
    data: bytes


def decoded(data: bytes | Rgba, name: str) -> Pixels:
    """A picture, rotated by its EXIF orientation, without transparency. Messages call it `name`. Raises
    PictureError.
    """
    if isinstance(data, Rgba):
        return pixels_of_rgba(data, name)
    if not data:
        raise PictureError(f"{name} has no bytes; {REMEDY}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        with picture:
            width, height = picture.size
            require_size(width, height, name)
            frames = getattr(picture, "n_frames", 1)
            if frames > 1:
                raise PictureError(f"{name} is animated, with {frames} frames; give one frame as a picture")
            picture.load()
            return pixels_of(ImageOps.exif_transpose(picture))
    except UnidentifiedImageError as error:
        raise PictureError(f"{name} has {len(data)} bytes that are not a picture; {REMEDY}") from error
    except Image.DecompressionBombError as error:
        raise PictureError(f"{name}: {error}; make it smaller") from error
    except PictureError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, OverflowError) as error:
        raise PictureError(f"{name} is damaged: {error}; copy the file again") from error


def require_size(width: int, height: int, name: str) -> None:
    """Raise PictureError for a picture that is too large."""
    if max(width, height) > LARGEST_SIDE or width * height > MOST_PIXELS:
        raise PictureError(
            f"{name} has {width} x {height} pixels; a side may have at most {LARGEST_SIDE}, the whole {MOST_PIXELS}: "
            "make it smaller"
        )


def pixels_of_rgba(given: Rgba, name: str) -> Pixels:
    """Red, green and blue of pixels."""
    require_size(given.width, given.height, name)
    if min(given.width, given.height) < 1 or len(given.data) != 4 * given.width * given.height:
        raise PictureError(
            f"{name} has {given.width} x {given.height} pixels in {len(given.data)} bytes; give four for each pixel"
        )
    return np.frombuffer(given.data, np.uint8).reshape(given.height, given.width, 4)[:, :, :3]


def pixels_of(picture: Image.Image) -> Pixels:
    """The pixels as red, green and blue; values of 16 bits keep the upper eight, as in libpng."""
    if picture.mode.startswith("I;16"):
        upper = (np.asarray(picture) >> 8).astype(np.uint8)
        return np.repeat(upper[:, :, np.newaxis], 3, axis=2)
    return np.asarray(picture.convert("RGB"))
