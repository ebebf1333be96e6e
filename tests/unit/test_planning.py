"""Devices and plans without a model: what the host is asked, and what CPython answers."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capstan
from capstan import ConfigError, DeviceUnavailableError, ModelFileError, OptionError
from capstan.device.device_host import Planned
from capstan.device.reference.reference_device import ReferenceDevice
from capstan.local.local_host import LocalHost
from capstan.memory import fits
from capstan.model_files.genai_config import with_room
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.paper_load import ABLE

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
CONTEXT = 300


def plan(path: Any, **options: Any) -> capstan.memory.Fit:
    return asyncio.run(capstan.plan(path, **options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of which there is the configuration only."""
    tree = json.loads((NANO / "genai_config.json").read_bytes())
    tree["model"]["context_length"] = CONTEXT
    (tmp_path / "genai_config.json").write_text(json.dumps(tree))
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of the host's `fit`."""
    questions: list[tuple[Any, ...]] = []

    async def fit(_: LocalHost, *question: Any) -> str:
        questions.append(question)
        return "the host's answer"

    monkeypatch.setattr(LocalHost, "fit", fit)
    return questions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("auto", 1, None, None)),
        ({"max_length": CONTEXT}, ("auto", 1, CONTEXT, None)),
        ({"max_length": 1}, ("auto", 1, 1, None)),
        ({"device": "wasm", "batch_size": 3, "max_length": 70, "budget": 9000}, ("wasm", 3, 70, 9000)),
    ],
)
def test_the_host_is_asked_about_the_folder_and_the_lengths(
    options: dict[str, Any], expected: tuple[Any, ...], folder: Path, asked: list[tuple[Any, ...]]
) -> None:
    file = folder / "genai_config.json"
    config = with_room(parse_genai_config(file.read_bytes(), str(file)), options.get("max_length"))
    found: list[Any] = [plan(path, **options) for path in (str(folder), f"{folder}/", folder)]
    assert found == ["the host's answer"] * 3
    assert asked == [(Planned(f"{folder}/", config, {}), None, *expected)] * 3


@pytest.mark.parametrize(("batch_size", "max_length"), [(0, 1), (1, 0), (1, CONTEXT + 1)])
def test_lengths_that_no_sequence_has_are_refused(
    batch_size: int, max_length: int, folder: Path, asked: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(OptionError, match=f"^batch_size {batch_size}, max_length {max_length}: .* of {CONTEXT}$"):
        plan(folder, batch_size=batch_size, max_length=max_length)
    assert asked == []


def test_what_is_no_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^a model's path is 3; it must be the path of a directory$"):
        plan(3)
    file = tmp_path / "genai_config.json"
    with pytest.raises(ModelFileError, match=f"^{re.escape(str(file))}: cannot be read"):
        plan(tmp_path)
    file.write_text("{")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: "):
        plan(tmp_path)


def test_a_model_on_disk_fits_a_budget_or_at_most_a_length_that_does() -> None:
    enough = plan(NANO, device="reference").requirements.total.bytes
    assert plan(NANO, budget=enough)
    fit = plan(NANO, budget=enough - 1)
    # The context of 512 is two steps of a cache's capacity: what has no room for both may have it for one.
    assert (bool(fit), fit.limit, fit.requirements.max_length, fit.largest_max_length) == (False, "budget", 512, 256)
    assert plan(NANO, max_length=256, budget=enough - 1)


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"device": "reference"}], ids=str)
def test_on_cpython_there_is_the_reference_device(options: dict[str, str]) -> None:
    assert isinstance(asyncio.run(capstan.open_device(**options)), ReferenceDevice)


@pytest.mark.parametrize(("device", "error"), [("webgpu", DeviceUnavailableError), ("wasm", OptionError)])
def test_devices_of_a_page_are_refused_on_cpython(device: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^device (is )?'{device}'"):
        asyncio.run(capstan.open_device(device))


@pytest.mark.parametrize("length", [64, 300, None])
def test_a_draft_model_is_counted_as_the_loaded_models_count_it(length: int | None) -> None:
    draft = str(NANO.with_name("nano-shape"))
    model = capstan.Model(str(NANO), draft_model=draft)
    loaded = model.query_memory_requirements(1, length)
    model.close()
    fit = plan(NANO, max_length=length, draft_model=draft)
    assert fit.requirements == loaded
    assert fit.requirements.draft == plan(draft, max_length=length).requirements
    alone = plan(NANO, max_length=length).requirements
    assert alone.draft is None
    assert plan(NANO, max_length=length, draft_model=draft, budget=loaded.total.bytes)
    over = plan(NANO, max_length=length, draft_model=draft, budget=loaded.total.bytes - 1)
    assert (over.limit, over.value) == ("budget", loaded.total.bytes)


def test_a_draft_model_that_is_too_large_is_named() -> None:
    draft = NANO.with_name("nano-float")
    need = plan(NANO, max_length=64, draft_model=draft).requirements
    fit = plan(NANO, max_length=64, draft_model=draft, budget=need.total.bytes // 2)
    assert fit.reason.startswith(f"draft model takes {need.total.bytes} bytes with batch_size 1 and max_length 256;")
    assert fit.reason.endswith("; use a smaller draft model, or none")
    assert need.draft is not None
    [first, *others] = need.draft.items
    large = replace(need.draft, items=(replace(first, bytes=ABLE.max_binding_size + 1), *others))
    fit = fits(replace(need, draft=large), ABLE)
    assert (fit.item, fit.value) == (f"draft model {first.name}", ABLE.max_binding_size + 1)
    assert fit.reason.endswith("; use a smaller draft model, or none")


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("nano-qwen2", r"vocabularies differ: id 0 is '<\|endoftext\|>' in the draft model and '<s>' in the model"),
        ("families/lfm2", "it has states that each run overwrites"),
        ("vision/nano-gemma3-vl", "it is a model that sees"),
        ("nano-llama", r"it is the same file, model\.onnx, whose drafts cost as much"),
        ("nothing", "nothing"),
    ],
)
def test_a_draft_model_that_cannot_draft_is_refused_as_by_a_load(draft: str, said: str) -> None:
    folder = str(NANO.parent / draft)
    errors = []
    for refused in (lambda: plan(NANO, draft_model=folder), lambda: capstan.Model(str(NANO), draft_model=folder)):
        with pytest.raises(capstan.CapstanError, match=said) as error:
            refused()
        errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]
