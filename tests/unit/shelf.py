"""Storage for notes that lasts as long as a test."""

from __future__ import annotations

from capstan.errors import StorageError
from capstan.host.notes import Notes

__all__ = ["Shelf"]


class Shelf:
    """A backing in memory, as far as notes need one; `broken` is why it fails."""

    kind = "memory"

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.broken = ""

    @property
    def notes(self) -> Notes:
        """Notes as a page finds them that has just been loaded."""
        return Notes(self)  # type: ignore[arg-type]

    def _touch(self) -> None:
        if self.broken:
            raise StorageError(self.broken)

    async def names(self) -> list[str]:
        self._touch()
        return list(self.texts)

    async def read_text(self, name: str) -> str | None:
        self._touch()
        return self.texts.get(name)

    async def write_text(self, name: str, text: str) -> None:
        self._touch()
        self.texts[name] = text

    async def remove(self, name: str) -> None:
        self._touch()
        self.texts.pop(name, None)
