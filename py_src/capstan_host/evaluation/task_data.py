"""Documents of Capstan's own tasks, made from files that `lm_eval` brings and from Python's own."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from importlib.metadata import files
from pydoc_data.topics import topics
from typing import Any

from datasets import Dataset

__all__ = ["functions", "next_lines", "rest_of_lines", "topic_names"]

SEED = 20261126
CHOICES = 4
MOST = 1000
"""Characters of a document."""


def functions(**_: Any) -> dict[str, Dataset]:
    """Functions of the package `requests`, which the bundled model has never seen in training."""
    return as_test_split({"text": text} for text in sources())


def next_lines(**_: Any) -> dict[str, Dataset]:
    """Beginnings of functions of `requests`, each with four lines, one of which is the next line."""
    chosen = random.Random(SEED)
    texts = [text.splitlines(keepends=True) for text in sources()]
    every = sorted({line for lines in texts for line in lines[1:] if len(line.strip()) > 8})

    def documents() -> Iterator[dict[str, Any]]:
        for lines in texts:
            places = [place for place in range(2, len(lines)) if len(lines[place].strip()) > 8]
            if places:
                place = chosen.choice(places)
                others = chosen.sample([line for line in every if line not in lines], CHOICES - 1)
                answer = chosen.randrange(CHOICES)
                others.insert(answer, lines[place])
                yield {"context": "".join(lines[:place]), "choices": others, "answer": answer}

    return as_test_split(documents())


def rest_of_lines(**_: Any) -> dict[str, Dataset]:
    """Beginnings of functions of `requests`, each up to the last word of a line, with that word."""
    chosen = random.Random(SEED)

    def documents() -> Iterator[dict[str, Any]]:
        for text in sources():
            ends = [match for match in re.finditer(r"[^\n]*\S [^\n]*[ (.](\w+[):\]]*)\n", text) if match.start()]
            if ends:
                match = chosen.choice(ends)
                yield {"context": text[: match.start(1)], "rest": match[1]}

    return as_test_split(documents())


def topic_names(**_: Any) -> dict[str, Dataset]:
    """Paragraphs of Python's own help, each with four of its topics: its own and three others."""
    chosen = random.Random(SEED)
    names = sorted(name for name in topics if name.isalpha())

    def documents() -> Iterator[dict[str, Any]]:
        for name in names:
            for paragraph in topics[name].split("\n\n")[1:]:
                text = " ".join(paragraph.split())
                if 80 < len(text) < MOST and name not in text.lower() and text[0].isupper():
                    choices = chosen.sample([other for other in names if other != name], CHOICES - 1)
                    answer = chosen.randrange(CHOICES)
                    choices.insert(answer, name)
                    yield {"text": text, "choices": choices, "answer": answer}
                    break

    return as_test_split(documents())


def sources() -> list[str]:
    """The top-level functions and methods of `requests` that have at most MOST characters, unindented."""
    found: list[str] = []
    for file in sorted(file for file in files("requests") or () if file.suffix == ".py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
                part = "".join(line[node.col_offset :] or "\n" for line in lines)
                if len(lines) > 3 and len(part) <= MOST and part not in found:
                    found.append(part)
    return found


def as_test_split(documents: Iterator[dict[str, Any]]) -> dict[str, Dataset]:
    """A data set with these documents only."""
    return {"test": Dataset.from_list(list(documents))}
