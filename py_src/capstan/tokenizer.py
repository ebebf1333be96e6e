"""Converts text to token ids and back, renders chat templates, and decodes ids one at a time.

A backend from the host does the work: in the page @huggingface/tokenizers (_js/page_tokens.py), on CPython the
`tokenizers` package (local/rust_tokenizer.py). Jinja2 renders chat templates on both. As in onnxruntime-genai's
Tokenizer, `encode` adds no special tokens (a bos in the text, or from a chat template, becomes its id) and `decode`
leaves special tokens out; `update_options` changes both. `encode_prompt` begins a text as its model expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from operator import index
from typing import Any, Protocol
from weakref import finalize

from .errors import CapstanError, ConfigError, OptionError
from .model_files.config_section import parse_object
from .text.answer_formats import AnswerFormat, answer_format
from .text.chat_prompts import ChatTemplates, templates_of_files
from .text.literal_text import ANCHOR, ControlTokens, LiteralEncoder, Prompt, without_control_tokens
from .text.messages import Message, read_messages, read_tools
from .text.stream import TextStream
from .text.tokenizer_limits import require_bounded

__all__ = ["Tokenizer", "TokenizerBackend", "TokenizerSource", "TokenizerStream"]


class TokenizerBackend(Protocol):
    """The implementation of a tokenizer; all methods are synchronous."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...


class BackendSource(Protocol):
    """The source of backends; capstan.host.Host is one."""

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> Any: ...


class TokenizerSource(Protocol):
    """The source of a Tokenizer; capstan.Model is one."""

    @property
    def host(self) -> BackendSource: ...

    @property
    def tokenizer_files(self) -> Mapping[str, str]: ...


class Tokenizer:
    """The tokenizer of a model, from the files of its folder.

    Raises ConfigError, with the file and the place in it, if they contain no tokenizer.
    """

    def __init__(self, model: TokenizerSource) -> None:
        known = made.get(id(model))
        if known is not None:
            vars(self).update(vars(known))
            return
        vars(self).update(vars(Tokenizer.of_folder(model.host.tokenizer_backend, model.tokenizer_files)))
        self.keep_for(model)

    def keep_for(self, model: TokenizerSource) -> None:
        """Keep this tokenizer for a model: later tokenizers of the model are copies."""
        made[id(model)] = copy(self)
        finalize(model, made.pop, id(model), None).atexit = False

    @classmethod
    def of_folder(cls, make_backend: Callable[[str, str], Any], files: Mapping[str, str]) -> Tokenizer:
        """Build from the texts of a folder's files, by name."""
        config, templates = files.get("tokenizer_config.json"), templates_of_files(files)
        return cls.from_files(make_backend, files.get("tokenizer.json", ""), config, templates)

    @classmethod
    def from_files(
        cls,
        make_backend: Callable[[str, str], Any],
        tokenizer_json: str | bytes,
        tokenizer_config_json: str | bytes | None = None,
        chat_template: str | Mapping[str, str] | None = None,
    ) -> Tokenizer:
        """Build from the contents of tokenizer.json, tokenizer_config.json and chat_template.jinja, or several chat
        templates by their names.

        The last two may be absent; without given chat templates those of tokenizer_config.json are used.
        `make_backend(tokenizer_json, tokenizer_config_json)` gives a TokenizerBackend.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._set(make_backend, tokenizer_json, tokenizer_config_json, chat_template)
        return tokenizer

    def _set(
        self,
        make_backend: Callable[[str, str], Any],
        tokenizer_json: str | bytes,
        tokenizer_config_json: str | bytes | None,
        chat_template: str | Mapping[str, str] | None,
    ) -> None:
        content = parse_object(tokenizer_json, "tokenizer.json")
        if not isinstance(content.get("model"), dict):
            raise ConfigError(
                "tokenizer.json: model: missing, expected an object; copy the model's tokenizer files again"
            )
        self._limits = require_bounded(content)
        self._content = content
        self._ids: dict[str, int] | None = None
        given = {"default": chat_template} if isinstance(chat_template, str) else chat_template
        self._templates = ChatTemplates(parse_object(tokenizer_config_json or "{}", "tokenizer_config.json"), given)
        try:
            backend = make_backend(as_text(tokenizer_json), as_text(tokenizer_config_json or "{}"))
        except (CapstanError, ImportError):
            raise
        except Exception as error:
            kind = content["model"].get("type", "unknown")
            raise ConfigError(
                f"tokenizer.json: its {kind} tokenizer cannot be built ({error}); copy the file again"
            ) from error
        self._backend: TokenizerBackend = backend
        self._make_backend = make_backend
        self._config = as_text(tokenizer_config_json or "{}")
        self._kept_control: list[ControlTokens] = []
        self._kept_literal: list[LiteralEncoder] = []
        """Both are made when they are first needed. Copies of this tokenizer share them."""
        self._add_special_tokens = False
        self._skip_special_tokens = True
        self._beginning: tuple[int, ...] | None = None
        self._formats: list[AnswerFormat] = []
        """The model's answer format, once it was requested; copies share it."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` needs no `template_str`."""
        return bool(self._templates)

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template for conversations without tools; None if it has none."""
        return self._templates.default

    def get_chat_template(self, template: str | None = None, tools: object = None) -> str:
        """The text of the chat template named `template`; for None the one named `tool_use` if there are tools, else
        the one named `default`. Any other text is returned unchanged. Raises ConfigError.
        """
        return self._templates.choose(template, tools)

    @property
    def answer_format(self) -> AnswerFormat:
        """The model's format of reasoning and calls of tools, from its chat template and its added tokens."""
        if not self._formats:
            added = frozenset(item["content"] for item in self._content.get("added_tokens") or ())
            self._formats.append(answer_format(self._templates.texts, added))
        return self._formats[0]

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of special tokens by their texts."""
        return {item["content"]: item["id"] for item in self._content.get("added_tokens") or () if item.get("special")}

    @property
    def post_processor(self) -> Mapping[str, Any] | None:
        """The section of tokenizer.json about the special tokens around a text, or a pair of texts."""
        return self._content.get("post_processor")

    def update_options(self, **options: Any) -> None:
        """Set `add_special_tokens` (default false) or `skip_special_tokens` (default true)."""
        for name, value in options.items():
            if name not in ("add_special_tokens", "skip_special_tokens"):
                raise OptionError(f"{name}: unknown tokenizer option; use add_special_tokens or skip_special_tokens")
            flag = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
            if flag is None:
                raise OptionError(f"{name}: expected true or false, got {value!r}")
            setattr(self, f"_{name}", flag)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; [] for an empty one."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise OptionError("text: it has half of a pair of surrogates, which is invalid; replace it")
        self._limits.require(text)
        if isinstance(text, Prompt):
            with tokenizer_errors("a message with control tokens cannot be encoded"):
                ids = self._literal.encode(text)
            return [*self.beginning, *ids] if self._add_special_tokens else ids
        with tokenizer_errors("the text cannot be encoded"):
            return self._backend.encode(text, self._add_special_tokens)

    @property
    def _control(self) -> ControlTokens:
        if not self._kept_control:
            added, template = self._content.get("added_tokens") or (), self._templates.texts
            unknown = self._content["model"].get("unk_token")
            self._kept_control.append(ControlTokens(added, template, self.answer_format.marks, unknown))
        return self._kept_control[0]

    @property
    def _literal(self) -> LiteralEncoder:
        if not self._kept_literal:
            content = without_control_tokens(self._content, self._control)
            backend: TokenizerBackend = self._make_backend(content, self._config)

            def plain(text: str) -> list[int]:
                return backend.encode(ANCHOR + text, False)[1:]

            encoder = LiteralEncoder(self._control, lambda text: self._backend.encode(text, False), plain)
            self._kept_literal.append(encoder)
        return self._kept_literal[0]

    @property
    def beginning(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer's post-processor puts before a text, such as bos; () for none."""
        if self._beginning is None:
            with tokenizer_errors("a text cannot be encoded"):
                plain, whole = (self._backend.encode("a", special) for special in (False, True))
            starts = range(len(whole) - len(plain) + 1)
            before = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
            self._beginning = tuple(whole[:before])
        return self._beginning

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text for the model to continue or score: those of `encode` after `beginning`, unless the text
        already begins with it; [] for an empty one.
        """
        ids, first = self.encode(text), self.beginning
        return ids if not ids or tuple(ids[: len(first)]) == first else [*first, *ids]

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of a text in which control tokens, such as <|im_end|>, are only characters. Raises PromptError for
        a token that the vocabulary has in no other form.
        """
        if not (places := self._control.find(text)):
            return self.encode(text)
        literal = Prompt(text)
        literal.places = tuple(places)
        return self.encode(literal)

    def encode_batch(self, texts: Iterable[str], pad_token_id: int | None = None) -> list[list[int]]:
        """Token ids of each text; with `pad_token_id` all become as long as the longest, with that id after shorter
        ones, as `Generator.append_tokens` requires for a batch.
        """
        rows = [self.encode(text) for text in texts]
        if pad_token_id is None:
            return rows
        longest = max(map(len, rows), default=0)
        return [row + [pad_token_id] * (longest - len(row)) for row in rows]

    def decode_batch(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Text of each row of token ids."""
        return [self.decode(row) for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; ids without a token are left out, incomplete characters become U+FFFD."""
        known = [item for item in map(token_id, ids) if 0 <= item < 2**31]
        with tokenizer_errors("the ids cannot be decoded"):
            return self._backend.decode(known, self._skip_special_tokens)

    def to_token_id(self, text: str) -> int:
        """The id of a token in the vocabulary's spelling ('Ġthe', '<|im_end|>'); -1 if there is none."""
        if self._ids is None:
            with tokenizer_errors("its vocabulary cannot be read"):
                vocabulary = self._content["model"].get("vocab") or {}
                if isinstance(vocabulary, list):  # Unigram: pairs of token and score
                    vocabulary = {item[0]: place for place, item in enumerate(vocabulary)}
                added = {item["content"]: item["id"] for item in self._content.get("added_tokens") or []}
                self._ids = {**vocabulary, **added}
        return self._ids.get(text, -1)

    def special_tokens_in(self, text: str) -> list[int]:
        """The ids of the special tokens in a text that `decode` leaves out."""
        if not self._skip_special_tokens:
            return []
        added = self._content.get("added_tokens") or []
        return [item["id"] for item in added if item.get("special") and item["content"] in text]

    def apply_chat_template(
        self,
        messages: str | Sequence[Message],
        tools: str | Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        template_str: str | None = None,
        thinking: bool | None = None,
        split_special_tokens: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation: `messages` is a list of {"role", "content"}, or that as JSON; keys whose value
        is None are left out. `tools` likewise, None or "" for none. `template_str` is the argument of
        `get_chat_template`. `thinking` is whether the model reasons before it answers; None leaves that to the
        template, whose other `variables` (reasoning_effort) are further arguments.

        Control tokens in the texts of messages and tools have no effect: `encode` splits them into tokens of text. Only
        those of system messages and the marks of calls and reasoning in the model's own messages are kept.
        `split_special_tokens=False` keeps all of them, so that a user's text can end its message.

        With `continue_final_message` the prompt ends with the text of the last message, which must be the assistant's:
        the answer continues it. `add_generation_prompt` has no effect then.

        Raises ConfigError if the model has no chat template and none is given, or it cannot be rendered; OptionError
        for messages of another form, and for `thinking` and variables that the template does not know.
        """
        given = None if tools is None or tools == "" else read_tools("tools", tools)
        template = self._templates.choose(template_str, given)
        described, form = read_messages("messages", messages), self.answer_format
        split = self._control.marked(described, given) if split_special_tokens else (described, given, None)
        shown, offered, mark = split
        text = self._templates.render(
            template, shown, form, offered, add_generation_prompt, thinking, variables, continue_final_message
        )
        return text if mark is None else Prompt.of(text, mark)

    def create_stream(self) -> TokenizerStream:
        """A decoder for ids that arrive one at a time."""
        return TokenizerStream(self)


class TokenizerStream:
    """Incremental `decode`: the joined pieces are the text of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._stream = TextStream(tokenizer.decode)

    def decode(self, token: int) -> str:
        """The text this id completes; empty while a character spans further tokens, and for special tokens."""
        return self._stream.push(token_id(token))

    def flush(self) -> str:
        """The text that was held back, at the end: incomplete characters as U+FFFD."""
        return self._stream.flush()


def as_text(data: str | bytes) -> str:
    """The text of a file that was already read as JSON."""
    return data if isinstance(data, str) else data.decode("utf-8-sig")


made: dict[int, Tokenizer] = {}
"""The tokenizer of each live model, by the model's id, with default options. Each request makes a Tokenizer, and
reading a vocabulary of 50,000 tokens takes a page a third of a second.
"""


@contextmanager
def tokenizer_errors(what: str) -> Iterator[None]:
    """Turn a backend's exception into a ConfigError: the tokenizer's files contain something that it cannot process."""
    try:
        yield
    except (CapstanError, ImportError):
        raise
    except Exception as error:
        raise ConfigError(f"tokenizer.json: {what} ({error}); copy the file again") from error


def token_id(item: object) -> int:
    """An id. Raises OptionError for a value that is not an integer."""
    try:
        return index(item)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"a token id is {item!r}; it must be an integer") from None
