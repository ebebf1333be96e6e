"""Finds Whisper's special tokens: those of prompts with a language and a task, and tokens that are never picked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, OptionError, UnsupportedModelError
from ..model_files.bounded_json import clipped
from ..model_files.config_section import parse_object
from ..model_files.genai_config import GENERATION_CONFIG
from ..stages import TimestampTokens
from ..tokenizer import Tokenizer

__all__ = ["TASKS", "SpeechTokens"]

TASKS = ("transcribe", "translate")
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
ENGLISH_VOCABULARY = 51864
"""The vocabulary size of openai's English models; other models have one token more, or another number."""
INITIAL_TIMESTAMP = 50
"""The largest index of a window's first timestamp, 1 second, as in openai's `transcribe`."""

SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("'),
    *("((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
]
NOTES = "♩♪♫♬♭♮♯"
"""Symbols whose first token is never picked if they have several tokens."""


@dataclass(frozen=True)
class SpeechTokens:
    """The ids of a model that are not text, and lists of ids that are never picked."""

    start: int
    """The first token of each prompt."""
    end: int
    languages: Mapping[str, int]
    """Languages by code, such as 'en'; empty for an English model."""
    tasks: Mapping[str, int]
    without_timestamps: int
    """The last token of a prompt for text without timestamps; ids above it are timestamps."""
    suppressed: tuple[int, ...]
    """Never picked."""
    suppressed_first: tuple[int, ...]
    """Never picked as the first token of a window."""
    initial_timestamp: int
    """The largest index of a window's first timestamp."""
    plain: bool = False
    """Whether the model, which is not a Whisper, has only two special tokens: the first one and the end."""

    @classmethod
    def of_text(cls, start: int, end: int) -> SpeechTokens:
        """The tokens of a model that only makes text of one language."""
        return cls(start, end, {}, {}, start, (), (), 0, plain=True)

    @classmethod
    def of_model(cls, tokenizer: Tokenizer, end: int, vocabulary: int, config: str | None) -> SpeechTokens:
        """The tokens of a tokenizer and of generation_config.json; without that file they are computed like openai's
        Whisper. Raises UnsupportedModelError for another tokenizer, ConfigError.
        """
        ids = tokenizer.special_ids
        about = parse_object(config or "{}", GENERATION_CONFIG)
        missing = [text for text in ("<|startoftranscript|>", "<|notimestamps|>") if text not in ids]
        if missing:
            raise UnsupportedModelError(
                f"tokenizer.json has no token {missing[0]}; load a Whisper model, openai's or one exported from it"
            )
        several = bool(about.get("is_multilingual", vocabulary != ENGLISH_VOCABULARY))
        codes = {found[1]: token for text, token in ids.items() if (found := LANGUAGE.fullmatch(text))}
        tasks = {task: ids[f"<|{task}|>"] for task in TASKS if f"<|{task}|>" in ids}
        suppressed = id_list(about, "suppress_tokens")
        first = id_list(about, "begin_suppress_tokens")
        index = about.get("max_initial_timestamp_index")
        return cls(
            start=ids["<|startoftranscript|>"],
            end=end,
            languages=codes if several else {},
            tasks=tasks if several else {},
            without_timestamps=ids["<|notimestamps|>"],
            suppressed=unspoken(tokenizer) if suppressed is None else suppressed,
            suppressed_first=(*tokenizer.encode(" ")[:1], end) if first is None else first,
            initial_timestamp=index if type(index) is int and index >= 0 else INITIAL_TIMESTAMP,
        )

    @property
    def timestamps(self) -> int:
        """The id of the timestamp 0.00."""
        return self.without_timestamps + 1

    @property
    def rules(self) -> TimestampTokens:
        """The rules for picking timestamps after a prompt without `without_timestamps`."""
        return TimestampTokens(
            prompt=1 + (2 if self.languages else 0),
            begin=self.timestamps,
            end=self.end,
            never=(*self.suppressed, self.without_timestamps),
            never_first=self.suppressed_first,
            initial=self.initial_timestamp,
        )

    def prompt(self, language: str | None, task: str, stamped: bool) -> list[int]:
        """The tokens after `start`: a language and a task, unless the model knows only English, and the choice of
        timestamps.
        """
        if self.plain:
            return []
        spoken = [self.languages[language], self.tasks[task]] if language is not None and self.languages else []
        return spoken if stamped else [*spoken, self.without_timestamps]

    def require(self, language: str | None, task: str, stamped: bool = False) -> None:
        """Raise OptionError for a language or a task that the model lacks, and for timestamps."""
        if stamped and self.plain:
            raise OptionError(
                "timestamps were requested, but the model has none; leave them out, or load a Whisper model"
            )
        if task not in TASKS:
            raise OptionError(f"task is {clipped(task)}; it must be one of {', '.join(TASKS)}")
        if not self.languages:
            if language not in (None, "en") or task != TASKS[0]:
                described = f"task is {task!r}" if task != TASKS[0] else f"language is {clipped(language)}"
                raise OptionError(f"{described}, but the model knows only English; leave it out, or load another model")
        elif language is not None and language not in self.languages:
            raise OptionError(f"language is {clipped(language)}; it must be one of {', '.join(self.languages)}")


def id_list(about: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """A list of ids; None if there is none of that name. Raises ConfigError."""
    found = about.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(each) is int and each >= 0 for each in found):
        raise ConfigError(f"{GENERATION_CONFIG}: {name} is {clipped(found)}; expected ids: copy the file again")
    return tuple(found)


def unspoken(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that never occur in speech: symbols, and special tokens except the end and timestamps. The definition is
    openai's, `Tokenizer.non_speech_tokens` and `_get_suppress_tokens`.
    """
    found = {tokenizer.encode(" -")[0], tokenizer.encode(" '")[0]}
    for symbol in [*SYMBOLS, *NOTES]:
        for ids in (tokenizer.encode(symbol), tokenizer.encode(" " + symbol)):
            if len(ids) == 1 or symbol in NOTES:
                found.add(ids[0])
    special = tokenizer.special_ids
    names: Sequence[str] = ("startoftranscript", *TASKS, "startoflm", "startofprev", "nospeech", "nocaptions")
    return tuple(sorted(found | {special[f"<|{name}|>"] for name in names if f"<|{name}|>" in special}))
