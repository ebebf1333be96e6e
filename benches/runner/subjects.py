"""The models that are measured, with their prompts: a folder's chats, else ids spread over the vocabulary; words for a
GGUF file that is the model itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["CHATS", "GGUF", "PROMPT_TOKENS", "Chat", "Subject", "prompt_ids", "prompt_for"]

PROMPT_TOKENS = 16
CHATS = "chats.json"
"""Written into a model's folder by benches/real/agreement.py."""
GGUF = "model.gguf"
"""In a model's folder, the same model for engines that read this format."""
GGUF_CONTEXT = 4096
"""Tokens of context that are used of a GGUF file, whose header is not read here; a prompt that is longer than the model
allows fails by itself."""
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")
"""Each is one token, with the space before it, in any vocabulary that English texts made."""


@dataclass(frozen=True)
class Chat:
    """A prompt with the tokens that float32 picks after it, and how far each is above float32's second choice."""

    prompt: tuple[int, ...]
    greedy: tuple[int, ...]
    margins: tuple[float, ...]
    reply: tuple[int, ...]
    """A committed text, which is forced on engines to compare their probabilities."""
    prompt_text: tuple[str, ...]
    reply_text: tuple[str, ...]
    """The text of each id."""


@dataclass(frozen=True)
class Subject:
    """A model that is measured."""

    name: str
    vocabulary: int
    context: int
    weights: int
    """Bytes."""
    chats: tuple[Chat, ...] = ()
    gguf: bool = False
    file: str = ""
    """The name of the GGUF file that is the model; empty for a folder."""

    @classmethod
    def of(cls, name: str, folder: Path) -> Subject:
        """The model of a folder, or of a GGUF file."""
        if folder.is_file():
            return cls(name, 0, GGUF_CONTEXT, folder.stat().st_size, gguf=True, file=folder.name)
        config: dict[str, Any] = json.loads((folder / "genai_config.json").read_text())["model"]
        file = folder / CHATS
        found = json.loads(file.read_text())["chats"] if file.is_file() else []
        chats = [Chat(**{field.name: tuple(chat[field.name]) for field in fields(Chat)}) for chat in found]
        weights = (folder / f"{config['decoder']['filename']}.data").stat().st_size
        gguf = (folder / GGUF).is_file()
        return cls(name, config["vocab_size"], config["context_length"], weights, tuple(chats), gguf)

    @property
    def address(self) -> str:
        """The model under /models/, as contenders take it."""
        return f"{self.name}/{quote(self.file)}" if self.file else self.name

    def plays(self, contender: str) -> bool:
        """Whether a contender can: engines of GGUF files take text, those of ONNX files read folders."""
        if contender == "wllama":
            return self.gguf and bool(self.chats or self.file)
        return contender == "capstan" or not self.file

    def prompt(self, turn: int = 0) -> dict[str, Any]:
        """The prompt of a round, also as text, and the number of its chat for the step."""
        if self.file:
            return text_prompt(PROMPT_TOKENS)
        if not self.chats:
            return {"prompt": prompt_ids(PROMPT_TOKENS, self.vocabulary)}
        place = turn % len(self.chats)
        return {"prompt": list(self.chats[place].prompt), "chat": place, "text": "".join(self.chats[place].prompt_text)}

    def long_prompt(self, length: int) -> dict[str, Any]:
        """A prompt of so many tokens: the chats one after another, over and over."""
        if self.file:
            return text_prompt(length)
        if not self.chats:
            return {"prompt": prompt_ids(length, self.vocabulary)}
        ids = [token for chat in self.chats for token in (*chat.prompt, *chat.reply)]
        text = [piece for chat in self.chats for piece in (*chat.prompt_text, *chat.reply_text)]
        places = [place % len(ids) for place in range(length)]
        return {"prompt": [ids[place] for place in places], "text": "".join(text[place] for place in places)}


def prompt_for(asked: dict[str, Any], contender: str) -> dict[str, Any]:
    """A prompt as a contender takes it: as ids, or as text."""
    by_text = contender == "wllama" or "prompt" not in asked
    return {"text": asked["text"]} if by_text else {"prompt": asked["prompt"]}


def text_prompt(length: int) -> dict[str, Any]:
    """A prompt of so many words, for models whose tokenizer is not known here."""
    return {"text": "".join(f" {WORDS[place % len(WORDS)]}" for place in range(length)), "length": length}


def prompt_ids(length: int, vocabulary: int) -> list[int]:
    """A prompt that any model can be told: ids spread over the vocabulary, the same each time."""
    return [3 + (7919 * i + 104729) % (vocabulary - 3) for i in range(length)]
