"""The rewritten graph for the CPU provider, and the note of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capstan import OutOfMemoryError
from capstan.device.wasm import cpu_graph
from capstan.device.wasm.cpu_graph import WasmGraph, prepare, wasm_graph
from capstan.device.wasm.wasm_device import WasmDevice
from capstan.device.wasm.wasm_model import wasm_memory
from capstan.graph import WeightEntry, parse
from capstan.graph.onnx_pb2 import ModelProto
from tests.unit.fixture_models import MODELS, bytes_of, config_of, no_weights
from tests.unit.shelf import Shelf

FIXTURES = Path(__file__).parents[1] / "fixtures"
WIDE = 1 << 30


async def no_session(*_: Any) -> Any:
    raise AssertionError("a session was opened")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[ModelProto]:
    """The graphs that were rewritten."""
    seen: list[ModelProto] = []

    def counted(parsed: ModelProto, *rest: Any) -> WasmGraph:
        seen.append(parsed)
        return prepare(parsed, *rest)

    monkeypatch.setattr(cpu_graph, "prepare", counted)
    return seen


def loaded(shelf: Shelf | None, model: str, wide_bytes: int = WIDE, data: bytes | None = None) -> WasmGraph:
    notes = shelf.notes if shelf else None
    given = bytes_of(model) if data is None else data
    return asyncio.run(wasm_graph(given, config_of(model), wide_bytes, no_weights, "http://here/nano/", notes))


@pytest.mark.parametrize("model", MODELS)
def test_a_noted_graph_is_the_one_that_was_rewritten(model: str, prepared: list[ModelProto]) -> None:
    shelf = Shelf()
    first, second = loaded(shelf, model), loaded(shelf, model)
    assert first == second == prepare(parse(bytes_of(model), model), config_of(model), WIDE)
    assert len(prepared) == 1


def test_what_else_it_depends_on_rewrites_it(prepared: list[ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    assert loaded(shelf, "nano-llama").made
    assert not loaded(shelf, "nano-llama", wide_bytes=0).made
    loaded(shelf, "nano-llama", wide_bytes=0)
    assert len(prepared) == 2
    loaded(shelf, "nano-llama", 0, bytes_of("nano-llama") + b"\x1a\x00")  # an empty domain
    assert len(prepared) == 3
    monkeypatch.setattr(cpu_graph, "build", lambda: "another")
    loaded(shelf, "nano-llama", wide_bytes=0)
    assert len(prepared) == 4
    assert len(shelf.texts) == 1, "a folder has one note"


def test_without_notes_it_is_rewritten(prepared: list[ModelProto]) -> None:
    assert loaded(None, "nano-llama") == loaded(None, "nano-llama")
    assert len(prepared) == 2


def test_a_graph_with_defaults_of_the_data_file_is_not_noted(
    prepared: list[ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> dict[str, bytes]:
        return {"lora": b""}

    monkeypatch.setattr(cpu_graph, "read_entries", read)
    shelf = Shelf()
    for _ in range(2):
        loaded(shelf, "nano-llama")
    assert len(prepared) == 2
    assert not shelf.texts


def test_weights_that_the_heap_does_not_hold_are_told_before_the_load() -> None:
    found = prepare(parse(bytes_of("nano-llama"), "nano-llama"), config_of("nano-llama"), WIDE)
    large = WeightEntry("table", (1 << 15, 1 << 15), 1, "model.onnx.data", 0, 1 << 32)
    memory = wasm_memory(WasmDevice(no_session, {}), replace(found, weights=(large,)), config_of("nano-llama"))
    progress: list[tuple[str, int, int]] = []
    with pytest.raises(OutOfMemoryError, match=r"wasm allows 3221225472 bytes .* at most 80\d million parameters"):
        memory.before_load(lambda *told: progress.append(told))
    assert not progress
    small = wasm_memory(WasmDevice(no_session, {}), found, config_of("nano-llama"))
    small.before_load(lambda *told: progress.append(told))
    assert [what for what, *_ in progress] == ["weights"]
    assert not memory.fit(1, 1)
    assert memory.fit(1, 1).largest_max_length == 0
