"""A tape is stored for exactly what it depends on, and made again over the buffers that are there then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from capstan import OutOfMemoryError, TapeError
from capstan.device.webgpu.sequence_buffers import SequenceBuffers
from capstan.device.webgpu.tapes.stored_tapes import Restored, StoredTapes, expects_stored
from capstan.fallback import FallbackWarning
from capstan.host.notes import Notes
from capstan.memory import DeviceBuffer, DeviceSpan
from capstan.tape import TapeKey
from tests.unit.paper_engine import PaperEngine
from tests.unit.shelf import Shelf

KEY = TapeKey("/m/", 1, 256, "paper", "tape clears")
PASSES = {"clears": "7 dropped"}


class Engine(PaperEngine):
    """An engine that stores and makes tapes; recorded ids are handles plus 1000."""

    def __init__(self, kernels: Sequence[Mapping[str, Any]] = (), error: Exception | None = None) -> None:
        super().__init__()
        self.kernels = kernels
        self.error = error
        self.unstorable = False
        self.restored: list[tuple[Mapping[str, Any], dict[int, int], str]] = []

    def recorded_id(self, buffer: int) -> int:
        return buffer + 1000

    async def store_tape(self, tape: int, given: Sequence[int]) -> dict[str, Any]:
        if self.unstorable:
            raise TapeError("the test says so")
        kernels = [{"bindings": dict(bindings)} for bindings in self.kernels]
        return {"fused": {"kernels": kernels, "owner": "first"}, "given": [id_ for id_ in given if id_ % 2 == 0]}

    async def restore_tape(self, stored: Any, given: Mapping[int, int], owner: str) -> int:
        if self.error:
            raise self.error
        self.restored.append((stored, dict(given), owner))
        return 77


class Buffers:
    """Buffers of a sequence, by handles from `first` on."""

    def __init__(self, first: int, owner: str, more: Mapping[str, int]) -> None:
        self.first, self.owner, self.more = first, owner, dict(more)
        members = {"__class__": DeviceBuffer, "handle": first + 9, "size": 512}
        state = cast(DeviceBuffer, type("Buffer", (), members)())
        self.spans = {"state": DeviceSpan(state, 256, 32)}

    def larger(self) -> dict[str, int]:
        return self.more

    def bound(self) -> dict[str, int]:
        return {"mask": self.first, "logits": self.first + 1}


def stored(
    engine: Engine, shelf: Shelf | None, *, facts: str = "facts", weights: Mapping[str, int] | None = None
) -> StoredTapes:
    notes = Notes(cast(Any, shelf)) if shelf is not None else None
    return StoredTapes(cast(Any, engine), notes, "/m/", facts, weights or {"w": 2})


def sequence(first: int = 10, owner: str = "first", **larger: int) -> SequenceBuffers:
    return cast(SequenceBuffers, Buffers(first, owner, larger))


def keep(tapes: StoredTapes, buffers: SequenceBuffers) -> None:
    asyncio.run(tapes.keep("decode", KEY, buffers, 5, PASSES))


def restore(tapes: StoredTapes, buffers: SequenceBuffers, what: str = "decode", key: TapeKey = KEY) -> Restored | None:
    return asyncio.run(tapes.restore(what, key, buffers))


@pytest.mark.parametrize("later", [False, True], ids=["in this model", "in a later load"])
def test_a_tape_is_made_again_over_other_buffers(later: bool) -> None:
    shelf = Shelf()
    engine = Engine([{"length": ["span", 19, 256, 32], "mask": ["recorded", 1010], "out": ["scratch", 0]}])
    tapes = stored(engine, shelf)
    keep(tapes, sequence())
    if later:
        tapes = stored(engine, shelf, weights={"w": 4})
    assert restore(tapes, sequence(20, "second")) == Restored(77, PASSES)
    [(tape, given, owner)] = engine.restored
    assert given == {1010: 20, 1002: 4 if later else 2}, "by name: the mask and the weight; nothing reads the logits"
    bindings = {"length": ["span", 29, 256, 32], "mask": ["recorded", 1010], "out": ["scratch", 0]}
    assert tape["fused"]["kernels"][0]["bindings"] == bindings
    assert (tape["fused"]["owner"], owner) == ("second", "second")


def test_nothing_is_made_of_what_was_not_stored() -> None:
    engine = Engine()
    assert restore(stored(engine, Shelf()), sequence()) is None
    assert restore(stored(engine, None), sequence()) is None


def test_without_notes_a_tape_is_there_for_its_model_only() -> None:
    engine = Engine()
    tapes = stored(engine, None)
    keep(tapes, sequence())
    assert restore(tapes, sequence()) is not None
    assert restore(stored(engine, None), sequence()) is None


@pytest.mark.parametrize(
    ("facts", "what", "key"),
    [
        ("other", "decode", KEY),
        ("facts", "prefill", KEY),
        ("facts", "decode", TapeKey("/m/", 1, 512, "paper", "tape clears")),
        ("facts", "decode", TapeKey("/m/", 1, 256, "another", "tape clears")),
        ("facts", "decode", TapeKey("/m/", 1, 256, "paper", "tape")),
    ],
)
def test_a_tape_is_there_for_what_it_depends_on_only(facts: str, what: str, key: TapeKey) -> None:
    shelf, engine = Shelf(), Engine()
    keep(stored(engine, shelf), sequence())
    assert restore(stored(engine, shelf), sequence()) is not None
    assert restore(stored(engine, shelf, facts=facts), sequence(), what, key) is None


def test_a_tape_of_another_adapter_is_not_taken() -> None:
    shelf, engine, other = Shelf(), Engine(), Engine()
    other.adapter = lambda: {"vendor": "paper", "subgroup_size": 8}  # type: ignore[method-assign]
    keep(stored(engine, shelf), sequence())
    assert restore(stored(other, shelf), sequence()) is None
    assert restore(stored(engine, shelf), sequence()) is not None


def test_a_model_with_stored_tapes_expects_them() -> None:
    shelf, engine = Shelf(), Engine()
    assert not asyncio.run(expects_stored(shelf.notes, "/m/"))
    keep(stored(engine, shelf), sequence())
    assert asyncio.run(expects_stored(shelf.notes, "/m/"))
    assert not asyncio.run(expects_stored(shelf.notes, "/other/"))
    assert not asyncio.run(expects_stored(None, "/m/"))


def test_a_note_of_stored_tapes_that_was_lost_is_written_again() -> None:
    shelf, engine = Shelf(), Engine()
    keep(stored(engine, shelf), sequence())
    [name] = [name for name, text in shelf.texts.items() if text.endswith("\ndecode")]
    del shelf.texts[name]
    assert restore(StoredTapes(cast(Any, engine), shelf.notes, "/m/", "facts", {"w": 2}, noted=False), sequence())
    assert asyncio.run(expects_stored(shelf.notes, "/m/"))


def test_a_damaged_note_is_told_and_replaced(no_fallbacks: None) -> None:
    shelf, engine = Shelf(), Engine()
    keep(stored(engine, shelf), sequence())
    [name] = [name for name, text in shelf.texts.items() if "7 dropped" in text]
    shelf.texts[name] = shelf.texts[name].replace("7 dropped", "8 dropped")
    with pytest.warns(FallbackWarning, match="note 'tape of decode for 256 positions of /m/' .* damaged"):
        assert restore(stored(engine, shelf), sequence()) is None
    keep(stored(engine, shelf), sequence())
    assert restore(stored(engine, shelf), sequence()) is not None


@pytest.mark.parametrize("error", [TapeError("it does not compile"), OutOfMemoryError("there is none")])
def test_a_tape_that_cannot_be_made_again_is_a_step_down(error: Exception, no_fallbacks: None) -> None:
    engine = Engine(error=error)
    tapes = stored(engine, None)
    keep(tapes, sequence())
    with pytest.warns(FallbackWarning, match=str(error)):
        assert restore(tapes, sequence()) is None
    engine.works = False
    with pytest.raises(type(error)):
        restore(tapes, sequence())


def test_a_weight_that_is_gone_is_a_step_down(no_fallbacks: None) -> None:
    shelf, engine = Shelf(), Engine()
    keep(stored(engine, shelf), sequence())
    with pytest.warns(FallbackWarning, match="weight w"):
        assert restore(stored(engine, shelf, weights={"v": 2}), sequence()) is None


@pytest.mark.parametrize("unstorable", [False, True])
def test_what_cannot_be_stored_is_not(unstorable: bool, no_fallbacks: None) -> None:
    shelf = Shelf()
    engine = Engine([{"length": ["span", 19, 0, 32]}])
    engine.unstorable = unstorable
    with pytest.warns(FallbackWarning, match="the stored tape of decode: .*; each page records"):
        keep(stored(engine, shelf), sequence())
    assert shelf.texts == {}, "the kernel binds part of another buffer than the sampler's state"


def test_a_stored_tape_is_plain_data() -> None:
    shelf = Shelf()
    keep(stored(Engine([{"length": ["span", 19, 256, 32]}]), shelf), sequence())
    [text] = [text for text in shelf.texts.values() if "7 dropped" in text]
    tape = json.loads(text.partition("\n")[2])
    assert tape["names"] == {"1010": "sequence mask", "1002": "weight w"}
    assert tape["tape"]["fused"]["kernels"][0]["bindings"] == {"length": ["named", "state"]}


def test_a_tape_over_larger_buffers_is_there_for_those_only() -> None:
    """Kernels see how large a buffer is that is bound whole."""
    engine, shelf = Engine(), Shelf()
    keep(stored(engine, shelf), sequence(mask=4096))
    for tapes in (stored(engine, shelf), stored(engine, None)):
        assert restore(tapes, sequence()) is None
        assert restore(tapes, sequence(mask=8192)) is None
        assert restore(tapes, sequence(logits=4096)) is None
    assert restore(stored(engine, shelf), sequence(20, mask=4096)) == Restored(77, PASSES)
    keep(stored(engine, shelf), sequence())
    assert restore(stored(engine, shelf), sequence(mask=4096)) is not None, "one does not take the other's place"


def test_each_part_of_a_buffer_that_kernels_bind_has_a_name() -> None:
    shelf = Shelf()
    engine = Engine([{"k": ["span", 5, 0, 64], "v": ["span", 5, 256, 64], "weights": ["recorded", 1002]}])
    there = {"state": (9, 0, 96), "kv key": (5, 0, 64), "kv value": (5, 256, 64)}
    asyncio.run(stored(engine, shelf).keep("rows", KEY, sequence(), 5, PASSES, there))
    other = {"state": (8, 0, 96), "kv key": (6, 512, 64), "kv value": (7, 0, 64)}
    found = asyncio.run(stored(engine, shelf).restore("rows", KEY, sequence(20), other))
    assert found == Restored(77, PASSES)
    [(tape, _, _)] = engine.restored
    assert tape["fused"]["kernels"][0]["bindings"] == {
        "k": ["span", 6, 512, 64],
        "v": ["span", 7, 0, 64],
        "weights": ["recorded", 1002],
    }
