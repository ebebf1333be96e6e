"""Headers of GGUF files: what is read, and what is refused before it costs anything."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from capstan.errors import CapstanError, ConfigError, ModelFileError, UnsupportedModelError
from capstan.model_files.gguf.families import FAMILIES
from capstan.model_files.gguf.gguf_config import gguf_config
from capstan.model_files.gguf.header import FIRST_BYTES, GgmlType
from tests.gguf_files import gguf_file, header_of, text

TENSORS = {
    "token_embd.weight": ((6, 32), 0, bytes(6 * 32 * 4)),
    "blk.0.ffn_up.weight": ((2, 64), 2, bytes(2 * 2 * 18)),
    "blk.0.ffn_gate.weight": ((2, 3, 256), 12, bytes(6 * 144)),
}
PAIRS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "<|im_end|>", "c"],
    "tokenizer.ggml.eos_token_id": 3,
}


def test_metadata_and_tensors_of_both_versions() -> None:
    pairs = PAIRS | {"bool": True, "real": 0.5, "negative": -7, "nested": [["x"], ["y", "z"]], "empty": [], "text": ""}
    for version in (2, 3):
        found = header_of(gguf_file(pairs, TENSORS, version=version))
        assert found.version == version
        assert found.metadata["nested"] == (("x",), ("y", "z"))
        assert dict(found.metadata) == pairs | {
            "nested": found.metadata["nested"],
            "tokenizer.ggml.tokens": tuple(PAIRS["tokenizer.ggml.tokens"]),  # type: ignore[arg-type]
            "empty": (),
        }
        places = {name: (each.dims, each.type, each.offset, each.length) for name, each in found.tensors.items()}
        assert places == {
            "token_embd.weight": ((6, 32), GgmlType.F32, found.data, 768),
            "blk.0.ffn_up.weight": ((2, 64), GgmlType.Q4_0, found.data + 768, 72),
            "blk.0.ffn_gate.weight": ((2, 3, 256), GgmlType.Q4_K, found.data + 864, 864),
        }
    odd = header_of(gguf_file(PAIRS, TENSORS, alignment=256))
    assert [each.offset - odd.data for each in odd.tensors.values()] == [0, 768, 1024]
    assert odd.data % 256 == 0


def test_a_long_header_is_read_in_growing_ranges() -> None:
    tokens = [f"token {place:06}" for place in range(200_000)]
    data = gguf_file({"tokenizer.ggml.tokens": tokens}, {"x": ((1 << 20, 1), 0, bytes(4 << 20))})
    reads: list[tuple[int, int]] = []
    assert header_of(data, reads=reads).strings("tokenizer.ggml.tokens")[-1] == tokens[-1]
    assert reads == [(0, FIRST_BYTES), (1 << 20, 1 << 20), (2 << 20, 2 << 20)]


def test_a_file_that_ends_inside_the_header() -> None:
    whole = gguf_file(PAIRS, TENSORS)
    end = header_of(whole).data
    places = set()
    for size in range(1, end):
        with pytest.raises(ModelFileError) as raised:
            header_of(whole[:size])
        places.add(str(raised.value).partition(", but ")[2].partition(" reaches")[0] if size >= 4 else "")
    assert {"its beginning", "metadata llama.block_count", "the description of tensor token_embd.weight"} <= places
    for size in (end, end + 767, len(whole) - 1):
        with pytest.raises(ModelFileError, match=rf"tensor \S+ \(.*\) is bytes \d+ to \d+, but the file has {size}"):
            header_of(whole[:size])
    with pytest.raises(ModelFileError, match="the file ended at byte 16, expected 64 bytes"):
        header_of(whole[:16], size=64)


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def pair(kind: int, value: bytes) -> bytes:
    """A file with one metadata pair, and nothing behind it but some bytes."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<I", kind) + value + bytes(64)


def described(*dims: int, kind: int = 0, offset: int = 0, count: int = 1) -> bytes:
    """A file with one or more tensors of the same description, and 1024 bytes of data."""
    tensors = b""
    for place in range(count):
        tensors += text(f"t{place}") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    made = b"GGUF" + struct.pack("<IQQ", 3, count, 0) + tensors
    return made + bytes(-len(made) % 32 + 1024)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", ModelFileError, "found an empty file"),
        (b"<!doctype html><p>404", ModelFileError, "found HTML"),
        (number(20) + b'{"a":{}}' + bytes(20), ModelFileError, "found safetensors"),
        (b"\x08\x07\x12\x07pytorch", ModelFileError, "found ONNX; name its folder"),
        (b"version https://git-lfs.github.com/spec/v1\n", ModelFileError, "found Git LFS' pointer"),
        (b"tjgg" + bytes(9), ModelFileError, "ggml from before GGUF"),
        (b"PK\x03\x04" + bytes(9), ModelFileError, "begins with 50 4b 03 04"),
        (
            b"GGUF" + struct.pack("<I", 1) + bytes(64),
            UnsupportedModelError,
            "of version 1; Capstan reads little-endian files of .*2 and 3",
        ),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), UnsupportedModelError, "big-endian, of version 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), ModelFileError, "9223372036854775808 tensors; at most 65536"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), ModelFileError, "1099511627776 metadata pairs; at most 65536"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + number(1 << 20), ModelFileError, "string of 1048576 bytes; at most"),
        (pair(8, number(4 << 30)), ModelFileError, "metadata key is a string of 4294967296 bytes; at most 1"),
        (pair(8, number(2) + b"\xff\xff"), ModelFileError, "metadata key is not UTF-8 at byte 47 of the file"),
        (
            pair(7, b"\x02").replace(b"key", b"k\ny"),
            ModelFileError,
            r"pair 0 of 1 is 'k\\ny', with characters that are invalid in a name",
        ),
        (
            described(4).replace(b"t0", b"t\n"),
            ModelFileError,
            r"of tensor 0 of 1 is 't\\n', with characters that are invalid in a name",
        ),
        (pair(7, b"\x02"), ModelFileError, "truth value other than 0 and 1"),
        (pair(13, b""), ModelFileError, "metadata key has a value of type 13; the types are 0 to 12"),
        (pair(9, struct.pack("<IQ", 13, 1)), ModelFileError, "value of type 13"),
        (pair(9, struct.pack("<IQ", 4, 1 << 62)), ModelFileError, "array of 4611686018427387904 elements"),
        (pair(9, struct.pack("<IQ", 8, 9)), ModelFileError, "array of 9 elements; .* and the file has 64 bytes left"),
        (pair(9, struct.pack("<IQ", 8, 1) + number(4 << 30)), ModelFileError, "a string of 4294967296 bytes"),
        (pair(9, struct.pack("<IQ", 8, 1) + number(1) + b"\xff"), ModelFileError, "not UTF-8 at byte 59"),
        (pair(9, struct.pack("<IQ", 9, 1) * 9), ModelFileError, "nested more than 4 levels deep"),
        (
            pair(9, struct.pack("<IQ", 9, 100_000) + struct.pack("<IQ", 8, 0) * 100_000),
            ModelFileError,
            "metadata key has 100000 arrays within arrays; at most 65536 are read",
        ),
        (gguf_file({"general.alignment": 24}), ModelFileError, "alignment is 24, expected a power of two from 8"),
        (described(), ModelFileError, "has 0 dimensions, expected 1 to 4"),
        (described(1, 1, 1, 1, 1), ModelFileError, "has 5 dimensions"),
        (described(0), ModelFileError, "is 0; rows must be multiples of 1"),
        (described(48, 2, kind=8), ModelFileError, "of type Q8_0 is 2 x 48; rows must be multiples of 32"),
        (described(1 << 63, 1 << 63), ModelFileError, "is bytes 96 to 34028236692093846346"),
        (described(256, 2), ModelFileError, "but the file has 1120"),
        (described(4, offset=1024), ModelFileError, "is bytes 1088 to 1104, but the file has 1088"),
        (described(4, offset=8), ModelFileError, "begins at byte 8 of the data, which is not a multiple of 32"),
        (described(4, count=2), ModelFileError, "t0 and t1 overlap: .* ends at byte 112, .* begins at byte 96"),
        (described(4, kind=16), UnsupportedModelError, r"IQ2_XXS \(16\); use .* Q4_K"),
        (described(4, kind=99), UnsupportedModelError, r"number \(99\)"),
    ],
)
def test_bytes_that_lie(data: bytes, error: type[CapstanError], message: str) -> None:
    with pytest.raises(error, match=message):
        header_of(data)


def test_names_that_are_there_twice() -> None:
    once = text("key") + struct.pack("<IB", 7, 1)
    with pytest.raises(ModelFileError, match="metadata key is there twice"):
        header_of(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + once * 2)
    data = described(4, count=2).replace(b"t1", b"t0")
    with pytest.raises(ModelFileError, match="tensor t0 is there twice"):
        header_of(data)


def configured(change: Callable[[dict[str, Any]], object] = lambda pairs: None) -> Any:
    pairs: dict[str, Any] = dict(PAIRS)
    change(pairs)
    return gguf_config(header_of(gguf_file(pairs, TENSORS)), "model.gguf")


def test_the_configuration() -> None:
    found = configured()
    assert (found.model_type, found.vocab_size, found.context_length) == ("llama", 6, 128)
    assert (found.bos_token_id, found.eos_token_ids, found.pad_token_id) == (None, (3, 2), 3)
    decoder = found.decoder
    assert (decoder.filename, decoder.head_size, decoder.hidden_size) == ("model.gguf", 8, 32)
    assert (decoder.num_attention_heads, decoder.num_key_value_heads, decoder.num_hidden_layers) == (4, 2, 2)
    assert dict(found.search) == {}
    sampled = configured(lambda pairs: pairs.update({"general.sampling.temp": 0.5, "general.sampling.top_k": 20}))
    assert dict(sampled.search) == {"do_sample": True, "temperature": 0.5, "top_k": 20}
    wide = configured(lambda pairs: pairs.update({"llama.attention.key_length": 16, "tokenizer.ggml.bos_token_id": 1}))
    assert (wide.decoder.head_size, wide.bos_token_id) == (16, 1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", None, "general.architecture is missing"),
        ("general.architecture", "mamba", f"'mamba' .*use a GGUF file of {', '.join(FAMILIES)}"),
        ("llama.context_length", None, "llama.context_length is missing, expected an integer from 1"),
        ("llama.block_count", 1 << 30, "expected an integer from 1 to 4096, got 1073741824"),
        ("llama.attention.head_count", [4, 2], r"expected the same for all layers, got \(4, 2\)"),
        ("llama.attention.head_count_kv", 3, r"a divisor of head_count \(4\), got 3"),
        ("llama.attention.value_length", 4, "expected an integer from 8 to 8, got 4"),
        ("tokenizer.ggml.eos_token_id", 6, "expected an integer from 0 to 5, got 6"),
        ("tokenizer.ggml.tokens", ["x"] * 7, "at most 6 tokens, the rows of token_embd.weight, not 7"),
    ],
)
def test_a_configuration_that_is_wrong(key: str, value: object, message: str) -> None:
    def change(pairs: dict[str, Any]) -> None:
        pairs.pop(key, None)
        if value is not None:
            pairs[key] = value

    with pytest.raises((ConfigError, UnsupportedModelError), match=message):
        configured(change)


def test_a_file_without_an_embedding() -> None:
    with pytest.raises(UnsupportedModelError, match="has no tensor token_embd.weight"):
        gguf_config(header_of(gguf_file(PAIRS)), "model.gguf")
