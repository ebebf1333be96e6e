"""Pictures that tests make, and PNG files of any pixels."""

from __future__ import annotations

import struct
import zlib

__all__ = ["SEEN", "checks", "gradient", "png_file"]

Rows = list[bytes]
"""Three bytes a pixel: red, green, blue."""


def gradient(width: int = 80, height: int = 48) -> Rows:
    """Red grows to the right, green downwards; blue shrinks to the right."""
    steps = [place * 255 // max(width - 1, 1) for place in range(width)]
    rows = [row * 255 // max(height - 1, 1) for row in range(height)]
    return [bytes(part for step in steps for part in (step, row, 255 - step)) for row in rows]


def checks(width: int = 64, height: int = 64, size: int = 5) -> Rows:
    """Squares of many colours, by a small generator of random numbers."""
    number, colours = 1, []
    for _ in range((width // size + 1) * (height // size + 1)):
        number = number * 1103515245 + 12345 & 0x7FFFFFFF
        colours.append(number.to_bytes(4, "little")[:3])
    across = width // size + 1
    return [b"".join(colours[y // size * across + x // size] for x in range(width)) for y in range(height)]


SEEN = {
    "gradient": gradient(),
    "checks": checks(),
    "tall": checks(20, 150, 4),
    "small": gradient(9, 7),
    "square": checks(32, 32, 3),
}
"""The pictures of vision/nano-idefics3."""


def png_file(rows: Rows) -> bytes:
    """A PNG file."""
    return png_of(b"".join(b"\0" + row for row in rows), len(rows[0]) // 3, len(rows))


def png_of(data: bytes, width: int, height: int) -> bytes:
    """A PNG file of that size that has the scan lines `data`, which may be fewer."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
