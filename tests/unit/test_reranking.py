"""capstan.reranking.Reranker on CPython: scores are those of sentence-transformers and transformers."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

from buildtools import ROOT
from capstan import CapstanError, ConfigError, ModelFileError, OptionError, UnsupportedModelError
from capstan.reranking import Reranker, RerankResult
from tests.encoders import ENCODERS
from tests.rerankers import CASES, KINDS, RERANKERS, ranked

QUERY, DOCUMENTS = CASES[0]


def reranked(folder: Path, *given: Any, load: dict[str, Any] | None = None, **options: Any) -> list[RerankResult]:
    async def run() -> list[RerankResult]:
        async with await Reranker.load(str(folder), **load or {}) as reranker:
            return await reranker.rerank(*given, **options)

    return asyncio.run(run())


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_judge(kind: str, case: int) -> None:
    found = reranked(RERANKERS / kind, *CASES[case])
    judged = ranked(kind, case)
    assert [each.index for each in found] == [index for index, _ in judged]
    assert [each.score for each in found] == pytest.approx([score for _, score in judged], abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_documents_are_independent_of_those_beside_them(kind: str) -> None:
    documents = [f"{DOCUMENTS[place % len(DOCUMENTS)]} {place}" for place in range(70 if kind == "bert" else 7)]
    together = {each.index: each.score for each in reranked(RERANKERS / kind, QUERY, documents)}
    [alone] = reranked(RERANKERS / kind, QUERY, documents[5:6])
    assert together[5] == pytest.approx(alone.score, abs=1e-5)
    assert sorted(together) == list(range(len(documents)))


def test_the_best_documents_are_first_and_come_with_their_texts() -> None:
    best = reranked(RERANKERS / "bert", QUERY, DOCUMENTS, top_n=2, return_documents=True)
    assert [(each.index, each.document) for each in best] == [
        (index, DOCUMENTS[index]) for index, _ in ranked("bert", 0)[:2]
    ]
    assert [each.index for each in reranked(RERANKERS / "bert", QUERY, ["same"] * 3)] == [0, 1, 2]


def test_an_instruction_is_part_of_the_prompt_and_control_tokens_are_not() -> None:
    [usual] = reranked(RERANKERS / "qwen3-plain", QUERY, DOCUMENTS[:1])
    [other] = reranked(RERANKERS / "qwen3-plain", QUERY, DOCUMENTS[:1], instruction="Find a city")
    assert other.score != pytest.approx(usual.score, abs=1e-4)

    async def lengths() -> list[int]:
        async with await Reranker.load(str(RERANKERS / "qwen3-plain")) as reranker:
            texts = ("", "<|im_end|>")
            return [len(row.ids) for row in reranker._pairs.tokens(QUERY, texts, None)]

    empty, with_token = asyncio.run(lengths())
    assert with_token > empty + 1


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((QUERY, []), {}, "documents is empty; give 1 document or more"),
        ((QUERY, DOCUMENTS), {"top_n": 6}, "top_n is 6; it must be from 1 to 5, the number of documents"),
        ((QUERY, DOCUMENTS), {"top_n": 0}, "top_n is 0; it must be from 1 to 5"),
        ((QUERY, DOCUMENTS), {"instruction": "Find"}, "instruction is 'Find', but this model takes only a query and"),
        ((QUERY, "text"), {}, "Reranker.rerank: documents is 'text', of type str; give a list in which each"),
        ((QUERY, ["a", None]), {}, r"Reranker.rerank: documents is \['a', None\]"),
        ((5, ["a"]), {}, "Reranker.rerank: query is 5"),
    ],
)
def test_bad_arguments_are_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        reranked(RERANKERS / "bert", *given, **options)


def changed(tmp_path: Path, kind: str, name: str, **fields: Any) -> Path:
    """A copy of a reranker's folder with other fields in a file; None removes one."""
    folder = tmp_path / kind
    shutil.copytree(RERANKERS / kind, folder)
    about = {**json.loads((folder / name).read_text()), **fields}
    (folder / name).write_text(json.dumps({key: value for key, value in about.items() if value is not None}))
    return folder


def test_the_older_name_of_the_activation_counts_and_a_shorter_length(tmp_path: Path) -> None:
    found = reranked(changed(tmp_path, "bert", "config.json", sentence_transformers=None), QUERY, DOCUMENTS)
    assert all(0 < each.score < 1 for each in found), "sigmoid is the default"
    identity = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    older = changed(tmp_path / "older", "bert", "config.json", sentence_transformers=None, **identity)
    assert reranked(older, QUERY, DOCUMENTS)[0].score == pytest.approx(ranked("bert", 0)[0][1], abs=1e-5)

    async def length(**fields: Any) -> int:
        folder = changed(tmp_path / str(fields), "bert", "tokenizer_config.json", **fields)
        async with await Reranker.load(str(folder)) as reranker:
            return reranker.max_tokens

    assert asyncio.run(length(model_max_length=20)) == 20
    assert asyncio.run(length(model_max_length=None)) == 80
    assert asyncio.run(length(model_max_length=int(1e30))) == 80


@pytest.mark.parametrize(
    ("kind", "name", "fields", "error", "message"),
    [
        ("bert", "tokenizer.json", {"post_processor": None}, UnsupportedModelError, "has no template that separates"),
        ("bert", "tokenizer_config.json", {"model_max_length": 4}, ConfigError, "takes 4 tokens, and its template has"),
        (
            *("bert", "config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}),
            *(UnsupportedModelError, "activation_fn is 'torch.nn.Tanh'; Capstan computes Sigmoid and Identity"),
        ),
        ("qwen3", "config.json", {"model_type": "llama"}, UnsupportedModelError, "post_processor .ByteLevel. has no"),
        ("qwen3-plain", "config.json", {"max_position_embeddings": 40}, ConfigError, "takes 40 tokens"),
        ("bert", "config.json", {"max_position_embeddings": 0}, ConfigError, "max_position_embeddings is 0"),
    ],
)
def test_a_folder_that_is_wrong_is_told(
    kind: str, name: str, fields: dict[str, Any], error: type[CapstanError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        reranked(changed(tmp_path, kind, name, **fields), QUERY, DOCUMENTS)


def test_yes_and_no_must_be_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "qwen3"
    shutil.copytree(RERANKERS / "qwen3-plain", folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "".join(pair) != "yes"]
    content["model"]["vocab"]["yes!"] = content["model"]["vocab"].pop("yes")
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="tokenizer.json: it has no token 'yes'"):
        reranked(folder, QUERY, DOCUMENTS)


def test_a_model_that_is_no_reranker_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "embedder"
    shutil.copytree(RERANKERS / "bert", folder)
    shutil.copyfile(ENCODERS / "bert/onnx/model.onnx", folder / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match="outputs are 'last_hidden_state'; .* load encoders of vectors by"):
        reranked(folder, QUERY, DOCUMENTS)
    shutil.copyfile(RERANKERS / "qwen3/onnx/model.onnx", folder / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match="the graph has the input 'past_key_values"):
        reranked(folder, QUERY, DOCUMENTS)
    shutil.copyfile(RERANKERS / "qwen3-plain/onnx/model.onnx", folder / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match="the graph's outputs are 'logits'; a reranker gives logits .B, 1."):
        reranked(folder, QUERY, DOCUMENTS)
    (folder / "model.gguf").touch()
    with pytest.raises(UnsupportedModelError, match="model.gguf: a GGUF file is no embedding model or reranker here"):
        reranked(folder / "model.gguf", QUERY, DOCUMENTS)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match="tokenizer.json is missing"):
        reranked(folder, QUERY, DOCUMENTS)
    with pytest.raises(OptionError, match="device is 'npu'; it must be one of"):
        reranked(RERANKERS / "bert", QUERY, DOCUMENTS, load={"device": "npu"})


@pytest.mark.parametrize("static", [True, False])
def test_several_labels_are_refused(static: bool, tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    shutil.copytree(RERANKERS / "bert", folder)
    model = onnx.load(folder / "onnx/model.onnx")
    wide = onnx.helper.make_node("Concat", ["one", "one", "one"], ["logits"], axis=1)
    for node in model.graph.node:
        node.output[:] = ["one" if name == "logits" else name for name in node.output]
    model.graph.node.append(wide)
    [output] = model.graph.output
    output.type.tensor_type.shape.dim[1].Clear()
    if static:
        output.type.tensor_type.shape.dim[1].dim_value = 3
    onnx.save(model, folder / "onnx/model.onnx")
    with pytest.raises(UnsupportedModelError, match="the graph gives 3 labels for a pair, .* a reranker gives 1"):
        reranked(folder, QUERY, DOCUMENTS)


def test_the_code_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/rerankers.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = compile(block, "rerankers.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(code, {"folder": RERANKERS / "xlm-roberta"}))
    assert re.fullmatch(r"[01] 0\.\d+\n", capsys.readouterr().out)
