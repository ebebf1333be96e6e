"""Fixtures laid out as Transformers.js repositories: the same graph and weights, no genai_config.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capstan import graph
from capstan.graph.onnx_pb2 import ModelProto, TensorProto

__all__ = ["CONFIG", "lay_out", "with_positions"]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
"""config.json of the checkpoint that nano-llama is made from (make_fixtures.py); those of the other nano models differ
in their special tokens."""


def lay_out(
    source: Path,
    target: Path,
    *,
    suffix: str = "_q4",
    parts: int = 2,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    change: Callable[[ModelProto], None] | None = None,
) -> Path:
    """The fixture `source` in the folder `target`: onnx/model{suffix}.onnx with its weights in so many files (0: in
    itself), and the tokenizer. `config` are fields of config.json that are other than CONFIG's; None leaves one out."""
    (target / "onnx").mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)
    fields = {key: value for key, value in {**CONFIG, **(config or {})}.items() if value is not None}
    (target / "config.json").write_text(json.dumps(fields))
    if generation is not None:
        (target / "generation_config.json").write_text(json.dumps(generation))
    model = ModelProto()
    model.CopyFrom(graph.parse((source / "model.onnx").read_bytes()))
    if change is not None:
        change(model)
    data = (source / "model.onnx.data").read_bytes()
    names = [f"model{suffix}.onnx_data" + (f"_{part}" if part else "") for part in range(parts)]
    pieces = [bytearray() for _ in names]
    external = [item for item in model.graph.initializer if item.data_location == TensorProto.EXTERNAL]
    for index, tensor in enumerate(external):
        if not parts:
            put_inside(tensor, data)
            continue
        part = index * parts // len(external)
        fields = {item.key: item for item in tensor.external_data}
        offset, length = int(fields["offset"].value), int(fields["length"].value)
        fields["location"].value, fields["offset"].value = names[part], str(len(pieces[part]))
        pieces[part] += data[offset : offset + length]
    for name, piece in zip(names, pieces, strict=True):
        (target / "onnx" / name).write_bytes(piece)
    (target / "onnx" / f"model{suffix}.onnx").write_bytes(graph.serialize(model))
    return target


def put_inside(tensor: TensorProto, data: bytes) -> None:
    place = {item.key: int(item.value) for item in tensor.external_data if item.key != "location"}
    tensor.raw_data = data[place["offset"] : place["offset"] + place["length"]]
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def with_positions(model: ModelProto) -> None:
    """The same graph, with position ids that attention takes."""
    value = model.graph.input.add(name="position_ids")
    value.type.tensor_type.elem_type = TensorProto.INT64
    for name in ("batch_size", "sequence_length"):
        value.type.tensor_type.shape.dim.add().dim_param = name
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend([""] * (10 - len(node.input)))
            node.input[9] = "position_ids"
