"""Reads the bytes of each token from tokenizer.json, in the alphabet of byte-level tokenizers: one character for each
byte.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NoReturn

from ..errors import GuidanceError
from ..model_files.config_section import parse_object
from .grammar import Special

__all__ = ["SpecialTokens", "TokenBytes", "special_tokens", "token_ids", "vocabulary"]

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_ALPHABET = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
"""GPT-2's alphabet: printable characters of Latin-1 stand for their bytes, characters from U+0100 on for other
bytes.
"""

_ALPHABET_SET = set(_ALPHABET.values())
_TO_BYTE = {ord(character): byte for byte, character in _ALPHABET.items()}
_STOP = 1 << 31
_MARK = _ALPHABET[0xFF]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"


class TokenBytes:
    """The bytes of all tokens of a `vocabulary`, one after another."""

    def __init__(self, tokens: Sequence[str], stop: Collection[int]) -> None:
        self.stop = stop
        """The ids that end an output."""
        texts = ["" if id_ in stop else token for id_, token in enumerate(tokens)]
        whole = "".join(texts)
        if set(whole) <= _ALPHABET_SET:
            self._bytes = whole.translate(_TO_BYTE).encode("latin-1")
            lengths = [*map(len, texts)]
        else:
            parts = [_bytes_of(text) for text in texts]
            self._bytes, lengths = b"".join(parts), [*map(len, parts)]
        self._ends = array("I", accumulate(lengths, initial=0))
        ends = array("I", self._ends)
        for id_ in stop:
            ends[id_] |= _STOP
        self.ends = ends
        """u32: the offset of each token's bytes, and the end of the last token's; the highest bit is set for ids in
        `stop`, which have no bytes.
        """
        self.data = array("I")
        """The bytes as u32, 4 in a word."""
        self.data.frombytes(self._bytes + bytes(-len(self._bytes) % 4))

    def __getitem__(self, token: int) -> bytes:
        return self._bytes[self._ends[token] : self._ends[token + 1]]


def vocabulary(tokenizer_json: str, size: int, stop: Collection[int]) -> list[str]:
    """`size` tokens by id; "" for ids without a token, and for tokens with a byte that never occurs in UTF-8. A special
    token is written as Special.data. The ids in `stop` end an output and may have any text.

    Raises GuidanceError for a tokenizer whose tokens are not bytes of text.
    """
    content = parse_object(tokenizer_json, "tokenizer.json")
    write = _writer(content)
    tokens = [""] * size
    for token, id_ in _entries(content):
        if 0 <= id_ < size:
            written = write(token)
            tokens[id_] = "" if _MARK in written else written
    for added in content.get("added_tokens") or ():
        if 0 <= added["id"] < size:
            plain = not added.get("special") or added["id"] in stop
            tokens[added["id"]] = _in_alphabet(added["content"].encode() if plain else Special(added["id"]).data)
    return tokens


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, as grammars name them."""

    ids: Mapping[str, int] = field(default_factory=dict)
    """The special tokens by text."""
    ends: Collection[int] = ()
    """The special tokens that end an output."""


def special_tokens(tokenizer_json: str, size: int, stop: Collection[int]) -> SpecialTokens:
    """The special tokens with ids below `size`."""
    added = parse_object(tokenizer_json, "tokenizer.json").get("added_tokens") or ()
    return SpecialTokens(
        {each["content"]: each["id"] for each in added if each.get("special") and each["id"] < size}, stop
    )


def token_ids(tokenizer_json: str) -> dict[str, int]:
    """The id of each token, by its text in the file."""
    content = parse_object(tokenizer_json, "tokenizer.json")
    added = {each["content"]: each["id"] for each in content.get("added_tokens") or ()}
    return {**dict(_entries(content)), **added}


def _entries(content: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Tokens with their ids; a Unigram model has a list of (token, score) instead."""
    found = content["model"].get("vocab")
    if isinstance(found, Mapping):
        return found.items()
    if isinstance(found, list):
        return ((entry[0], id_) for id_, entry in enumerate(found))
    return _refuse("its model has no vocab")


def _writer(content: Mapping[str, Any]) -> Callable[[str], str]:
    """The function that translates a token of the vocabulary into the alphabet, chosen by the tokenizer's decoder."""
    kinds = [part.get("type") for part in _decoders(content.get("decoder"))]
    if "ByteLevel" in kinds:
        return lambda token: token
    if {"ByteFallback", "Metaspace"} & set(kinds) or _replaces_blank(content):
        return _of_pieces
    described = " and ".join(map(str, kinds)) or "no"
    return _refuse(
        f"a {content['model'].get('type')} model with {described} decoder does not define the bytes of its tokens"
    )


def _decoders(decoder: Any) -> list[Mapping[str, Any]]:
    if not isinstance(decoder, Mapping):
        return []
    if decoder.get("type") == "Sequence":
        return [part for inner in decoder.get("decoders", ()) for part in _decoders(inner)]
    return [decoder]


def _replaces_blank(content: Mapping[str, Any]) -> bool:
    replaced = [part for part in _decoders(content.get("decoder")) if part.get("type") == "Replace"]
    return any(part.get("pattern") == {"String": _BLANK} and part.get("content") == " " for part in replaced)


def _of_pieces(token: str) -> str:
    """Translates a token of SentencePiece: <0x0A> is a byte, U+2581 a blank."""
    byte = _BYTE.fullmatch(token)
    return _in_alphabet(bytes([int(byte[1], 16)]) if byte else token.replace(_BLANK, " ").encode())


def _bytes_of(text: str) -> bytes:
    """The bytes of a token in the alphabet; a token with other characters is plain text."""
    return text.translate(_TO_BYTE).encode("latin-1") if set(text) <= _ALPHABET_SET else text.encode()


def _in_alphabet(text: bytes) -> str:
    return "".join(_ALPHABET[byte] for byte in text)


def _refuse(what: str) -> NoReturn:
    raise GuidanceError(f"tokenizer.json: {what}; guidance needs byte-level, byte-fallback or Metaspace tokens")
