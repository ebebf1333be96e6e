"""Converts text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import tokenizer as capstan_tokenizer
from ..errors import ConfigError, OptionError
from ..loading.opening import read_configuration
from ..text.literal_text import changed
from .changed_config import Config
from .chat_tools import double_quoted, messages_with_tools, tools_for
from .genai_model import Model
from .genai_tensors import Tensor, as_array, token_rows
from .token_texts import TokenizerStream, checked_text, decoded, encoded_batch

__all__ = ["Tokenizer", "TokenizerStream"]


class Tokenizer:
    """The tokenizer of a Model, of a Config, or of the folder at a path."""

    def __init__(self, source: Model | Config | str, /) -> None:
        if isinstance(source, Model):
            self._config = source.capstan.config
            self._tokenizer = capstan_tokenizer.Tokenizer(source.capstan)
            return
        if isinstance(source, str):
            source = Config(source)
        read = read_configuration(source._path, overlay=source.choice()["overlay"])
        self._config = read.config
        self._tokenizer = capstan_tokenizer.Tokenizer(read)

    def update_options(self, **options: Any) -> None:
        """Set `add_special_tokens` (default false) or `skip_special_tokens` (default true)."""
        self._tokenizer.update_options(**options)

    def encode(self, text: str, /) -> Any:
        """Token ids of a text, int32 [tokens]. Raises ArgumentTypeError for anything but a text that UTF-8 can
        encode.
        """
        ids = self._tokenizer.encode(checked_text(text))
        return as_array(ids, "int32", [len(ids)])

    def encode_batch(self, texts: Sequence[str], /) -> Tensor:
        """Token ids of several texts, int32 [texts, tokens], shorter ones padded at the end with `pad_token_id`."""
        return encoded_batch(self._tokenizer, texts, self.pad_token_id)

    def decode(self, tokens: Any, /) -> str:
        """The text of token ids: a number, a list or an array of one or two dimensions."""
        return decoded(self._tokenizer, tokens)

    def decode_batch(self, tokens: Tensor, /) -> list[str]:
        """The texts of a Tensor's rows."""
        if len(tokens.shape()) != 2:
            raise OptionError(f"decode_batch: the Tensor has {len(tokens.shape())} dimensions; it must have 2")
        return [self._tokenizer.decode(row) for row in token_rows(tokens)]

    def to_token_id(self, text: str, /) -> int:
        """The id of a token that is spelt as in the vocabulary; -1 if there is no such token."""
        return self._tokenizer.to_token_id(text)

    @property
    def bos_token_id(self) -> int:
        """The model's token for the beginning of a sequence. ConfigError if it has none."""
        return defined("bos_token_id", self._config.bos_token_id)

    @property
    def eos_token_ids(self) -> Any:
        """The model's end-of-sequence tokens, int32."""
        ids = self._config.eos_token_ids
        return as_array(ids, "int32", [len(ids)])

    @property
    def pad_token_id(self) -> int:
        """The model's padding token."""
        return self._config.pad_token_id

    @property
    def bot_token_id(self) -> int:
        """The token before tool calls. Always raises ConfigError, because Capstan does not read this token."""
        return defined("bot_token_id", None)

    @property
    def eot_token_id(self) -> int:
        """The token after tool calls. Always raises ConfigError, because Capstan does not read this token."""
        return defined("eot_token_id", None)

    @property
    def bor_token_id(self) -> int:
        """The token before reasoning. Always raises ConfigError, because Capstan does not read this token."""
        return defined("bor_token_id", None)

    @property
    def eor_token_id(self) -> int:
        """The token after reasoning. Always raises ConfigError, because Capstan does not read this token."""
        return defined("eor_token_id", None)

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for `messages`, a JSON array of {"role", "content"}. `tools`, here and in a message, is also JSON;
        "" means none. As in the native package, a template that does not seem to know OpenAI's form of tools gets
        Phi-4's; tools in a message turn single quotes of keys and values into double ones in the whole prompt.
        """
        template = self._tokenizer.get_chat_template(template_str, tools or None)
        given, quoted = messages_with_tools(template, messages)
        prompt = self._tokenizer.apply_chat_template(
            given, tools_for(template, tools), add_generation_prompt, template_str
        )
        return changed(prompt, double_quoted) if quoted else prompt

    def create_stream(self) -> TokenizerStream:
        """A decoder for ids that arrive one at a time."""
        return TokenizerStream._of(self._tokenizer.create_stream())


def defined(name: str, token: int | None) -> int:
    if token is None:
        raise ConfigError(f"{name} is not defined for this model")
    return token
