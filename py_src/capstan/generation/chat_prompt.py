"""Makes prompts of conversations. The chat template renders the messages; the text is encoded, together with its
pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..device.prefix_cache import Content
from ..errors import UnsupportedModelError
from ..text.literal_text import changed
from ..text.messages import without_pictures

if TYPE_CHECKING:
    from ..device.speech_encoder import Features
    from ..model import Model
    from .picture_prompt import PicturePrompts

__all__ = ["ChatPrompt", "ChatPrompts", "ChatTokenizer"]


class ChatTokenizer(Protocol):
    """The part of a Tokenizer that a conversation uses."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str: ...


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation."""

    text: str
    """The text that the chat template rendered."""
    ids: list[int]
    pictures: tuple[Features, ...] = ()
    contents: tuple[Content, ...] = ()
    """The ranges of the ids that stand for the pictures."""


class ChatPrompts:
    """Makes the prompts of a model's conversations."""

    def __init__(self, tokenizer: ChatTokenizer, model: Model) -> None:
        self.tokenizer, self._model = tokenizer, model
        self._seen: PicturePrompts | None = None

    def of(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        """The prompt of these messages. `options` are those of Tokenizer.apply_chat_template.

        Raises the errors of that method; UnsupportedModelError for a picture if the model reads only text;
        PictureError, OptionError.
        """
        shown, given = without_pictures(messages)
        if given and self._model.config.vision is None:
            raise UnsupportedModelError(
                f"the messages have pictures ({len(given)}), and {self._model.facts.name} of type "
                f"{self._model.type!r} reads only text: leave them out, or load a model that sees"
            )
        text = self.tokenizer.apply_chat_template(shown, **options)
        if not given:
            # Encode the whole prompt, since a tokenizer treats the beginning of a text differently.
            return ChatPrompt(text, self.tokenizer.encode(text))
        if self._seen is None:
            from .picture_prompt import PicturePrompts  # noqa: PLC0415  (Pillow: pages that see)

            self._seen = PicturePrompts(self._model)
        pictures = self._seen.prepared(given)
        expand = partial(self._seen.expanded, places=[each.place for each in pictures])
        ids = self.tokenizer.encode(changed(text, expand))
        features = tuple(each.features for each in pictures)
        return ChatPrompt(text, ids, features, self._seen.contents(ids, pictures))
