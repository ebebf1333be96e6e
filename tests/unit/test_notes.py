"""Notes for later page loads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from capstan import fallback
from capstan.fallback import FallbackWarning
from capstan.host import notes
from capstan.host.notes import Notes
from tests.unit.shelf import Shelf


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setattr(fallback, "counted", type(fallback.counted)())
    return Shelf()


def read(shelf: Shelf, name: str, key: str) -> str | None:
    return asyncio.run(shelf.notes.read(name, key))


def write(shelf: Shelf, name: str, key: str, content: str) -> None:
    asyncio.run(shelf.notes.write(name, key, content))


def test_a_note_is_there_for_its_key_only(shelf: Shelf) -> None:
    write(shelf, "adapter", "one", "first\nsecond")
    assert read(shelf, "adapter", "one") == "first\nsecond"
    assert read(shelf, "adapter", "two") is None
    assert read(shelf, "other", "one") is None


def test_a_name_has_one_note(shelf: Shelf) -> None:
    write(shelf, "adapter", "one", "old")
    write(shelf, "adapter", "two", "new")
    assert (read(shelf, "adapter", "one"), read(shelf, "adapter", "two")) == (None, "new")
    assert len(shelf.texts) == 1


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: text[1:], lambda text: "", lambda text: "{}"])
@pytest.mark.parametrize("key", ["one", "two"])
def test_a_damaged_note_is_none_and_told(shelf: Shelf, damage: Any, key: str) -> None:
    write(shelf, "adapter", "one", "content")
    (name,) = shelf.texts
    shelf.texts[name] = damage(shelf.texts[name])
    with pytest.warns(FallbackWarning, match="note 'adapter' .* damaged"):
        assert read(shelf, "adapter", key) is None
    assert list(fallback.counted.values()) == [1]


def test_a_note_of_another_name_is_none(shelf: Shelf) -> None:
    write(shelf, "step of 2 rows", "one", "two")
    write(shelf, "step of 3 rows", "one", "three")
    two, three = shelf.texts
    shelf.texts[three] = shelf.texts[two]
    with pytest.warns(FallbackWarning, match="note 'step of 3 rows' .* damaged"):
        assert read(shelf, "step of 3 rows", "one") is None
    assert read(shelf, "step of 2 rows", "one") == "two"


@pytest.mark.filterwarnings("error")
def test_a_note_of_another_key_or_an_older_capstan_is_none_without_a_word(shelf: Shelf) -> None:
    write(shelf, "adapter", "one", "content")
    assert read(shelf, "adapter", "two") is None
    (name,) = shelf.texts
    shelf.texts[name] = f"{64 * 'a'}\ncontent"
    assert read(shelf, "adapter", "one") is None


def test_the_number_of_notes_is_bounded(shelf: Shelf) -> None:
    for i in range(3 * notes.MOST):
        write(shelf, f"model {i}", "one", "x")
        assert len(shelf.texts) <= notes.MOST
        assert read(shelf, f"model {i}", "one") == "x"


def test_failing_storage_is_a_step_down(shelf: Shelf) -> None:
    shelf.broken = "the shelf fell down"
    with pytest.warns(FallbackWarning, match="the shelf fell down"):
        write(shelf, "adapter", "one", "content")
    assert read(shelf, "adapter", "one") is None


def test_without_storage_nothing_is_noted() -> None:
    asyncio.run(Notes().write("adapter", "one", "content"))
    assert asyncio.run(Notes().read("adapter", "one")) is None


def test_a_build_is_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FromZip:
        archive = str(tmp_path / "capstan.whl")

    class Spec:
        loader = FromZip()

    monkeypatch.setattr(notes, "__spec__", Spec())
    found = []
    for content in (b"one", b"two", b"two"):
        (tmp_path / "capstan.whl").write_bytes(content)
        notes.build.cache_clear()
        found.append(notes.build())
    notes.build.cache_clear()
    assert found[0] != found[1] == found[2]
