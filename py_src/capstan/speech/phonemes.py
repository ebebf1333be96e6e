"""Converts a text to phonemes: it splits the text into sentences and into pieces for one run of a model, and lists the
languages of voices.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence

__all__ = ["MOST", "language_of", "pieces", "sentences"]

MOST = 510
"""The most phonemes of a piece: the model has 512 places, two of them for its ends."""
LANGUAGES = {
    "a": "en-US",
    "b": "en-GB",
    "e": "es",
    "f": "fr-FR",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-BR",
    "z": "zh",
}
"""The languages of voices by the first letter of their names."""
SENTENCE = re.compile(
    r"(?:(?<=[.!?…])|(?<=[.!?…][\"'”’)\]]))(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\be\.g\.)"
    r"(?<!\bi\.e\.)(?<!^\d\.)(?<!\n\d\.)\s+|(?<=[。！？])|\n+"
)
"""The places between sentences; web/src/page/sentences.ts has the same."""
CUTS = (SENTENCE, re.compile(r"(?<=[,;:—])\s+"), re.compile(r"\s+"))


def language_of(voice: str) -> str | None:
    """The language of a voice by its name, such as af_heart; None for a name of another form."""
    return LANGUAGES.get(voice[:1]) if voice[1:3] in ("f_", "m_") else None


async def sentences(text: str | AsyncIterable[str]) -> AsyncIterator[str]:
    """The sentences of a text, which may arrive in parts; each sentence comes as soon as it is complete."""
    if isinstance(text, str):
        rest = text
    else:
        rest = ""
        async for part in text:
            *whole, rest = SENTENCE.split(rest + part)
            for sentence in filter(str.strip, whole):
                yield sentence
    for sentence in filter(str.strip, SENTENCE.split(rest)):
        yield sentence


def pieces(phonemes: str, cuts: Sequence[re.Pattern[str]] = CUTS) -> list[str]:
    """A sentence's phonemes in pieces of at most MOST: cut at sentences, else at commas, else between words, else
    anywhere."""
    if len(phonemes) <= MOST:
        return [phonemes] if phonemes else []
    if not cuts:
        return [phonemes[start : start + MOST] for start in range(0, len(phonemes), MOST)]
    packed: list[str] = []
    for part in filter(None, cuts[0].split(phonemes)):
        if packed and len(packed[-1]) + 1 + len(part) <= MOST:
            packed[-1] += f" {part}"
        else:
            packed.append(part)
    return [piece for each in packed for piece in pieces(each, cuts[1:])]
