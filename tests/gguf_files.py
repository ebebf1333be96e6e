"""Writes GGUF files: metadata, tensors, and the tokenizer of a fixture's folder as llama.cpp's converter writes it."""

from __future__ import annotations

import json
import struct
from collections.abc import Coroutine, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from capstan.model_files.gguf.header import GgufFile, read_header

Tensor = tuple[Sequence[int], int, bytes]
"""(dimensions as in numpy, number of the type, data)."""


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> tuple[int, bytes]:
    """The number of a value's type in the metadata, and its bytes."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        kinds = ((4, "<I", 0, 32), (5, "<i", 31, 31), (10, "<Q", 0, 64), (11, "<q", 63, 63))
        kind, code = next((k, c) for k, c, low, high in kinds if -(low and 1 << low) <= value < 1 << high)
        return kind, struct.pack(code, value)
    if isinstance(value, float):
        wide = abs(value) > 3.4e38 and isfinite(value)
        return (12, struct.pack("<d", value)) if wide else (6, struct.pack("<f", value))
    if isinstance(value, str | bytes):
        return 8, text(value)
    # llama.cpp takes signed integers only as types of tokens.
    items = [(5, struct.pack("<i", item)) if type(item) is int else typed(item) for item in value]
    kind = items[0][0] if items else 8
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)


def gguf_file(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, *, version: int = 3, alignment: int = 32
) -> bytes:
    """The bytes of a file. Its metadata get general.alignment if that is not 32."""
    pairs = dict(metadata) if alignment == 32 else {**metadata, "general.alignment": alignment}
    tensors = tensors or {}
    made = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    for key, value in pairs.items():
        kind, data = typed(value)
        made += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, (dims, number, data) in tensors.items():
        body += b"\0" * (-len(body) % alignment)
        made += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), number, len(body))
        body += data
    return made + b"\0" * (-len(made) % alignment) + body


def header_of(data: bytes, size: int | None = None, reads: list[tuple[int, int]] | None = None) -> GgufFile:
    """The header of a file's bytes, which says that it has `size` bytes; `reads` notes what was read."""

    async def read(start: int, length: int) -> bytes:
        if reads is not None:
            reads.append((start, length))
        return data[start : start + length]

    reading: Coroutine[Any, Any, GgufFile] = read_header(read, len(data) if size is None else size)
    try:
        reading.send(None)
    except StopIteration as done:
        file: GgufFile = done.value
        return file
    raise AssertionError("reading bytes that are there waits for nothing")


def tokenizer_metadata(folder: Path, pre: str) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer, from the tokenizer.json of a folder."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = {**content["model"]["vocab"], **{each["content"]: each["id"] for each in content["added_tokens"]}}
    added = {each["id"]: 3 if each["special"] else 4 for each in content["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    merges = [each if isinstance(each, str) else " ".join(each) for each in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [added.get(place, 1) for place in range(len(tokens))],
        "tokenizer.ggml.merges": merges,
    }
