"""The reference has every public Python name with its docstring and an example, and the documents' Python runs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import shutil
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import capstan
from buildtools import ROOT
from buildtools.carried_wheels import DETECTOR
from capstan import errors, measure, memory, notebook
from capstan.speech import speech_detector
from capstan_host.model_arguments import BUNDLED
from tests.documented import CHAT_MODEL, chat_model, examples, prints
from tests.encoders import ENCODERS
from tests.sounds import glide, voice, wave_file
from tests.voices import make_voice

FIXTURES = Path(__file__).parents[1] / "fixtures"
DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference_python.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = sorted(set(capstan.__all__) - set(errors.__all__))
ROW = re.compile(r"^\| `(\w+Error)` +\| ([^|]+?) +\|", re.MULTILINE)


async def run_blocks(blocks: Sequence[str], names: dict[str, Any]) -> list[str]:
    """Run a page's Python in order, which may await at its top level; what each block prints."""
    printed = []
    for block in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            waiting = eval(compile(block, block, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.iscoroutine(waiting):
                await waiting
        printed.append(output.getvalue())
    return printed


def test_the_examples_of_the_reference_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capstan, "models", list(capstan.models))
    names: dict[str, Any] = {"folder": str(FIXTURES / "nano-llama"), "lora": str(FIXTURES / "nano-lora")}
    names |= {"whisper": str(FIXTURES / "speech/nano-whisper"), "sound": wave_file(glide(0.5)), "samples": voice(1.0)}
    with zipfile.ZipFile(DETECTOR.path()) as wheel:
        detector = wheel.read(f"silero_vad/{speech_detector.FILE}")
    monkeypatch.setattr(speech_detector, "installed", lambda: detector)
    names["kokoro"] = str(make_voice(tmp_path / "kokoro"))
    with warnings.catch_warnings():
        asyncio.run(run_blocks(BLOCKS.findall(REFERENCE), names))
    assert names["fit"]
    assert names["caption"].final
    assert names["answer"].finish_reason == "length"
    assert (tmp_path / "trace.json").stat().st_size > 0


@pytest.mark.parametrize("page", ["chat", "guidance", "large_models", "agents", "saved_conversations"])
def test_the_examples_of_a_guide_run_and_print_what_is_documented(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / CHAT_MODEL).symlink_to(chat_model())
    monkeypatch.chdir(tmp_path)
    blocks = examples(page, "python")
    printed = asyncio.run(run_blocks([code for code, _ in blocks], {}))
    for output, (code, documented) in zip(printed, blocks, strict=True):
        assert prints(output.splitlines(), documented), f"{code}\nprints\n{output}"


def test_the_introduction_runs_up_to_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rest needs a GPU."""
    monkeypatch.chdir(tmp_path)
    text, _, _ = (DOCS / "python.md").read_text(encoding="utf-8").partition("\n## Any ONNX model\n")
    printed = asyncio.run(run_blocks(BLOCKS.findall(text), {"models": {"bundled": str(BUNDLED)}}))
    assert printed[3].startswith(" + b -")
    assert (tmp_path / "trace.json").stat().st_size > 0


@pytest.mark.parametrize("page", ["logits_processors", "lora", "memory_caches", "speculation"])
def test_the_lines_of_a_guide_run_where_a_model_is_open(page: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "nano-lora", tmp_path / "lora")
    (folder / "first.onnx_adapter").rename(folder / "tuned.onnx_adapter")

    async def run() -> dict[str, Any]:
        model = await capstan.Model.load(str(folder), prefix_cache=1 << 20)
        generator = capstan.Generator(model)
        names = {"capstan": capstan, "folder": str(chat_model()), "model": model, "generator": generator, "digits": {7}}
        await run_blocks(BLOCKS.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")), names)
        return names

    with warnings.catch_warnings(action="ignore"):
        names = asyncio.run(run())
    assert len(names) > 6


def test_the_example_of_embeddings_runs() -> None:
    [(code, _)] = examples("embeddings", "python")
    assert asyncio.run(run_blocks([code], {"encoder": str(ENCODERS / "bert")})) == ["2 32 mean\n"]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_in_the_reference_and_in_an_example(name: str) -> None:
    assert f"\n::: capstan.{name}\n" in REFERENCE
    blocks = BLOCKS.findall(REFERENCE + (DOCS / "pyodide.md").read_text(encoding="utf-8"))
    assert any(f"capstan.{name}" in block for block in blocks), f"no example has capstan.{name}"


def test_every_search_option_is_in_the_reference() -> None:
    # Set by guidance and by transcribers alone.
    stages = [base for base in capstan.SearchOptions.__bases__ if base.__name__ not in ("Guided", "Timestamps")]
    assert [base for base in stages if f"\n::: {base.__module__}.{base.__name__}\n" not in REFERENCE] == []
    texts = "".join(inspect.getdoc(each) or "" for each in (capstan.SearchOptions, *stages))
    assert [name for name in capstan.SearchOptions.names() if f"`{name}`" not in texts] == []


def test_every_public_function_class_and_member_has_a_docstring() -> None:
    bare = [
        f"{module.__name__}.{path}"
        for module in (capstan, measure, memory, notebook)
        for name in module.__all__
        for path, thing in documented(name, getattr(module, name))
        if not inspect.getdoc(thing)
    ]
    assert bare == []


def documented(name: str, thing: Any) -> list[tuple[str, Any]]:
    """A public module, function or class, with the public methods and properties of a class."""
    if not (isinstance(thing, ModuleType) or inspect.isroutine(thing) or inspect.isclass(thing)):
        return []
    members = vars(thing).items() if inspect.isclass(thing) else ()
    shown = [(each, member) for each, member in members if not each.startswith("_")]
    kinds = (property, classmethod, staticmethod)
    return [
        (name, thing),
        *((f"{name}.{each}", it) for each, it in shown if inspect.isroutine(it) or isinstance(it, kinds)),
    ]


def test_the_page_of_errors_is_the_tree() -> None:
    text, _, in_javascript = (DOCS / "errors.md").read_text(encoding="utf-8").partition("In JavaScript there are")
    rows = {name: [base.strip("`") for base in bases.split(", ")] for name, bases in ROW.findall(text)}
    assert list(rows) == re.findall(r"^ *[│├└─ ]*(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert rows == {name: [base.__name__ for base in getattr(errors, name).__bases__] for name in rows}
    codes = re.findall(r'^  \| "(\w+)"', (ROOT / "web/src/wire/errors.ts").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, _ in ROW.findall(in_javascript)} == set(codes) - set(rows) - {"BrokenDownloadError"}
