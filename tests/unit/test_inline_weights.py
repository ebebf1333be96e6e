"""Weights inside a graph's own file become external data of that file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capstan import ModelFileError, graph
from capstan.graph import inline_weights
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from tests.repository_layout import lay_out

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"


class File:
    """Bytes that are read in ranges."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read_bytes = 0

    async def read(self, start: int, length: int) -> bytes:
        assert 0 <= start <= start + length <= len(self.data)
        self.read_bytes += length
        return self.data[start : start + length]

    def detached(self) -> bytes:
        return asyncio.run(graph.without_weights(self.read, len(self.data), "m.onnx", "self.onnx"))


@pytest.fixture
def inside(tmp_path: Path) -> File:
    return File((lay_out(LLAMA, tmp_path / "repo", parts=0) / "onnx" / "model_q4.onnx").read_bytes())


def tensors(model: ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


@pytest.mark.parametrize("piece", [1, 100, 1 << 18])
def test_every_tensor_has_the_bytes_that_it_had(piece: int, inside: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_weights, "PIECE", piece)
    before, after = graph.parse(inside.data), graph.parse(inside.detached())
    entries = {entry.name: entry for entry in graph.external_entries(after)}
    assert len(entries) > 15
    for name, tensor in tensors(after).items():
        original = tensors(before)[name]
        assert (tensor.dims, tensor.data_type) == (original.dims, original.data_type)
        if name in entries:
            entry = entries[name]
            assert entry.location == "self.onnx"
            assert inside.data[entry.offset : entry.end] == original.raw_data
        else:
            assert tensor == original
    assert len(tensors(after)) == len(tensors(before))
    del before.graph.initializer[:], after.graph.initializer[:]
    assert after == before


def test_what_is_large_is_not_read(inside: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_weights, "PIECE", 64)
    detached = inside.detached()
    assert len(detached) < 40_000 < len(inside.data)
    assert inside.read_bytes < len(inside.data) / 2


def test_shapes_and_scalars_stay(inside: File) -> None:
    model = graph.parse(inside.data)
    for name, kind, dims, size in (
        ("shape", TensorProto.INT64, [100], 800),
        ("scalar", TensorProto.FLOAT, [], 4),
        ("few", TensorProto.FLOAT, [31], 124),
        ("many", TensorProto.FLOAT, [32], 128),
        ("table", TensorProto.INT64, [129], 1032),
    ):
        model.graph.initializer.add(name=name, data_type=kind, dims=dims, raw_data=bytes(size))
    found = tensors(graph.parse(File(graph.serialize(model)).detached()))
    kept = {name: bool(found[name].raw_data) for name in ("shape", "scalar", "few", "many", "table")}
    assert kept == {"shape": True, "scalar": True, "few": True, "many": False, "table": False}


def test_a_file_with_external_data_stays_as_it_is() -> None:
    data = (LLAMA / "model.onnx").read_bytes()
    assert graph.parse(File(data).detached()) == graph.parse(data)


def test_a_pointer_of_git_lfs_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"^m\.onnx is a Git LFS pointer of 42 bytes, not the model; run `git lfs"):
        File(b"version https://git-lfs.github.com/spec/v1").detached()


@pytest.mark.parametrize("data", [b"\xff" * 100, b":\xff\xff\xff\xff\x7f", b"\x03\x00"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"^m\.onnx: .* (not an ONNX model|not the model)"):
        graph.parse(File(data).detached(), "m.onnx")


def test_a_tensor_that_is_longer_than_its_graph_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"64 bytes are not an ONNX model \(byte 2\)"):
        File(b"\x3a\x02\x2a\x32" + b"x" * 60).detached()


def test_a_file_that_was_cut_is_refused(inside: File) -> None:
    with pytest.raises(ModelFileError, match=r"m\.onnx: its 100000 bytes are not an ONNX model \(byte \d+\)"):
        File(inside.data[:100000]).detached()


def test_weights_in_a_branch_of_an_if_become_external_too() -> None:
    file = File((LLAMA.parent / "speech/nano-whisper-hub/onnx/decoder_model_merged.onnx").read_bytes())
    before, after = (
        {
            tensor.name: tensor
            for item in graph.parse(data).graph.node[-1].attribute
            for tensor in item.g.initializer
            if tensor.name.startswith("onnx::MatMul")
        }
        for data in (file.data, file.detached())
    )
    assert len(after) == len(before) >= 4
    for name, tensor in after.items():
        told = {item.key: item.value for item in tensor.external_data}
        start = int(told["offset"])
        assert told["location"] == "self.onnx"
        assert file.data[start : start + int(told["length"])] == before[name].raw_data
        assert not tensor.raw_data
