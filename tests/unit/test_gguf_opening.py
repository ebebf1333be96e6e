"""A GGUF file opened as a model, on CPython."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capstan
from capstan.errors import ConfigError, ModelFileError, OptionError
from capstan.model_files.gguf.config import MODEL_TYPES
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_models import Made, make, write, write_shards

TYPES = {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0}


@pytest.fixture(scope="module")
def made() -> Made:
    return make("llama", TYPES, vocabulary=512)


@pytest.fixture(scope="module")
def file(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(made, tmp_path_factory.mktemp("gguf") / "a model.gguf")


def test_a_file_is_a_model_with_its_tokenizer(made: Made, file: Path) -> None:
    async def picked(path: str | Path) -> list[int]:
        model = await capstan.Model.load(path)
        tokenizer = capstan.Tokenizer(model)
        assert tokenizer.apply_chat_template([{"role": "user", "content": "the tape"}]) == "the tape"
        ids = tokenizer.encode("the tape")
        params = capstan.GeneratorParams(model)
        params.set_search_options(max_length=len(ids) + 8)
        generator = capstan.Generator(model, params)
        generator.append_tokens(ids)
        async for _ in generator:
            pass
        found = [int(each) for each in generator.get_sequence(0)]
        await model.aclose()
        return found

    found = asyncio.run(picked(file))
    assert found == asyncio.run(picked(str(file)))
    expected = found[:-8]
    while len(expected) < len(found):
        expected.append(int(np.argmax(made.defined(expected)[-1])))
    assert found == expected


def test_what_a_file_does_not_take(file: Path) -> None:
    with pytest.raises(
        OptionError, match="dtype is 'q4', but over the weights of a model.gguf there are fp16 and fp32"
    ):
        asyncio.run(capstan.Model.load(file, dtype="q4"))
    with pytest.raises(ConfigError, match="overlay: type: there is no genai_config.json"):
        asyncio.run(capstan.Model.load(file, overlay={"model": {"type": "llama"}}))
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        asyncio.run(capstan.Model.load(file.parent / "missing.gguf"))


def test_a_folder_with_one_model_is_that_model(made: Made, tmp_path: Path) -> None:
    async def refusal() -> str:
        with pytest.raises(ModelFileError) as raised:
            await capstan.Model.load(tmp_path)
        return str(raised.value)

    files = write_shards(made, tmp_path / "Q4_0", "token_embd.weight", name="model")
    asyncio.run(close(capstan.Model.load(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    asyncio.run(close(capstan.Model.load(tmp_path)))
    size = sum(file.stat().st_size for file in files) / 1e6
    write(made, tmp_path / "other.gguf")
    found = asyncio.run(refusal())
    assert found.startswith(f"{tmp_path}/ has 2 models; name one, as OWNER/NAME:FILE.gguf of a hub, by its address, or")
    assert f": its GGUF files are Q4_0/model-00001-of-00002.gguf ({size:.1f} MB), other.gguf ({size:.1f} MB)" in found


async def close(loading: Coroutine[Any, Any, capstan.Model]) -> None:
    await (await loading).aclose()


def test_a_plan_of_a_file(file: Path) -> None:
    fit = asyncio.run(capstan.plan(file, max_length=64))
    assert fit
    assert fit.requirements


def test_a_page_of_html_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("<!doctype html><title>Not found</title>")
    with pytest.raises(ModelFileError, match=r"model\.gguf: expected GGUF .* found HTML"):
        asyncio.run(capstan.Model.load(tmp_path / "model.gguf"))


def test_families_that_have_graphs_have_types() -> None:
    from capstan.graph.gguf.families import FAMILIES

    assert {*MODEL_TYPES} == {*FAMILIES}
