"""Pixel values of pictures are those of the native processor, and what is no picture is refused by name."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest
from PIL import Image

from capstan import ConfigError, PictureError, UnsupportedModelError
from capstan.picture.picture_processor import PictureProcessor
from tests.looped import looped
from tests.pictures import checks, gradient, png_file, png_of

FOLDER = Path(__file__).parents[1] / "fixtures/vision/nano-gemma3-vl"
NAME = "processor_config.json"
CONFIG = (FOLDER / NAME).read_text()
PLAIN = png_file(gradient())
BEGIN = "<start_of_image>"


def steps(*listed: tuple[str, Any]) -> str:
    operations = [{"operation": {"name": kind, "type": kind, "attrs": fields}} for kind, fields in listed]
    return json.dumps({"processor": {"name": "x", "transforms": operations}})


def of_native(tmp_path: Path, config: str, *files: bytes) -> Any:
    """The native processor's pixel values by these steps."""
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / NAME).write_text(config)
    processor = native.Model(str(tmp_path)).create_multimodal_processor()
    made = processor(BEGIN * len(files), images=native.Images.open_bytes(*files))
    return np.array(made["pixel_values"].as_numpy())


def pixels(*files: bytes, config: str = CONFIG) -> Any:
    names = [f"picture {place}" for place in range(len(files))]
    return PictureProcessor.of_config(config, NAME).pixels(files, names)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    made = io.BytesIO()
    picture.save(made, kind, **options)
    return made.getvalue()


RANDOM = np.random.default_rng(0)
COLOURS = Image.fromarray(RANDOM.integers(0, 256, (48, 80, 3), dtype=np.uint8))
CLEAR = Image.fromarray(RANDOM.integers(0, 256, (48, 80, 4), dtype=np.uint8))
SMOOTH = Image.open(io.BytesIO(PLAIN)).convert("RGB")

EXACT = {
    "colours": encoded(COLOURS, "PNG"),
    "larger": png_file(checks(900, 700)),
    "smaller": png_file(checks(7, 90)),
    "one pixel": png_file(gradient(1, 1)),
    "with transparency": encoded(CLEAR, "PNG"),
    "grey with transparency": encoded(CLEAR.convert("LA"), "PNG"),
    "grey": encoded(SMOOTH.convert("L"), "PNG"),
    "a palette": encoded(SMOOTH.convert("P"), "PNG"),
    "a palette with transparency": encoded(SMOOTH.convert("P"), "PNG", transparency=3),
    "one bit": encoded(SMOOTH.convert("1"), "PNG"),
    "16 bits": encoded(Image.fromarray(RANDOM.integers(0, 65536, (48, 80), dtype=np.uint16)), "PNG"),
    "grey JPEG": encoded(COLOURS.convert("L"), "JPEG"),
}


def test_pixel_values_are_the_native_processors(tmp_path: Path) -> None:
    wanted = of_native(tmp_path, CONFIG, *EXACT.values())
    found = pixels(*EXACT.values())
    assert found.dtype == wanted.dtype == np.float32
    assert found.shape == wanted.shape == (len(EXACT), 3, 64, 64)
    for name, one, other in zip(EXACT, found, wanted, strict=True):
        assert np.array_equal(one, other), name


def test_decoders_of_jpeg_differ_within_bounds(tmp_path: Path) -> None:
    # In levels of 255. Colours are noise here, the worst case: the native decoder repeats colours that the file has
    # for every second pixel only, Pillow's interpolates them.
    for picture, sampling, most, mean in ((COLOURS, 0, 1.0, 0.001), (COLOURS, 2, 100.0, 13.0), (SMOOTH, 2, 4.0, 0.7)):
        file = encoded(picture, "JPEG", quality=95, subsampling=sampling)
        apart = np.abs(pixels(file) - of_native(tmp_path, CONFIG, file)) * 127.5
        assert apart.max() < most + 1e-3
        assert apart.mean() < mean


OTHERS = {
    "colours exchanged": steps(("DecodeImage", {"color_space": "BGR"}), ("Rescale", {}), ("Permute3D", {})),
    "and exchanged back": steps(("DecodeImage", {"color_space": "BGR"}), ("ConvertRGB", {}), ("Rescale", {})),
    "a part": steps(
        ("DecodeImage", {}),
        ("Resize", {"width": 60, "height": 51, "interpolation": "LINEAR"}),
        ("CenterCrop", {"width": 33, "height": 20}),
        ("Rescale", {"rescale_factor": 0.5}),
        ("Normalize", {}),
    ),
    "Lanczos": steps(
        ("DecodeImage", {}),
        ("Resize", {"width": 60, "interpolation": "LANCZOS", "keep_aspect_ratio": 1}),
        ("Rescale", {}),
        ("Normalize", {"mean": [0.0, 0.1, 0.2], "std": [1.0, 0.5, 2.0]}),
        ("Permute3D", {"dims": [2, 0, 1]}),
    ),
}


@looped("name", OTHERS)
def test_other_steps_are_the_native_processors(name: str, tmp_path: Path) -> None:
    file = encoded(COLOURS, "PNG")
    wanted = of_native(tmp_path, OTHERS[name], file)
    found = pixels(file, config=OTHERS[name])
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


def test_formats_that_the_native_package_does_not_read_are_read() -> None:
    wanted = pixels(encoded(COLOURS, "PNG"))
    for file in (encoded(COLOURS, "BMP"), encoded(COLOURS, "WEBP", lossless=True)):
        assert np.array_equal(pixels(file), wanted)
    few = SMOOTH.convert("P")
    assert np.array_equal(pixels(encoded(few, "GIF")), pixels(encoded(few.convert("RGB"), "PNG")))


def test_pictures_are_turned_as_their_exif_says() -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    turned = COLOURS.transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(pixels(encoded(COLOURS, "PNG", exif=exif)), pixels(encoded(turned, "PNG")))


def moving(kind: str) -> bytes:
    return encoded(SMOOTH, kind, save_all=True, append_images=[COLOURS])


NO_PICTURES = {
    "no bytes": (b"", "the picture has no bytes; give a PNG, JPEG, WEBP, BMP or GIF file"),
    "a text": (b"no picture at all", "has 17 bytes that are not a picture; give a PNG"),
    "another format": (encoded(COLOURS, "TIFF"), "that are not a picture"),
    "a truncated PNG": (EXACT["colours"][:6000], "is damaged: "),
    "a truncated JPEG": (encoded(COLOURS, "JPEG")[:2000], "is damaged: image file is truncated"),
    "a PNG of few rows": (png_of(bytes(500), 80, 48), "is damaged: "),
    "a wrong check": (PLAIN[:-20] + b"\0" + PLAIN[-19:], "is damaged: "),
    "20,000 pixels": (
        png_of(b"", 20_000, 10),
        "has 20000 x 10 pixels; a side may have at most 16384, the whole 67108864",
    ),
    "a bomb": (png_of(b"", 10_000, 10_000), "has 10000 x 10000 pixels"),
    "a larger bomb": (png_of(b"", 16_000, 16_000), "make it smaller"),
    "no width": (png_of(b"", 0, 10), "the picture"),
    "an animated GIF": (moving("GIF"), "is animated, with 2 frames; give one frame as a picture"),
    "an animated PNG": (moving("PNG"), "is animated, with 2 frames"),
    "an animated WebP": (moving("WEBP"), "is animated, with 2 frames"),
}


@looped("name", NO_PICTURES)
def test_what_is_no_picture_is_refused_by_name(name: str) -> None:
    data, message = NO_PICTURES[name]
    with pytest.raises(PictureError) as error:
        PictureProcessor.of_config(CONFIG, NAME).pixels([data], ["the picture"])
    assert message in str(error.value)


def test_pictures_that_become_two_sizes_or_are_too_small_for_a_part_are_refused() -> None:
    whole = steps(("DecodeImage", {}), ("Rescale", {}))
    with pytest.raises(
        PictureError, match=r"shapes of picture 1 and picture 0 differ: \[1, 1, 3\] and \[48, 80, 3\]; give"
    ):
        pixels(PLAIN, png_file(gradient(1, 1)), config=whole)
    part = steps(("DecodeImage", {}), ("CenterCrop", {"width": 81, "height": 9}), ("Rescale", {}))
    with pytest.raises(PictureError, match="picture 0 has 80 x 48 pixels, but 81 x 9 are cut out of it"):
        pixels(PLAIN, config=part)


def one(kind: str, **fields: Any) -> str:
    first = ("DecodeImage", fields if kind == "DecodeImage" else {})
    rest = [] if kind == "DecodeImage" else [(kind, fields)]
    return steps(first, *rest) if kind == "Rescale" else steps(first, *rest, ("Rescale", {}))


def after(kind: str, **fields: Any) -> str:
    return steps(("DecodeImage", {}), ("Rescale", {}), (kind, fields))


CONFIGS: Mapping[str, tuple[str, type[Exception], str]] = {
    "no JSON": ("{", ConfigError, "a.json: line 1"),
    "no processor": ("{}", ConfigError, "a.json: processor: missing"),
    "no steps": ('{"processor": {}}', ConfigError, "processor.transforms: missing, expected an array of operations"),
    "no operation": (
        '{"processor": {"transforms": [1]}}',
        ConfigError,
        "processor.transforms[0].operation: missing, expected an object",
    ),
    "no type": (
        '{"processor": {"transforms": [{"operation": {}}]}}',
        ConfigError,
        "processor.transforms[0].operation.type: missing",
    ),
    "another step": (one("PatchImage"), UnsupportedModelError, "its steps are DecodeImage, PatchImage, Rescale; "),
    "no decoder": (steps(("Rescale", {})), UnsupportedModelError, "with DecodeImage and Rescale once"),
    "a wrong order": (after("Resize"), UnsupportedModelError, "in this order"),
    "a field": (one("Resize", antialias=1), UnsupportedModelError, "attrs.antialias is 1; only width, height"),
    "a colour space": (one("DecodeImage", color_space="HSV"), ConfigError, 'color_space: expected "RGB" or "BGR"'),
    "a size of 0": (one("Resize", width=0), ConfigError, "attrs.width: expected a number of pixels from 1 to 16384"),
    "a size": (one("CenterCrop", height="9"), ConfigError, "attrs.height: expected a number of pixels"),
    "a way": (one("Resize", interpolation="NEAREST"), UnsupportedModelError, "'NEAREST'; Capstan computes LINEAR"),
    "a factor": (one("Rescale", rescale_factor="1"), ConfigError, "attrs.rescale_factor: expected a number"),
    "a mean": (after("Normalize", mean=[1, 2]), ConfigError, "attrs.mean: expected 3 numbers"),
    "a deviation": (after("Normalize", std=[1, 0, 1]), ConfigError, "attrs.std: expected numbers other than 0"),
    "axes": (after("Permute3D", dims=[0, 0, 1]), ConfigError, "attrs.dims: expected the numbers 0, 1 and 2"),
}


@looped("name", CONFIGS)
def test_configurations_that_cannot_be_computed_are_refused_by_path(name: str) -> None:
    text, kind, message = CONFIGS[name]
    with pytest.raises(kind) as error:
        PictureProcessor.of_config(text, "a.json")
    assert message in str(error.value)
