"""A GGUF file opened as a model, on CPython."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import capstan
from capstan.errors import ConfigError, ModelFileError, OptionError
from capstan.host import Host, current_host
from capstan.loading import gguf_folder
from capstan.loading.folder import Place, find_model
from capstan.loading.found_model import FoundModel
from capstan.model_files.gguf.header import GgmlType, GgufFile, read_header
from capstan.weights.manifest import Manifest
from capstan.weights.records import DATA
from capstan.weights.store import WeightStore
from capstan.weights.weight_file import WeightFile
from tests.gguf_files import gguf_file
from tests.gguf_models import Made, contents, make, write, write_shards
from tests.unit.shelf import Shelf

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


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_long_rope_rotates_all_positions_anew(dtype: str, tmp_path: Path) -> None:
    """As the graph does for a whole sequence: its If chooses by the length. The first tokens past the original length
    are those of the long factors."""
    given = {"rope.dimension_count": 32, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.2}
    made = make("phi3", {"": GgmlType.F32}, given, vocabulary=512)
    file = write(made, tmp_path / "model.gguf")

    async def picked(prompt: list[int]) -> list[int]:
        model = await capstan.Model.load(file, device="reference", dtype=dtype)
        assert model.original_length == 16
        params = capstan.GeneratorParams(model)
        params.set_search_options(max_length=len(prompt) + 10, min_length=len(prompt) + 10)
        generator = capstan.Generator(model, params)
        generator.append_tokens(prompt)
        async for _ in generator:
            pass
        found = [int(each) for each in generator.get_sequence(0)]
        await model.aclose()
        return found

    session = made.session()
    fed = {value.name: np.zeros((1, 2, 0, 64), np.float32) for value in session.get_inputs()[2:]}
    for prompt in ([5, 60, 17, 80, 33, 2, 9, 11, 12, 13], [(7 * i + 3) % 500 + 4 for i in range(20)]):
        found = asyncio.run(picked(prompt))
        for end in range(len(prompt), len(found)):
            ids = np.array([found[:end]])
            [logits] = session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **fed})
            rows = logits[0, -1]
            rows[1] = -np.inf
            assert rows.max() - rows[found[end]] <= (1e-4 if dtype == "fp32" else 3e-2), (prompt, found, end)


def test_what_a_file_does_not_take(file: Path) -> None:
    with pytest.raises(
        OptionError, match="dtype is 'q4'; with the weights of a model.gguf it must be one of fp16 and fp32"
    ):
        asyncio.run(capstan.Model.load(file, dtype="q4"))
    with pytest.raises(ConfigError, match="overlay has type, but there is no genai_config.json"):
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
    assert found.startswith(f"{tmp_path}/ has 2 models; name one as OWNER/NAME:FILE.gguf of a hub, by its address, or")
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


def written(made: Made, path: Path, **changes: Any) -> Path:
    """A file with other metadata; None leaves a pair out."""
    metadata, tensors = contents(made)
    for key, value in changes.items():
        metadata[key] = value
    path.write_bytes(gguf_file({key: value for key, value in metadata.items() if value is not None}, tensors))
    return path


async def test_a_template_that_loops_ends_within_its_budget(made: Made, tmp_path: Path) -> None:
    template = "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"
    file = written(made, tmp_path / "loops.gguf", **{"tokenizer.chat_template": template})

    async with await capstan.Model.load(file) as model:
        with pytest.raises(ConfigError, match="chat_template"):
            capstan.Tokenizer(model).apply_chat_template([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", None, "metadata tokenizer.ggml.model is missing, expected"),
        ("tokenizer.ggml.tokens", None, "metadata tokenizer.ggml.tokens is missing, expected an array of strings"),
        ("tokenizer.ggml.merges", None, "metadata tokenizer.ggml.merges is missing, expected an array of strings"),
        ("llama.attention.layer_norm_rms_epsilon", None, "layer_norm_rms_epsilon is missing, expected a finite number"),
        ("llama.feed_forward_length", None, "llama.feed_forward_length is missing, expected an integer"),
        ("tokenizer.chat_template", 7, "metadata tokenizer.chat_template: expected"),
    ],
)
def test_metadata_that_are_missing_or_wrong(key: str, value: object, message: str, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        asyncio.run(close(capstan.Model.load(written(made, tmp_path / "model.gguf", **{key: value}))))


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (b"\x20\0\0\0\0\0\0\0" + b'{"a":{"dtype":"F32"}}' + bytes(64), "safetensors"),
        (b"\x08\x0a\x12\x07capstan" + bytes(64), "ONNX"),
        (b"", "an empty file"),
    ],
)
def test_files_of_other_kinds(begin: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(begin)
    with pytest.raises(ModelFileError, match=rf"model\.gguf: expected GGUF .*found {what}"):
        asyncio.run(capstan.Model.load(tmp_path / "model.gguf"))


def test_a_file_that_ends_in_its_data(made: Made, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for size in (len(whole) - 1, len(whole) - 4096, len(whole) // 2):
        (tmp_path / "short.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=rf"tensor \S+ .* but the file has {size}"):
            asyncio.run(capstan.Model.load(tmp_path / "short.gguf"))


def test_tensors_that_contradict_the_metadata(made: Made, tmp_path: Path) -> None:
    file = written(made, tmp_path / "model.gguf", **{"llama.feed_forward_length": 256})
    with pytest.raises(
        ModelFileError, match="tensor blk.0.ffn_gate.weight: expected 256 x 256, as the metadata say, found"
    ):
        asyncio.run(capstan.Model.load(file))


@pytest.fixture
def shelves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Shelf]:
    """The storage of this host, by folder."""
    shelves: dict[str, Shelf] = {}

    async def backing(host: Host, folder: str) -> Shelf:
        return shelves.setdefault(folder, Shelf())

    monkeypatch.setattr(type(current_host()), "backing", backing)
    return shelves


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The headers that were read."""
    reads: list[str] = []

    async def read(data: Any, size: int, name: str) -> GgufFile:
        reads.append(Path(name).name)
        return await read_header(data, size, name)

    monkeypatch.setattr(gguf_folder, "read_header", read)
    return reads


def found(file: Path, dtype: str = "fp32", keep: bool = True) -> FoundModel:
    return asyncio.run(find_model(current_host(), Place(f"{file.parent}/", file.name), "cpu", dtype, keep=keep))


def test_a_model_that_was_opened_before_is_not_derived_again(
    made: Made, tmp_path: Path, shelves: dict[str, Shelf], reads: list[str]
) -> None:
    """Its graph, its configuration and its tokenizer are noted for the very same file and type."""
    file = write(made, tmp_path / "model.gguf")
    first = found(file)
    assert (found(file), len(reads)) == (first, 1)
    assert found(file, "fp16").graphs != first.graphs
    assert len(reads) == 2
    os.utime(file, ns=(1, 1))
    assert (found(file, "fp16"), len(reads)) == (found(file, "fp16"), 3)


def test_shards_that_were_opened_before_are_not_read_again_while_all_of_them_are_the_same(
    made: Made, tmp_path: Path, shelves: dict[str, Shelf], reads: list[str]
) -> None:
    files = write_shards(made, tmp_path, "token_embd.weight", "0.attn_q.weight", name="model")
    first = found(files[1])
    assert sorted(reads) == [file.name for file in files]
    for file in files:
        assert (found(file), len(reads)) == (first, 3)
    for times, file in enumerate(files, 2):
        os.utime(file, ns=(1, 1))
        assert (found(files[0]), len(reads)) == (first, 3 * times), file.name
    files[2].unlink()
    with pytest.raises(ModelFileError, match="it is shard 3 of 3; put all shards into one folder"):
        found(files[0])


@pytest.mark.parametrize("which", ["file", "shard", "shards", None])
def test_eviction_removes_what_was_noted_of_a_file(
    which: str | None, made: Made, tmp_path: Path, shelves: dict[str, Shelf], reads: list[str]
) -> None:
    (tmp_path / "one").mkdir()
    file = write(made, tmp_path / "one" / "model.gguf")
    shards = write_shards(made, tmp_path / "two", "token_embd.weight", name="model")
    sizes = []
    for each in (file, shards[0]):
        before = noted(shelves)
        found(each)
        sizes.append(noted(shelves) - before)
    assert min(sizes) > 10_000
    for each in (file, *shards):
        asyncio.run(stored(each, each.read_bytes(), shelves))
    with pytest.raises(OptionError, match=f"one is not a stored model but a folder that has file:{file}: name one"):
        asyncio.run(WeightStore().evict(f"file:{file.parent}"))
    names = {"file": file, "shard": shards[1], "shards": shards[0]}
    held = {"file": (file,), "shard": shards[1:], "shards": shards, None: (file, *shards)}[which]
    of_notes = {"file": sizes[0], None: sum(sizes)}.get(which, sizes[1])
    evicted = asyncio.run(WeightStore().evict(None if which is None else f"file:{names[which]}"))
    assert evicted == sum(each.stat().st_size for each in held) + of_notes
    assert noted(shelves) == sum(sizes) - of_notes
    assert found(file) == found(file)
    assert reads.count("model.gguf") == (1 if which in ("shard", "shards") else 2)


async def stored(file: Path, data: bytes, shelves: dict[str, Shelf]) -> None:
    """The records of a file whose weights are stored, and no bytes of them."""
    opened = cast(WeightFile, await current_host().open_weights(f"{file.parent}/", file.name, True))
    shelves.setdefault("capstan-weights", Shelf()).texts[f"{opened.identity.key}{DATA}"] = ""
    await WeightStore().complete(opened.identity, Manifest.of([data], len(data)))
    opened.close()


def noted(shelves: dict[str, Shelf]) -> int:
    """Bytes that are kept of models, without their weights."""
    notes = (shelf for folder, shelf in shelves.items() if folder != "capstan-weights")
    return sum(len(text.encode()) for shelf in notes for text in shelf.texts.values())
