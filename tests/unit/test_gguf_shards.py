"""Models in several GGUF files: any of them names the model, and files that do not belong together are told."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

import capstan
from capstan.errors import CapstanError, ConfigError, ModelFileError
from capstan.model_files.gguf.header import GgmlType
from capstan.model_files.gguf.shards import shard_names
from tests.gguf_models import MIXED, Made, make, write, write_shards

ENDS = ("0.attn_k.weight", "0.attn_q.bias", "1.ffn_gate.weight")
"""v is in another file than q and k, the biases are in two, gate and up as well."""


@pytest.fixture(scope="module")
def made() -> Made:
    return make("qwen2", {"": GgmlType.Q4_0, "token_embd": GgmlType.Q8_0}, vocabulary=512)


async def logits_of(path: Path) -> list[float]:
    async with await capstan.Model.load(path) as model, capstan.Generator(model) as generator:
        generator.append_tokens(capstan.Tokenizer(model).encode("the tape"))
        return list(await generator.get_logits_async())


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_any_shard_names_the_whole_model(family: str, tmp_path: Path) -> None:
    made = make(
        family, MIXED if family == "qwen2" else {"": GgmlType.Q4_1, "token_embd": GgmlType.Q6_K}, vocabulary=512
    )
    ends = ENDS if family == "qwen2" else ("token_embd.weight", "0.attn_q.weight", "1.attn_k.weight")
    whole = asyncio.run(logits_of(write(made, tmp_path / "whole.gguf")))
    files = write_shards(made, tmp_path / "in shards", *ends)
    assert [file.name for file in files] == [*shard_names(files[2].name)]
    for file in files:
        assert asyncio.run(logits_of(file)) == pytest.approx(whole, rel=0, abs=1e-4 * max(map(abs, whole))), file.name


def refusal(path: Path, kind: type[CapstanError] = ModelFileError) -> str:
    with pytest.raises(kind) as raised:
        asyncio.run(capstan.Model.load(path))
    return re.sub(r"\S*/", "", str(raised.value))


def test_a_shard_that_is_missing(made: Made, tmp_path: Path) -> None:
    first, second, *_ = write_shards(made, tmp_path, *ENDS, name="model")
    second.unlink()
    found = refusal(first)
    assert found.startswith("model-00002-of-00004.gguf") or "model-00002-of-00004.gguf" in found, found
    assert found.endswith("it is shard 2 of 4; put all shards into one folder"), found


@pytest.mark.parametrize(
    ("lies", "message"),
    [
        (
            {"no": 2},
            "model-00002-of-00004.gguf is shard 3 of 4 (metadata split.no), but its name is that of shard 2; copy",
        ),
        (
            {"count": 3},
            "00002-of-00004.gguf is one of 3 shards (metadata split.count), but its name is that of one of 4; ",
        ),
        (
            {"count": 1},
            "00002-of-00004.gguf is one of 1 shards (metadata split.count), but its name is that of one of 4; ",
        ),
        (
            {"tensors.count": 7},
            "model-00002-of-00004.gguf is a shard of a model of 7 tensors (metadata split.tensors.count), but "
            "model-00001-of-00004.gguf is one of a model of 26; copy",
        ),
    ],
)
def test_shards_whose_numbers_lie(lies: dict[str, int], message: str, made: Made, tmp_path: Path) -> None:
    first, *_ = write_shards(made, tmp_path, *ENDS, name="model", **lies)
    assert message in refusal(first)


def test_a_number_that_no_shard_has(made: Made, tmp_path: Path) -> None:
    first, *_ = write_shards(made, tmp_path, *ENDS, name="model", no=-1)
    assert "split.no: expected an integer from 0 to 65536, got -1" in refusal(first, ConfigError)


def test_a_shard_of_another_model(made: Made, tmp_path: Path) -> None:
    files = write_shards(made, tmp_path / "one", *ENDS, name="model")
    others = write_shards(
        made, tmp_path / "other", "token_embd.weight", "0.attn_v.weight", "1.ffn_up.weight", name="model"
    )
    shutil.copy(others[2], files[2])
    twice = r"model-00003-of-00004.gguf: tensor blk.0.attn_output.weight is also in model-00002-of-00004.gguf; copy"
    assert re.search(twice, refusal(files[0]))
    (tmp_path / "short").mkdir()
    shorter = write_shards(
        made, tmp_path / "short", "0.attn_k.weight", "0.attn_q.bias", "1.ffn_up.weight", name="model"
    )
    shutil.copy(shorter[3], files[3])
    shutil.copy(write_shards(made, tmp_path / "again", *ENDS, name="model")[2], files[2])
    assert "model-00001-of-00004.gguf: its 4 shards have 25 tensors, expected 26 (metadata" in refusal(files[0])


def test_names_that_no_shard_has(made: Made, tmp_path: Path) -> None:
    first, *_ = write_shards(made, tmp_path, *ENDS, name="model")
    alone = first.rename(tmp_path / "renamed.gguf")
    assert (
        "one of 4 shards (metadata split.count), but its name is not a shard's; name it NAME-00001-of-00004.gguf"
        in (refusal(alone))
    )
    for number, count in ((0, 2), (3, 2), (1, 1025)):
        name = f"model-{number:05}-of-{count:05}.gguf"
        wanted = f"{name} is named shard {number} of {count}, expected a number from 1 to the count, and at most 1024 "
        assert refusal(tmp_path / name).startswith(wanted)


def test_a_file_that_is_alone_in_spite_of_its_name(made: Made, tmp_path: Path) -> None:
    (file,) = write_shards(made, tmp_path)
    assert file.name == "a model-00001-of-00001.gguf"
    asyncio.run(logits_of(file))
