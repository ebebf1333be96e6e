"""Writes the placeholders of pictures into the text of a prompt, as the processors of model families do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..errors import PictureError

__all__ = [
    "BEGIN",
    "GEMMA",
    "IMAGE",
    "PLACES",
    "VISION",
    "VISION_END",
    "Place",
    "grid_place",
    "text_with_places",
    "tiles_place",
]

BEGIN, PLACEHOLDER, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
PLACES = 256
"""The placeholders of a picture for Gemma 3, in the native package's form."""
VISION, PATCHES, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True)
class Place:
    """The text that replaces a picture's mark; `count` of its tokens are placeholders."""

    text: str
    count: int


GEMMA = Place(f"\n\n{BEGIN}{PLACEHOLDER * PLACES}{END}\n\n", PLACES)


def grid_place(grid: Sequence[int], merge: int) -> Place:
    """The place of a picture whose `grid` has its frames, rows and columns of patches."""
    count = prod(grid) // merge**2
    return Place(f"{VISION}{PATCHES * count}{VISION_END}", count)


def tiles_place(rows: int, columns: int, each: int) -> Place:
    """The place of a picture that was cut into tiles, followed by the whole picture; each of these has `each`
    placeholders. With 0 rows it was not cut.
    """
    cut = ""
    for row in range(1, rows + 1):
        tiles = (f"{AROUND}<row_{row}_col_{column}>{IMAGE * each}" for column in range(1, columns + 1))
        cut += "".join(tiles) + "\n"
    between = "\n" if rows else ""
    return Place(f"{cut}{between}{AROUND}{WHOLE}{IMAGE * each}{AROUND}", each * (rows * columns + 1))


def text_with_places(text: str, mark: str, places: Sequence[Place]) -> str:
    """A prompt's text in which each mark is replaced by a picture's place; with the mark VISION, the text up to
    VISION_END is replaced, too. Raises PictureError if the numbers of marks and places differ.
    """
    first, *rest = text.split(mark)
    if len(rest) != len(places):
        raise PictureError(
            f"the prompt has {mark} {len(rest)} times, but {len(places)} pictures were given; give one for each"
        )
    if mark == VISION:
        rest = [after.partition(VISION_END)[2] if VISION_END in after else after for after in rest]
    return first + "".join(place.text + after for place, after in zip(places, rest, strict=True))
