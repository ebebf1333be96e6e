"""A mutation as data: a small change to the product that makes it wrong, and the tests that find it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutation", "MutationError", "browser", "unit"]


class MutationError(Exception):
    """A mutation that cannot be tried, with the remedy."""


@dataclass(frozen=True)
class Mutation:
    """Replaces `text`, which stands once in `file`, by `instead`."""

    name: str
    file: str
    """The path below the repository's root."""
    text: str
    instead: str
    fault: str
    """The fault in plain words."""
    tests: tuple[str, ...]
    """pytest's arguments, quickest first: test files, or single tests by `FILE::TEST`."""

    def mutated(self, root: Path) -> str:
        """The file's text below `root` with the fault in it. Raises MutationError unless `text` stands there once."""
        path = root / self.file
        if not path.is_file():
            raise self._unfit(f"there is no file {self.file}")
        source = path.read_text(encoding="utf-8")
        if source.count(self.text) != 1:
            raise self._unfit(f"{self.file} has its text {source.count(self.text)} times, not once")
        if self.text == self.instead:
            raise self._unfit("its text and what stands instead are the same")
        return source.replace(self.text, self.instead)

    def _unfit(self, why: str) -> MutationError:
        return MutationError(f"{self.name}: {why}: write this mutation again")


def unit(*names: str) -> tuple[str, ...]:
    """The unit tests with these names."""
    return files("tests/unit", names)


def browser(*names: str) -> tuple[str, ...]:
    """The tests in the page with these names."""
    return files("tests/browser", names)


def files(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """The files test_NAME.py; what follows `::` in a name is the test's own."""
    parts = [name.partition("::") for name in names]
    return tuple(f"{folder}/test_{file}.py{colons}{test}" for file, colons, test in parts)
