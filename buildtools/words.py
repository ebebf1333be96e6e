"""Finds sentences in comments, docstrings and documents that a hurried reader has to read twice.

Three patterns are found: a sentence that begins with Of, What, Where, Who or Whose and is not a question, a sentence
that ends in a preposition or an auxiliary verb, and words that stand for a plainer one (`anew`, `whoever`, `told of`).
`build.py check` refuses them; `python3 -m buildtools.words` lists them, and with `--count` it counts the words of the
documents.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import ROOT

__all__ = ["Phrase", "phrases", "tracked_phrases"]

SUFFIXES = {".py", ".ts", ".js", ".mjs", ".wgsl", ".md"}
SKIPPED = ("models/", "buildtools/THIRD_PARTY_NOTICES.md", "tests/guidance_cases/", "tests/fixtures/")

OPENING = re.compile(r"(?:Of|What|Where|Who|Whose)\b")
ENDING = re.compile(
    r"(?P<before>[\w'`-]+)[ ,]+"
    r"(?:of|for|by|with|in|on|to|from|at|than|into|onto|about|upon|without|against"
    r"|is|are|was|were|be|been|has|have|had|does|do|did|can|may|must|will|would|could|should)$"
)
# Again; the caller, the reader, a user; reports, returns.
ODD = re.compile(
    r"\b(?:anew|who(?:m)?ever|(?:of|for|by) who|(?:is|are|was|were|be|been) told of|tells? of)\b|[:;] who\b", re.I
)
# The product has plainer words than these, too: no caller, report, borrowed, fixed-size, that many.
PRIVATE = re.compile(
    rf"{ODD.pattern}|\b(?:nobody|somebody|told|tells?|said|lent|unslid|thereof|at hand|so many)\b", re.I
)
PRODUCT = ("py_src/", "web/src/", "web/kernels/")
# Words with which the last one makes a verb ("goes on", "log in"), an adverb or a noun.
WHOLE = frozenset(
    re.findall(
        r"\w+",
        "go goes going went turn turns turned switch switched log logs logged sign signed carry carries later so built "
        "plugged fill fills filled opt",
    )
)
PARTED = re.compile(r"\b(?:from (?:\S+ ){1,4}|(?:turn|switch|put|tak|hand)\w* \w+ )(?:on|in)$")
LITERAL_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`|(?P<comment>/\*.*?\*/|//[^\n]*)', re.DOTALL
)


class Phrase(NamedTuple):
    """A sentence to rewrite."""

    line: int
    text: str


def phrases(name: str, text: str) -> list[Phrase]:
    """The sentences of one file that match a pattern; `name` gives the language."""
    suffix = Path(name).suffix
    if suffix == ".py":
        blocks = python_blocks(text)
    elif suffix == ".md":
        blocks = markdown_blocks(text)
    else:
        blocks = script_blocks(text)
    odd = PRIVATE if name.startswith(PRODUCT) else ODD
    return sorted(phrase for line, block in blocks for phrase in clumsy(line, block, odd))


def clumsy(line: int, block: str, odd: re.Pattern[str]) -> Iterator[Phrase]:
    """Each sentence of one block of prose that matches a pattern."""
    prose = re.sub(r"``[^`]+``|`[^`]*`", lambda code: "C" + re.sub(r"\S", "c", code[0][1:]), block)
    prose = re.sub(r"\be\.g\.|\bi\.e\.", lambda short: short[0].replace(".", " "), prose)
    start = 0
    for end in [*(match.end() for match in re.finditer(r"[.!?](?=[)\"'*_]*(?:\s|$))", prose)), len(prose)]:
        lead = len(prose[start:end]) - len(prose[start:end].lstrip(" \n\t*_(\"'"))
        sentence = " ".join(prose[start + lead : end].split())
        words = sentence.rstrip(".!?:)*_\"'")
        last = ENDING.search(words)
        particle = last and (last["before"].lower() in WHOLE or PARTED.search(words))
        clumsy_form = OPENING.match(sentence) or odd.search(sentence) or (last and not particle)
        if sentence and not sentence.endswith("?") and clumsy_form:
            yield Phrase(line + prose.count("\n", 0, start + lead), " ".join(block[start + lead : end].split()))
        start = end


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings (of attributes too), and comments with adjacent lines joined."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from paragraphs(node.lineno, node.value.value)
    found: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#!|#\s*(?:type|noqa|pragma|ruff|mypy)\b", token.string):
            own = token.line.lstrip().startswith("#")
            found.append((token.start[0], token.start[1] if own else -1, token.string.lstrip("#:")))
    yield from joined(found)


def script_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Comments of TypeScript, JavaScript and WGSL, with adjacent lines joined."""
    lines: list[tuple[int, int, str]] = []
    for match in LITERAL_OR_COMMENT.finditer(text):
        comment = match["comment"]
        if not comment:
            continue
        line = text.count("\n", 0, match.start()) + 1
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if comment.startswith("//"):
            lines.append((line, len(before) if not before.strip() else -1, comment.lstrip("/")))
        else:
            body = re.sub(r"(?m)^[ \t]*\*(?!/) ?", "", comment[2:-2].lstrip("*"))
            yield from paragraphs(line, re.sub(r"(?m)^[ \t]*@\w+", "", body))
    yield from joined(lines)


def markdown_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells; fenced code, headings and generated tables are left out."""
    blank = re.compile(r"^(```|~~~).*?^\1|<!-- (\w+) -->.*?<!-- /\2 -->|<!--.*?-->", re.DOTALL | re.MULTILINE)
    text = blank.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"(?m)^#+ .*$", "", text)
    for line, block in paragraphs(1, text):
        item_line = line
        for item in re.split(r"\n(?=\s*(?:[-*+]|\d+\.|\|) )", block):
            prose = re.sub(r"^\s*(?:[-*+]|\d+\.) ", "", item)
            cells = prose.split("|") if prose.lstrip().startswith("|") else [prose]
            for cell in cells:
                yield item_line, re.sub(r"[\[\]]", " ", cell)
            item_line += item.count("\n") + 1


def paragraphs(line: int, text: str) -> Iterator[tuple[int, str]]:
    """The parts between blank lines, each with its line."""
    for match in re.finditer(r"(?:[^\n]*\S[^\n]*(?:\n|$))+", text):
        yield line + text.count("\n", 0, match.start()), match[0].rstrip("\n")


def joined(lines: list[tuple[int, int, str]]) -> Iterator[tuple[int, str]]:
    """Comments (line, column, text) with those of successive lines in one column joined."""
    block: list[str] = []
    first, previous = 0, (-1, -1)
    for line, column, text in lines:
        if block and column >= 0 and previous == (line - 1, column):
            block.append(text)
        else:
            if block:
                yield from paragraphs(first, "\n".join(block))
            first, block = line, [text]
        previous = (line, column)
    if block:
        yield from paragraphs(first, "\n".join(block))


def tracked_phrases() -> list[str]:
    """The clumsy sentences of all files that git tracks or would track, each as `path:line: text`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [
        f"{name}:{phrase.line}: {phrase.text}"
        for name in sorted(set(names))
        if (path := ROOT / name).suffix in SUFFIXES and not name.startswith(SKIPPED) and path.is_file()
        for phrase in phrases(name, path.read_text(encoding="utf-8"))
    ]


ARCHIVES = ("benches/notes/", "models/", "buildtools/")
NOT_READ = re.compile(r"^ *```.*?^ *```|<!-- (\w+) -->.*?<!-- /\1 -->", re.MULTILINE | re.DOTALL)
"""Code, and parts that a command writes."""


def counted() -> dict[str, int]:
    """The words of each document that somebody reads: with a letter or a digit, outside code and generated parts."""
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {
        name: NOT_READ.sub("", (ROOT / name).read_text(encoding="utf-8"))
        for name in names.split()
        if not name.startswith(ARCHIVES)
    }
    return {name: sum(bool(re.search(r"\w", word)) for word in text.split()) for name, text in texts.items()}


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        counts = counted()
        print("\n".join([f"{words:6} {name}" for name, words in counts.items()] + [f"{sum(counts.values()):6} in all"]))
    else:
        for found in tracked_phrases():
            print(found)
