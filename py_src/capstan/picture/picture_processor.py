"""Turns picture files into the pixel values that a vision model takes, by the steps of processor_config.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from PIL import Image

from ..errors import PictureError, UnsupportedModelError
from ..model_files.config_section import Section, parse_object
from .picture_file import LARGEST_SIDE, Pixels, Rgba, decoded

__all__ = ["PictureProcessor"]

Array = np.ndarray[Any, np.dtype[np.float32]]
Step = Callable[[Any], Any]
"""From an array [height, width, 3] to another."""
INTERPOLATIONS = {
    "LINEAR": Image.Resampling.BILINEAR,
    "CUBIC": Image.Resampling.BICUBIC,
    "LANCZOS": Image.Resampling.LANCZOS,
}
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
MOST_NARROW = 200
"""How often the longer side of a picture may have the shorter one, where sides are fitted."""


@dataclass(frozen=True)
class PictureProcessor:
    """The steps of one model, which are those of onnxruntime-extensions."""

    steps: tuple[Step, ...]

    @classmethod
    def of_config(cls, data: str | bytes, name: str) -> PictureProcessor:
        """The processor of a file's content; messages call it `name`. Raises ConfigError, UnsupportedModelError for
        unsupported steps.
        """
        listed = listed_steps(Section(name, "", parse_object(data, name)))
        kinds = [kind for kind, _ in listed]
        places = [STEPS[kind][0] for kind in kinds if kind in STEPS]
        if len(places) < len(kinds) or places != sorted(places) or places.count(0) != 1 or places.count(2) != 1:
            raise UnsupportedModelError(
                f"{name}: its steps are {', '.join(kinds)}; Capstan computes {', '.join(STEPS)}, in this order, "
                "with DecodeImage and Rescale once"
            )
        return cls(tuple(STEPS[kind][1](fields) for kind, fields in listed))

    def pixels(self, files: Sequence[bytes | Rgba], names: Sequence[str]) -> Array:
        """The pixel values of picture files, float32 [files, ...]; `names` are their names in messages. Raises
        PictureError.
        """
        made = [self._pixels(data, name) for data, name in zip(files, names, strict=True)]
        for each, name in zip(made, names, strict=True):
            if each.shape != made[0].shape:
                shapes = f"{list(each.shape)} and {list(made[0].shape)}"
                raise PictureError(f"the shapes of {name} and {names[0]} differ: {shapes}; give pictures of one size")
        return np.stack(made)

    def _pixels(self, data: bytes | Rgba, name: str) -> Array:
        value: Any = decoded(data, name)
        for step in self.steps:
            try:
                value = step(value)
            except PictureError as error:
                raise PictureError(f"{name} {error}") from error
        return np.ascontiguousarray(value)


def listed_steps(config: Section) -> list[tuple[str, Section]]:
    """The type and the fields of each step. Raises ConfigError."""
    section = config.section("processor")
    listed = section.value.get("transforms")
    if not isinstance(listed, list) or not listed:
        raise section.error("transforms", "an array of operations")
    found = []
    for number, each in enumerate(listed):
        where = f"{section.path}.transforms[{number}]"
        operation = Section(config.file, where, each if isinstance(each, dict) else {}).section("operation")
        found.append((operation.text("type"), operation.section("attrs", optional=True)))
    return found


def require_only(fields: Section, names: Collection[str]) -> None:
    """Raise UnsupportedModelError for a field that changes a step in an unknown way."""
    for name, value in fields.value.items():
        if name not in names:
            raise UnsupportedModelError(
                f"{fields.where(name)} is {value!r}; only {', '.join(names) or 'no field'} is known"
            )


def numbers(fields: Section, key: str, default: Sequence[float]) -> list[float]:
    """A number for each channel. Raises ConfigError."""
    value = fields.value.get(key, list(default))
    if (
        not isinstance(value, list)
        or len(value) != len(default)
        or any(type(each) not in (int, float) for each in value)
    ):
        raise fields.error(key, f"{len(default)} numbers")
    return value


def sizes(fields: Section, default: int) -> tuple[int, int]:
    """The width and the height of a step. Raises ConfigError."""
    width, height = ({key: default, **fields.value}[key] for key in ("width", "height"))
    for key, value in (("width", width), ("height", height)):
        if type(value) is not int or not 1 <= value <= LARGEST_SIDE:
            raise fields.error(key, f"a number of pixels from 1 to {LARGEST_SIDE}")
    return width, height


def whole_number(fields: Section, key: str, default: int) -> int:
    """A positive number of a step. Raises ConfigError."""
    return fields.positive(key) if key in fields.value else default


def decode(fields: Section) -> Step:
    require_only(fields, ("color_space",))
    colours = fields.text("color_space", "RGB")
    if colours not in ("RGB", "BGR"):
        raise fields.error("color_space", '"RGB" or "BGR"')
    return turned_round if colours == "BGR" else lambda pixels: pixels


def convert_rgb(fields: Section) -> Step:
    return turned_round


def turned_round(pixels: Pixels) -> Pixels:
    """Exchange red and blue."""
    return pixels[:, :, ::-1]


def resize(fields: Section) -> Step:
    # Release 0.18 of the native package takes the given width and height with keep_aspect_ratio, too.
    smart = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2}
    require_only(fields, ("width", "height", "interpolation", "keep_aspect_ratio", "smart_resize", *smart))
    least, most, patch, merge = (whole_number(fields, key, default) for key, default in smart.items())
    size, name = sizes(fields, 256), fields.text("interpolation", "CUBIC")
    if name not in INTERPOLATIONS:
        raise UnsupportedModelError(
            f"{fields.where('interpolation')} is {name!r}; Capstan computes {', '.join(INTERPOLATIONS)}"
        )

    def resized(pixels: Pixels) -> Pixels:
        width, height = fitted(pixels, patch * merge, least, most) if fields.value.get("smart_resize") else size
        # Pillow resizes rows first if that is less work; the native package begins with the columns.
        wide = Image.fromarray(pixels).resize((width, len(pixels)), INTERPOLATIONS[name])
        return np.asarray(wide.resize((width, height), INTERPOLATIONS[name]))

    return resized


def fitted(pixels: Pixels, factor: int, least: int, most: int) -> tuple[int, int]:
    """The width and the height in multiples of a factor that are nearest to a picture's, with `least` to `most` pixels.
    Raises PictureError for a picture that is too narrow."""
    given = pixels.shape[1], pixels.shape[0]
    found = [max(factor, int(side / factor + 0.5) * factor) for side in given]
    if found[0] * found[1] > most:
        ratio = sqrt(given[0] * given[1] / most)
        found = [int(side / ratio) // factor * factor for side in given]
    elif found[0] * found[1] < least:
        ratio = sqrt(least / (given[0] * given[1]))
        found = [-(-int(side * ratio) // factor) * factor for side in given]
    if max(given) > MOST_NARROW * min(given) or min(found) < factor:
        raise PictureError(
            f"has {given[0]} x {given[1]} pixels, which is too narrow: the longer side may be at most {MOST_NARROW} "
            f"times the other, and with {most} pixels in all each needs at least {factor}; cut a part out of it"
        )
    return found[0], found[1]


def center_crop(fields: Section) -> Step:
    require_only(fields, ("width", "height"))
    width, height = sizes(fields, 224)

    def cropped(pixels: Pixels) -> Pixels:
        down, right = pixels.shape[0] - height, pixels.shape[1] - width
        if min(down, right) < 0:
            shown = f"{pixels.shape[1]} x {pixels.shape[0]}"
            raise PictureError(f"has {shown} pixels, but {width} x {height} are cut out of it; give a larger picture")
        return pixels[down // 2 : down // 2 + height, right // 2 : right // 2 + width]

    return cropped


def rescale(fields: Section) -> Step:
    require_only(fields, ("rescale_factor",))
    factor = fields.value.get("rescale_factor", 1 / 255)
    if type(factor) not in (int, float):
        raise fields.error("rescale_factor", "a number")
    return lambda pixels: pixels.astype(np.float32) * np.float32(factor)


def normalize(fields: Section) -> Step:
    require_only(fields, ("mean", "std", "qwen2_5_vl"))
    mean, deviation = (np.array(numbers(fields, *each), np.float32) for each in (("mean", MEAN), ("std", DEVIATION)))
    if not deviation.all():
        raise fields.error("std", "numbers other than 0")
    turn = turned_round if fields.value.get("qwen2_5_vl") else lambda values: values
    return lambda values: (turn(values) - mean) / deviation


def permute(fields: Section) -> Step:
    require_only(fields, ("dims",))
    axes = fields.value.get("dims", [1, 2, 0])
    if not isinstance(axes, list) or sorted(map(str, axes)) != ["0", "1", "2"]:
        raise fields.error("dims", "the numbers 0, 1 and 2 in some order")
    return lambda values: values.transpose(axes)


def patch_image(fields: Section) -> Step:
    known = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    require_only(fields, known)
    side, frames, merge = (whole_number(fields, key, default) for key, default in known.items())

    def patches(values: Array) -> Array:
        """The patches, [frames, rows, columns, values of a patch]; patches that become one row of features follow one
        another.
        """
        rows, columns = (size // side for size in values.shape[:2])
        if any(size % (side * merge) for size in values.shape[:2]):
            raise PictureError(
                f"becomes {values.shape[1]} x {values.shape[0]} pixels, which must be multiples of {side * merge}"
            )
        apart = values.reshape(rows // merge, merge, side, columns // merge, merge, side, 3)
        ordered = apart.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, np.newaxis]
        return np.repeat(ordered, frames, axis=5).reshape(1, rows, columns, -1)

    return patches


STEPS: Mapping[str, tuple[int, Callable[[Section], Step]]] = {
    "DecodeImage": (0, decode),
    "ConvertRGB": (1, convert_rgb),
    "Resize": (1, resize),
    "CenterCrop": (1, center_crop),
    "Rescale": (2, rescale),
    "Normalize": (3, normalize),
    "Permute3D": (4, permute),
    "PatchImage": (4, patch_image),
}
"""The computed steps, which must come in the order of the numbers: those before Rescale take bytes."""
