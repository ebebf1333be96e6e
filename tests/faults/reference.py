"""Attacks that load a model on CPython and run it: folders with changed files, GGUF files with changed keys."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from capstan import CapstanError, Generator, GeneratorParams, Model
from capstan.generation.state_format import SHARD, FileRows, SavedState
from capstan.host.session_store import SessionStore, StoredSession
from capstan.host.storage_interface import short_hash
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_files import gguf_file
from tests.gguf_keys import QWEN35
from tests.gguf_models import FIXTURES, contents, make
from tests.paper_weights import PaperBacking

from .mutations import mutated_graph, mutated_json
from .targets import Target

__all__ = ["mutated_keys", "reference_targets"]

FOLDER = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")
PROMPT = (5, 60, 17)
START = b"capstan state 2\n"

NAMES = (
    *("context_length", "embedding_length", "embedding_length_out", "block_count", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "attention.causal", "attention.scale", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale"),
    *("rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.original_context_length"),
    *("rope.scaling.finetuned", "rope.scaling.yarn_ext_factor", "embedding_scale", "residual_scale", "expert_count"),
    *("expert_used_count", "pooling_type", "nextn_predict_layers", "shortconv.l_cache", "unknown", ""),
    *("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"),
    *("full_attention_interval", "attention.recurrent_layers"),
)
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 16, 24, 32, 64, 65, 255, 256, 512, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, -1.0, 4.0, 50.0, 1e4, 1e6, 1e-30, 1e-45, 1e30, 3e38, 1e300, float("nan"), float("inf")),
    *(float("-inf"), True, False, "", "linear", "yarn", "none", "longrope", "su", "\0", "x" * 5000),
    *([], [0], [1], [2, 2], [4, 4], [2, 4], [64.0], [True], [True, False], [""], ["x"], [[1]], [[], []], [0] * 5000),
)


FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope.freq_base": 500000.0},
    "qwen3": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
    "smollm3": {"block_count": 4},
    "gemma2": {"block_count": 2, "attention.sliding_window": 8},
    "gemma3": {"block_count": 2, "attention.sliding_window": 8},
    "phi3": {"rope.dimension_count": 32, "rope.scaling.original_context_length": 4},
    "granite": {"logit_scale": 2.0},
    "qwen35": {**QWEN35, "block_count": 2},
    "lfm2": {"block_count": 2, "attention.head_count_kv": (0, 2), "shortconv.l_cache": 3},
}
NUMBERS = (0.0, -1.0, 1e-45, 1e-38, 1e30, 3e38, float("nan"), float("inf"))


@cache
def good(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the tensors of a small model."""
    return contents(make(family, {"": GgmlType.Q4_0}, {"block_count": 1, **FAMILIES[family]}, vocabulary=512))


def mutated_keys(random: Random, data: bytes) -> bytes:
    """A GGUF file with other values, of any type, of keys below its architecture; some are left out. Rotary factors
    are changed, too."""
    del data
    family = random.choice([*FAMILIES])
    told, tensors = good(family)
    metadata, tensors = dict(told), dict(tensors)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        key = f"{family}.{random.choice(NAMES)}"
        if random.random() < 0.1:
            metadata.pop(key, None)
        else:
            metadata[key] = random.choice(VALUES)
    for name in [name for name in tensors if name.startswith("rope_") and random.random() < 0.2]:
        dims, kind, content = tensors[name]
        tensors[name] = dims, kind, struct.pack("<f", random.choice(NUMBERS)) + content[4:]
    return gguf_file(metadata, tensors)


def reference_targets(files: Mapping[str, bytes]) -> list[Target]:
    """The classes; `files` are those of a model folder, and "gguf"."""

    def in_folder(name: str, mutate: Callable[[Random, bytes], bytes]) -> Target:
        async def run(data: bytes) -> None:
            with tempfile.TemporaryDirectory() as place:
                for each in FOLDER:
                    (Path(place) / each).write_bytes(data if each == name else files[each])
                await generated(place)

        return Target(f"run {name}", files[name], mutate, run)

    async def gguf(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "model.gguf"
            path.write_bytes(data)
            await generated(str(path))

    return [
        in_folder("genai_config.json", mutated_json),
        in_folder("model.onnx", mutated_graph),
        Target("gguf keys", files["gguf"], mutated_keys, gguf),
        Target("saved state", saved()[1], mutated_json, restored),
        Target("stored session", stored(), mutated_json, continued),
    ]


@cache
def saved() -> tuple[Model, bytes, bytes]:
    """A model, and the header and the rows of a state of it."""
    model = Model(str(FIXTURES / "nano-llama"))
    with Generator(model, limited(model)) as generator:
        generator.append_tokens(PROMPT)
        body = generator.save_state()[len(START) + 32 :]
    end = 4 + int.from_bytes(body[:4], "little")
    return model, body[4:end], body[end:]


async def restored(header: bytes) -> None:
    """Continue from a state with this header, whose digest is right; a refused state leaves nothing."""
    model, _, rows = saved()
    head = len(header).to_bytes(4, "little") + header
    async with Generator(model, limited(model)) as generator:
        try:
            await generator.restore_state_async(START + hashlib.sha256(head).digest() + head + rows)
        except CapstanError:
            assert not generator.token_count(), "a part of the state is left"
            raise
        async for _ in generator:
            pass


def stored() -> bytes:
    """The fields of a stored session's record."""
    _, header, rows = saved()
    told = StoredSession("talk", [], {}, 3, header.decode(), len(rows), state="rows.state")
    return json.dumps(asdict(told)).encode()


async def continued(record: bytes) -> None:
    """Continue a stored session whose record is this one, with a right digest."""
    model, _, rows = saved()
    backing = PaperBacking()
    backing.files["rows.state"] = bytearray(rows)
    # A page reads texts so.
    record = record.decode(errors="replace").encode()
    name, sealed = f"{short_hash('talk')}.json", hashlib.sha256(record).hexdigest().encode()
    backing.files[name] = bytearray(sealed + b"\n" + record)
    store = SessionStore(backing)
    found = await store.read("talk")
    assert found is not None, "the record is there"
    header = SavedState.header_of(found.header)
    with closing(await store.open_rows(found, SHARD)) as file:
        async with Generator(model, limited(model)) as generator:
            try:
                await generator.restore_rows(SavedState(header, FileRows(file, header["bytes"], header["digests"])))
            except CapstanError:
                assert not generator.token_count(), "a part of the state is left"
                raise
            async for _ in generator:
                pass


def limited(model: Model) -> GeneratorParams:
    params = GeneratorParams(model)
    params.set_search_options(max_length=len(PROMPT) + 2)
    return params


async def generated(path: str) -> None:
    """Load a model and pick two ids."""
    async with await Model.load(path, device="reference") as model, Generator(model, limited(model)) as generator:
        generator.append_tokens(PROMPT)
        async for _ in generator:
            pass
