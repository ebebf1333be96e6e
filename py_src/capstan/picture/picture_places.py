"""The places of pictures in the text of a prompt, as Gemma 3's processor writes them."""

from __future__ import annotations

from ..errors import PictureError

__all__ = ["BEGIN", "PLACES", "with_places"]

BEGIN, PLACEHOLDER, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
PLACES = 256
"""Placeholders of a picture, as the native package writes them for Gemma 3."""


def with_places(text: str, count: int) -> str:
    """A prompt's text with the placeholders of so many pictures. Raises PictureError if it has another number of
    marks for them."""
    if text.count(BEGIN) != count:
        raise PictureError(
            f"the prompt has {text.count(BEGIN)} times {BEGIN}, and {count} pictures were given; give one for each"
        )
    return text.replace(BEGIN, f"\n\n{BEGIN}{PLACEHOLDER * PLACES}{END}\n\n")
