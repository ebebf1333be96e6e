"""Adapter files: what onnxruntime wrote is read, anything else is a typed error."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from capstan.device.lora_file import read_adapter
from capstan.errors import ModelFileError
from tests.lora_models import LORA

FILE = LORA / "queries.onnx_adapter"


def test_tensors_are_those_that_onnxruntime_reads() -> None:
    for path in LORA.glob("*.onnx_adapter"):
        native = onnxruntime.AdapterFormat.read_adapter(str(path))
        found = read_adapter(path.read_bytes(), path.name)
        assert (found.adapter_version, found.model_version) == (1, 1)
        wanted = {name: value.numpy() for name, value in native.get_parameters().items()}
        assert wanted.keys() == found.tensors.keys()
        for name, tensor in found.tensors.items():
            array = np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.dims)
            assert np.array_equal(array, wanted[name])


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int8"])
def test_other_element_types(dtype: str, tmp_path: Path) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    file = onnxruntime.AdapterFormat()
    file.set_parameters({"ü": onnxruntime.OrtValue.ortvalue_from_numpy(values)})
    file.set_adapter_version(3)
    file.set_model_version(4)
    file.export_adapter(str(tmp_path / "a"))
    found = read_adapter((tmp_path / "a").read_bytes(), "a")
    assert (found.adapter_version, found.model_version) == (3, 4)
    tensor = found.tensors["ü"]
    assert (tensor.dtype, tensor.dims, bytes(tensor.data)) == (dtype, (3, 4), values.tobytes())


def test_every_truncated_file_is_refused() -> None:
    data = FILE.read_bytes()
    lengths = [*range(64), *random.Random(1).sample(range(64, len(data)), 200)]
    for length in lengths:
        with pytest.raises(ModelFileError, match="cut"):
            read_adapter(data[:length], "cut")


def test_changed_files_are_read_or_refused() -> None:
    """Whatever four bytes are changed to, no other error comes, and no tensor is outside the file."""
    data, source = FILE.read_bytes(), random.Random(2)
    # Descriptions are before and behind the tensors.
    places = [place for place in range(0, len(data) - 4, 4) if not 80 < place < 1000 and not 1200 < place < 2100]
    refused = 0
    for place in [*places, *source.sample(places, min(len(places), 200))]:
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF, source.getrandbits(32)):
            changed = bytearray(data)
            struct.pack_into("<I", changed, place, value)
            try:
                found = read_adapter(changed, "changed")
            except ModelFileError:
                refused += 1
            else:
                assert sum(len(tensor.data) for tensor in found.tensors.values()) <= len(data)
    assert refused > 100


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not an adapter file"),
        (b"{}" * 40, "not an adapter file"),
        (struct.pack("<I4s", 0, b"TORT"), "damaged"),
    ],
)
def test_other_files_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(ModelFileError, match=why):
        read_adapter(data, "it")


def test_another_format_version_is_refused() -> None:
    data = bytearray(FILE.read_bytes())
    root = struct.unpack_from("<I", data)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    field = root + struct.unpack_from("<H", data, vtable + 4)[0]
    struct.pack_into("<i", data, field, 2)
    with pytest.raises(ModelFileError, match="format version 2; Capstan reads 1"):
        read_adapter(data, "it")


def test_a_tensor_that_is_there_twice_is_refused() -> None:
    data = FILE.read_bytes().replace(b"layers.1.attn.q_proj.lora_A", b"layers.0.attn.q_proj.lora_A")
    with pytest.raises(
        ModelFileError, match=r"the file has tensor 'model\.layers\.0\.attn\.q_proj\.lora_A\.weight' twice"
    ):
        read_adapter(data, "it")
