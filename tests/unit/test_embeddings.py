"""capstan.Embedder on CPython: vectors are those of the native onnxruntime, pooled by numpy."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from buildtools import ROOT
from capstan import CapstanError, ConfigError, ModelFileError, OptionError, UnsupportedModelError
from capstan.embeddings import Embedder
from tests.encoders import ENCODERS, KINDS, TEXTS, vectors


def embedded(folder: Path, texts: list[str], **options: Any) -> tuple[np.ndarray[Any, Any], Embedder]:
    async def run() -> tuple[np.ndarray[Any, Any], Embedder]:
        async with await Embedder.load(str(folder), **options) as embedder:
            return np.array([list(vector) for vector in await embedder.embed(texts)]), embedder

    return asyncio.run(run())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("pooling", [None, "mean", "cls", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_native_onnxruntime(kind: str, pooling: str | None) -> None:
    found, embedder = embedded(ENCODERS / kind, TEXTS, pooling=pooling)
    assert embedder.pooling == pooling or KINDS[kind]
    assert found == pytest.approx(vectors(kind, TEXTS, pooling or KINDS[kind]), abs=1e-5)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)


def test_texts_are_independent_of_those_beside_them() -> None:
    texts = [f"{TEXTS[place % len(TEXTS)]} {place}" for place in range(150)]
    together, _ = embedded(ENCODERS / "bert", texts)
    alone, _ = embedded(ENCODERS / "bert", texts[70:71])
    assert together[70] == pytest.approx(alone[0], abs=1e-5)
    assert together == pytest.approx(vectors("bert", texts, "mean"), abs=1e-5)


@pytest.mark.parametrize(("kind", "ends"), [("bert", 1), ("qwen3", 1)])
def test_a_text_that_is_too_long_keeps_its_special_tokens(kind: str, ends: int) -> None:
    text = "the device reads " * 60
    found, embedder = embedded(ENCODERS / kind, [text])
    assert embedder.max_tokens == 64
    tokenizer = tokenizers.Tokenizer.from_file(str(ENCODERS / kind / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert found == pytest.approx(vectors(kind, [[*ids[: 64 - ends], *ids[-ends:]]], KINDS[kind]), abs=1e-5)


def test_what_is_embedded_must_be_texts() -> None:
    for texts in ("hello", [5], ["a", None]):
        with pytest.raises(OptionError, match="Embedder.embed: texts is .*; give a list in which each item is a text"):
            embedded(ENCODERS / "bert", texts)  # type: ignore[arg-type]
    assert embedded(ENCODERS / "bert", [])[0].shape == (0,)


def changed(tmp_path: Path, kind: str = "bert", **files: Any) -> Path:
    """A copy of an encoder's folder with other files; None removes one."""
    folder = tmp_path / kind
    shutil.copytree(ENCODERS / kind, folder)
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json")
        path.unlink(missing_ok=True)
        if content is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"config_json": None}, ModelFileError, "config.json is missing"),
        ({"tokenizer_json": None}, ModelFileError, "tokenizer.json is missing"),
        ({"config_json": {"max_position_embeddings": 0}}, ConfigError, "max_position_embeddings is 0; it must be"),
        (
            {"1_Pooling__config_json": {"pooling_mode_max_tokens": True}},
            UnsupportedModelError,
            "pooling_mode_max_tokens;",
        ),
        ({"1_Pooling__config_json": {}}, UnsupportedModelError, "no pooling_mode; Capstan computes exactly one of"),
        ({"modules_json": [{"type": "sentence_transformers.models.Dense"}]}, UnsupportedModelError, "a Dense layer"),
        ({"modules_json": [5]}, ConfigError, "modules.json: TypeError"),
        ({"sentence_bert_config_json": {"max_seq_length": "no"}}, ConfigError, "max_seq_length is 'no'"),
    ],
)
def test_a_folder_that_is_wrong_is_told(
    files: dict[str, Any], error: type[CapstanError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        embedded(changed(tmp_path, **files), ["hello"])


def test_a_model_that_is_no_encoder_is_told(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    shutil.copyfile(ENCODERS.parent / "nano-llama/model.onnx", folder / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match=r"the graph has the input 'past_key_values.0.key'; an encoder"):
        embedded(folder, ["hello"])
    for options, message in [
        ({"pooling": "max"}, "pooling is 'max'; it must be one of mean, cls, last, or None"),
        ({"device": "npu"}, "device is 'npu'; it must be one of"),
        ({"dtype": "q3"}, "dtype is 'q3'; it must be one of"),
    ]:
        with pytest.raises(OptionError, match=message):
            embedded(ENCODERS / "bert", ["hello"], **options)


def test_a_graph_beside_the_other_files_is_found_and_a_length_is_the_files(tmp_path: Path) -> None:
    folder = changed(tmp_path, sentence_bert_config_json={"max_seq_length": 8})
    (folder / "onnx/model.onnx").rename(folder / "model.onnx")
    found, embedder = embedded(folder, TEXTS[:1])
    assert embedder.max_tokens == 8
    assert found.shape == (1, 32)


def test_the_code_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/embeddings.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = compile(block, "embeddings.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(code, {"encoder": ENCODERS / "bert"}))
    assert capsys.readouterr().out == "2 32 mean\n"
