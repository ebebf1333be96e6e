"""A tiny random model in Kokoro's layout, and what the native onnxruntime makes of ids with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SYMBOLS", "VOICES", "make_voice", "native_samples"]

SYMBOLS = {
    symbol: place for place, symbol in enumerate('$;:,.!?—…"()“” abcdefhijklmnopstuvwxyzæðŋɑɔəɛɜɡɪɹɾʃʊʌʒʤʧˈˌːθᵊᵻAIOQWY')
}
"""The symbols of Kokoro's English phonemes, with ids of their own; $ is at the ends."""
VOICES = ("af_heart", "bf_emma", "ff_siwis")
HOP = 60
"""Samples of a phoneme at speed 1."""


def make_voice(folder: Path, dtype: str = "") -> Path:
    """The model's files: sounds depend on phonemes before and after, on the style and on the speed."""
    draw = np.random.default_rng(7)
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "voices").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "style_text_to_speech_2"}))
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": SYMBOLS, "unk_token": "$"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in VOICES:
        draw.standard_normal((510, 1, 256)).astype(np.float32).tofile(folder / f"voices/{name}.bin")
    weights = {
        "embedding": draw.standard_normal((len(SYMBOLS), 4)),
        "styling": 0.1 * draw.standard_normal((256, 4)),
        "w": 0.4 * draw.standard_normal((1, 16, 4)),
        "r": 0.4 * draw.standard_normal((1, 16, 4)),
        "spread": 0.3 * draw.standard_normal((4, 1, HOP)),
    }
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    constants += [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in {"one": [1], "flat": [1, -1]}.items()
    ]
    constants.append(numpy_helper.from_array(np.array([1], np.float32), "unit"))
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]),
        helper.make_node("MatMul", ["style", "styling"], ["styled"]),
        helper.make_node("Add", ["embedded", "styled"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["states"], hidden_size=4),
        helper.make_node("Squeeze", ["states", "one"], ["hidden"]),
        helper.make_node("Transpose", ["hidden"], ["channels"], perm=[1, 2, 0]),
        helper.make_node("ConvTranspose", ["channels", "spread"], ["wave"], strides=[HOP]),
        helper.make_node("Div", ["unit", "speed"], ["length"]),
        helper.make_node("Concat", ["unit", "unit", "length"], ["scales"], axis=0),
        helper.make_node("Resize", ["wave", "", "scales"], ["timed"], mode="linear"),
        helper.make_node("Tanh", ["timed"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "flat"], ["waveform"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "sequence_length"]),
        helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 256]),
        helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
    ]
    outputs = [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, [1, "num_samples"])]
    graph = helper.make_graph(nodes, "voice", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / f"onnx/model{dtype}.onnx")
    return folder


def native_samples(folder: Path, phonemes: str, voice: str, speed: float = 1.0) -> np.ndarray[Any, Any]:
    """The samples of one piece by the native onnxruntime."""
    styles = np.fromfile(folder / f"voices/{voice}.bin", np.float32).reshape(510, 1, 256)
    symbols = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ids = [symbols[symbol] for symbol in phonemes]
    session = onnxruntime.InferenceSession(next((folder / "onnx").iterdir()), providers=["CPUExecutionProvider"])
    given = {
        session.get_inputs()[0].name: np.array([[0, *ids, 0]], np.int64),
        "style": styles[len(ids) - 1],
        "speed": np.array([speed], np.float32),
    }
    found = session.run(None, given)[0]
    return np.asarray(found, np.float32).ravel()
